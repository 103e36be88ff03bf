//! `playhouse outbox`

use std::time::Duration;

use ::config::{Setting, Value as Configured};
use base::{Clock, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::Admin;
use super::{Misuse, Outcome, items, text};
use crate::answer;
use crate::cli::{Outbox, OutboxCommand, WhichEvents};

pub(super) async fn run(args: Outbox) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let ask = async |method: Method, path: String| admin.ask(method, &path).await;
    let shown = match &args.what {
        OutboxCommand::List { state, limit } => {
            let found = ask(Method::GET, format!("/outbox?state={state}&limit={limit}")).await?;
            if args.at.json { found.to_string() } else { list(&found) }
        }
        OutboxCommand::Blocked { limit } => {
            let found = ask(Method::GET, format!("/outbox/blocked?limit={limit}")).await?;
            if args.at.json { found.to_string() } else { blocked(&found) }
        }
        OutboxCommand::Show { event } => {
            let found = ask(Method::GET, path(event)).await?;
            if args.at.json { found.to_string() } else { show(&found) }
        }
        OutboxCommand::Retry { which } => {
            let found = ask(Method::POST, decision(which, "retry", Clock::system().now())?).await?;
            if args.at.json { found.to_string() } else { decided(&found, "tried again") }
        }
        OutboxCommand::Skip { which } => {
            let found = ask(Method::POST, decision(which, "skip", Clock::system().now())?).await?;
            if args.at.json { found.to_string() } else { decided(&found, "given up") }
        }
        OutboxCommand::Republish { since } => {
            let since = moment("since", since, Clock::system().now())?.to_rfc3339();
            let found = ask(Method::POST, format!("/outbox/republish?since={since}")).await?;
            if args.at.json {
                found.to_string()
            } else {
                format!("{} events that were published since {since} are published again", found["events"])
            }
        }
    };
    answer(&shown)?;
    Ok(Outcome::Done)
}

