//! The API of drops for services and operators: one set of handlers on two listeners.
//!
//! Services call it below `/internal/v1` with the right `drops`, operators on the admin listener. [`Actor`] identifies the caller.

mod actor;
mod drops;
mod line;
mod operations;
mod orders;
mod stock;
mod store;
mod views;

use axum::Router;
use base::{Code, Timestamp};
use http_server::Problem;
use service::{Access, OperatorRoute, Provided, RouteMethod};
use utoipa::OpenApi;

use crate::orders::RefundKey;

pub(crate) use views::kind_word as ledger_word;

/// How many items a page has by default, and at most.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

/// The OpenAPI description of the service API.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(
        drops::create, drops::list, drops::show, drops::schedule, drops::open, drops::pause, drops::resume, drops::close, drops::cancel,
        drops::everyone_waits, drops::message, drops::pace, drops::terms,
        stock::levels, stock::adjust, stock::ledger, stock::audit,
        line::entries, line::rebuild,
        orders::list, orders::refunds, orders::settle,
    ),
    tags(
        (name = "drops", description = "Limited sales: created, opened and monitored by services and operators."),
        (name = "orders", description = "What players bought in drops, and the refunds that are due."),
    )
)]
pub(crate) struct Api;

/// The path prefix of the service API.
const SERVICE_API: &str = "/internal/v1";

/// Returns the routes for services. The listener has checked the caller's token.
pub(crate) fn service_routes() -> Router<Provided> {
    let routes = operator_routes().into_iter();
    let routes = routes.fold(Router::new(), |all, route| all.route(route.row.path(), route.handler));
    Router::new().nest(SERVICE_API, routes)
}

/// Returns the routes with which services change something.
pub(crate) fn audited_service_routes() -> Vec<(RouteMethod, String)> {
    let rows = operator_routes().into_iter().map(|route| route.row);
    let changes = rows.filter(|row| row.access() == Access::Change);
    changes.map(|row| (row.method(), format!("{SERVICE_API}{}", row.path()))).collect()
}

/// Returns the routes for operators, on the admin listener.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/drops", drops::list),
        OperatorRoute::post("/drops", drops::create).operation(operations::CREATE),
        OperatorRoute::get("/drops/{drop_id}", drops::show),
        OperatorRoute::post("/drops/{drop_id}/schedule", drops::schedule).operation(operations::SCHEDULE),
        OperatorRoute::post("/drops/{drop_id}/open", drops::open).operation(operations::OPEN),
        OperatorRoute::post("/drops/{drop_id}/pause", drops::pause).operation(operations::PAUSE),
        OperatorRoute::post("/drops/{drop_id}/resume", drops::resume).operation(operations::RESUME),
        OperatorRoute::post("/drops/{drop_id}/close", drops::close).operation(operations::CLOSE),
        OperatorRoute::post("/drops/{drop_id}/cancel", drops::cancel).operation(operations::CANCEL),
        OperatorRoute::put("/drops/{drop_id}/everyone-waits", drops::everyone_waits)
            .operation(operations::EVERYONE_WAITS),
        OperatorRoute::put("/drops/{drop_id}/message", drops::message).operation(operations::MESSAGE),
        OperatorRoute::put("/drops/{drop_id}/pace", drops::pace).operation(operations::PACE),
        OperatorRoute::put("/drops/{drop_id}/terms", drops::terms).operation(operations::TERMS),
        OperatorRoute::get("/drops/{drop_id}/stock", stock::levels),
        OperatorRoute::post("/drops/{drop_id}/stock", stock::adjust).operation(operations::ADJUST),
        OperatorRoute::get("/drops/{drop_id}/ledger", stock::ledger),
        OperatorRoute::get("/drops/{drop_id}/audit", stock::audit),
        OperatorRoute::get("/drops/{drop_id}/entries", line::entries),
        OperatorRoute::post("/drops/{drop_id}/rebuild", line::rebuild).operation(operations::REBUILD),
        OperatorRoute::get("/orders", orders::list),
        OperatorRoute::get("/refunds", orders::refunds),
        OperatorRoute::post("/orders/{order_id}/settle", orders::settle).operation(operations::SETTLE),
    ]
}

/// Parses an id in a path or a query.
pub(crate) fn id<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| invalid(format!("{field} must be a UUID.")))
}

/// Parses the place in the list of refunds where a page begins.
pub(crate) fn refund_key(field: &str, text: &str) -> Result<RefundKey, Problem> {
    RefundKey::parse(text).ok_or_else(|| invalid(format!("{field} must be the `next` of an earlier page.")))
}

fn time(field: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::InvalidTime| invalid(format!("{field} is {error}.")))
}

fn limit(given: Option<u32>) -> u32 {
    given.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidArgument).cause("drops:invalid").detail(detail)
}

#[cfg(test)]
mod tests;
