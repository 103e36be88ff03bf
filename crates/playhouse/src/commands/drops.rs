//! `playhouse drops`

mod output;
mod verify;

use std::time::Duration;

use base::{Clock, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

use super::admin::{AdminClient, query};
use super::{ExitStatus, UsageError, encoded};
use crate::cli::{CreateDrop, DropArg, Drops, DropsCommand, Switch, TermsArgs};
use crate::print;

/// How often `--watch` reads the drop.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: Drops) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let client = DropsClient { admin, json: args.target.json };
    match &args.command {
        DropsCommand::Create(new) => {
            let key = new.key.clone().unwrap_or_else(new_key);
            client
                .change(Method::POST, "/drops".to_owned(), Some(new_drop(new)?), Some(key), output::created)
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
            client.read(&path, output::list).await
        }
        DropsCommand::Show { drop, watch } => client.show(drop, *watch).await,
        DropsCommand::Schedule { drop, opens_at, after, closes_at } => {
            let opens_at = match (opens_at, after) {
                (Some(time), _) => parse_time("opens-at", time)?.to_rfc3339(),
                (None, after) => Clock::system().now().after(after.unwrap_or_default()).to_rfc3339(),
            };
            let closes_at = closes_at.as_deref().map(|time| parse_time("closes-at", time)).transpose()?;
            let body = json!({ "opens_at": opens_at, "closes_at": closes_at.map(Timestamp::to_rfc3339) });
            client.change(Method::POST, path(drop, "/schedule"), Some(body), None, output::changed).await
        }
        DropsCommand::Open { drop } => client.post(path(drop, "/open"), None).await,
        DropsCommand::Pause { drop } => client.post(path(drop, "/pause"), None).await,
        DropsCommand::Resume { drop } => client.post(path(drop, "/resume"), None).await,
        DropsCommand::Close { drop, force } => {
            client.post(path(drop, "/close"), Some(json!({ "force": force }))).await
        }
        DropsCommand::Cancel { drop, force } => {
            client.post(path(drop, "/cancel"), Some(json!({ "force": force }))).await
        }
        DropsCommand::EveryoneWaits { drop, switch } => {
            let body = json!({ "on": matches!(switch, Switch::On) });
            client.change(Method::PUT, path(drop, "/everyone-waits"), Some(body), None, output::changed).await
        }
        DropsCommand::Pace { drop, batch, period, capacity } => {
            let body = json!({ "batch": batch, "period_ms": period.map(millis), "capacity": capacity });
            client.change(Method::PUT, path(drop, "/pace"), Some(body), None, output::changed).await
        }
        DropsCommand::Terms { drop, terms: new } => {
            let body = terms(new)?;
            client.change(Method::PUT, path(drop, "/terms"), Some(body), None, output::changed).await
        }
        DropsCommand::Message { drop, text, .. } => {
            let body = json!({ "message": text });
            client.change(Method::PUT, path(drop, "/message"), Some(body), None, output::changed).await
        }
        DropsCommand::Stock { drop, by: None, .. } => client.read(&path(drop, "/stock"), output::stock).await,
        DropsCommand::Stock { drop, by: Some(by), reason, key } => {
            let body = json!({ "by": by, "reason": reason.as_deref().unwrap_or_default() });
            let key = key.clone().unwrap_or_else(new_key);
            client.change(Method::POST, path(drop, "/stock"), Some(body), Some(key), output::stock).await
        }
        DropsCommand::Ledger { drop, before, limit } => {
            let before = before.as_deref().map(|at| format!("&before={}", encoded(at))).unwrap_or_default();
            client.read(&path(drop, &format!("/ledger?limit={limit}{before}")), output::ledger).await
        }
        DropsCommand::Audit { drop } => {
            let found = client.admin.call(Method::GET, &path(drop, "/audit")).await?;
            client.print(&found, output::audit)?;
            Ok(if found["balanced"] == true { ExitStatus::Done } else { ExitStatus::Failed })
        }
        DropsCommand::Orders { state, limit } => {
            client.read(&format!("/orders?state={state}&limit={limit}"), output::orders).await
        }
        DropsCommand::Refunds { drop, after, limit } => {
            let limit = limit.to_string();
            let filter = [("drop_id", drop.as_ref()), ("after", after.as_ref()), ("limit", Some(&limit))];
            client.read(&query("/refunds", filter), output::refunds).await
        }
        DropsCommand::Settle { order, payment } => {
            let path = format!("/orders/{}/settle", encoded(order));
            let body = json!({ "payment_id": payment });
            client.change(Method::POST, path, Some(body), None, output::settled).await
        }
        DropsCommand::Rebuild { drop } => {
            client.change(Method::POST, path(drop, "/rebuild"), None, None, output::rebuilt).await
        }
        DropsCommand::VerifyOrder { drop } => verify::run(&client, &path(drop, "")).await,
    }
}

