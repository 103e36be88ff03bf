//! `playhouse broadcasts`

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;
use tokio::time::sleep;

use super::admin::Admin;
use super::{Outcome, items, text};
use crate::answer;
use crate::cli::{Broadcasts, BroadcastsCommand};

/// Between two looks at a broadcast that is watched.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: Broadcasts) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let say = |found: &Value, words: fn(&Value) -> String| {
        if args.at.json { found.to_string() } else { words(found) }
    };
    let shown = match &args.what {
        BroadcastsCommand::List { state, limit } => {
            let path = format!("/broadcasts?state={state}&limit={limit}");
            say(&admin.ask(Method::GET, &path).await?, list)
        }
        BroadcastsCommand::Show { broadcast, watch } => {
            let mut found = admin.ask(Method::GET, &path(broadcast)).await?;
            while *watch && goes_on(&found) {
                answer(&say(&found, show))?;
                sleep(INTERVAL).await;
                found = admin.ask(Method::GET, &path(broadcast)).await?;
            }
            say(&found, show)
        }
        BroadcastsCommand::Stop { broadcast } => {
            say(&admin.ask(Method::POST, &format!("{}/stop", path(broadcast))).await?, stopped)
        }
        BroadcastsCommand::Resume { broadcast } => {
            say(&admin.ask(Method::POST, &format!("{}/resume", path(broadcast))).await?, resumed)
        }
    };
    answer(&shown)?;
    Ok(Outcome::Done)
}

fn path(broadcast: &str) -> String {
    format!("/broadcasts/{}", utf8_percent_encode(broadcast, NON_ALPHANUMERIC))
}

fn goes_on(found: &Value) -> bool {
    matches!(found["state"].as_str(), Some("PENDING" | "PROCESSING"))
}

fn list(found: &Value) -> String {
    let broadcasts = items(found, "broadcasts");
    if broadcasts.is_empty() {
        return "no such broadcasts: those that are done are forgotten after notification.delivery.retention"
            .to_owned();
    }
    broadcasts.iter().map(show).collect::<Vec<_>>().join("\n")
}

fn show(found: &Value) -> String {
    let (id, state, told) = (text(&found["id"]), text(&found["state"]), &found["told"]);
    let title = text(&found["title"]);
    let mut line = format!("{id}  {state:<10} told {told:>9}  {}  {title:?}", text(&found["created"]));
    if let Some(cause) = found["cause"].as_str() {
        line.push_str(&format!("\n{:38}attempt {}: {cause}", "", found["attempts"]));
    }
    line
}

fn stopped(found: &Value) -> String {
    let id = text(&found["id"]);
    format!("{id} is stopped; {} were told. `playhouse broadcasts resume {id}` goes on", found["told"])
}

fn resumed(found: &Value) -> String {
    format!("{} goes on; {} were told before", text(&found["id"]), found["told"])
}
