//! `playhouse status`

use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::{ExitStatus, items, text};
use crate::cli::Status;
use crate::print;

pub(super) async fn run(args: Status) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let found = admin.call(Method::GET, "/status").await?;
    print(&if args.target.json { found.to_string() } else { show(&found) })?;
    Ok(if found["healthy"] == true { ExitStatus::Done } else { ExitStatus::Failed })
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
            duration(process["uptime_seconds"].as_u64().unwrap_or_default()),
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
    let count = |verdict: &str| {
        items(found, "findings").iter().filter(|finding| finding["verdict"] == verdict).count()
    };
    let warnings = base::counted(count("warning"), "warning");
    lines.push(format!("\n{} failed, {warnings}", count("failure")));
    lines.join("\n")
}

/// Returns the lines of a finding: the finding, and the advice if there is any.
fn finding_lines(finding: &Value) -> Vec<String> {
    let mark = match text(&finding["verdict"]) {
        "good" => "ok",
        "warning" => "warn",
        _ => "FAIL",
    };
    let first = format!("  {mark:<5} {:<12} {}", text(&finding["part"]), text(&finding["what"]));
    let advice = finding["advice"].as_str().map(|advice| format!("{:21}→ {advice}", ""));
    std::iter::once(first).chain(advice).collect()
}

/// Formats a duration in its largest two units.
fn duration(seconds: u64) -> String {
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
    fn durations_have_at_most_two_units() {
        assert_eq!([5, 65, 3_700, 90_000].map(duration), ["5s", "1m5s", "1h1m", "1d1h"]);
    }

    #[test]
    fn failures_come_with_advice() {
        let found = json!({
            "processes": [{
                "process_id": "p", "state": "running", "version": "1", "roles": ["gateway"], "admin": "a:1",
                "uptime_seconds": 1, "leases": { "outbox": 2 },
            }],
            "findings": [{ "part": "fleet", "verdict": "failure", "what": "no engine", "advice": "start one" }],
        });
        let shown = show(&found);
        for part in ["holds 2 of outbox", "FAIL  fleet", "→ start one", "1 failed, 0 warnings"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
