//! The output of `playhouse drops` for people.

use serde_json::Value;

use crate::commands::{counted, items, text};

pub(super) fn created(found: &Value) -> String {
    let id = text(&found["drop_id"]);
    format!(
        "{id} is a draft.\n`playhouse drops schedule {id} --in 10m` lets players join, `playhouse drops open {id}` opens it now.\n\
         Publish the hash of its seed: {}",
        text(&found["seed_hash"])
    )
}

pub(super) fn changed(found: &Value) -> String {
    let mut line = format!("{} is {}", text(&found["drop_id"]), text(&found["state"]));
    if let (Some(opens), Some("SCHEDULED")) = (found["opens_at"].as_str(), found["state"].as_str()) {
        line.push_str(&format!(" and opens at {opens}"));
    }
    if found["everyone_waits"] == true {
        line.push_str("; everyone waits");
    }
    if let Some(message) = found["terms"]["message"].as_str() {
        line.push_str(&format!("; message {message:?}"));
    }
    line
}

pub(super) fn list(found: &Value) -> String {
    let drops = items(found, "drops");
    if drops.is_empty() {
        return "No drops found. `playhouse drops create` creates one.".to_owned();
    }
    let line = |drop: &Value| {
        let (id, state, name) = (text(&drop["drop_id"]), text(&drop["state"]), text(&drop["name"]));
        let time = drop["opened_at"].as_str().map(|time| format!("opened {time}"));
        let time = time.or_else(|| drop["opens_at"].as_str().map(|time| format!("opens {time}")));
        let waits = if drop["everyone_waits"] == true { "  everyone waits" } else { "" };
        format!("{id}  {state:<9}  {:<32}  {name}{waits}", time.unwrap_or_default())
    };
    let mut lines: Vec<String> = drops.iter().map(line).collect();
    if let Some(next) = found["next"].as_str() {
        lines.push(format!("\nNext page: --after {next}"));
    }
    lines.join("\n")
}

pub(super) fn show(found: &Value) -> String {
    let terms = &found["terms"];
    let admission = &terms["admission"];
    let seconds = |millis: &Value| format!("{} s", millis.as_f64().unwrap_or_default() / 1000.0);
    let count =
        |value: &Value| value.as_u64().map_or_else(|| "unknown".to_owned(), |count| count.to_string());
    let mut lines = vec![
        format!("{}  {}", text(&found["drop_id"]), text(&found["name"])),
        format!(
            "  state       {}{}",
            text(&found["state"]),
            if found["everyone_waits"] == true { ", everyone waits" } else { "" }
        ),
        format!("  item        {}", text(&found["resource"])),
        format!("  price       {}, {} per player", price(&terms["price"]), terms["per_player"]),
        format!("  stock       {}", counts(&found["stock"])),
        format!("  line        {} waiting, {} inside", count(&found["waiting"]), found["inside"]),
        format!(
            "  admission   {} per {}, at most {} inside, for {} (arrive within {})",
            admission["batch"],
            seconds(&admission["period_ms"]),
            admission["capacity"],
            seconds(&admission["lifetime_ms"]),
            seconds(&admission["arrive_within_ms"]),
        ),
        format!("  reservation {}", seconds(&terms["reservation_ms"])),
        format!("  order       {}", text(&terms["order"])),
    ];
    for (name, key) in
        [("opens", "opens_at"), ("closes", "closes_at"), ("opened", "opened_at"), ("closed", "closed_at")]
    {
        if let Some(time) = found[key].as_str() {
            lines.push(format!("  {name:<10}  {time}"));
        }
    }
    if let Some(message) = terms["message"].as_str() {
        lines.push(format!("  message     {message:?}"));
    }
    lines.push(format!("  seed hash   {}", text(&found["seed_hash"])));
    if let Some(seed) = found["seed"].as_str() {
        lines.push(format!("  seed        {seed}"));
    }
    lines.join("\n")
}

fn counts(stock: &Value) -> String {
    format!(
        "{} available, {} reserved, {} sold (initial {}, adjusted {})",
        stock["available"], stock["reserved"], stock["sold"], stock["initial"], stock["adjusted"]
    )
}

pub(super) fn stock(found: &Value) -> String {
    format!("{}; version {}", counts(found), found["version"])
}

