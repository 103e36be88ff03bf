//! `playhouse entitlements`

use anyhow::bail;
use reqwest::Method;
use serde_json::Value;

use super::admin::{AdminClient, query};
use super::{ExitStatus, items, layers, next_page, settings, text};
use crate::cli::{ConfigArgs, Entitlements, EntitlementsCommand};
use crate::print;

/// The caller of `playhouse dev`, which needs no configuration.
const DEV_CALLER: &str = "dev";

pub(super) async fn run(args: Entitlements) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let (path, shown): (String, fn(&Value) -> String) = match &args.command {
        EntitlementsCommand::List { user, account, in_force, page } => {
            let (limit, in_force) = (page.limit.to_string(), in_force.then(|| "true".to_owned()));
            let given = [
                ("user_id", Some(user)),
                ("account_id", account.as_ref()),
                ("in_force", in_force.as_ref()),
                ("after", page.after.as_ref()),
                ("limit", Some(&limit)),
            ];
            (query("/entitlements", given), list)
        }
        EntitlementsCommand::History { idempotency_key: Some(key), caller, .. } => {
            let found = request(&admin, key, callers(caller, &args.target.from)?).await?;
            print(&if args.target.json { found.to_string() } else { show_request(&found) })?;
            return Ok(ExitStatus::Done);
        }
        EntitlementsCommand::History { user, account, resource, reference, page, .. } => {
            let limit = page.limit.to_string();
            let given = [
                ("user_id", user.as_ref()),
                ("account_id", account.as_ref()),
                ("resource", resource.as_ref()),
                ("reference", reference.as_ref()),
                ("after", page.after.as_ref()),
                ("limit", Some(&limit)),
            ];
            (query("/entitlements/history", given), history)
        }
        EntitlementsCommand::Grant { change, valid_until } => {
            let found =
                send_change(&admin, "/entitlements/grant", change.body(valid_until.as_deref())).await?;
            print(&if args.target.json { found.to_string() } else { show_change(&found) })?;
            return Ok(ExitStatus::Done);
        }
        EntitlementsCommand::Revoke { change } => {
            let found = send_change(&admin, "/entitlements/revoke", change.body(None)).await?;
            print(&if args.target.json { found.to_string() } else { show_change(&found) })?;
            return Ok(ExitStatus::Done);
        }
    };
    let found = admin.call(Method::GET, &path).await?;
    print(&if args.target.json { found.to_string() } else { shown(&found) })?;
    Ok(ExitStatus::Done)
}

async fn send_change(admin: &AdminClient, path: &str, body: Value) -> anyhow::Result<Value> {
    admin.send(Method::POST, path, |request| request.json(&body)).await
}

/// Returns the callers whose keys to look up: the given ones, or all of the configuration.
fn callers(given: &[String], from: &ConfigArgs) -> anyhow::Result<Vec<String>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let configured: Vec<String> = settings(layers(from)?)?.config.callers.into_keys().collect();
    Ok(if configured.is_empty() { vec![DEV_CALLER.to_owned()] } else { configured })
}

/// Looks the key up for one caller after the other: each caller has its own keys.
async fn request(admin: &AdminClient, key: &String, callers: Vec<String>) -> anyhow::Result<Value> {
    let mut last = None;
    for caller in &callers {
        let path = query("/entitlements/request", [("caller", Some(caller)), ("key", Some(key))]);
        match admin.call(Method::GET, &path).await {
            Ok(found) => return Ok(found),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if callers.len() == 1 => Err(error),
        _ => bail!(
            "none of {} has applied a request with this key: it never arrived, was refused, or is older than \
             service_api.idempotency_retention. Name another service with --caller",
            callers.join(", ")
        ),
    }
}

fn list(found: &Value) -> String {
    let entitlements = items(found, "entitlements");
    if entitlements.is_empty() {
        return "The user owns nothing and never has.".to_owned();
    }
    let mut lines =
        vec![format!("{:<36}  {:<8} {:>8} {:<24}  {}", "account", "state", "quantity", "as of", "resource")];
    lines.extend(entitlements.iter().map(|owned| {
        let quantity = owned["quantity"].as_i64().map_or_else(|| "-".to_owned(), |count| count.to_string());
        // An entitlement that has expired is still stored as ACTIVE.
        let state = match (owned["in_force"] == true, text(&owned["state"])) {
            (false, "ACTIVE") => "ENDED",
            (_, state) => state,
        };
        let (account, as_of) = (text(&owned["account_id"]), text(&owned["as_of"]));
        format!("{account:<36}  {state:<8} {quantity:>8} {as_of:<24}  {}", text(&owned["resource"]))
    }));
    lines.extend(next_page(found));
    lines.join("\n")
}

fn history(found: &Value) -> String {
    let entries = items(found, "entries");
    if entries.is_empty() {
        return "No changes found: the shop has not sent the request, or it was refused. References match in full; `--user` lists all changes of a player.".to_owned();
    }
    let mut lines = Vec::new();
    for entry in entries {
        let quantity = entry["change_quantity"].as_i64().map(|count| format!(" of {count}"));
        lines.push(format!(
            "{}  {}{} {}, {}",
            text(&entry["recorded_at"]),
            text(&entry["action"]),
            quantity.unwrap_or_default(),
            text(&entry["resource"]),
            text(&entry["effect"]),
        ));
        lines.push(format!("  user {}, account {}", text(&entry["user_id"]), text(&entry["account_id"])));
        let reference = entry["reference"].as_str().map(|reference| format!(" as {reference}"));
        let (caller, occurred) = (text(&entry["caller"]), text(&entry["occurred_at"]));
        lines.push(format!("  sent by {caller}{}, occurred {occurred}", reference.unwrap_or_default()));
        lines.extend(entry["event_id"].as_str().map(|event| format!("  event {event}")));
    }
    lines.extend(next_page(found));
    lines.join("\n")
}

fn show_request(found: &Value) -> String {
    let mut lines = vec![format!(
        "Applied once for {}, at {}, for user {}",
        text(&found["caller"]),
        text(&found["recorded_at"]),
        text(&found["user_id"])
    )];
    let results = items(found, "results").iter().flat_map(result_lines);
    lines.extend(results.map(|line| format!("  {line}")));
    lines.join("\n")
}

/// Shows the result of one change.
fn show_change(result: &Value) -> String {
    result_lines(result).join("\n  ")
}

/// Returns the lines of a change: its effect, and its event if it has one.
fn result_lines(result: &Value) -> Vec<String> {
    let entitlement = &result["entitlement"];
    let mut lines = vec![format!(
        "{}: {} of account {} is {}",
        text(&result["effect"]),
        text(&entitlement["resource"]),
        text(&entitlement["account_id"]),
        text(&entitlement["state"]),
    )];
    lines.extend(result["event_id"].as_str().map(|event| format!("event {event}")));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn result_of_a_change_begins_at_the_margin_and_below_a_heading_is_indented() {
        let entitlement = json!({ "resource": "skin:a", "account_id": "7", "state": "ACTIVE" });
        let result = json!({ "effect": "applied", "entitlement": entitlement, "event_id": "9" });
        assert_eq!(show_change(&result), "applied: skin:a of account 7 is ACTIVE\n  event 9");
        let request = json!({ "caller": "shop", "recorded_at": "then", "user_id": "1", "results": [result] });
        let expected =
            "Applied once for shop, at then, for user 1\n  applied: skin:a of account 7 is ACTIVE\n  event 9";
        assert_eq!(show_request(&request), expected);
    }
}
