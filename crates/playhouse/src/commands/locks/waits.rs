//! `playhouse locks waits`: who waits and who blocks now. `playhouse locks end`: ends a session in the way.

use reqwest::Method;
use serde_json::Value;

use crate::cli::{ConfigArgs, OperatorArgs};
use crate::commands::admin::AdminClient;
use crate::commands::{ExitStatus, items, text};
use crate::print;

pub(super) async fn run(
    from: &ConfigArgs,
    admin: Option<&str>,
    operator: &OperatorArgs,
    limit: usize,
) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(admin, from, operator)?;
    let found = admin.call(Method::GET, &format!("/locks/waits?limit={limit}")).await?;
    print(&show(&found))?;
    Ok(if found["waits"].is_null() { ExitStatus::Failed } else { ExitStatus::Done })
}

pub(super) async fn end(
    from: &ConfigArgs,
    admin: Option<&str>,
    operator: &OperatorArgs,
    session: u64,
) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(admin, from, operator)?;
    admin.call(Method::POST, &format!("/locks/sessions/{session}/end")).await?;
    print(&format!("Session {session} is ended"))?;
    Ok(ExitStatus::Done)
}

fn show(found: &Value) -> String {
    let process = text(&found["process_id"]);
    if found["locks"] == "process" {
        let heading =
            format!("Waiting now (the database is embedded, so all locks are in process {process})");
        return format!("{heading}\n{}", in_process(found));
    }
    let waits = match found["missing_privilege"].as_object() {
        Some(missing) => {
            let mut lines =
                vec![format!("  unknown: {}. Grant to the database user:", text(&missing["cause"]))];
            lines.extend(
                missing["grants"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|grant| format!("    {}", text(grant))),
            );
            lines.join("\n")
        }
        None => sessions(found),
    };
    format!(
        "Waiting now (from the server's own tables, for all processes)\n{waits}\n\n\
         Waiting for their turn in process {process}\n{}",
        queue(found)
    )
}

fn sessions(found: &Value) -> String {
    let lines = items(found, "waits").iter().map(|wait| {
        let blocked_by = items(wait, "blocked_by").iter().map(ToString::to_string).collect::<Vec<_>>();
        format!(
            "  {:<10} {:>10} {:>10}  {:<24}  {}",
            text(&wait["level"]),
            wait["bucket"].to_string(),
            wait["session"].to_string(),
            wait["since"].as_str().unwrap_or("just now"),
            blocked_by.join(", ")
        )
    });
    let heading =
        format!("  {:<10} {:>10} {:>10}  {:<24}  behind session", "level", "bucket", "session", "since");
    with_heading(heading, lines)
}

fn in_process(found: &Value) -> String {
    let lines = items(found, "waits").iter().map(|wait| {
        let holders = match wait["shared_holders"].as_u64().unwrap_or_default() {
            0 => "1 exclusive holder".to_owned(),
            shared => base::counted(shared, "shared holder"),
        };
        format!(
            "  {:<10} {:>10} {:>6}  {:<24}  {holders:<18}  {}",
            text(&wait["level"]),
            wait["bucket"].to_string(),
            wait["ahead"].to_string(),
            text(&wait["since"]),
            text(&wait["target"])
        )
    });
    let heading = format!(
        "  {:<10} {:>10} {:>6}  {:<24}  {:<18}  target",
        "level", "bucket", "ahead", "since", "held by"
    );
    with_heading(heading, lines)
}

fn queue(found: &Value) -> String {
    let lines = items(found, "queue").iter().map(|wait| {
        format!("  {:<24}  {}: {}", text(&wait["since"]), text(&wait["target"]), text(&wait["reason"]))
    });
    with_heading(format!("  {:<24}  target", "since"), lines)
}

/// Puts a heading above the lines. Returns `none` without lines.
fn with_heading(heading: String, lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { "  none".to_owned() } else { format!("{heading}\n{}", lines.join("\n")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn waits_on_the_server_and_in_the_queue_are_listed() {
        let since = "2026-03-01T12:00:00.000Z";
        let found = json!({
            "locks": "server", "process_id": "p1",
            "waits": [{ "level": "user", "bucket": 7, "session": 4, "blocked_by": [9, 5], "since": since }],
            "queue": [{ "target": "u/a", "user_id": "u", "since": since, "reason": "the same target" }],
        });
        assert_eq!(
            show(&found),
            "Waiting now (from the server's own tables, for all processes)\n\
             \x20 level          bucket    session  since                     behind session\n\
             \x20 user                7          4  2026-03-01T12:00:00.000Z  9, 5\n\n\
             Waiting for their turn in process p1\n\
             \x20 since                     target\n\
             \x20 2026-03-01T12:00:00.000Z  u/a: the same target"
        );
        let refused = json!({
            "locks": "server", "process_id": "p1", "waits": null, "queue": [],
            "missing_privilege": { "cause": "you need PROCESS", "grants": ["GRANT PROCESS ON *.* TO USER"] },
        });
        let shown = show(&refused);
        assert!(
            shown.contains("unknown: you need PROCESS. Grant to the database user:\n    GRANT PROCESS"),
            "{shown}"
        );
        assert!(shown.ends_with("process p1\n  none"), "{shown}");
    }

    #[test]
    fn waits_in_process_name_their_target() {
        let wait = json!({
            "level": "user", "bucket": 7, "since": "2026-03-01T12:00:00.000Z", "shared_holders": 2, "exclusive_holders": 0,
            "ahead": 1, "target": "u/a",
        });
        let shown = show(&json!({ "locks": "process", "process_id": "p1", "waits": [wait], "queue": [] }));
        assert!(shown.ends_with("      1  2026-03-01T12:00:00.000Z  2 shared holders    u/a"), "{shown}");
        let none = show(&json!({ "locks": "process", "process_id": "p1", "waits": [], "queue": [] }));
        assert!(none.ends_with("p1)\n  none"), "{none}");
    }
}