/// Where a decision on events is posted to.
fn decision(which: &WhichEvents, what: &str, now: Timestamp) -> Result<String, Misuse> {
    let WhichEvents { event, cause, since, until, key, all, dry_run } = which;
    if let Some(event) = event {
        return Ok(format!("{}/{what}", path(event)));
    }
    let time = |name: &'static str, text: &Option<String>| {
        let time = text.as_deref().map(|text| moment(name, text, now)).transpose()?;
        Ok(time.map(|time| (name, time.to_rfc3339())))
    };
    let given = [
        cause.clone().map(|cause| ("cause", cause)),
        time("since", since)?,
        time("until", until)?,
        key.clone().map(|key| ("key", key)),
        all.then(|| ("all", "true".to_owned())),
        dry_run.then(|| ("dry_run", "true".to_owned())),
    ];
    let given = given.into_iter().flatten();
    let given =
        given.map(|(name, value)| format!("{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
    Ok(format!("/outbox/{what}?{}", given.collect::<Vec<_>>().join("&")))
}

fn decided(found: &Value, what: &str) -> String {
    match (found["id"].as_str(), found["events"].as_u64(), found["dry_run"] == true) {
        (Some(id), _, _) => format!("{id} is {what}"),
        (None, events, true) => format!("{} failed events would be {what}", events.unwrap_or_default()),
        (None, events, false) => format!("{} failed events are {what}", events.unwrap_or_default()),
    }
}

/// A time, or how long ago it was.
pub(super) fn moment(option: &str, since: &str, now: Timestamp) -> Result<Timestamp, Misuse> {
    if let Ok(ago) = Duration::parse(&Configured::Text(since.to_owned())) {
        let ago: i64 = ago.as_millis().try_into().unwrap_or(i64::MAX);
        return Ok(Timestamp::from_millis(now.as_millis().saturating_sub(ago)));
    }
    since.parse().map_err(|_| {
        Misuse(format!(
            "--{option} {since}: expected a time such as 2026-03-01T12:00:00Z, or how long ago, such as 10m"
        ))
    })
}

fn path(event: &str) -> String {
    format!("/outbox/{}", utf8_percent_encode(event, NON_ALPHANUMERIC))
}

fn list(found: &Value) -> String {
    let events = items(found, "events");
    let mut lines =
        vec![format!("{:<36}  {:<10} {:<24}  {:>8}  {}", "event", "state", "appended", "attempts", "kind")];
    for event in events {
        lines.push(format!(
            "{:<36}  {:<10} {:<24}  {:>8}  {}",
            text(&event["id"]),
            text(&event["state"]),
            text(&event["created"]),
            event["attempts"].to_string(),
            kind(event),
        ));
        lines.extend(event["cause"].as_str().map(|cause| format!("{:38}{cause}", "")));
    }
    let count: u64 = events.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum();
    lines.push(format!("\n{count} events in {} rows", events.len()));
    lines.join("\n")
}

fn blocked(found: &Value) -> String {
    let keys = items(found, "keys");
    if keys.is_empty() {
        return "no key is blocked".to_owned();
    }
    let mut lines = Vec::new();
    for key in keys {
        lines.push(text(&key["key"]).to_owned());
        lines.push(format!(
            "  {} events wait behind {} since {}",
            key["waiting"],
            text(&key["id"]),
            text(&key["since"])
        ));
        lines.extend(key["cause"].as_str().map(|cause| format!("  {cause}")));
    }
    lines.push(
        "\n`playhouse outbox retry EVENT` tries it again, `skip EVENT` goes on without it; `--cause TEXT` or `--all` does so for many"
            .to_owned(),
    );
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let state = text(&found["state"]);
    let mut lines = vec![format!("{}  {state}", text(&found["id"]))];
    let due = match state {
        "PENDING" => "next attempt",
        "IN_FLIGHT" => "lease ends",
        _ => "since",
    };
    lines.push(format!("  number {}, key {}", found["number"], text(&found["key"])));
    lines.push(format!("  appended {}, {due} {}", text(&found["created"]), text(&found["due"])));
    lines.push(format!("  attempts {}", found["attempts"]));
    lines.extend(found["holder"].as_str().map(|holder| format!("  held by the process {holder}")));
    lines.extend(found["cause"].as_str().map(|cause| format!("  {cause}")));
    let content = if found["events"].is_null() { &found["event"] } else { &found["events"] };
    lines.push(format!("\n{}\n{content:#}", kind(found)));
    lines.join("\n")
}

/// The kind of the events in a row, and how many there are if it is a batch.
fn kind(row: &Value) -> String {
    match row["count"].as_u64() {
        Some(count @ 2..) => format!("{} ({count} events)", text(&row["kind"])),
        _ => text(&row["kind"]).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        let now = Timestamp::from_millis(1_772_366_400_000);
        let moment =
            |text| moment("since", text, now).map(Timestamp::to_rfc3339).map_err(|misuse| misuse.to_string());
        assert_eq!(moment("10m").unwrap(), "2026-03-01T11:50:00.000Z");
        assert_eq!(moment("2026-03-01T00:00:00+01:00").unwrap(), "2026-02-28T23:00:00.000Z");
        assert!(moment("yesterday").unwrap_err().contains("such as 10m"));
    }

    #[test]
    fn a_decision_names_one_event_or_says_which() {
        let now = Timestamp::from_millis(1_772_366_400_000);
        let nothing = || WhichEvents {
            event: None,
            cause: None,
            since: None,
            until: None,
            key: None,
            all: false,
            dry_run: false,
        };
        let one = WhichEvents { event: Some("12".to_owned()), ..nothing() };
        assert_eq!(decision(&one, "retry", now).unwrap(), "/outbox/12/retry");
        let some = WhichEvents {
            cause: Some("a & b".to_owned()),
            since: Some("1h".to_owned()),
            dry_run: true,
            ..nothing()
        };
        let expected = "/outbox/skip?cause=a%20%26%20b&since=2026%2D03%2D01T11%3A00%3A00%2E000Z&dry_run=true";
        assert_eq!(decision(&some, "skip", now).unwrap(), expected);
        let wrong = WhichEvents { until: Some("noon".to_owned()), ..nothing() };
        assert!(decision(&wrong, "retry", now).unwrap_err().to_string().contains("--until noon"));
    }
}
