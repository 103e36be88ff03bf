//! `playhouse users`

use reqwest::Method;
use serde_json::Value;

use super::admin::{Admin, query};
use super::{Outcome, items, text};
use crate::answer;
use crate::cli::{Users, UsersCommand};

pub(super) async fn run(args: Users) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let (path, shown): (String, fn(&Value) -> String) = match &args.what {
        UsersCommand::Find { text, after, limit } => {
            let limit = limit.to_string();
            let given = [("find", Some(text)), ("after", after.as_ref()), ("limit", Some(&limit))];
            (query("/users", given), list)
        }
        UsersCommand::Show { user_id } => (query(&format!("/users/{}", super::encoded(user_id)), []), show),
    };
    let found = admin.ask(Method::GET, &path).await?;
    let is_empty = found["users"].as_array().is_some_and(Vec::is_empty);
    answer(&if args.at.json { found.to_string() } else { shown(&found) })?;
    Ok(if is_empty { Outcome::Failed } else { Outcome::Done })
}

fn list(found: &Value) -> String {
    let users = items(found, "users");
    if users.is_empty() {
        return "nobody goes by that: give a whole id, a whole display name, or what the issuer calls the player"
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
    for record in items(&found["audit"], "records") {
        let (at, action, actor) = (text(&record["at"]), text(&record["action"]), text(&record["actor"]));
        lines.push(format!("  {at}  {action} by {actor}"));
    }
    lines.push(format!(
        "\n`playhouse entitlements list --user {id}` shows what they own, `playhouse tickets list --user {id}` their tickets"
    ));
    lines.join("\n")
}
