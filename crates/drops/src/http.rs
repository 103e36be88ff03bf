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

use axum::Router;
use base::{Code, Timestamp};
use http_server::Problem;
use service::{Access, OperatorRoute, Provided, RouteMethod};
use utoipa::OpenApi;

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

/// What the paths of the service API begin with.
const SERVICE_API: &str = "/internal/v1";

/// The routes for services. Their callers have shown a token.
pub(crate) fn service_routes() -> Router<Provided> {
    let routes = operator_routes().into_iter();
    let routes = routes.fold(Router::new(), |all, route| all.route(route.row.path(), route.handler));
    Router::new().nest(SERVICE_API, routes)
}

/// The routes by which services change something.
pub(crate) fn audited_service_routes() -> Vec<(RouteMethod, String)> {
    let rows = operator_routes().into_iter().map(|route| route.row);
    let changes = rows.filter(|row| row.access() == Access::Change);
    changes.map(|row| (row.method(), format!("{SERVICE_API}{}", row.path()))).collect()
}

/// The routes for operators, on the admin listener.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/drops", drops::list),
        OperatorRoute::post("/drops", drops::create),
        OperatorRoute::get("/drops/{drop_id}", drops::show),
        OperatorRoute::post("/drops/{drop_id}/schedule", drops::schedule),
        OperatorRoute::post("/drops/{drop_id}/open", drops::open),
        OperatorRoute::post("/drops/{drop_id}/pause", drops::pause),
        OperatorRoute::post("/drops/{drop_id}/resume", drops::resume),
        OperatorRoute::post("/drops/{drop_id}/close", drops::close),
        OperatorRoute::post("/drops/{drop_id}/cancel", drops::cancel),
        OperatorRoute::put("/drops/{drop_id}/everyone-waits", drops::everyone_waits),
        OperatorRoute::put("/drops/{drop_id}/message", drops::message),
        OperatorRoute::put("/drops/{drop_id}/pace", drops::pace),
        OperatorRoute::put("/drops/{drop_id}/terms", drops::terms),
        OperatorRoute::get("/drops/{drop_id}/stock", stock::levels),
        OperatorRoute::post("/drops/{drop_id}/stock", stock::adjust),
        OperatorRoute::get("/drops/{drop_id}/ledger", stock::ledger),
        OperatorRoute::get("/drops/{drop_id}/audit", stock::audit),
        OperatorRoute::get("/drops/{drop_id}/entries", line::entries),
        OperatorRoute::post("/drops/{drop_id}/rebuild", line::rebuild),
        OperatorRoute::get("/orders", orders::list),
        OperatorRoute::get("/refunds", orders::refunds),
        OperatorRoute::post("/orders/{order_id}/settle", orders::settle),
    ]
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
