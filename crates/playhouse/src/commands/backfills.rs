//! `playhouse backfills`

use reqwest::Method;
use serde_json::Value;

use super::admin::{AdminClient, query};
use super::{ExitStatus, encoded, items, text};
use crate::cli::{Backfills, BackfillsCommand};
use crate::print;

pub(super) async fn run(args: Backfills) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let (path, show): (String, fn(&Value) -> String) = match &args.command {
        BackfillsCommand::List { limit } => {
            let limit = limit.to_string();
            (query("/backfills", [("limit", Some(&limit))]), list)
        }
        BackfillsCommand::Show { backfill_id } => (format!("/backfills/{}", encoded(backfill_id)), show),
    };
    let found = admin.call(Method::GET, &path).await?;
    print(&if args.target.json { found.to_string() } else { show(&found) })?;
    Ok(ExitStatus::Done)
}

fn list(found: &Value) -> String {
    let backfills = items(found, "backfills");
    let mut lines = vec![format!(
        "{:<24} {:<8} {:>10} {:>4} {:>8} {:>14}  {}",
        "backfill", "state", "generation", "open", "waiting", "acknowledged", "profile"
    )];
    lines.extend(backfills.iter().map(|backfill| {
        format!(
            "{:<24} {:<8} {:>10} {:>4} {:>8} {:>14}  {}",
            text(&backfill["id"]),
            text(&backfill["state"]),
            backfill["generation"].as_i64().unwrap_or_default(),
            backfill["open"].as_u64().map_or_else(|| "-".to_owned(), |open| open.to_string()),
            items(backfill, "waiting").len(),
            acknowledged(backfill),
            backfill["match_profile"].as_str().unwrap_or("-"),
        )
    }));
    let count = found["count"].as_u64().unwrap_or_default();
    let noun = if count == 1 { "backfill" } else { "backfills" };
    lines.push(format!("\n{} of {count} {noun}", backfills.len()));
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let mut lines = vec![
        format!("{}  {}", text(&found["id"]), text(&found["state"])),
        format!("  acknowledged {}", acknowledged(found)),
    ];
    let waiting = items(found, "waiting");
    lines.push(match waiting.len() {
        0 => "  no ticket waits for its game server".to_owned(),
        count => format!(
            "  {} for its game server:",
            if count == 1 { "1 ticket waits".to_owned() } else { format!("{count} tickets wait") }
        ),
    });
    lines.extend(waiting.iter().map(|ticket| format!("    {}", text(ticket))));
    lines.push(format!("\n{:#}", found["backfill"]));
    lines.join("\n")
}

fn acknowledged(backfill: &Value) -> String {
    backfill["acknowledged_seconds_ago"]
        .as_f64()
        .map_or_else(|| "?".to_owned(), |ago| format!("{ago:.1} s ago"))
}
