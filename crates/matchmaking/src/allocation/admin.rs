//! The admin API's `/allocations`: lists give-back calls, and lets operators retry or skip them.

use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base::Code;
use base::error::{Coded, chain};
use base::id::Uuid;
use http_server::Problem;
use jobs::{COUNT_CAP, Jobs};
use screens::{FieldKind, FormField, Operation};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{DryRun, Open, Operator, OperatorRoute};
use work_queue::{DecisionError, Filter, ItemView};

use super::bulk::{self, FailedCalls};
use super::{AbandonedMatch, Allocations};

/// The default number of listed calls.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 10_000;

const RETRY_FAILED: Operation = Operation::new(
    "Retry failed calls",
    "Sends the failed calls to their assigner again, with all their attempts, as a job. An assigner that is asked twice to free a server \
     must ignore the second call.",
    "playhouse allocations retry [--assigner {assigner}] [--cause {cause}] [--since {since}] [--until {until}] [--expected {expected}]",
)
.fields(&[
    FormField::query("assigner", "Assigner", FieldKind::Text).optional().hint("Empty: any assigner"),
    FormField::query("cause", "Cause contains", FieldKind::Text).optional().hint("Empty: any cause"),
    FormField::query("since", "Failed since", FieldKind::Text).optional().hint("2026-03-01T12:00:00Z"),
    FormField::query("until", "Failed until", FieldKind::Text).optional().hint("Empty: now"),
    FormField::query("expected", "Number that you saw", FieldKind::HiddenNumber).optional(),
]);
const RETRY: Operation = Operation::new(
    "Retry",
    "The assigner is called again, so that it frees the server of this match.",
    "playhouse allocations retry {match}",
);
const SKIP: Operation = Operation::new(
    "Skip",
    "The assigner is never called for this match. The server runs until it ends on its own.",
    "playhouse allocations skip {match}",
)
.dangerous();

/// Returns the routes: `/allocations` (lists give-back calls), `/allocations/retry` (retries failed ones as a job),
/// `/allocations/{match}/retry` and `/allocations/{match}/skip`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/allocations", list),
        OperatorRoute::post("/allocations/retry", retry_failed).operation(RETRY_FAILED),
        OperatorRoute::post("/allocations/{match}/retry", retry).operation(RETRY),
        OperatorRoute::post("/allocations/{match}/skip", skip).operation(SKIP),
    ]
}

#[derive(Deserialize)]
struct ListQuery {
    state: Option<String>,
    limit: Option<u32>,
}

async fn list(
    Open(allocations): Open<Allocations>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = match query.state.as_deref() {
        None | Some("all") => Filter::All,
        Some("open") => Filter::Open,
        Some("done") => Filter::Done,
        Some("failed") => Filter::Failed,
        Some("skipped") => Filter::Skipped,
        Some(_) => {
            let detail = "state must be one of all, open, done, failed, skipped.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
    };
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let calls = allocations.queue().list(filter, limit).await.map_err(database_problem)?;
    Ok(Json(json!({ "abandoned": calls.iter().map(summary).collect::<Vec<_>>() })))
}

async fn retry(
    Open(allocations): Open<Allocations>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let call = find(&allocations, &name).await?;
    let done = allocations.queue().retry(call.number).await.map_err(database_problem)?;
    respond(done, &call, "retried")
}

/// Selects failed calls. A call must match every field that is set.
#[derive(Deserialize)]
struct FailedQuery {
    assigner: Option<String>,
    /// A substring of the cause.
    cause: Option<String>,
    /// When the call failed.
    since: Option<String>,
    until: Option<String>,
    /// Required to select all of them, unless `expected` is set.
    #[serde(default)]
    all: bool,
    /// How many the operator saw. The action is refused if another number matches now.
    expected: Option<u64>,
    /// Whether to only count them.
    #[serde(default)]
    dry_run: bool,
}

impl FailedQuery {
    fn calls(&self) -> Result<FailedCalls, Problem> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let calls = FailedCalls {
            assigner: given(&self.assigner),
            cause: given(&self.cause),
            since: given(&self.since),
            until: given(&self.until),
        };
        if calls == FailedCalls::default() && !self.all && self.expected.is_none() {
            let detail = "Select failed calls by assigner, cause, since or until, or set all=true.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
        Ok(calls)
    }
}

async fn retry_failed(
    Open(allocations): Open<Allocations>,
    Open(jobs): Open<Jobs>,
    operator: Operator,
    Query(query): Query<FailedQuery>,
) -> Result<Response, Problem> {
    let mut calls = query.calls()?;
    let filter = calls.filter().map_err(|detail| Problem::new(Code::InvalidArgument).detail(detail))?;
    let queue = allocations.queue();
    if query.dry_run {
        let matching = queue.count_failed(&filter).await.map_err(database_problem)?;
        return Ok((Extension(DryRun), Json(json!({ "calls": matching, "dry_run": true }))).into_response());
    }
    let matching = queue.count_failed_up_to(&filter, COUNT_CAP).await.map_err(database_problem)?;
    if calls.until.is_none() {
        // Calls that fail after this are left alone.
        calls.until = Some(allocations.now().await.map_err(database_problem)?.to_rfc3339());
    }
    let started = jobs.start_action(&operator, bulk::RETRY, json!(calls), query.expected, matching).await?;
    Ok(started.into_response())
}

async fn skip(
    Open(allocations): Open<Allocations>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let call = find(&allocations, &name).await?;
    let done = allocations.queue().skip(call.number).await.map_err(database_problem)?;
    respond(done, &call, "skipped")
}

async fn find(allocations: &Allocations, name: &str) -> Result<ItemView, Problem> {
    let Ok(id) = Uuid::try_parse(name) else {
        let detail = "Name the match by its id, which is a UUID.";
        return Err(Problem::new(Code::InvalidArgument).detail(detail));
    };
    let found = allocations.queue().find(id).await.map_err(database_problem)?;
    let unknown = || {
        let detail = format!(
            "There is no give-back call for match {name}: it was not abandoned, or the call was finished long ago."
        );
        Problem::new(Code::NotFound).detail(detail)
    };
    found.ok_or_else(unknown)
}

fn respond(done: Result<(), DecisionError>, call: &ItemView, what: &str) -> Result<Json<Value>, Problem> {
    let refused = |error: DecisionError| {
        Problem::new(Code::FailedPrecondition).detail(format!("{}: {error}.", call.id))
    };
    done.map_err(refused)?;
    tracing::warn!(match_id = %call.id, "An operator {what} a give-back call");
    Ok(Json(json!({ "match_id": call.id })))
}

fn summary(call: &ItemView) -> Value {
    let abandoned_match: Option<AbandonedMatch> = serde_json::from_slice(&call.payload).ok();
    json!({
        "match_id": call.id, "assigner": call.key, "reason": abandoned_match.map(|abandoned_match| abandoned_match.reason),
        "state": call.state.word(), "created": call.created.to_rfc3339(), "due": call.due.to_rfc3339(),
        "attempts": call.attempts, "cause": call.cause,
    })
}

pub(crate) fn database_problem(error: db::Error) -> Problem {
    tracing::error!(cause = chain(&error), "Cannot read or change give-back calls");
    Problem::new(error.code())
}
