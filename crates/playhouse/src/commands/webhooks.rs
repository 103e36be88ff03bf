//! `playhouse webhooks`

use base::Clock;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::{AdminClient, query};
use super::outbox::parse_time;
use super::{ExitStatus, counted, items, jobs, text};
use crate::cli::{Webhooks, WebhooksCommand};
use crate::print;

pub(super) async fn run(args: Webhooks) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let shown = match &args.command {
        WebhooksCommand::List => {
            let found = admin.call(Method::GET, "/webhooks").await?;
            if args.target.json { found.to_string() } else { list(&found) }
        }
        WebhooksCommand::Enable { name } => {
            let path = format!("/webhooks/{}/enable", utf8_percent_encode(name, NON_ALPHANUMERIC));
            let found = admin.call(Method::POST, &path).await?;
            if args.target.json { found.to_string() } else { enabled(&found) }
        }
        WebhooksCommand::Test { name } => {
            let path = format!("/webhooks/{}/test", utf8_percent_encode(name, NON_ALPHANUMERIC));
            let found = admin.call(Method::POST, &path).await?;
            print(&if args.target.json { found.to_string() } else { tested(&found) })?;
            return Ok(if found["delivered"] == true { ExitStatus::Done } else { ExitStatus::Failed });
        }
        WebhooksCommand::Recover { name, since, rate, expected } => {
            let since = parse_time("since", since, Clock::system().now())?.to_rfc3339();
            let (rate, expected) = (rate.to_string(), expected.map(|expected| expected.to_string()));
            let path = format!("/webhooks/{}/recover", utf8_percent_encode(name, NON_ALPHANUMERIC));
            let given = [("since", Some(&since)), ("rate", Some(&rate)), ("expected", expected.as_ref())];
            let started = admin.call(Method::POST, &query(&path, given)).await?;
            let job = jobs::wait(&admin, &started).await?;
            let shown = |job: &Value| {
                format!(
                    "delivering {} to {name} again, given up since {since}",
                    counted(&job["done"], "message")
                )
            };
            return jobs::finished(&job, args.target.json, shown);
        }
    };
    print(&shown)?;
    Ok(ExitStatus::Done)
}

fn list(found: &Value) -> String {
    let webhooks = items(found, "webhooks");
    if webhooks.is_empty() {
        return "No destinations: add a table [notification.webhooks.NAME] to the configuration.".to_owned();
    }
    let mut lines = Vec::new();
    for webhook in webhooks {
        let name = text(&webhook["name"]);
        let state = match (webhook["disabled_since"].as_str(), webhook["resting_until"].as_str()) {
            (Some(since), _) => format!("disabled since {since}"),
            (None, Some(until)) => format!("paused until {until}, {} waiting", webhook["waiting"]),
            (None, None) => "in use".to_owned(),
        };
        lines.push(format!("{name:<24} {state}"));
        lines.extend(webhook["cause"].as_str().map(|cause| format!("{:25}{cause}", "")));
    }
    if webhooks.iter().any(|webhook| webhook["resting_until"].is_string()) {
        lines.push(
            "\nA destination that failed is paused, for longer after each failure. Then it is tried again."
                .to_owned(),
        );
    }
    if webhooks.iter().any(|webhook| webhook["disabled_since"].is_string()) {
        lines.push("\n`playhouse webhooks enable NAME` enables a destination again.".to_owned());
    }
    lines.join("\n")
}

fn tested(found: &Value) -> String {
    let name = text(&found["name"]);
    match found["cause"].as_str() {
        None => format!("{name} accepted the test message within {} ms", found["milliseconds"]),
        Some(cause) => format!("{name} did not accept the test message: {cause}"),
    }
}

fn enabled(found: &Value) -> String {
    let name = text(&found["name"]);
    if found["was_disabled"] == true {
        format!(
            "{name} is enabled. Deliveries from the meantime are dead letters: `playhouse dlq replay --destination webhook:{name}`"
        )
    } else {
        format!("{name} was not disabled")
    }
}
