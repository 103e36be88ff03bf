//! `playhouse webhooks`

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::Admin;
use super::{Outcome, items, text};
use crate::answer;
use crate::cli::{Webhooks, WebhooksCommand};

pub(super) async fn run(args: Webhooks) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let shown = match &args.what {
        WebhooksCommand::List => {
            let found = admin.ask(Method::GET, "/webhooks").await?;
            if args.at.json { found.to_string() } else { list(&found) }
        }
        WebhooksCommand::Enable { name } => {
            let path = format!("/webhooks/{}/enable", utf8_percent_encode(name, NON_ALPHANUMERIC));
            let found = admin.ask(Method::POST, &path).await?;
            if args.at.json { found.to_string() } else { enabled(&found) }
        }
    };
    answer(&shown)?;
    Ok(Outcome::Done)
}

fn list(found: &Value) -> String {
    let webhooks = items(found, "webhooks");
    if webhooks.is_empty() {
        return "no destinations: [notification.webhooks.NAME] in the configuration is one".to_owned();
    }
    let mut lines = Vec::new();
    for webhook in webhooks {
        let name = text(&webhook["name"]);
        let state = match (webhook["disabled_since"].as_str(), webhook["resting_until"].as_str()) {
            (Some(since), _) => format!("disabled since {since}"),
            (None, Some(until)) => format!("resting until {until}, {} waiting", webhook["waiting"]),
            (None, None) => "in use".to_owned(),
        };
        lines.push(format!("{name:<24} {state}"));
        lines.extend(webhook["cause"].as_str().map(|cause| format!("{:25}{cause}", "")));
    }
    if webhooks.iter().any(|webhook| webhook["resting_until"].is_string()) {
        lines.push("\nA destination that failed rests, for longer after each failure; then it is tried again by itself".to_owned());
    }
    if webhooks.iter().any(|webhook| webhook["disabled_since"].is_string()) {
        lines.push("\n`playhouse webhooks enable NAME` sends to it again".to_owned());
    }
    lines.join("\n")
}

fn enabled(found: &Value) -> String {
    let name = text(&found["name"]);
    if found["was_disabled"] == true {
        format!(
            "{name} is sent to again. What was for it meanwhile is a dead letter: `playhouse dlq replay --destination webhook:{name}`"
        )
    } else {
        format!("{name} was not disabled")
    }
}
