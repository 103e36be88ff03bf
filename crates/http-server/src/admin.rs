//! Health and metrics routes of the admin API.

use axum::Json;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use runtime::Metrics;
use runtime::lifecycle::{PartState, Readiness, Report, RoleReport};
use runtime::metrics;

/// Returns `/healthz` (the process answers) and `/readyz` (every role can do its essential work).
pub fn health(readiness: Readiness) -> [(&'static str, MethodRouter); 2] {
    [
        ("/healthz", get(async || Json(json!({ "alive": true })))),
        ("/readyz", get(async move || ready(&readiness.report()))),
    ]
}

/// Returns `/metrics`, for a metrics scraper.
pub fn scrape(metrics: Metrics) -> (&'static str, MethodRouter) {
    let encode = async move || ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics.encode());
    ("/metrics", get(encode))
}

fn ready(report: &Report) -> impl IntoResponse + use<> {
    let parts: Map<String, Value> =
        report.parts.iter().map(|(name, state)| (name.clone(), describe(state))).collect();
    let roles: Map<String, Value> =
        report.roles.iter().map(|role| (role.role.to_owned(), describe_role(role))).collect();
    let (ready, degraded) = (report.is_ready(), report.is_degraded());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "degraded": degraded, "parts": parts, "roles": roles })))
}

fn describe_role(role: &RoleReport) -> Value {
    let lacks: Map<String, Value> =
        role.lacks.iter().map(|need| (need.part.to_owned(), json!(need.effect))).collect();
    json!({ "ready": role.is_ready(), "degraded": !lacks.is_empty(), "lacks": lacks })
}

fn describe(state: &PartState) -> Value {
    match state {
        PartState::Ready => json!({ "ready": true }),
        PartState::NotReady(reason) => json!({ "ready": false, "reason": reason }),
    }
}
