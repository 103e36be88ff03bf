//! The admin API of jobs: `/jobs`.

use axum::Json;
use axum::extract::{Path, Query};
use base::Code;
use base::error::{Coded, chain};
use http_server::Problem;
use screens::Operation;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use crate::{Error, JobId, JobView, Jobs, check_expected};

/// How many jobs are listed, by default and at most.
const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1_000;

const STOP: Operation = Operation::new(
    "Stop",
    "The job starts no further step. What it has changed stays changed. You can resume it.",
    "playhouse jobs stop {job_id}",
);
const RESUME: Operation = Operation::new(
    "Resume",
    "The job continues after its last step, with the filter that it was started with.",
    "playhouse jobs resume {job_id}",
);

/// Returns the routes: `/jobs` (list), `/jobs/{job_id}` with `stop` and `resume`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/jobs", list),
        OperatorRoute::get("/jobs/{job_id}", show),
        OperatorRoute::post("/jobs/{job_id}/stop", stop).operation(STOP),
        OperatorRoute::post("/jobs/{job_id}/resume", resume).operation(RESUME),
    ]
}

impl Jobs {
    /// Starts the job of a bulk action, and returns the response of its route. Fails if the number of items that match is not the one
    /// that the operator saw.
    pub async fn start_action(
        &self,
        operator: &Operator,
        kind: &'static str,
        filter: Value,
        expected: Option<u64>,
        matching: u64,
    ) -> Result<Json<Value>, Problem> {
        check_expected(expected, matching)?;
        let id = self.start(kind, filter, matching, &operator.name).await.map_err(problem)?;
        Ok(Json(json!({ "job_id": id.to_string(), "matching": matching })))
    }
}

#[derive(Deserialize)]
struct ListQuery {
    /// Only jobs with a lower number.
    before: Option<i64>,
    limit: Option<u32>,
}

async fn list(Open(jobs): Open<Jobs>, Query(query): Query<ListQuery>) -> Result<Json<Value>, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let found = jobs.list(query.before, limit).await.map_err(problem)?;
    Ok(Json(json!({ "jobs": found.iter().map(shown).collect::<Vec<_>>() })))
}

async fn show(Open(jobs): Open<Jobs>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    Ok(Json(shown(&jobs.find(parse(&id)?).await.map_err(problem)?)))
}

async fn stop(Open(jobs): Open<Jobs>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let id = parse(&id)?;
    jobs.stop(id).await.map_err(problem)?;
    tracing::warn!(job = %id, "an operator stopped a job");
    Ok(Json(shown(&jobs.find(id).await.map_err(problem)?)))
}

async fn resume(Open(jobs): Open<Jobs>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let id = parse(&id)?;
    jobs.resume(id).await.map_err(problem)?;
    tracing::warn!(job = %id, "an operator resumed a job");
    Ok(Json(shown(&jobs.find(id).await.map_err(problem)?)))
}

fn shown(job: &JobView) -> Value {
    json!({
        "id": job.id.to_string(), "number": job.number, "kind": job.kind, "state": job.state_word(), "filter": job.filter,
        "operator": job.operator, "expected": job.expected, "done": job.done, "failed": job.failed,
        "failures": job.failures, "cause": job.cause, "created": job.created.to_rfc3339(),
        "ended": job.ended().map(base::Timestamp::to_rfc3339), "holder": job.holder,
    })
}

/// Reads the id of a job.
pub(crate) fn parse(id: &str) -> Result<JobId, Problem> {
    let invalid = |_| Problem::new(Code::InvalidArgument).detail("The id of the job must be a UUID.");
    id.parse().map_err(invalid)
}

/// Maps an error to a response. Logs internal causes here, once.
pub(crate) fn problem(error: Error) -> Problem {
    let code = error.code();
    match code {
        Code::NotFound | Code::FailedPrecondition => Problem::new(code).detail(error.to_string()),
        Code::Internal => {
            tracing::error!(cause = chain(&error), "cannot read or change jobs");
            Problem::new(code)
        }
        _ => {
            tracing::warn!(outage = "jobs", cause = chain(&error), "cannot read or change jobs");
            Problem::new(code)
        }
    }
}
