//! `playhouse audit-log`

use base::{Clock, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::admin::Admin;
use super::outbox::moment;
use super::{Misuse, Outcome, items, text};
use crate::answer;
use crate::cli::{AuditLog, AuditLogCommand, WhichEntries};

/// How many entries an export reads at once.
const PAGE: u32 = 1_000;

pub(super) async fn run(args: AuditLog) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let now = Clock::system().now();
    match &args.what {
        AuditLogCommand::List { which, before, limit } => {
            let before = before.map(|number| format!("&before={number}")).unwrap_or_default();
            let path = format!("/audit?limit={limit}{before}{}", query(which, now)?);
            let found = admin.ask(Method::GET, &path).await?;
            answer(&if args.at.json { found.to_string() } else { list(&found) })?;
        }
        AuditLogCommand::Export { which, after } => {
            let (which, mut after) = (query(which, now)?, *after);
            loop {
                let path = format!("/audit?limit={PAGE}&after={after}{which}");
                let found = admin.ask(Method::GET, &path).await?;
                for entry in items(&found, "entries") {
                    answer(&entry.to_string())?;
                }
                match found["next"].as_i64() {
                    Some(next) => after = next,
                    None => break,
                }
            }
        }
    }
    Ok(Outcome::Done)
}

fn query(which: &WhichEntries, now: Timestamp) -> Result<String, Misuse> {
    let WhichEntries { actor, action, target, since, until, outcome } = which;
    let time = |name: &str, text: &Option<String>| {
        text.as_deref().map(|text| moment(name, text, now).map(Timestamp::to_rfc3339)).transpose()
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
            "{:>8}  {:<24}  {who:<20}  {:<10} {} {}",
            entry["number"].to_string(),
            text(&entry["at"]),
            text(&entry["outcome"]),
            text(&entry["action"]).split(' ').next().unwrap_or_default(),
            text(&entry["target"]),
        ));
        lines.extend(entry["note"].as_str().map(|note| format!("{:10}{note}", "")));
    }
    lines.push(format!("\n{} entries", entries.len()));
    lines.extend(found["next"].as_i64().map(|next| format!("more with --before {next}")));
    lines.join("\n")
}
