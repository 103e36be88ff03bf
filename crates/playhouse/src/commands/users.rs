//! `playhouse users`

use reqwest::Method;
use serde_json::{Value, json};

use super::admin::{AdminClient, query};
use super::{ExitStatus, items, text};
use crate::cli::{Users, UsersCommand};
use crate::print;

pub(super) async fn run(args: Users) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let of_user = |user: &str, rest: &str| format!("/users/{}{rest}", super::encoded(user));
    let post = |user: &str, operation: &str| (Method::POST, of_user(user, operation));
    let ((method, path), body, shown): (_, _, fn(&Value) -> String) = match &args.command {
        UsersCommand::Find { text, after, limit } => {
            let limit = limit.to_string();
            let given = [("find", Some(text)), ("after", after.as_ref()), ("limit", Some(&limit))];
            ((Method::GET, query("/users", given)), None, list)
        }
        UsersCommand::Show { user_id } => ((Method::GET, of_user(user_id, "")), None, show),
        UsersCommand::Export { user_id } => {
            ((Method::GET, of_user(user_id, "/export")), None, |found| format!("{found:#}"))
        }
        UsersCommand::Note { user_id, note } => {
            (post(user_id, "/notes"), Some(json!({ "note": note })), changed)
        }
        UsersCommand::EndSessions { user_id } => (post(user_id, "/end-sessions"), None, changed),
        UsersCommand::Ban { user_id, reason } => {
            (post(user_id, "/ban"), Some(json!({ "reason": reason })), changed)
        }
        UsersCommand::Unban { user_id } => (post(user_id, "/unban"), None, changed),
        UsersCommand::Erase { user_id, .. } => (post(user_id, "/erase"), None, changed),
    };
    let found = admin.send(method, &path, |request| match &body {
        Some(body) => request.json(body),
        None => request,
    });
    let found = found.await?;
    let is_empty = found["users"].as_array().is_some_and(Vec::is_empty);
    print(&if args.target.json { found.to_string() } else { shown(&found) })?;
    Ok(if is_empty { ExitStatus::Failed } else { ExitStatus::Done })
}

/// Describes a user after a change.
fn changed(user: &Value) -> String {
    let id = text(&user["user_id"]);
    format!("Done. {id} is {}; `playhouse users show {id}` shows more.", text(&user["state"]))
}

fn list(found: &Value) -> String {
    let users = items(found, "users");
    if users.is_empty() {
        return "No user found. Give a full id, a full display name, or the subject at the issuer."
            .to_owned();
    }
    let mut lines = vec![format!("{:<36}  {:<8} {:<24}  {}", "user", "state", "registered", "name")];
    lines.extend(users.iter().map(|user| {
        let name = user["display_name"].as_str().unwrap_or("-");
        let (id, state, since) = (text(&user["user_id"]), text(&user["state"]), text(&user["created_at"]));
        format!("{id:<36}  {state:<8} {since:<24}  {name}")
    }));
    lines.extend(super::next_page(found));
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let id = text(&found["user_id"]);
    let mut lines = vec![format!("{id}  {}", text(&found["state"]))];
    lines.extend(found["display_name"].as_str().map(|name| format!("  name {name}")));
    lines.extend(found["ban_reason"].as_str().map(|reason| format!("  banned: {reason}")));
    let roles: Vec<&str> = items(found, "roles").iter().map(text).collect();
    lines.push(format!("  registered {}, roles {}", text(&found["created_at"]), roles.join(", ")));
    for identity in items(found, "identities") {
        let (issuer, subject) = (text(&identity["issuer"]), text(&identity["subject"]));
        lines.push(format!("  signs in as {subject} at {issuer}"));
    }
    for account in items(found, "accounts") {
        lines.push(format!("  account {}  {}", text(&account["account_id"]), text(&account["name"])));
    }
    for note in items(found, "notes") {
        let (at, author) = (text(&note["at"]), text(&note["author"]));
        lines.push(format!("  {at}  note by {author}: {}", text(&note["note"])));
    }
    for record in items(&found["audit"], "records") {
        let (at, action, actor) = (text(&record["at"]), text(&record["action"]), text(&record["actor"]));
        lines.push(format!("  {at}  {action} by {actor}"));
    }
    lines.push(format!(
        "\n`playhouse entitlements list --user {id}` shows what they own, `playhouse tickets list --user {id}` their tickets"
    ));
    lines.join("\n")
}
