//! `playhouse trace`

use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::{ExitStatus, encoded, items, text};
use crate::cli::Trace;
use crate::print;

pub(super) async fn run(args: Trace) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let found = admin.call(Method::GET, &format!("/trace/{}", encoded(&args.id))).await?;
    print(&if args.target.json { found.to_string() } else { show(&found) })?;
    Ok(if items(&found, "steps").is_empty() { ExitStatus::Failed } else { ExitStatus::Done })
}

fn show(found: &Value) -> String {
    let steps = items(found, "steps");
    let mut lines = Vec::new();
    if steps.is_empty() {
        lines.push(text(&found["detail"]).to_owned());
    } else {
        lines.push(format!("{:<24} {:>10}  {:<5}  {:<12}  {}", "time", "gap", "store", "service", "what"));
        lines.extend(steps.iter().map(|step| {
            format!(
                "{:<24} {:>10}  {:<5}  {:<12}  {}",
                text(&step["at"]),
                step["gap_ms"].as_i64().map(gap).unwrap_or_default(),
                text(&step["store"]),
                text(&step["part"]),
                text(&step["what"]),
            )
        }));
        let followed = items(found, "ids").len();
        lines.push(format!(
            "\n{} of {}",
            base::counted(steps.len(), "step"),
            base::counted(followed, "connected id")
        ));
    }
    let unavailable: Vec<&str> = items(found, "unavailable").iter().map(text).collect();
    if !unavailable.is_empty() {
        lines.push(format!("Not available now: the steps of {}. Try again.", unavailable.join(", ")));
    }
    if found["cut"] == true {
        lines.push("More ids belong to it. Trace one of its events or orders to see the rest.".to_owned());
    }
    lines.join("\n")
}

/// Formats the time since the previous step. It is negative if the clocks of two machines differ.
fn gap(millis: i64) -> String {
    let sign = if millis < 0 { '-' } else { '+' };
    let (millis, seconds) = (millis.unsigned_abs(), millis.unsigned_abs() / 1_000);
    match seconds {
        0 => format!("{sign}{millis} ms"),
        1..60 => format!("{sign}{:.1} s", millis as f64 / 1_000.0),
        60..3_600 => format!("{sign}{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{sign}{}h{}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{sign}{}d{}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gaps_have_the_unit_that_fits() {
        let gaps = [0, 999, -3, 1_250, 65_000, 3_700_000, 90_000_000].map(gap);
        assert_eq!(gaps, ["+0 ms", "+999 ms", "-3 ms", "+1.2 s", "+1m5s", "+1h1m", "+1d1h"]);
    }

    #[test]
    fn steps_are_a_table_with_the_gaps() {
        let step = |at: &str, gap: Option<i64>, store: &str, part: &str, what: &str| json!({ "at": at, "gap_ms": gap, "store": store, "part": part, "what": what });
        let found = json!({
            "id": "e", "ids": ["e", "n"], "cut": true, "unavailable": ["drops"],
            "steps": [
                step("2026-03-01T12:00:00.120Z", None, "sql", "entitlement", "Granted skin:dragon (version 1) for shop"),
                step("2026-03-01T12:00:00.124Z", Some(4), "bus", "outbox", "Published playhouse.entitlement.granted.v1"),
            ],
        });
        insta::assert_snapshot!(show(&found), @r"
        time                            gap  store  service       what
        2026-03-01T12:00:00.120Z             sql    entitlement   Granted skin:dragon (version 1) for shop
        2026-03-01T12:00:00.124Z      +4 ms  bus    outbox        Published playhouse.entitlement.granted.v1

        2 steps of 2 connected ids
        Not available now: the steps of drops. Try again.
        More ids belong to it. Trace one of its events or orders to see the rest.
        ");
        let unknown =
            json!({ "id": "x", "ids": ["x"], "steps": [], "detail": "Nothing is known of this id." });
        assert_eq!(show(&unknown), "Nothing is known of this id.");
    }
}