/// Sends requests about drops, and prints the responses.
struct DropsClient {
    admin: AdminClient,
    json: bool,
}

impl DropsClient {
    /// Prints a response as JSON, or as the text that `to_text` makes of it.
    fn print(&self, found: &Value, to_text: fn(&Value) -> String) -> anyhow::Result<()> {
        print(&if self.json { found.to_string() } else { to_text(found) })
    }

    async fn read(&self, path: &str, to_text: fn(&Value) -> String) -> anyhow::Result<ExitStatus> {
        self.print(&self.admin.call(Method::GET, path).await?, to_text)?;
        Ok(ExitStatus::Done)
    }

    async fn post(&self, path: String, body: Option<Value>) -> anyhow::Result<ExitStatus> {
        self.change(Method::POST, path, body, None, output::changed).await
    }

    async fn change(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
        key: Option<String>,
        to_text: fn(&Value) -> String,
    ) -> anyhow::Result<ExitStatus> {
        let complete = |mut request: reqwest::RequestBuilder| {
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            match body {
                Some(body) => request.json(&body),
                None => request,
            }
        };
        self.print(&self.admin.send(method, &path, complete).await?, to_text)?;
        Ok(ExitStatus::Done)
    }

    async fn show(&self, drop: &DropArg, watch: bool) -> anyhow::Result<ExitStatus> {
        let has_ended = |found: &Value| matches!(found["state"].as_str(), Some("CLOSED" | "CANCELLED"));
        loop {
            let found = self.admin.call(Method::GET, &path(drop, "")).await?;
            self.print(&found, output::show)?;
            if !watch || has_ended(&found) {
                return Ok(ExitStatus::Done);
            }
            sleep(INTERVAL).await;
        }
    }
}

fn path(DropArg { id }: &DropArg, rest: &str) -> String {
    format!("/drops/{}{rest}", encoded(id))
}

/// Creates an idempotency key.
fn new_key() -> String {
    Uuid::new_v4().to_string()
}

fn parse_time(option: &str, text: &str) -> Result<Timestamp, UsageError> {
    text.parse()
        .map_err(|_| UsageError(format!("--{option} {text}: expected a time such as 2026-12-01T18:00:00Z")))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the body of the request that creates a drop.
fn new_drop(new: &CreateDrop) -> Result<Value, UsageError> {
    let terms = terms(&new.terms)?;
    Ok(json!({ "name": new.name, "resource": new.item, "stock": new.stock, "terms": terms }))
}

/// Returns the terms of a drop as the API takes them.
fn terms(new: &TermsArgs) -> Result<Value, UsageError> {
    let parse = |option: &str, text: &str| {
        serde_json::from_str::<Value>(text)
            .map_err(|error| UsageError(format!("--{option} {text}: expected JSON ({error})")))
    };
    let who = match (&new.only_role, &new.only_owners) {
        (Some(role), _) => json!({ "role": role }),
        (None, Some(resource)) => json!({ "owns": resource }),
        (None, None) => new.who.as_deref().map_or(Ok(json!("anyone")), |who| parse("who", who))?,
    };
    let lanes = new.lanes_json.as_deref().map_or(Ok(json!(new.lanes)), |lanes| parse("lanes", lanes))?;
    let mut terms = json!({
        "price": { "amount": new.price, "currency": new.currency },
        "per_player": new.per_player,
        "who": who,
        "lanes": lanes,
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
    Ok(terms)
}
