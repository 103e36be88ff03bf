//! `playhouse locks hot`: who waits now, by the server's tables, and what has been waited for, by a running process.

use std::collections::BTreeMap;

use hierlock::{MySqlConnectOptions, Row, Wait};
use reqwest::Method;
use serde_json::Value;

use crate::answer;
use crate::cli::{AsOperator, From};
use crate::commands::Outcome;
use crate::commands::admin::Admin;

pub(super) async fn run(
    from: &From,
    admin: Option<&str>,
    operator: &AsOperator,
    limit: usize,
    server: Option<MySqlConnectOptions>,
) -> anyhow::Result<Outcome> {
    let mut answered = false;
    if let Some(server) = server {
        answer("waiting now, by the server's own tables")?;
        match hierlock::waits(server).await {
            Ok(waits) => {
                answered = true;
                answer(&now(&waits, limit))?;
            }
            Err(error) => answer(&format!(
                "  cannot be told: {} (the user needs the privilege PROCESS)",
                base::error::chain(&error)
            ))?,
        }
        answer("")?;
    }
    let admin = Admin::find(admin, from, operator)?;
    answer(&format!("waited for since the start of the process at {}", admin.url()))?;
    match admin.ask(Method::GET, &format!("/locks/hot?limit={limit}")).await {
        Ok(found) => {
            answered = true;
            answer(&since_start(&found))?;
        }
        Err(error) => answer(&format!("  cannot be told: {}", base::error::chain(error.as_ref())))?,
    }
    Ok(if answered { Outcome::Done } else { Outcome::Failed })
}

/// A line per row that somebody waits for, the one with the longest wait first.
fn now(waits: &[Wait], limit: usize) -> String {
    let mut rows: BTreeMap<Row, Vec<&Wait>> = BTreeMap::new();
    for wait in waits {
        rows.entry(wait.row).or_default().push(wait);
    }
    let mut rows: Vec<(Row, Vec<&Wait>)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, waits)| std::cmp::Reverse(waits.iter().map(|wait| wait.since).max()));
    if rows.is_empty() {
        return "  nobody".to_owned();
    }
    let mut lines = vec![format!(
        "  {:<10} {:>10} {:>9} {:>10}  behind session",
        "level", "bucket", "waiting", "longest"
    )];
    for (row, waits) in rows.iter().take(limit) {
        let mut waiters: Vec<u64> = waits.iter().map(|wait| wait.waiter).collect();
        waiters.sort_unstable();
        waiters.dedup();
        let longest = waits.iter().map(|wait| wait.since).max().unwrap_or_default().as_secs_f64();
        // Whoever waits is behind those who wait before it, too; the first in line is the one that holds.
        let holders: Vec<u64> =
            waits.iter().map(|wait| wait.holder).filter(|id| !waiters.contains(id)).collect();
        let holder = holders.first().map_or_else(|| "?".to_owned(), ToString::to_string);
        lines.push(format!(
            "  {:<10} {:>10} {:>9} {:>10}  {holder}",
            row.level.word(),
            row.bucket,
            waiters.len(),
            format!("{longest:.1} s")
        ));
    }
    lines.join("\n")
}

fn since_start(found: &Value) -> String {
    let rows = found["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return "  nothing".to_owned();
    }
    let mut lines =
        vec![format!("  {:<10} {:>10} {:>9} {:>10} {:>10}", "level", "bucket", "waits", "longest", "in all")];
    lines.extend(rows.iter().map(|row| {
        let seconds = |key: &str| format!("{:.3} s", row[key].as_f64().unwrap_or_default());
        format!(
            "  {:<10} {:>10} {:>9} {:>10} {:>10}",
            row["level"].as_str().unwrap_or("?"),
            row["bucket"],
            row["waits"],
            seconds("longest_seconds"),
            seconds("total_seconds")
        )
    }));
    lines.join("\n")
}
