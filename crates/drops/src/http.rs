//! The API of drops for services and operators: one set of handlers on two listeners.
//!
//! Services call it below `/internal/v1` with the right `drops`, operators on the admin listener. [`Actor`] names who calls.

mod actor;
mod drops;
mod line;
mod orders;
mod stock;
mod store;
mod views;

use axum::routing::{get, post, put};
use axum::{Extension, Router};
use base::{Code, Timestamp};
use http_server::Problem;
use service::Provided;
use utoipa::OpenApi;

use self::actor::OnAdminListener;

/// How many items a page has if the caller names no number, and at most.
const LISTED: u32 = 100;
const MOST: u32 = 1_000;

/// The description of the service API.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(
        drops::create, drops::list, drops::show, drops::schedule, drops::open, drops::pause, drops::resume, drops::close, drops::cancel,
        drops::everyone_waits, drops::message, drops::pace, drops::terms,
        stock::levels, stock::adjust, stock::ledger, stock::audit,
        line::entries, line::rebuild,
        orders::list, orders::refunds, orders::settle,
    ),
    tags((name = "drops", description = "Limited sales: prepared, opened and watched by services and operators."))
)]
pub(crate) struct Api;

/// The routes for services. Their callers have shown a token.
pub(crate) fn service_routes() -> Router<Provided> {
    Router::new().nest("/internal/v1", routes())
}

/// The routes for operators, on the admin listener.
pub(crate) fn operator_routes() -> Router<Provided> {
    routes().layer(Extension(OnAdminListener))
}

fn routes() -> Router<Provided> {
    Router::new()
        .route("/drops", get(drops::list).post(drops::create))
        .route("/drops/{drop_id}", get(drops::show))
        .route("/drops/{drop_id}/schedule", post(drops::schedule))
        .route("/drops/{drop_id}/open", post(drops::open))
        .route("/drops/{drop_id}/pause", post(drops::pause))
        .route("/drops/{drop_id}/resume", post(drops::resume))
        .route("/drops/{drop_id}/close", post(drops::close))
        .route("/drops/{drop_id}/cancel", post(drops::cancel))
        .route("/drops/{drop_id}/everyone-waits", put(drops::everyone_waits))
        .route("/drops/{drop_id}/message", put(drops::message))
        .route("/drops/{drop_id}/pace", put(drops::pace))
        .route("/drops/{drop_id}/terms", put(drops::terms))
        .route("/drops/{drop_id}/stock", get(stock::levels).post(stock::adjust))
        .route("/drops/{drop_id}/ledger", get(stock::ledger))
        .route("/drops/{drop_id}/audit", get(stock::audit))
        .route("/drops/{drop_id}/entries", get(line::entries))
        .route("/drops/{drop_id}/rebuild", post(line::rebuild))
        .route("/orders", get(orders::list))
        .route("/refunds", get(orders::refunds))
        .route("/orders/{order_id}/settle", post(orders::settle))
}

/// Reads an id in a path or a query.
fn id<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| invalid(format!("{field} is not an id of ours: a UUID is expected.")))
}

fn time(field: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::NotATime| invalid(format!("{field} is {error}.")))
}

fn limit(given: Option<u32>) -> u32 {
    given.unwrap_or(LISTED).clamp(1, MOST)
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidArgument).cause("drops:invalid").detail(detail)
}
