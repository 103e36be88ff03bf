//! The admin listener: for operators and their machines, never for players.

use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use runtime::Metrics;
use runtime::lifecycle::{PartState, Readiness, Report};
use runtime::metrics;

/// `/healthz` (the process answers), `/readyz` (every part is ready), `/metrics`.
pub fn admin(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/", get(async || Json(json!({ "endpoints": ["/healthz", "/readyz", "/metrics"] }))))
        .route("/healthz", get(async || Json(json!({ "alive": true }))))
        .route("/readyz", get(async move || ready(&readiness.report())))
        .route("/metrics", get(async move || ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics.encode())))
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
