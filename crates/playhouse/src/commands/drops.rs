//! `playhouse drops`

mod shown;
mod verify;

use std::time::Duration;

use base::{Clock, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

use super::admin::Admin;
use super::{Misuse, Outcome};
use crate::answer;
use crate::cli::{CreateDrop, Drops, DropsCommand, Switch, WhichDrop};

/// Between two looks at a drop that is watched.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: Drops) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let desk = Desk { admin, json: args.at.json };
    match &args.what {
        DropsCommand::Create(new) => {
            let key = new.key.clone().unwrap_or_else(new_key);
            desk.change(Method::POST, "/drops".to_owned(), Some(created(new)), Some(key), shown::created)
                .await
        }
        DropsCommand::List { state, after, limit } => {
            let mut path = format!("/drops?limit={limit}");
            if state != "all" {
                path.push_str(&format!("&state={state}"));
            }
            if let Some(after) = after {
                path.push_str(&format!("&after={}", encoded(after)));
            }
            desk.read(&path, shown::list).await
        }
        DropsCommand::Show { drop, watch } => desk.show(drop, *watch).await,
        DropsCommand::Schedule { drop, opens_at, after, closes_at } => {
            let opens_at = match (opens_at, after) {
                (Some(time), _) => moment("opens-at", time)?.to_rfc3339(),
                (None, after) => Clock::system().now().after(after.unwrap_or_default()).to_rfc3339(),
            };
            let closes_at = closes_at.as_deref().map(|time| moment("closes-at", time)).transpose()?;
            let body = json!({ "opens_at": opens_at, "closes_at": closes_at.map(Timestamp::to_rfc3339) });
            desk.change(Method::POST, path(drop, "/schedule"), Some(body), None, shown::changed).await
        }
        DropsCommand::Open { drop } => desk.post(path(drop, "/open"), None).await,
        DropsCommand::Pause { drop } => desk.post(path(drop, "/pause"), None).await,
        DropsCommand::Resume { drop } => desk.post(path(drop, "/resume"), None).await,
        DropsCommand::Close { drop, force } => {
            desk.post(path(drop, "/close"), Some(json!({ "force": force }))).await
        }
        DropsCommand::Cancel { drop, force } => {
            desk.post(path(drop, "/cancel"), Some(json!({ "force": force }))).await
        }
        DropsCommand::EveryoneWaits { drop, switch } => {
            let body = json!({ "on": matches!(switch, Switch::On) });
            desk.change(Method::PUT, path(drop, "/everyone-waits"), Some(body), None, shown::changed).await
        }
        DropsCommand::Pace { drop, batch, period, capacity } => {
            let body = json!({ "batch": batch, "period_ms": period.map(millis), "capacity": capacity });
            desk.change(Method::PUT, path(drop, "/pace"), Some(body), None, shown::changed).await
        }
        DropsCommand::Message { drop, text, .. } => {
            let body = json!({ "message": text });
            desk.change(Method::PUT, path(drop, "/message"), Some(body), None, shown::changed).await
        }
        DropsCommand::Stock { drop, by: None, .. } => desk.read(&path(drop, "/stock"), shown::stock).await,
        DropsCommand::Stock { drop, by: Some(by), reason, key } => {
            let body = json!({ "by": by, "reason": reason.as_deref().unwrap_or_default() });
            let key = key.clone().unwrap_or_else(new_key);
            desk.change(Method::POST, path(drop, "/stock"), Some(body), Some(key), shown::stock).await
        }
        DropsCommand::Ledger { drop, before, limit } => {
            let before = before.as_deref().map(|at| format!("&before={}", encoded(at))).unwrap_or_default();
            desk.read(&path(drop, &format!("/ledger?limit={limit}{before}")), shown::ledger).await
        }
        DropsCommand::Audit { drop } => {
            let found = desk.admin.ask(Method::GET, &path(drop, "/audit")).await?;
            desk.say(&found, shown::audit)?;
            Ok(if found["balanced"] == true { Outcome::Done } else { Outcome::Failed })
        }
        DropsCommand::Orders { state, limit } => {
            desk.read(&format!("/orders?state={state}&limit={limit}"), shown::orders).await
        }
        DropsCommand::Refunds { limit } => {
            desk.read(&format!("/refunds?limit={limit}"), shown::refunds).await
        }
        DropsCommand::Settle { order, payment } => {
            let path = format!("/orders/{}/settle", encoded(order));
            let body = json!({ "payment_id": payment });
            desk.change(Method::POST, path, Some(body), None, shown::settled).await
        }
        DropsCommand::Rebuild { drop } => {
            desk.change(Method::POST, path(drop, "/rebuild"), None, None, shown::rebuilt).await
        }
        DropsCommand::VerifyOrder { drop } => verify::run(&desk, &path(drop, "")).await,
    }
}

