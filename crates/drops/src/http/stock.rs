//! Endpoints of the stock of a drop.

use axum::Json;
use axum::extract::Path;
use base::page::{next_page, rows_to_read};
use http::HeaderMap;
use http_server::{JsonBody, Problem, Query, idempotency_key};
use serde::{Deserialize, Serialize};
use service::Open;
use utoipa::{IntoParams, ToSchema};

use super::actor::Actor;
use super::views::{AuditView, LedgerView, StockView};
use super::{id, invalid, limit};
use crate::problem::problem;
use crate::stock::{Adjustment, LedgerPosition, Stock};

/// An adjustment of a stock.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = StockAdjustment)]
pub(super) struct AdjustRequest {
    /// How many units are added, or removed if negative. Only available units can be removed.
    by: i64,
    /// The reason, for the ledger; 1 to 500 characters.
    reason: String,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LedgerQuery {
    /// Entries before this one, as `VERSION.ENTRY`.
    before: Option<String>,
    /// How many at most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StockLedger)]
pub(super) struct Ledger {
    entries: Vec<LedgerView>,
    /// The start of the next page, if there is one: pass it as `before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Read the counts of a stock.
#[utoipa::path(
    get, path = "/internal/v1/drops/{drop_id}/stock", tag = "drops", operation_id = "get_stock",
    params(("drop_id" = Uuid, Path)),
    responses((status = 200, description = "The counts", body = StockView), (status = 404, description = "There is no such drop"))
)]
pub(super) async fn levels(
    Open(stock): Open<Stock>,
    _: Actor,
    Path(drop): Path<String>,
) -> Result<Json<StockView>, Problem> {
    let levels = stock.levels(id("drop_id", &drop)?).await.map_err(problem)?;
    Ok(Json(levels.into()))
}

/// Add units to a stock, or remove available ones.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/stock", tag = "drops", operation_id = "adjust_stock",
    params(("drop_id" = Uuid, Path), ("Idempotency-Key" = String, Header, description = "A unique key of this request. Repeating the \
        request with the same key returns the recorded response.")),
    request_body = AdjustRequest,
    responses(
        (status = 200, description = "The counts after the change", body = StockView),
        (status = 400, description = "The request is not valid"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "Fewer units are available than should be removed"),
        (status = 422, description = "The key was used for another request"),
    )
)]
pub(super) async fn adjust(
    Open(stock): Open<Stock>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    headers: HeaderMap,
    JsonBody(AdjustRequest { by, reason }): JsonBody<AdjustRequest>,
) -> Result<Json<StockView>, Problem> {
    let drop = id("drop_id", &drop)?;
    let key = idempotency_key(&headers)?.to_owned();
    let adjustment = Adjustment { by, actor, reason, key };
    let levels = stock.adjust(drop, &adjustment).await.map_err(problem)?;
    tracing::info!(%drop, actor = adjustment.actor, by, reason = adjustment.reason, "adjusted the stock");
    Ok(Json(levels.into()))
}

/// List every change of a stock, the newest first.
#[utoipa::path(
    get, path = "/internal/v1/drops/{drop_id}/ledger", tag = "drops", operation_id = "list_stock_ledger",
    params(("drop_id" = Uuid, Path), LedgerQuery),
    responses((status = 200, description = "A page of changes", body = Ledger), (status = 404, description = "There is no such drop"))
)]
pub(super) async fn ledger(
    Open(stock): Open<Stock>,
    _: Actor,
    Path(drop): Path<String>,
    Query(query): Query<LedgerQuery>,
) -> Result<Json<Ledger>, Problem> {
    let (drop, limit) = (id("drop_id", &drop)?, limit(query.limit));
    stock.levels(drop).await.map_err(problem)?;
    let before = query.before.as_deref().map(position).transpose()?;
    let mut found = stock.ledger(drop, before, rows_to_read(limit)).await.map_err(problem)?;
    let next = next_page(&mut found, limit, |last| format!("{}.{}", last.version, last.entry));
    Ok(Json(Ledger { entries: found.into_iter().map(LedgerView::from).collect(), next }))
}

/// Check that every unit is accounted for: initial + adjusted = available + reserved + sold, and the ledger, the reservations and the orders
/// agree.
#[utoipa::path(
    get, path = "/internal/v1/drops/{drop_id}/audit", tag = "drops", operation_id = "audit_stock",
    params(("drop_id" = Uuid, Path)),
    responses((status = 200, description = "The result", body = AuditView), (status = 404, description = "There is no such drop"))
)]
pub(super) async fn audit(
    Open(stock): Open<Stock>,
    _: Actor,
    Path(drop): Path<String>,
) -> Result<Json<AuditView>, Problem> {
    let audit = stock.audit(id("drop_id", &drop)?).await.map_err(problem)?;
    Ok(Json(audit.into()))
}

fn position(text: &str) -> Result<LedgerPosition, Problem> {
    let parts = text.split_once('.');
    let read = parts.and_then(|(version, entry)| Some((version.parse().ok()?, entry.parse().ok()?)));
    let invalid_position = || invalid("before must be VERSION.ENTRY: pass `next` of the previous page.");
    read.map(|(version, entry)| LedgerPosition { version, entry }).ok_or_else(invalid_position)
}
