//! The admin API's `/allocations`: lists give-back calls, and lets operators retry or skip them.

use axum::Json;
use axum::extract::{Path, Query};
use base::Code;
use base::error::{Coded, chain};
use base::id::Uuid;
use http_server::Problem;
use screens::Operation;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};
use work_queue::{Decision, DecisionError, FailedFilter, Filter, ItemView};

use super::{AbandonedMatch, Allocations};

/// The default number of listed calls.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 10_000;

const RETRY_FAILED: Operation = Operation::new(
    "Retry all failed calls",
    "Every failed call is sent to its assigner again. An assigner that frees a server twice must ignore the second call.",
    "playhouse allocations retry --all",
);
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

/// Returns the routes: `/allocations` (lists give-back calls), `/allocations/retry` (retries all failed ones),
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

async fn retry_failed(Open(allocations): Open<Allocations>) -> Result<Json<Value>, Problem> {
    let queue = allocations.queue();
    let retried =
        queue.decide_failed(&FailedFilter::default(), Decision::Retry).await.map_err(database_problem)?;
    tracing::warn!(calls = retried, "An operator retried failed give-back calls");
    Ok(Json(json!({ "retried": retried })))
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
