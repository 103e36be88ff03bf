//! `playhouse status`

use reqwest::Method;
use serde_json::Value;

use super::admin::Admin;
use super::{Outcome, items, text};
use crate::answer;
use crate::cli::Status;

pub(super) async fn run(args: Status) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let found = admin.ask(Method::GET, "/status").await?;
    answer(&if args.at.json { found.to_string() } else { show(&found) })?;
    Ok(if found["healthy"] == true { Outcome::Done } else { Outcome::Failed })
}

fn show(found: &Value) -> String {
    let mut lines = vec![format!(
        "{:<36}  {:<8} {:<9} {:>8}  {:<21}  {}",
        "process", "state", "version", "up", "admin", "roles"
    )];
    for process in items(found, "processes") {
        let roles: Vec<&str> = items(process, "roles").iter().map(text).collect();
        lines.push(format!(
            "{:<36}  {:<8} {:<9} {:>8}  {:<21}  {}",
            text(&process["process_id"]),
            text(&process["state"]),
            text(&process["version"]),
            length(process["uptime_seconds"].as_u64().unwrap_or_default()),
            text(&process["admin"]),
            roles.join(","),
        ));
        let leases = process["leases"].as_object().into_iter().flatten();
        let leases: Vec<String> = leases.map(|(queue, items)| format!("{items} of {queue}")).collect();
        if !leases.is_empty() {
            lines.push(format!("{:38}holds {}", "", leases.join(", ")));
        }
    }
    lines.push(String::new());
    for finding in items(found, "findings") {
        lines.extend(finding_lines(finding));
    }
    let count =
        |verdict: &str| items(found, "findings").iter().filter(|one| one["verdict"] == verdict).count();
    lines.push(format!("\n{} failed, {} to mind", count("failure"), count("warning")));
    lines.join("\n")
}

/// A finding, and what to do about it.
fn finding_lines(finding: &Value) -> Vec<String> {
    let mark = match text(&finding["verdict"]) {
        "good" => "ok",
        "warning" => "mind",
        _ => "FAIL",
    };
    let first = format!("  {mark:<5} {:<12} {}", text(&finding["part"]), text(&finding["what"]));
    let advice = finding["advice"].as_str().map(|advice| format!("{:21}→ {advice}", ""));
    std::iter::once(first).chain(advice).collect()
}

/// A length of time in the largest two units.
fn length(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lengths_are_short() {
        assert_eq!([5, 65, 3_700, 90_000].map(length), ["5s", "1m5s", "1h1m", "1d1h"]);
    }

    #[test]
    fn what_fails_comes_with_what_to_do() {
        let found = json!({
            "processes": [{
                "process_id": "p", "state": "running", "version": "1", "roles": ["gateway"], "admin": "a:1",
                "uptime_seconds": 1, "leases": { "outbox": 2 },
            }],
            "findings": [{ "part": "fleet", "verdict": "failure", "what": "no engine", "advice": "start one" }],
        });
        let shown = show(&found);
        for part in ["holds 2 of outbox", "FAIL  fleet", "→ start one", "1 failed, 0 to mind"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