/// Asks a process, and shows its answers.
struct Desk {
    admin: Admin,
    json: bool,
}

impl Desk {
    fn say(&self, found: &Value, words: fn(&Value) -> String) -> anyhow::Result<()> {
        answer(&if self.json { found.to_string() } else { words(found) })
    }

    async fn read(&self, path: &str, words: fn(&Value) -> String) -> anyhow::Result<Outcome> {
        self.say(&self.admin.ask(Method::GET, path).await?, words)?;
        Ok(Outcome::Done)
    }

    async fn post(&self, path: String, body: Option<Value>) -> anyhow::Result<Outcome> {
        self.change(Method::POST, path, body, None, shown::changed).await
    }

    async fn change(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
        key: Option<String>,
        words: fn(&Value) -> String,
    ) -> anyhow::Result<Outcome> {
        let complete = |mut request: reqwest::RequestBuilder| {
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            match body {
                Some(body) => request.json(&body),
                None => request,
            }
        };
        self.say(&self.admin.send(method, &path, complete).await?, words)?;
        Ok(Outcome::Done)
    }

    async fn show(&self, drop: &WhichDrop, watch: bool) -> anyhow::Result<Outcome> {
        let is_over = |found: &Value| matches!(found["state"].as_str(), Some("CLOSED" | "CANCELLED"));
        loop {
            let found = self.admin.ask(Method::GET, &path(drop, "")).await?;
            self.say(&found, shown::show)?;
            if !watch || is_over(&found) {
                return Ok(Outcome::Done);
            }
            sleep(INTERVAL).await;
        }
    }
}

fn path(WhichDrop { id }: &WhichDrop, rest: &str) -> String {
    format!("/drops/{}{rest}", encoded(id))
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A key that no other request has.
fn new_key() -> String {
    Uuid::new_v4().to_string()
}

fn moment(option: &str, text: &str) -> Result<Timestamp, Misuse> {
    text.parse()
        .map_err(|_| Misuse(format!("--{option} {text}: expected a time such as 2026-12-01T18:00:00Z")))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn created(new: &CreateDrop) -> Value {
    let who = match (&new.only_role, &new.only_owners) {
        (Some(role), _) => json!({ "role": role }),
        (None, Some(resource)) => json!({ "owns": resource }),
        (None, None) => json!("anyone"),
    };
    let mut terms = json!({
        "price": { "amount": new.price, "currency": new.currency },
        "per_player": new.per_player,
        "who": who,
        "lanes": new.lanes,
        "order": new.order.replace('-', "_"),
        "without_redis": new.without_redis,
        "when_sold_out": new.when_sold_out.replace('-', "_"),
        "reservation_ms": millis(new.reservation),
        "admission": {
            "batch": new.batch, "period_ms": millis(new.period), "capacity": new.capacity,
            "lifetime_ms": millis(new.lifetime), "arrive_within_ms": millis(new.arrive_within),
        },
    });
    if let Some(message) = &new.message {
        terms["message"] = json!(message);
    }
    json!({ "name": new.name, "resource": new.item, "stock": new.stock, "terms": terms })
}
