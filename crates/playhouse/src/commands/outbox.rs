//! `playhouse outbox`

use std::time::Duration;

use ::config::{Setting, Value as Configured};
use base::{Clock, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::{AdminClient, query};
use super::{ExitStatus, UsageError, counted, items, jobs, text};
use crate::cli::{EventSelection, Outbox, OutboxCommand};
use crate::print;

pub(super) async fn run(args: Outbox) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let call = async |method: Method, path: String| admin.call(method, &path).await;
    let shown = match &args.command {
        OutboxCommand::List { state, limit } => {
            let found = call(Method::GET, format!("/outbox?state={state}&limit={limit}")).await?;
            if args.target.json { found.to_string() } else { list(&found) }
        }
        OutboxCommand::Blocked { limit } => {
            let found = call(Method::GET, format!("/outbox/blocked?limit={limit}")).await?;
            if args.target.json { found.to_string() } else { blocked(&found) }
        }
        OutboxCommand::Show { event } => {
            let found = call(Method::GET, path(event)).await?;
            if args.target.json { found.to_string() } else { show(&found) }
        }
        OutboxCommand::Retry { selection } => {
            return decide(&admin, selection, ("retry", "retried"), args.target.json).await;
        }
        OutboxCommand::Skip { selection } => {
            return decide(&admin, selection, ("skip", "skipped"), args.target.json).await;
        }
        OutboxCommand::Republish { since, until, expected } => {
            let now = Clock::system().now();
            let since = parse_time("since", since, now)?.to_rfc3339();
            let until = until.as_deref().map(|until| parse_time("until", until, now)).transpose()?;
            let until = until.map(Timestamp::to_rfc3339);
            let expected = expected.map(|expected| expected.to_string());
            let given = [("since", Some(&since)), ("until", until.as_ref()), ("expected", expected.as_ref())];
            let started = call(Method::POST, query("/outbox/republish", given)).await?;
            let job = jobs::wait(&admin, &started).await?;
            let shown = |job: &Value| {
                format!("publishing {} again, published since {since}", counted(&job["done"], "event"))
            };
            return jobs::finished(&job, args.target.json, shown);
        }
    };
    print(&shown)?;
    Ok(ExitStatus::Done)
}

/// Posts a decision about one event, or about several as a job that it waits for.
async fn decide(
    admin: &AdminClient,
    selection: &EventSelection,
    (action, done): (&str, &str),
    json: bool,
) -> anyhow::Result<ExitStatus> {
    let found = admin.call(Method::POST, &decision(selection, action, Clock::system().now())?).await?;
    if found["job_id"].is_null() {
        print(&if json { found.to_string() } else { decided(&found, done) })?;
        return Ok(ExitStatus::Done);
    }
    let job = jobs::wait(admin, &found).await?;
    jobs::finished(&job, json, |job| format!("{done} {}", counted(&job["done"], "failed event")))
}

