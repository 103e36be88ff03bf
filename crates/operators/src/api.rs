//! The admin API of the audit log: `/audit` lists its entries. No route changes them.

use axum::Json;
use base::error::{Coded, chain};
use base::{Code, Timestamp};
use http_server::{Problem, Query};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use crate::audit_log::{AuditEntry, AuditFilter, AuditLog, AuditOutcome, Page};

/// How many entries are listed by default, and at most.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

/// Returns the routes `/audit` (the audit log) and `/operator` (the caller).
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/audit", list), OperatorRoute::get("/operator", caller)]
}

#[derive(Deserialize)]
struct AuditQuery {
    actor: Option<String>,
    action: Option<String>,
    target: Option<String>,
    since: Option<String>,
    until: Option<String>,
    outcome: Option<String>,
    before: Option<i64>,
    after: Option<i64>,
    limit: Option<u32>,
}

async fn list(Open(log): Open<AuditLog>, Query(query): Query<AuditQuery>) -> Result<Json<Value>, Problem> {
    let page = match (query.before, query.after) {
        (before, None) => Page::Before(before),
        (None, Some(after)) => Page::After(after),
        (Some(_), Some(_)) => return Err(invalid("Send `before` or `after`, not both.")),
    };
    let time = |name: &str, text: &Option<String>| -> Result<Option<Timestamp>, Problem> {
        let parse = |text: &String| {
            text.parse().map_err(|error: base::InvalidTime| invalid(format!("`{name}` is {error}.")))
        };
        text.as_ref().map(parse).transpose()
    };
    let outcome = |word: &String| {
        AuditOutcome::parse(word)
            .ok_or_else(|| invalid(format!("`outcome` must be one of {}.", AuditOutcome::words())))
    };
    let filter = AuditFilter {
        since: time("since", &query.since)?,
        until: time("until", &query.until)?,
        outcome: query.outcome.as_ref().map(outcome).transpose()?,
        actor: query.actor,
        action: query.action,
        target: query.target,
    };
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let entries = log.list(&filter, page, limit).await.map_err(|error| {
        tracing::error!(cause = chain(&error), "cannot read the audit log");
        Problem::new(error.code())
    })?;
    let next = entries.last().filter(|_| entries.len() as u32 == limit).map(|last| last.number);
    Ok(Json(json!({ "entries": entries.iter().map(describe).collect::<Vec<_>>(), "next": next })))
}

async fn caller(operator: Operator) -> Json<Value> {
    Json(json!({ "name": operator.name, "read_only": operator.read_only }))
}

fn describe(entry: &AuditEntry) -> Value {
    json!({
        "number": entry.number, "id": entry.id, "at": entry.at.to_rfc3339(), "listener": entry.listener,
        "actor": { "kind": entry.actor_kind, "name": entry.actor, "proof": entry.proof, "subject": entry.subject },
        "action": entry.action, "target": entry.target, "address": entry.address, "request_id": entry.request_id,
        "note": entry.note, "outcome": entry.outcome.word(), "status": entry.status,
        "finished": entry.finished.map(Timestamp::to_rfc3339),
    })
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
