//! `playhouse tickets`

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::Value;

use super::Outcome;
use super::admin::{Admin, query};
use crate::answer;
use crate::cli::{Tickets, TicketsCommand};

pub(super) async fn run(args: Tickets) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let ask = async |method: Method, path: String| admin.ask(method, &path).await;
    let shown = match &args.what {
        TicketsCommand::List { user, limit } => {
            let limit = limit.to_string();
            let path = query("/tickets", [("user_id", user.as_ref()), ("limit", Some(&limit))]);
            let found = ask(Method::GET, path).await?;
            match (args.at.json, user) {
                (true, _) => found.to_string(),
                (false, None) => list(&found, "tickets that take part in matchmaking"),
                (false, Some(_)) => list(&found, "tickets of the player"),
            }
        }
        TicketsCommand::Show { ticket_id } => {
            let found = ask(Method::GET, path(ticket_id)).await?;
            if args.at.json { found.to_string() } else { show(&found) }
        }
        TicketsCommand::Release { ticket_id } => {
            ask(Method::POST, format!("{}/release", path(ticket_id))).await?;
            format!("{ticket_id} is free to be matched")
        }
        TicketsCommand::Delete { ticket_id } => {
            ask(Method::DELETE, path(ticket_id)).await?;
            format!("{ticket_id} is deleted")
        }
    };
    answer(&shown)?;
    Ok(Outcome::Done)
}

fn path(id: &str) -> String {
    format!("/tickets/{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

fn list(found: &Value, which: &str) -> String {
    let tickets = found["tickets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines = vec![format!("{:<24} {:<10} {:>10}", "ticket", "state", "age")];
    lines.extend(tickets.iter().map(|ticket| {
        let age = ticket["age_seconds"].as_f64().map_or_else(|| "?".to_owned(), |age| format!("{age:.1} s"));
        format!("{:<24} {:<10} {age:>10}", text(&ticket["id"]), text(&ticket["state"]))
    }));
    let count = found["count"].as_u64().unwrap_or_default();
    lines.push(format!("\n{} of {count} {which}", tickets.len()));
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let mut lines = vec![format!("{}  {}", text(&found["id"]), text(&found["state"]))];
    let seconds =
        |name: &str, what: &str| found[name].as_f64().map(|seconds| format!("  {what} {seconds:.1} s"));
    lines.extend(seconds("age_seconds", "made").map(|line| format!("{line} ago")));
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
