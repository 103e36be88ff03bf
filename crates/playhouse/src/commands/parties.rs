//! `playhouse parties`

use reqwest::Method;
use serde_json::Value;
use uuid::Uuid;

use super::admin::{AdminClient, query};
use super::{ExitStatus, encoded, items, text};
use crate::cli::{Parties, PartiesCommand};
use crate::print;

pub(super) async fn run(args: Parties) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let PartiesCommand::Show { id } = &args.command;
    // Users have UUIDs, and parties do not.
    let (path, show): (String, fn(&Value) -> String) = match Uuid::try_parse(id) {
        Ok(_) => (query("/parties", [("user", Some(id))]), of_player),
        Err(_) => (format!("/parties/{}", encoded(id)), party),
    };
    let found = admin.call(Method::GET, &path).await?;
    print(&if args.target.json { found.to_string() } else { show(&found) })?;
    Ok(ExitStatus::Done)
}

fn of_player(found: &Value) -> String {
    let own = &found["party"];
    let mut parts = vec![match own.is_object() {
        true => party(own),
        false => "The player is in no party.".to_owned(),
    }];
    parts.extend(items(found, "invited_to").iter().map(|invites| format!("Invited to {}", party(invites))));
    parts.join("\n\n")
}

fn party(found: &Value) -> String {
    let mut lines = vec![format!("party {}", text(&found["party_id"]))];
    lines.extend(items(found, "members").iter().map(|member| {
        let name = member["name"].as_str().map(|name| format!("  {name}")).unwrap_or_default();
        let role = if member["user_id"] == found["leader"] { "  (leader)" } else { "" };
        format!("  member  {}{name}{role}", text(&member["user_id"]))
    }));
    lines.extend(items(found, "invitations").iter().map(|invitation| {
        format!("  invited {} until {}", text(&invitation["user_id"]), text(&invitation["expires_at"]))
    }));
    let ticket = &found["ticket"];
    lines.push(match ticket.is_object() {
        true => format!(
            "  ticket  {} in queue {}: {}",
            text(&ticket["ticket_id"]),
            text(&ticket["queue"]),
            text(&ticket["state"])
        ),
        false => "  it has not queued".to_owned(),
    });
    lines.join("\n")
}
