//! `playhouse allocations`

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::Admin;
use super::{Outcome, items, text};
use crate::answer;
use crate::cli::{Allocations, AllocationsCommand};

pub(super) async fn run(args: Allocations) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let (found, shown) = match &args.what {
        AllocationsCommand::List { state, limit } => {
            let found = admin.ask(Method::GET, &format!("/allocations?state={state}&limit={limit}")).await?;
            let shown = list(&found);
            (found, shown)
        }
        AllocationsCommand::Retry { match_id: Some(id), .. } => {
            let found = admin.ask(Method::POST, &format!("{}/retry", path(id))).await?;
            let shown = format!("{} is tried again", text(&found["match_id"]));
            (found, shown)
        }
        AllocationsCommand::Retry { match_id: None, .. } => {
            let found = admin.ask(Method::POST, "/allocations/retry").await?;
            let shown = format!("tried again: {}", found["retried"]);
            (found, shown)
        }
        AllocationsCommand::Skip { match_id } => {
            let found = admin.ask(Method::POST, &format!("{}/skip", path(match_id))).await?;
            let shown = format!("{} is given up", text(&found["match_id"]));
            (found, shown)
        }
    };
    answer(&if args.at.json { found.to_string() } else { shown })?;
    Ok(Outcome::Done)
}

fn path(id: &str) -> String {
    format!("/allocations/{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

fn list(found: &Value) -> String {
    let abandoned = items(found, "abandoned");
    if abandoned.is_empty() {
        return "no match was abandoned".to_owned();
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
