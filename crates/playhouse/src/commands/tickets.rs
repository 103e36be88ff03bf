//! `playhouse tickets`

use reqwest::Method;
use serde_json::Value;

use super::admin::{AdminClient, query};
use super::{ExitStatus, encoded, items, text};
use crate::cli::{Tickets, TicketsCommand};
use crate::print;

pub(super) async fn run(args: Tickets) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let call = async |method: Method, path: String| admin.call(method, &path).await;
    let shown = match &args.command {
        TicketsCommand::List { user, limit } => {
            let limit = limit.to_string();
            let path = query("/tickets", [("user_id", user.as_ref()), ("limit", Some(&limit))]);
            let found = call(Method::GET, path).await?;
            match (args.target.json, user) {
                (true, _) => found.to_string(),
                (false, None) => list(&found, "ticket in matchmaking", "tickets in matchmaking"),
                (false, Some(_)) => list(&found, "ticket of the player", "tickets of the player"),
            }
        }
        TicketsCommand::Show { ticket_id } => {
            let found = call(Method::GET, path(ticket_id)).await?;
            if args.target.json { found.to_string() } else { show(&found) }
        }
        TicketsCommand::Why { ticket_id } => {
            let found = call(Method::GET, format!("{}/why", path(ticket_id))).await?;
            if args.target.json { found.to_string() } else { why(&found) }
        }
        TicketsCommand::Release { ticket_id } => {
            call(Method::POST, format!("{}/release", path(ticket_id))).await?;
            format!("{ticket_id} is released and can be matched")
        }
        TicketsCommand::Delete { ticket_id } => {
            call(Method::DELETE, path(ticket_id)).await?;
            format!("{ticket_id} is deleted")
        }
    };
    print(&shown)?;
    Ok(ExitStatus::Done)
}

fn path(id: &str) -> String {
    format!("/tickets/{}", encoded(id))
}

fn list(found: &Value, one: &str, several: &str) -> String {
    let tickets = items(found, "tickets");
    let mut lines = vec![format!("{:<24} {:<10} {:>10}", "ticket", "state", "age")];
    lines.extend(tickets.iter().map(|ticket| {
        let age = ticket["age_seconds"].as_f64().map_or_else(|| "?".to_owned(), |age| format!("{age:.1} s"));
        format!("{:<24} {:<10} {age:>10}", text(&ticket["id"]), text(&ticket["state"]))
    }));
    let count = found["count"].as_u64().unwrap_or_default();
    lines.push(format!("\n{} of {count} {}", tickets.len(), if count == 1 { one } else { several }));
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let mut lines = vec![format!("{}  {}", text(&found["id"]), text(&found["state"]))];
    let seconds =
        |name: &str, what: &str| found[name].as_f64().map(|seconds| format!("  {what} {seconds:.1} s"));
    lines.extend(seconds("age_seconds", "created").map(|line| format!("{line} ago")));
    lines.extend(seconds("expires_in_seconds", "expires in"));
    if let Some(since) = found["pending_since"].as_i64() {
        lines.push(format!("  fetched by an engine at {since} (Unix seconds)"));
    }
    if let Some(connection) = found["ticket"]["assignment"]["connection"].as_str() {
        lines.push(format!("  assigned to {connection}"));
    }
    lines.extend(found["why"].as_array().into_iter().flatten().map(|why| format!("  {}", text(why))));
    if found["ticket"].is_object() {
        lines.push(format!("\n{:#}", found["ticket"]));
    }
    lines.join("\n")
}

fn why(found: &Value) -> String {
    let mut lines = vec![format!("{}  {}", text(&found["ticket_id"]), text(&found["state"]))];
    let age = found["age_seconds"].as_f64();
    lines.extend(age.map(|seconds| format!("  created {seconds:.1} s ago")));
    lines.extend(found["queue"].as_str().map(|queue| format!("  in queue {queue}")));
    let count = found["in_matchmaking"].as_u64().unwrap_or_default();
    lines.push(format!("  {} in matchmaking", base::counted(count, "ticket")));
    let sentences = items(found, "lines");
    if sentences.is_empty() {
        lines.push("  it does not wait".to_owned());
    }
    lines.extend(sentences.iter().map(|line| format!("  {}", text(line))));
    lines.join("\n")
}
