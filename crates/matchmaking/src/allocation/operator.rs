//! What operators see of servers that are given back, and what they can do: the admin port's `/allocations`.

use axum::Json;
use axum::extract::{Path, Query};
use base::Code;
use base::error::{Coded, chain};
use base::id::Uuid;
use http_server::Problem;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};
use work_queue::{Choice, Decision, Entry, Filter, Unfit};

use super::{AbandonedMatch, Allocations};

/// How many are listed if nobody says.
const LISTED: u32 = 100;
const MOST: u32 = 10_000;

/// `/allocations` (lists give-back calls), `/allocations/retry` (all that have failed), `/allocations/{match}/retry` and
/// `/allocations/{match}/skip`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/allocations", list),
        OperatorRoute::post("/allocations/retry", retry_failed),
        OperatorRoute::post("/allocations/{match}/retry", retry),
        OperatorRoute::post("/allocations/{match}/skip", skip),
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
            let detail = "state is one of all, open, done, failed, skipped.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
    };
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
    let entries = allocations.queue().list(filter, limit).await.map_err(internal)?;
    Ok(Json(json!({ "abandoned": entries.iter().map(summary).collect::<Vec<_>>() })))
}

async fn retry(
    Open(allocations): Open<Allocations>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let entry = find(&allocations, &name).await?;
    let done = allocations.queue().retry(entry.number).await.map_err(internal)?;
    decided(done, &entry, "retried")
}

async fn retry_failed(Open(allocations): Open<Allocations>) -> Result<Json<Value>, Problem> {
    let queue = allocations.queue();
    let retried = queue.decide_failed(&Choice::default(), Decision::Retry).await.map_err(internal)?;
    tracing::warn!(calls = retried, "give-back calls are retried by an operator");
    Ok(Json(json!({ "retried": retried })))
}

async fn skip(
    Open(allocations): Open<Allocations>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let entry = find(&allocations, &name).await?;
    let done = allocations.queue().skip(entry.number).await.map_err(internal)?;
    decided(done, &entry, "skipped")
}

async fn find(allocations: &Allocations, name: &str) -> Result<Entry, Problem> {
    let Ok(id) = Uuid::try_parse(name) else {
        let detail = "Name the match by its id, which is a UUID.";
        return Err(Problem::new(Code::InvalidArgument).detail(detail));
    };
    let found = allocations.queue().find(id).await.map_err(internal)?;
    let unknown = || {
        let detail =
            format!("No match {name} is being given back: none was abandoned, or it was done long ago.");
        Problem::new(Code::NotFound).detail(detail)
    };
    found.ok_or_else(unknown)
}

fn decided(done: Result<(), Unfit>, entry: &Entry, what: &str) -> Result<Json<Value>, Problem> {
    let refused =
        |unfit: Unfit| Problem::new(Code::FailedPrecondition).detail(format!("{}: {unfit}.", entry.id));
    done.map_err(refused)?;
    tracing::warn!(match_id = %entry.id, "the give-back call is {what} by an operator");
    Ok(Json(json!({ "match_id": entry.id })))
}

fn summary(entry: &Entry) -> Value {
    let lost: Option<AbandonedMatch> = serde_json::from_slice(&entry.payload).ok();
    json!({
        "match_id": entry.id, "assigner": entry.key, "reason": lost.map(|lost| lost.reason),
        "state": entry.state.word(), "created": entry.created.to_rfc3339(), "due": entry.due.to_rfc3339(),
        "attempts": entry.attempts, "cause": entry.cause,
    })
}

fn internal(error: db::Error) -> Problem {
    tracing::error!(cause = chain(&error), "give-back calls could not be read or changed");
    Problem::new(error.code())
}
