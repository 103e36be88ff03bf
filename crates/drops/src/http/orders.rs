//! Endpoints of orders and refunds, over all drops.

use axum::Json;
use axum::extract::Path;
use http_server::{JsonBody, Problem, Query};
use serde::{Deserialize, Serialize};
use service::Open;
use utoipa::{IntoParams, ToSchema};

use super::actor::Actor;
use super::views::{OrderView, RefundView};
use super::{id, invalid, limit, refund_key};
use crate::orders::{ListOrders, ListRefunds, OrderState, Orders};
use crate::problem::problem;

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OrdersQuery {
    /// PENDING, PAID, REFUND_DUE (the default), FAILED or REFUNDED.
    state: Option<String>,
    /// Only orders of this drop.
    #[param(value_type = Option<Uuid>)]
    drop_id: Option<String>,
    /// How many at most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct OrderList {
    orders: Vec<OrderView>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RefundsQuery {
    /// Only payments for orders of this drop.
    #[param(value_type = Option<Uuid>)]
    drop_id: Option<String>,
    /// The `next` of the previous page.
    after: Option<String>,
    /// How many at most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct RefundList {
    refunds: Vec<RefundView>,
    /// The `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A refund that was made at the payment provider.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = RefundSettlement)]
pub(super) struct SettleRequest {
    /// The provider's id of the payment.
    payment_id: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = SettledRefund)]
pub(super) struct Settled {
    /// The state of the order afterwards.
    state: &'static str,
}

/// List orders in one state, the oldest first.
#[utoipa::path(
    get, path = "/internal/v1/orders", tag = "orders", operation_id = "list_orders", params(OrdersQuery),
    responses((status = 200, description = "The orders", body = OrderList), (status = 400, description = "There is no such state"))
)]
pub(super) async fn list(
    Open(orders): Open<Orders>,
    _: Actor,
    Query(query): Query<OrdersQuery>,
) -> Result<Json<OrderList>, Problem> {
    let state = match query.state.as_deref() {
        None => OrderState::RefundDue,
        Some(word) => OrderState::ALL
            .into_iter()
            .find(|state| state.as_str().eq_ignore_ascii_case(word))
            .ok_or_else(|| {
                invalid(format!(
                    "state must be one of {}, not {word:?}.",
                    OrderState::ALL.map(OrderState::as_str).join(", ")
                ))
            })?,
    };
    let drop = query.drop_id.as_deref().map(|drop| id("drop_id", drop)).transpose()?;
    let which = ListOrders { state, drop, after: None, limit: limit(query.limit) };
    let found = orders.in_state(which).await.map_err(problem)?;
    Ok(Json(OrderList { orders: found.into_iter().map(OrderView::from).collect() }))
}

/// List the payments that must be refunded, the oldest first.
#[utoipa::path(
    get, path = "/internal/v1/refunds", tag = "orders", operation_id = "list_refunds", params(RefundsQuery),
    responses((status = 200, description = "Payments for which no units could be delivered, and second payments for an order", body = RefundList),
        (status = 400, description = "drop_id is not a UUID, or after is not the `next` of a page"))
)]
pub(super) async fn refunds(
    Open(orders): Open<Orders>,
    _: Actor,
    Query(query): Query<RefundsQuery>,
) -> Result<Json<RefundList>, Problem> {
    let drop = query.drop_id.as_deref().map(|drop| id("drop_id", drop)).transpose()?;
    let after = query.after.as_deref().map(|after| refund_key("after", after)).transpose()?;
    let which = ListRefunds { drop, after, limit: limit(query.limit) };
    let page = orders.refunds_due(&which).await.map_err(problem)?;
    let refunds = page.refunds.into_iter().map(RefundView::from).collect();
    Ok(Json(RefundList { refunds, next: page.next.map(|next| next.to_text()) }))
}

/// Mark a due refund as done, if the provider sends no webhook about it.
#[utoipa::path(
    post, path = "/internal/v1/orders/{order_id}/settle", tag = "orders", operation_id = "settle_refund",
    params(("order_id" = Uuid, Path)), request_body = SettleRequest,
    responses(
        (status = 200, description = "The refund is settled, now or before", body = Settled),
        (status = 404, description = "There is no such order"),
        (status = 409, description = "This payment need not be refunded"),
    )
)]
pub(super) async fn settle(
    Open(orders): Open<Orders>,
    Actor(actor): Actor,
    Path(order): Path<String>,
    JsonBody(SettleRequest { payment_id }): JsonBody<SettleRequest>,
) -> Result<Json<Settled>, Problem> {
    let order = id("order_id", &order)?;
    let outcome = orders.settle_refund(order, &payment_id, &actor).await.map_err(problem)?;
    tracing::info!(%order, payment_id, actor, "settled a refund");
    Ok(Json(Settled { state: outcome.state().as_str() }))
}
