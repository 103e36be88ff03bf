//! `playhouse tickets`

use std::time::Duration;

use anyhow::{Context, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method};
use serde_json::Value;

use super::{Outcome, layers, settings};
use crate::answer;
use crate::cli::{Tickets, TicketsCommand};

const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(args: Tickets) -> anyhow::Result<Outcome> {
    let admin = match &args.admin {
        Some(url) if url.contains("://") => url.trim_end_matches('/').to_owned(),
        Some(address) => format!("http://{}", address.trim_end_matches('/')),
        None => format!("http://{}", settings(layers(&args.from)?)?.config.listen.admin),
    };
    let ask = async |method: Method, path: String| ask(&admin, method, &path).await;
    let shown = match &args.what {
        TicketsCommand::List { limit } => {
            let found = ask(Method::GET, format!("/tickets?limit={limit}")).await?;
            if args.json { found.to_string() } else { list(&found) }
        }
        TicketsCommand::Show { ticket_id } => {
            let found = ask(Method::GET, path(ticket_id)).await?;
            if args.json { found.to_string() } else { show(&found) }
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

async fn ask(admin: &str, method: Method, path: &str) -> anyhow::Result<Value> {
    let client = Client::builder().timeout(TIMEOUT).build()?;
    let sent = client.request(method, format!("{admin}{path}")).send().await;
    let response =
        sent.with_context(|| format!("no process answers at {admin}: is one running? --admin says where"))?;
    let status = response.status();
    let body: Value =
        response.json().await.with_context(|| format!("{admin} is not an admin port of playhouse"))?;
    if !status.is_success() {
        let detail = body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no reason given");
        bail!("{detail}");
    }
    Ok(body)
}

fn list(found: &Value) -> String {
    let tickets = found["tickets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines = vec![format!("{:<24} {:<10} {:>10}", "ticket", "state", "age")];
    lines.extend(tickets.iter().map(|ticket| {
        let age = ticket["age_seconds"].as_f64().map_or_else(|| "?".to_owned(), |age| format!("{age:.1} s"));
        format!("{:<24} {:<10} {age:>10}", text(&ticket["id"]), text(&ticket["state"]))
    }));
    let count = found["count"].as_u64().unwrap_or_default();
    lines.push(format!("\n{} of {count} tickets that take part in matchmaking", tickets.len()));
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
