//! `playhouse try-it`

use reqwest::Method;
use serde_json::{Value, json};

use super::admin::AdminClient;
use super::{ExitStatus, encoded, text};
use crate::cli::{TryIt, TryItCommand};
use crate::print;

pub(super) async fn run(args: TryIt) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let of_player = |user: &str, action: &str| format!("/try-it/players/{}/{action}", encoded(user));
    let (path, body, shown): (_, _, fn(&Value) -> String) = match &args.command {
        TryItCommand::SignIn { user } => (of_player(user, "sign-in"), None, signed_in),
        TryItCommand::Notify { user, title, body } => {
            let body = json!({ "title": title, "body": body.as_deref().unwrap_or_default() });
            (of_player(user, "notify"), Some(body), notified)
        }
        TryItCommand::Join { user, queue } => {
            (of_player(user, "join"), Some(json!({ "queue": queue })), joined)
        }
        TryItCommand::FailedEvent => ("/try-it/failed-event".to_owned(), None, planted),
    };
    let found = admin.send(Method::POST, &path, |request| match &body {
        Some(body) => request.json(body),
        None => request,
    });
    let found = found.await?;
    print(&if args.target.json { found.to_string() } else { shown(&found) })?;
    Ok(ExitStatus::Done)
}

fn signed_in(found: &Value) -> String {
    let (user, account) = (text(&found["user_id"]), text(&found["account_id"]));
    let is_new = if found["created"] == true { "a new player" } else { "a known player" };
    format!(
        "{} is signed in, {is_new}\n  user {user}\n  account {account}\n\n`playhouse users show {user}` shows more",
        text(&found["name"])
    )
}

fn notified(found: &Value) -> String {
    format!("{} has the notification in the inbox", text(&found["user_id"]))
}

fn joined(found: &Value) -> String {
    let (ticket, queue) = (text(&found["ticket_id"]), text(&found["queue"]));
    format!(
        "{ticket} in {queue} is {}\n\n`playhouse tickets show {ticket}` shows why it waits",
        text(&found["state"])
    )
}

fn planted(found: &Value) -> String {
    let event = text(&found["event_id"]);
    format!(
        "{event} will fail, and {} waits behind it\n\n`playhouse outbox skip {event}` repairs it",
        text(&found["blocked_event_id"])
    )
}
