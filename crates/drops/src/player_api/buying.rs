//! Endpoints of purchases: reservations, payments, orders.

use ::service::{Open, SignedInPlayer};
use axum::Json;
use base::id::Uuid;
use http::{HeaderMap, StatusCode};
use http_server::{JsonBody, Problem, Query, idempotency_key};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{OrderAnswer, ReservationAnswer};
use super::{PathIds, PlayerApi, user_of};
use crate::OrderId;
use crate::error::Error;
use crate::problem::problem;
use crate::stock::Reservation;

/// How many orders are listed by default, and at most.
const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;

/// A request to reserve units.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "quantity": 1, "admission": "eyJhbGciOiJFZERTQSJ9.e30.c2ln" }))]
pub(crate) struct ReserveRequest {
    /// How many units.
    #[schema(minimum = 1)]
    quantity: i64,
    /// The token of the player's admission, from `/v1/drops/{drop_id}/place`.
    admission: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PayQuery {
    /// How many of the reserved units; all of them by default. The others are released once these are paid for.
    #[param(minimum = 1)]
    quantity: Option<i64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OrdersQuery {
    /// Orders older than this one.
    before: Option<Uuid>,
    /// How many at most: 1 to 100; 20 by default.
    limit: Option<u32>,
}

/// Orders of a player.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OrderList {
    /// The newest first.
    orders: Vec<OrderAnswer>,
}

/// Reserve units
///
/// Once per `Idempotency-Key`: a repeated request gets the recorded response. The units are held until `expires_at`.
#[utoipa::path(
    post, path = "/v1/drops/{drop_id}/reservations", tag = "drops", request_body = ReserveRequest,
    params(
        ("drop_id" = String, Path),
        ("Idempotency-Key" = String, Header, description = "A unique key of this request."),
    ),
    responses(
        (status = 201, description = "The units are held", body = ReservationAnswer),
        (status = 400, description = "The quantity is less than 1 (`drops:invalid`), or the key is missing"),
        (status = 403, description = "No admission: `drops:not-admitted`, `drops:admission-forged`, \
            `drops:admission-of-another-player`, `drops:admission-to-another-drop`"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "`drops:sold-out`, `drops:over-limit`, `drops:not-open` or `drops:admission-ended`"),
        (status = 422, description = "The key was used for another request (`drops:key-reused`)"),
    )
)]
pub(super) async fn reserve(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReserveRequest>,
) -> Result<(StatusCode, Json<ReservationAnswer>), Problem> {
    let key = idempotency_key(&headers)?;
    let drop = api.visible(&ids).await?;
    let verified = api.tokens.verify(&request.admission, drop.id, user_of(&player), api.clock.now());
    let admission = verified.map_err(|error| problem(error.into()))?;
    let reservation = api.stock.reserve(admission, request.quantity, key).await.map_err(problem)?;
    Ok((StatusCode::CREATED, Json(ReservationAnswer::new(&reservation))))
}

/// Release reserved units
///
/// Releasing them again, or after the reservation expired, changes nothing.
#[utoipa::path(
    delete, path = "/v1/drops/{drop_id}/reservations/{reservation_id}", tag = "drops",
    params(("drop_id" = String, Path), ("reservation_id" = String, Path)),
    responses(
        (status = 200, description = "The reservation as it is now", body = ReservationAnswer),
        (status = 404, description = "The player has no such reservation"),
        (status = 409, description = "The reservation is paid for (`drops:already-paid`)"),
    )
)]
pub(super) async fn release(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
) -> Result<Json<ReservationAnswer>, Problem> {
    let found = own_reservation(&api, &ids, &player).await?;
    let released = api.stock.release(found.user, found.id).await.map_err(problem)?;
    Ok(Json(ReservationAnswer::new(&released)))
}

/// Pay for a reservation
///
/// Creates the order of a reservation, once: a repeated request returns it. The player pays at `checkout_url`; the payment provider confirms.
#[utoipa::path(
    post, path = "/v1/drops/{drop_id}/reservations/{reservation_id}/pay", tag = "drops",
    params(("drop_id" = String, Path), ("reservation_id" = String, Path), PayQuery),
    responses(
        (status = 200, description = "The order", body = OrderAnswer),
        (status = 404, description = "The player has no such reservation"),
        (status = 409, description = "The reservation has ended (`drops:reservation-ended`)"),
        (status = 422, description = "The reservation has an order with another quantity (`drops:other-quantity`)"),
    )
)]
pub(super) async fn pay(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
    Query(query): Query<PayQuery>,
) -> Result<Json<OrderAnswer>, Problem> {
    let found = own_reservation(&api, &ids, &player).await?;
    let order = api.orders.pay(found.user, found.id, query.quantity).await.map_err(problem)?;
    Ok(Json(OrderAnswer::new(&order, &api.provider)))
}

/// The player's orders
#[utoipa::path(
    get, path = "/v1/orders", tag = "drops", params(OrdersQuery),
    responses((status = 200, description = "The orders", body = OrderList))
)]
pub(super) async fn orders(
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
    Query(query): Query<OrdersQuery>,
) -> Result<Json<OrderList>, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let before = query.before.map(OrderId::from_uuid);
    let orders = api.orders.list(user_of(&player), before, limit).await.map_err(problem)?;
    Ok(Json(OrderList {
        orders: orders.iter().map(|order| OrderAnswer::new(order, &api.provider)).collect(),
    }))
}

/// One order of the player
#[utoipa::path(
    get, path = "/v1/orders/{order_id}", tag = "drops", params(("order_id" = String, Path)),
    responses(
        (status = 200, description = "The order", body = OrderAnswer),
        (status = 404, description = "The player has no such order"),
    )
)]
pub(super) async fn order(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
) -> Result<Json<OrderAnswer>, Problem> {
    let order = api.orders.order(user_of(&player), ids.get("order_id")?).await.map_err(problem)?;
    Ok(Json(OrderAnswer::new(&order, &api.provider)))
}

/// Reads the player's reservation in the drop that the path names.
async fn own_reservation(
    api: &PlayerApi,
    ids: &PathIds,
    player: &SignedInPlayer,
) -> Result<Reservation, Problem> {
    let (drop, id) = (ids.drop()?, ids.reservation()?);
    let found = api.stock.reservation(user_of(player), id).await.map_err(problem)?;
    if found.drop == drop { Ok(found) } else { Err(problem(Error::UnknownReservation(id))) }
}
