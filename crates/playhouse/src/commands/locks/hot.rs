//! `playhouse locks hot`: the current waits, from the server's own tables, and the rows with the longest waits of a running process.

use std::collections::BTreeMap;

use hierlock::{LockWait, MySqlConnectOptions, Row};
use reqwest::Method;
use serde_json::Value;

use crate::cli::{ConfigArgs, OperatorArgs};
use crate::commands::ExitStatus;
use crate::commands::admin::AdminClient;
use crate::print;

pub(super) async fn run(
    from: &ConfigArgs,
    admin: Option<&str>,
    operator: &OperatorArgs,
    limit: usize,
    server: Option<MySqlConnectOptions>,
) -> anyhow::Result<ExitStatus> {
    let mut answered = false;
    if let Some(server) = server {
        print("Waiting now (from the server's own tables)")?;
        match hierlock::lock_waits(server).await {
            Ok(waits) => {
                answered = true;
                print(&now(&waits, limit))?;
            }
            Err(error) => print(&format!(
                "  unknown: {} (the database user needs the privilege PROCESS)",
                base::error::chain(&error)
            ))?,
        }
        print("")?;
    }
    let admin = AdminClient::new(admin, from, operator)?;
    print(&format!("Waits since the process at {} started", admin.url()))?;
    match admin.call(Method::GET, &format!("/locks/hot?limit={limit}")).await {
        Ok(found) => {
            answered = true;
            print(&since_start(&found))?;
        }
        Err(error) => print(&format!("  unknown: {}", base::error::chain(error.as_ref())))?,
    }
    Ok(if answered { ExitStatus::Done } else { ExitStatus::Failed })
}

/// Returns a line per row with waiters, the longest wait first.
fn now(waits: &[LockWait], limit: usize) -> String {
    let mut rows: BTreeMap<Row, Vec<&LockWait>> = BTreeMap::new();
    for wait in waits {
        rows.entry(wait.row).or_default().push(wait);
    }
    let mut rows: Vec<(Row, Vec<&LockWait>)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, waits)| std::cmp::Reverse(waits.iter().map(|wait| wait.waited).max()));
    if rows.is_empty() {
        return "  none".to_owned();
    }
    let mut lines = vec![format!(
        "  {:<10} {:>10} {:>9} {:>10}  behind session",
        "level", "bucket", "waiting", "longest"
    )];
    for (row, waits) in rows.iter().take(limit) {
        let mut waiters: Vec<u64> = waits.iter().map(|wait| wait.waiter).collect();
        waiters.sort_unstable();
        waiters.dedup();
        let longest = waits.iter().map(|wait| wait.waited).max().unwrap_or_default().as_secs_f64();
        // A waiter also waits behind earlier waiters. The holder is the session that does not wait itself.
        let holders: Vec<u64> =
            waits.iter().map(|wait| wait.holder).filter(|id| !waiters.contains(id)).collect();
        let holder = holders.first().map_or_else(|| "?".to_owned(), ToString::to_string);
        lines.push(format!(
            "  {:<10} {:>10} {:>9} {:>10}  {holder}",
            row.level.as_str(),
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
        return "  none".to_owned();
    }
    let mut lines =
        vec![format!("  {:<10} {:>10} {:>9} {:>10} {:>10}", "level", "bucket", "waits", "longest", "total")];
    lines.extend(rows.iter().map(|row| {
        let seconds = |key: &str| format!("{:.3} s", row[key].as_f64().unwrap_or_default());
        format!(
            "  {:<10} {:>10} {:>9} {:>10} {:>10}",
            row["level"].as_str().unwrap_or("?"),
            // A JSON value ignores the width.
            row["bucket"].to_string(),
            row["waits"].to_string(),
            seconds("longest_seconds"),
            seconds("total_seconds")
        )
    }));
    lines.join("\n")
}
