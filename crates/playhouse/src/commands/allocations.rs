//! `playhouse allocations`

use base::{Clock, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::{AdminClient, query};
use super::outbox::parse_time;
use super::{ExitStatus, UsageError, counted, items, jobs, text};
use crate::cli::{Allocations, AllocationsCommand, CallSelection};
use crate::print;

pub(super) async fn run(args: Allocations) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let (found, shown) = match &args.command {
        AllocationsCommand::List { state, limit } => {
            let found = admin.call(Method::GET, &format!("/allocations?state={state}&limit={limit}")).await?;
            let shown = list(&found);
            (found, shown)
        }
        AllocationsCommand::Retry { selection: CallSelection { match_id: Some(id), .. } } => {
            let found = admin.call(Method::POST, &format!("{}/retry", path(id))).await?;
            let shown = format!("the call for {} will be sent again", text(&found["match_id"]));
            (found, shown)
        }
        AllocationsCommand::Retry { selection } => return retry(&admin, selection, args.target.json).await,
        AllocationsCommand::Skip { match_id } => {
            let found = admin.call(Method::POST, &format!("{}/skip", path(match_id))).await?;
            let shown = format!("the call for {} is skipped", text(&found["match_id"]));
            (found, shown)
        }
    };
    print(&if args.target.json { found.to_string() } else { shown })?;
    Ok(ExitStatus::Done)
}

/// Starts the job that sends failed calls again, and waits for it; or counts them.
async fn retry(admin: &AdminClient, selection: &CallSelection, json: bool) -> anyhow::Result<ExitStatus> {
    let now = Clock::system().now();
    let time = |name, text: &Option<String>| {
        let time = text.as_deref().map(|text| parse_time(name, text, now)).transpose()?;
        Ok::<_, UsageError>(time.map(Timestamp::to_rfc3339))
    };
    let (since, until) = (time("since", &selection.since)?, time("until", &selection.until)?);
    let (expected, yes) = (selection.expected.map(|expected| expected.to_string()), "true".to_owned());
    let given = [
        ("assigner", selection.assigner.as_ref()),
        ("cause", selection.cause.as_ref()),
        ("since", since.as_ref()),
        ("until", until.as_ref()),
        ("all", selection.all.then_some(&yes)),
        ("expected", expected.as_ref()),
        ("dry_run", selection.dry_run.then_some(&yes)),
    ];
    let found = admin.call(Method::POST, &query("/allocations/retry", given)).await?;
    if found["job_id"].is_null() {
        let shown = format!("{} would be sent again", counted(&found["calls"], "failed call"));
        print(&if json { found.to_string() } else { shown })?;
        return Ok(ExitStatus::Done);
    }
    let job = jobs::wait(admin, &found).await?;
    jobs::finished(&job, json, |job| format!("{} will be sent again", counted(&job["done"], "call")))
}

fn path(id: &str) -> String {
    format!("/allocations/{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

fn list(found: &Value) -> String {
    let abandoned = items(found, "abandoned");
    if abandoned.is_empty() {
        return "No abandoned matches.".to_owned();
    }
    let head = format!("{:<36}  {:<9}  {:<10}  {:>8}  assigner", "match", "state", "reason", "attempts");
    let line = |call: &Value| {
        let cause = call["cause"].as_str().map(|cause| format!("\n  {cause}")).unwrap_or_default();
        format!(
            "{:<36}  {:<9}  {:<10}  {:>8}  {}{cause}",
            text(&call["match_id"]),
            text(&call["state"]),
            text(&call["reason"]),
            call["attempts"],
            text(&call["assigner"]),
        )
    };
    std::iter::once(head).chain(abandoned.iter().map(line)).collect::<Vec<_>>().join("\n")
}
