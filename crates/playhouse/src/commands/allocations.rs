//! `playhouse allocations`

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::{ExitStatus, counted, items, text};
use crate::cli::{Allocations, AllocationsCommand};
use crate::print;

pub(super) async fn run(args: Allocations) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let (found, shown) = match &args.command {
        AllocationsCommand::List { state, limit } => {
            let found = admin.call(Method::GET, &format!("/allocations?state={state}&limit={limit}")).await?;
            let shown = list(&found);
            (found, shown)
        }
        AllocationsCommand::Retry { match_id: Some(id), .. } => {
            let found = admin.call(Method::POST, &format!("{}/retry", path(id))).await?;
            let shown = format!("the call for {} will be sent again", text(&found["match_id"]));
            (found, shown)
        }
        AllocationsCommand::Retry { match_id: None, .. } => {
            let found = admin.call(Method::POST, "/allocations/retry").await?;
            let shown = format!("{} will be sent again", counted(&found["retried"], "call"));
            (found, shown)
        }
        AllocationsCommand::Skip { match_id } => {
            let found = admin.call(Method::POST, &format!("{}/skip", path(match_id))).await?;
            let shown = format!("the call for {} is skipped", text(&found["match_id"]));
            (found, shown)
        }
    };
    print(&if args.target.json { found.to_string() } else { shown })?;
    Ok(ExitStatus::Done)
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