/// Returns the path that a decision about events is posted to.
fn decision(selection: &EventSelection, what: &str, now: Timestamp) -> Result<String, UsageError> {
    let EventSelection { event, cause, kind, since, until, key, all, expected, dry_run } = selection;
    if let Some(event) = event {
        return Ok(format!("{}/{what}", path(event)));
    }
    let time = |name: &'static str, text: &Option<String>| {
        let time = text.as_deref().map(|text| parse_time(name, text, now)).transpose()?;
        Ok(time.map(|time| (name, time.to_rfc3339())))
    };
    let given = [
        cause.clone().map(|cause| ("cause", cause)),
        kind.clone().map(|kind| ("kind", kind)),
        time("since", since)?,
        time("until", until)?,
        key.clone().map(|key| ("key", key)),
        all.then(|| ("all", "true".to_owned())),
        expected.map(|expected| ("expected", expected.to_string())),
        dry_run.then(|| ("dry_run", "true".to_owned())),
    ];
    let given = given.into_iter().flatten();
    let given =
        given.map(|(name, value)| format!("{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
    Ok(format!("/outbox/{what}?{}", given.collect::<Vec<_>>().join("&")))
}

fn decided(found: &Value, what: &str) -> String {
    let events = counted(&found["events"], "failed event");
    match found["id"].as_str() {
        Some(id) => format!("{id} is {what}"),
        None => format!("{events} would be {what}"),
    }
}

/// Parses a time, or a duration that counts back from now.
pub(super) fn parse_time(option: &str, since: &str, now: Timestamp) -> Result<Timestamp, UsageError> {
    if let Ok(ago) = Duration::parse(&Configured::Text(since.to_owned())) {
        let ago: i64 = ago.as_millis().try_into().unwrap_or(i64::MAX);
        return Ok(Timestamp::from_millis(now.as_millis().saturating_sub(ago)));
    }
    since.parse().map_err(|_| {
        UsageError(format!(
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
    lines.push(format!("\n{} in {}", base::counted(count, "event"), base::counted(events.len(), "row")));
    lines.join("\n")
}

fn blocked(found: &Value) -> String {
    let keys = items(found, "keys");
    if keys.is_empty() {
        return "No key is blocked.".to_owned();
    }
    let mut lines = Vec::new();
    for key in keys {
        lines.push(text(&key["key"]).to_owned());
        lines.push(format!(
            "  {} waiting behind {} since {}",
            counted(&key["waiting"], "event"),
            text(&key["id"]),
            text(&key["since"])
        ));
        lines.extend(key["cause"].as_str().map(|cause| format!("  {cause}")));
    }
    lines.push(
        "\n`playhouse outbox retry EVENT` publishes it again, `skip EVENT` continues without it. `--cause TEXT` or `--all` selects several."
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
    let behind = |id| format!("  waits behind the failed event {id}: `playhouse outbox show {id}`");
    lines.extend(found["waits_behind"].as_str().map(behind));
    lines.extend(found["holder"].as_str().map(|holder| format!("  claimed by process {holder}")));
    lines.extend(found["cause"].as_str().map(|cause| format!("  {cause}")));
    let content = if found["events"].is_null() { &found["event"] } else { &found["events"] };
    lines.push(format!("\n{}\n{content:#}", kind(found)));
    lines.join("\n")
}

/// Returns the kind of the events in a row, and their number if it is a batch.
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
    fn since_accepts_a_time_or_a_duration() {
        let now = Timestamp::from_millis(1_772_366_400_000);
        let parse_time = |text| {
            parse_time("since", text, now).map(Timestamp::to_rfc3339).map_err(|error| error.to_string())
        };
        assert_eq!(parse_time("10m").unwrap(), "2026-03-01T11:50:00.000Z");
        assert_eq!(parse_time("2026-03-01T00:00:00+01:00").unwrap(), "2026-02-28T23:00:00.000Z");
        assert!(parse_time("yesterday").unwrap_err().contains("such as 10m"));
    }

    #[test]
    fn decision_names_one_event_or_a_selection() {
        let now = Timestamp::from_millis(1_772_366_400_000);
        let nothing = || EventSelection {
            event: None,
            cause: None,
            kind: None,
            since: None,
            until: None,
            key: None,
            all: false,
            expected: None,
            dry_run: false,
        };
        let one = EventSelection { event: Some("12".to_owned()), ..nothing() };
        assert_eq!(decision(&one, "retry", now).unwrap(), "/outbox/12/retry");
        let some = EventSelection {
            cause: Some("a & b".to_owned()),
            since: Some("1h".to_owned()),
            dry_run: true,
            ..nothing()
        };
        let expected = "/outbox/skip?cause=a%20%26%20b&since=2026%2D03%2D01T11%3A00%3A00%2E000Z&dry_run=true";
        assert_eq!(decision(&some, "skip", now).unwrap(), expected);
        let wrong = EventSelection { until: Some("noon".to_owned()), ..nothing() };
        assert!(decision(&wrong, "retry", now).unwrap_err().to_string().contains("--until noon"));
    }
}
