//! `/status` of the admin API.

use axum::Json;
use base::error::{Coded, chain};
use base::finding::{Finding, Verdict};
use config::Choice;
use http_server::Problem;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};

use crate::model::{ProcessState, ProcessView};
use crate::{Fleet, Status};

/// Returns the route `/status`: the processes and the findings of all services.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/status", status)]
}

async fn status(Open(fleet): Open<Fleet>) -> Result<Json<Value>, Problem> {
    let status = fleet.status().await.map_err(|error| {
        tracing::error!(cause = chain(&error), "cannot read the status");
        Problem::new(error.code()).detail("The database does not answer: run `playhouse doctor`.")
    })?;
    let findings: Vec<Value> =
        status.findings.iter().map(|(part, finding)| describe_finding(part, finding)).collect();
    let missing: Vec<&str> = status.missing.iter().map(|role| role.word()).collect();
    Ok(Json(json!({
        "healthy": status.is_healthy(),
        "processes": status.processes.iter().map(|process| describe(&status, process)).collect::<Vec<_>>(),
        "missing_roles": missing,
        "findings": findings,
    })))
}

fn describe(status: &Status, process: &ProcessView) -> Value {
    let state = process.state(status.now);
    let until = if state == ProcessState::Gone { process.seen_at } else { status.now };
    json!({
        "process_id": process.id.to_string(),
        "state": state,
        "version": process.version,
        "roles": process.roles,
        "admin": process.admin,
        "started_at": process.started_at.to_rfc3339(),
        "uptime_seconds": until.distance(process.started_at).as_secs(),
        "seen_seconds_ago": status.now.distance(process.seen_at).as_secs_f64(),
        "leases": status.leases.get(process.id.as_uuid()).cloned().unwrap_or_default(),
    })
}

fn describe_finding(part: &str, finding: &Finding) -> Value {
    let verdict = match finding.verdict {
        Verdict::Good => "good",
        Verdict::Warning => "warning",
        Verdict::Failure => "failure",
    };
    json!({ "part": part, "verdict": verdict, "what": finding.what, "advice": finding.advice })
}
