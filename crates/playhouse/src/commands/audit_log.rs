//! `playhouse audit-log`

use base::{Clock, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::outbox::parse_time;
use super::{ExitStatus, UsageError, items, text};
use crate::cli::{AuditFilter, AuditLog, AuditLogCommand};
use crate::print;

/// How many entries an export reads per request.
const PAGE: u32 = 1_000;

pub(super) async fn run(args: AuditLog) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let now = Clock::system().now();
    match &args.command {
        AuditLogCommand::List { filter, before, limit } => {
            let before = before.map(|number| format!("&before={number}")).unwrap_or_default();
            let path = format!("/audit?limit={limit}{before}{}", query(filter, now)?);
            let found = admin.call(Method::GET, &path).await?;
            print(&if args.target.json { found.to_string() } else { list(&found) })?;
        }
        AuditLogCommand::Export { filter, after } => {
            let (filter, mut after) = (query(filter, now)?, *after);
            loop {
                let path = format!("/audit?limit={PAGE}&after={after}{filter}");
                let found = admin.call(Method::GET, &path).await?;
                for entry in items(&found, "entries") {
                    print(&entry.to_string())?;
                }
                match found["next"].as_i64() {
                    Some(next) => after = next,
                    None => break,
                }
            }
        }
    }
    Ok(ExitStatus::Done)
}

fn query(filter: &AuditFilter, now: Timestamp) -> Result<String, UsageError> {
    let AuditFilter { actor, action, target, since, until, outcome } = filter;
    let time = |name: &str, text: &Option<String>| {
        text.as_deref().map(|text| parse_time(name, text, now).map(Timestamp::to_rfc3339)).transpose()
    };
    let given = [
        ("actor", actor.clone()),
        ("action", action.clone()),
        ("target", target.clone()),
        ("since", time("since", since)?),
        ("until", time("until", until)?),
        ("outcome", outcome.clone()),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let given =
        given.map(|(name, value)| format!("&{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
    Ok(given.collect())
}

fn list(found: &Value) -> String {
    let entries = items(found, "entries");
    let mut lines =
        vec![format!("{:>8}  {:<24}  {:<20}  {:<10} {}", "number", "when", "who", "outcome", "what")];
    for entry in entries {
        let actor = &entry["actor"];
        let who = match text(&actor["kind"]) {
            "operator" => text(&actor["name"]).to_owned(),
            kind => format!("{kind}:{}", text(&actor["name"])),
        };
        lines.push(format!(
            "{:>8}  {:<24}  {who:<20}  {:<10} {}",
            entry["number"].to_string(),
            text(&entry["at"]),
            text(&entry["outcome"]),
            what(text(&entry["action"]), text(&entry["target"])),
        ));
        lines.extend(entry["note"].as_str().map(|note| format!("{:10}{note}", "")));
    }
    lines.push(format!("\n{}", base::counted(entries.len(), "entry")));
    lines.extend(found["next"].as_i64().map(|next| format!("Next page: --before {next}")));
    lines.join("\n")
}

/// Returns the request of an action: the method and the path that was called. Other actions, such as a sign-in, are texts.
fn what(action: &str, target: &str) -> String {
    match action.split_once(' ') {
        Some((method, route)) if route.starts_with('/') => format!("{method} {target}"),
        _ => action.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_shown_with_their_path_and_other_actions_as_they_are() {
        let entry = |action: &str, target: &str| {
            json!({ "number": 1, "at": "2026-03-01T12:00:00.120Z", "outcome": "done", "action": action, "target": target,
                    "actor": { "kind": "operator", "name": "grace" } })
        };
        let shown = list(&json!({ "entries": [
            entry("POST /users/{user_id}/ban", "/users/7/ban"),
            entry("sign in at the console", "/console/sign-in/callback"),
        ] }));
        assert!(shown.contains("done       POST /users/7/ban\n"), "{shown}");
        assert!(shown.contains("done       sign in at the console\n"), "{shown}");
    }
}
