//! The admin listener: for operators and their machines, never for players.

use axum::Json;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use runtime::Metrics;
use runtime::lifecycle::{PartState, Readiness, Report};
use runtime::metrics;

/// `/healthz` (the process answers) and `/readyz` (every part is ready).
pub fn health(readiness: Readiness) -> [(&'static str, MethodRouter); 2] {
    [
        ("/healthz", get(async || Json(json!({ "alive": true })))),
        ("/readyz", get(async move || ready(&readiness.report()))),
    ]
}

/// `/metrics`, for what scrapes them.
pub fn scrape(metrics: Metrics) -> (&'static str, MethodRouter) {
    let encode = async move || ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics.encode());
    ("/metrics", get(encode))
}

fn ready(report: &Report) -> impl IntoResponse + use<> {
    let parts: Map<String, Value> =
        report.0.iter().map(|(name, state)| (name.clone(), describe(state))).collect();
    let status = if report.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": report.is_ready(), "parts": parts })))
}

fn describe(state: &PartState) -> Value {
    match state {
        PartState::Ready => json!({ "ready": true }),
        PartState::NotReady(reason) => json!({ "ready": false, "reason": reason }),
    }
}