pub(super) fn ledger(found: &Value) -> String {
    let line = |entry: &Value| {
        let by = |name: &str| match entry[name].as_i64() {
            Some(0) | None => String::new(),
            Some(by) => format!("  {name} {by:+}"),
        };
        let who = match (entry["actor"].as_str(), entry["reason"].as_str()) {
            (Some(actor), Some(reason)) => format!("  by {actor}: {reason}"),
            (Some(actor), None) => format!("  by {actor}"),
            (None, _) => {
                entry["reservation_id"].as_str().map(|id| format!("  reservation {id}")).unwrap_or_default()
            }
        };
        format!(
            "{:>8}.{:<4} {}  {:<9}{}{}{}{}{who}",
            // Converted to text, because a JSON value ignores the width.
            entry["version"].to_string(),
            entry["entry"].to_string(),
            text(&entry["recorded_at"]),
            text(&entry["kind"]),
            by("adjusted"),
            by("available"),
            by("reserved"),
            by("sold"),
        )
    };
    let mut lines: Vec<String> = items(found, "entries").iter().map(line).collect();
    if let Some(next) = found["next"].as_str().filter(|_| found["entries"].is_array()) {
        lines.push(format!("\nNext page: --before {next}"));
    }
    lines.join("\n")
}

pub(super) fn audit(found: &Value) -> String {
    let mut lines = vec![counts(&found["stock"])];
    for difference in items(found, "differences") {
        lines.push(format!(
            "DIFFERS: {}: expected {}, found {}",
            text(&difference["what"]),
            difference["expected"],
            difference["found"]
        ));
    }
    if found["balanced"] == true {
        lines.push("balanced: the ledger, the reservations and the orders account for every unit".to_owned());
    } else {
        lines.push(
            "NOT BALANCED: pause the drop, leave the database as it is, and find out what wrote to its tables"
                .to_owned(),
        );
    }
    lines.join("\n")
}

pub(super) fn refunds(found: &Value) -> String {
    let refunds = items(found, "refunds");
    if refunds.is_empty() {
        return "No refunds are due.".to_owned();
    }
    let line = |refund: &Value| {
        let order = &refund["order"];
        let why = if refund["is_surplus"] == true { "paid twice" } else { "nothing left to sell" };
        format!(
            "payment {}  {why}  {}  order {}  since {}  user {}",
            text(&refund["payment_id"]),
            price(order),
            text(&order["order_id"]),
            text(&refund["since"]),
            text(&order["user_id"]),
        )
    };
    let mut lines: Vec<String> = refunds.iter().map(line).collect();
    lines.extend(found["next"].as_str().map(|next| format!("\nNext page: --after '{next}'")));
    lines.push(
        "\nRefund these at the payment provider. Its webhook settles them, or use `playhouse drops settle`."
            .to_owned(),
    );
    lines.join("\n")
}

pub(super) fn orders(found: &Value) -> String {
    let orders = items(found, "orders");
    if orders.is_empty() {
        return "No orders found.".to_owned();
    }
    let line = |order: &Value| {
        let payment = order["payment_id"].as_str().map(|id| format!("  payment {id}")).unwrap_or_default();
        format!(
            "{}  {:<10}  {}  {}  {}  user {}{payment}",
            text(&order["order_id"]),
            text(&order["state"]),
            counted(&order["quantity"], "unit"),
            price(order),
            text(&order["created_at"]),
            text(&order["user_id"]),
        )
    };
    let mut lines: Vec<String> = orders.iter().map(line).collect();
    if orders.iter().any(|order| order["state"] == "REFUND_DUE") {
        lines.push("\nRefund these at the payment provider. Its webhook settles them.".to_owned());
    }
    lines.join("\n")
}

/// Formats the amount and the currency of an order or of terms.
fn price(of: &Value) -> String {
    drops::money(of["amount"].as_i64().unwrap_or_default(), text(&of["currency"]))
}

pub(super) fn settled(found: &Value) -> String {
    format!("settled; the order is {}", text(&found["state"]))
}

pub(super) fn rebuilt(found: &Value) -> String {
    match found["waiting"].as_u64() {
        Some(waiting) => format!("the line is rebuilt: {} waiting", base::counted(waiting, "player")),
        None => "another process is rebuilding the line".to_owned(),
    }
}

pub(super) fn verified(found: &Value) -> String {
    let deviations = items(found, "deviations");
    let mut lines: Vec<String> =
        deviations.iter().map(|deviation| format!("DEVIATES: {}", text(deviation))).collect();
    let places = counted(&found["entries"], "place");
    lines.push(match deviations.len() as u64 + found["unlisted"].as_u64().unwrap_or_default() {
        0 => format!("{places} checked: the seed and the order of joining confirm every one"),
        count => format!("{} among {places}", base::counted(count, "deviation")),
    });
    lines.join("\n")
}
