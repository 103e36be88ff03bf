//! `playhouse limits`

use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::{ExitStatus, items, text};
use crate::cli::Limits;
use crate::print;

pub(super) async fn run(args: Limits) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let found = admin.call(Method::GET, "/limits").await?;
    print(&if args.target.json { found.to_string() } else { show(&found) })?;
    Ok(ExitStatus::Done)
}

fn show(found: &Value) -> String {
    let since = format!("Process {} since {}", text(&found["process_id"]), text(&found["since"]));
    let rates = if found["has_gateway"] == true {
        let decided_by = match found["decided_by"].as_str() {
            Some("redis") => "shared by all processes through Redis",
            _ => "of this process alone",
        };
        format!(
            "Rate limits, {decided_by}\n{}\n\nMost refused in the last hour\n{}",
            rules(found),
            keys(found)
        )
    } else {
        "No rate limits: this process has no gateway. Ask one with the role gateway: --admin".to_owned()
    };
    format!("{since}\n\n{rates}\n\nConnections\n{}", connections(&found["connections"]))
}

fn rules(found: &Value) -> String {
    let periods = ["refused 1m", "1h", "start", "allowed 1m", "1h", "start"];
    let mut lines = vec![line(["rule", "counted by", "limit"], &periods)];
    for rule in items(found, "rules") {
        let numbers: Vec<String> = ["refused", "allowed"]
            .into_iter()
            .flat_map(|outcome| {
                ["last_minute", "last_hour", "since_start"].map(|period| rule[outcome][period].to_string())
            })
            .collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        lines.push(line([text(&rule["policy"]), text(&rule["key_kind"]), text(&rule["limit"])], &numbers));
    }
    lines.join("\n")
}

fn line([rule, kind, limit]: [&str; 3], numbers: &[&str]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:>10}")).collect();
    let (refused, allowed) = numbers.split_at(numbers.len() / 2);
    format!("  {rule:<10} {kind:<13} {limit:<16} {}  {}", refused.join(" "), allowed.join(" "))
}

fn keys(found: &Value) -> String {
    let keys = items(found, "most_refused");
    if keys.is_empty() {
        return "  nobody".to_owned();
    }
    let mut lines = vec![format!("  {:>10}  {:<10} {:<24}  caller", "refused", "rule", "last")];
    lines.extend(keys.iter().map(|key| {
        let more = if key["is_exact"] == true { "" } else { "+" };
        format!(
            "  {:>10}  {:<10} {:<24}  {} {}",
            format!("{}{more}", key["refused"]),
            text(&key["policy"]),
            text(&key["last"]),
            text(&key["key_kind"]),
            text(&key["key"])
        )
    }));
    lines.join("\n")
}

fn connections(found: &Value) -> String {
    let per_address = match found["max_per_address"].as_u64() {
        Some(0) | None => "no limit".to_owned(),
        Some(limit) => format!("at most {limit}"),
    };
    let mut lines = vec![
        format!("  at most {} per listener, {per_address} per address", found["max"]),
        format!("  {:<12} {:>8} {:>14} {:>17}", "listener", "open", "refused: full", "refused: address"),
    ];
    lines.extend(items(found, "listeners").iter().map(|listener| {
        format!(
            "  {:<12} {:>8} {:>14} {:>17}",
            text(&listener["listener"]),
            listener["open"].to_string(),
            listener["refused_full"].to_string(),
            listener["refused_address"].to_string()
        )
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_callers_and_connections_are_listed() {
        let counts = |minute: u64| json!({ "last_minute": minute, "last_hour": 20, "since_start": 300 });
        let listener = json!({ "listener": "gateway", "open": 3, "refused_full": 0, "refused_address": 4 });
        let found = json!({
            "process_id": "p1", "since": "2026-03-01T12:00:00.000Z", "has_gateway": true, "decided_by": "redis",
            "rules": [{
                "policy": "read", "key_kind": "user", "limit": "50/s burst 100", "refused": counts(1), "allowed": counts(2),
            }],
            "most_refused": [{
                "policy": "read", "key_kind": "user", "key": "u1", "refused": 7, "is_exact": false,
                "first": "2026-03-01T12:00:00.000Z", "last": "2026-03-01T12:00:01.000Z",
            }],
            "connections": { "max": 10_000, "max_per_address": 0, "listeners": [listener] },
        });
        let expected = [
            "Process p1 since 2026-03-01T12:00:00.000Z",
            "",
            "Rate limits, shared by all processes through Redis",
            "  rule       counted by    limit            refused 1m         1h      start  allowed 1m         1h      start",
            "  read       user          50/s burst 100            1         20        300           2         20        300",
            "",
            "Most refused in the last hour",
            "     refused  rule       last                      caller",
            "          7+  read       2026-03-01T12:00:01.000Z  user u1",
            "",
            "Connections",
            "  at most 10000 per listener, no limit per address",
            "  listener         open  refused: full  refused: address",
            "  gateway             3              0                 4",
        ];
        assert_eq!(show(&found), expected.join("\n"));
    }

    #[test]
    fn process_without_a_gateway_says_so() {
        let found =
            json!({ "process_id": "p1", "since": "t", "has_gateway": false, "connections": { "max": 1 } });
        let shown = show(&found);
        assert!(shown.contains("this process has no gateway"), "{shown}");
    }
}
