//! Endpoints that create, open, change and end drops.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use base::page::{next_page, rows_to_read};
use http::{HeaderMap, StatusCode};
use http_server::{JsonBody, Problem, Query, idempotency_key, mark_replayed};
use serde::{Deserialize, Serialize};
use service::Open;
use utoipa::{IntoParams, ToSchema};

use super::actor::Actor;
use super::views::{DropDetails, DropView};
use super::{id, invalid, limit, store, time};
use crate::error::Error;
use crate::line::Line;
use crate::model::{DropRecord, DropState, Terms};
use crate::problem::problem;
use crate::service::{CreatedDrop, Drops, EndMode, ListDrops, NewDrop, PaceChange};
use crate::stock::Stock;

/// A drop to be created.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "name": "summer-skins", "resource": "skin:summer", "stock": 1000,
    "terms": {
        "price": {"amount": 1999, "currency": "EUR"}, "per_player": 1, "reservation_ms": 300_000,
        "admission": {"batch": 50, "period_ms": 3_000, "capacity": 500, "lifetime_ms": 600_000, "arrive_within_ms": 60_000}
    }
}), as = DropRequest)]
pub(super) struct CreateRequest {
    /// Unique among all drops; 1 to 100 characters.
    name: String,
    /// What a buyer's account is granted; 1 to 255 characters.
    resource: String,
    /// How many units are for sale.
    stock: i64,
    terms: Terms,
}

/// When a drop opens and closes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = DropSchedule)]
pub(super) struct ScheduleRequest {
    /// As RFC 3339.
    #[schema(format = DateTime)]
    opens_at: String,
    /// As RFC 3339. Without it, the drop stays open until it is closed.
    #[serde(default)]
    #[schema(format = DateTime)]
    closes_at: Option<String>,
}

/// How a drop ends.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[schema(as = EndDropRequest)]
pub(super) struct EndRequest {
    /// `true`: end it even while units are reserved. They can be paid for until their reservation expires.
    force: bool,
}

/// The emergency switch.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct EveryoneWaitsRequest {
    /// `true`: no player is admitted until it is `false` again.
    on: bool,
}

/// A message for players who wait.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = DropMessage)]
pub(super) struct MessageRequest {
    /// At most 1,000 characters. Without it, the message is removed.
    message: Option<String>,
}

/// How fast players are admitted. Omitted fields stay as they are.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = DropPace)]
pub(super) struct PaceRequest {
    /// How many players should arrive per period.
    batch: Option<u32>,
    period_ms: Option<u64>,
    /// How many players may be inside at once.
    capacity: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DropsQuery {
    /// Only drops in this state: DRAFT, SCHEDULED, OPEN, PAUSED, CLOSED or CANCELLED.
    state: Option<String>,
    /// Drops after this one.
    #[param(value_type = Option<Uuid>)]
    after: Option<String>,
    /// How many at most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct DropList {
    drops: Vec<DropView>,
    /// The start of the next page, if there is one: pass it as `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid)]
    next: Option<String>,
}

/// Create a drop as a draft: players do not see it until it is scheduled or opened.
#[utoipa::path(
    post, path = "/internal/v1/drops", tag = "drops", operation_id = "create_drop",
    params(("Idempotency-Key" = String, Header, description = "A unique key of this request. Repeating the request with the same key returns \
        the drop that it created.")),
    request_body = CreateRequest,
    responses(
        (status = 201, description = "The draft", body = DropView),
        (status = 400, description = "The request is not valid: the detail lists everything that is wrong with the terms"),
        (status = 409, description = "Another drop has this name"),
        (status = 422, description = "The key was used for another request"),
    )
)]
pub(super) async fn create(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    headers: HeaderMap,
    JsonBody(CreateRequest { name, resource, stock, terms }): JsonBody<CreateRequest>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let new = NewDrop { name, resource, terms, stock, actor };
    let CreatedDrop { drop, is_repeated } = drops.create_once(&new, key).await.map_err(problem)?;
    tracing::info!(drop = %drop.id, name = drop.name, actor = new.actor, is_repeated, "created a drop");
    let response = (StatusCode::CREATED, Json(DropView::from(&drop))).into_response();
    Ok(mark_replayed(response, is_repeated))
}

/// List drops in the order of their creation.
#[utoipa::path(
    get, path = "/internal/v1/drops", tag = "drops", operation_id = "list_drops", params(DropsQuery),
    responses((status = 200, description = "A page of drops", body = DropList), (status = 400, description = "There is no such state"))
)]
pub(super) async fn list(
    Open(drops): Open<Drops>,
    _: Actor,
    Query(query): Query<DropsQuery>,
) -> Result<Json<DropList>, Problem> {
    let state = query.state.as_deref().map(state).transpose()?;
    let after = query.after.as_deref().map(|drop| id("after", drop)).transpose()?;
    let limit = limit(query.limit);
    let page = ListDrops { state, after, limit: rows_to_read(limit) };
    let mut found = drops.list(page).await.map_err(problem)?;
    let next = next_page(&mut found, limit, |last| last.id.to_string());
    Ok(Json(DropList { drops: found.iter().map(DropView::from).collect(), next }))
}

/// Read a drop, with its stock and the numbers of players who wait and are inside.
#[utoipa::path(
    get, path = "/internal/v1/drops/{drop_id}", tag = "drops", operation_id = "get_drop",
    params(("drop_id" = Uuid, Path)),
    responses((status = 200, description = "The drop", body = DropDetails), (status = 404, description = "There is no such drop"))
)]
pub(super) async fn show(
    Open(drops): Open<Drops>,
    Open(stock): Open<Stock>,
    Open(line): Open<Line>,
    _: Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropDetails>, Problem> {
    let id = id("drop_id", &drop)?;
    let drop = drops.get(id).await.map_err(problem)?;
    let levels = stock.levels(id).await.map_err(problem)?;
    let inside = store::inside(&drops.db, id).await.map_err(|error| problem(Error::Db(error)))?;
    // An unreachable line must not hide the drop.
    let waiting = line.len(id).await.ok();
    Ok(Json(DropDetails { drop: DropView::from(&drop), stock: levels.into(), waiting, inside }))
}

/// Set when a drop opens and closes. Players can join from now on.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/schedule", tag = "drops", operation_id = "schedule_drop",
    params(("drop_id" = Uuid, Path)),
    request_body = ScheduleRequest,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 400, description = "A time cannot be parsed, or the drop would close before it opens"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop is already open, or has ended"),
    )
)]
pub(super) async fn schedule(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(request): JsonBody<ScheduleRequest>,
) -> Result<Json<DropView>, Problem> {
    let opens_at = time("opens_at", &request.opens_at)?;
    let closes_at = request.closes_at.as_deref().map(|text| time("closes_at", text)).transpose()?;
    changed("was scheduled", &actor, drops.schedule(id("drop_id", &drop)?, opens_at, closes_at).await)
}

/// Open a drop now. Its seed is public from then on.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/open", tag = "drops", operation_id = "open_drop",
    params(("drop_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop was opened before, or has ended"),
    )
)]
pub(super) async fn open(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropView>, Problem> {
    changed("was opened", &actor, drops.open(id("drop_id", &drop)?).await)
}

/// Stop admissions and reservations. Players keep their places, and more can join.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/pause", tag = "drops", operation_id = "pause_drop",
    params(("drop_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop is not open"),
    )
)]
pub(super) async fn pause(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropView>, Problem> {
    changed("was paused", &actor, drops.pause(id("drop_id", &drop)?).await)
}

/// Resume admissions and reservations after a pause.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/resume", tag = "drops", operation_id = "resume_drop",
    params(("drop_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop is not paused"),
    )
)]
pub(super) async fn resume(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropView>, Problem> {
    changed("was resumed", &actor, drops.resume(id("drop_id", &drop)?).await)
}

/// Close a drop. Fails while units are reserved, unless forced.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/close", tag = "drops", operation_id = "close_drop",
    params(("drop_id" = Uuid, Path)), request_body = EndRequest,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "Units are reserved, the drop was never open, or it has ended"),
    )
)]
pub(super) async fn close(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(request): JsonBody<EndRequest>,
) -> Result<Json<DropView>, Problem> {
    changed("was closed", &actor, drops.close(id("drop_id", &drop)?, request.mode()).await)
}

/// Cancel a drop. Fails while units are reserved, unless forced.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/cancel", tag = "drops", operation_id = "cancel_drop",
    params(("drop_id" = Uuid, Path)), request_body = EndRequest,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "Units are reserved, or the drop has ended"),
    )
)]
pub(super) async fn cancel(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(request): JsonBody<EndRequest>,
) -> Result<Json<DropView>, Problem> {
    changed("was cancelled", &actor, drops.cancel(id("drop_id", &drop)?, request.mode()).await)
}

/// Turn the emergency switch on or off. While it is on, no player is admitted; players inside stay.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/everyone-waits", tag = "drops", operation_id = "set_everyone_waits",
    params(("drop_id" = Uuid, Path)),
    request_body = EveryoneWaitsRequest,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop has ended"),
    )
)]
pub(super) async fn everyone_waits(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(EveryoneWaitsRequest { on }): JsonBody<EveryoneWaitsRequest>,
) -> Result<Json<DropView>, Problem> {
    let what = if on { "holds all players in the line" } else { "admits players again" };
    changed(what, &actor, drops.everyone_waits(id("drop_id", &drop)?, on).await)
}

/// Set or remove the message that waiting players see.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/message", tag = "drops", operation_id = "set_drop_message",
    params(("drop_id" = Uuid, Path)), request_body = MessageRequest,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 400, description = "The message is too long"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop has ended"),
    )
)]
pub(super) async fn message(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(MessageRequest { message }): JsonBody<MessageRequest>,
) -> Result<Json<DropView>, Problem> {
    changed("has a new message", &actor, drops.set_message(id("drop_id", &drop)?, message.as_deref()).await)
}

/// Change how fast players are admitted, also while the drop is open. It applies from the next admission cycle on.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/pace", tag = "drops", operation_id = "set_drop_pace",
    params(("drop_id" = Uuid, Path)), request_body = PaceRequest,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 400, description = "A number is out of range"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "The drop has ended"),
    )
)]
pub(super) async fn pace(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(PaceRequest { batch, period_ms, capacity }): JsonBody<PaceRequest>,
) -> Result<Json<DropView>, Problem> {
    let pace = PaceChange { batch, period: period_ms.map(Duration::from_millis), capacity };
    changed("has a new pace", &actor, drops.change_pace(id("drop_id", &drop)?, pace).await)
}

/// Replace the terms of a drop. Order and lanes are fixed once players can join, price and limit once the drop is open.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/terms", tag = "drops", operation_id = "set_drop_terms",
    params(("drop_id" = Uuid, Path)), request_body = Terms,
    responses(
        (status = 200, description = "The drop after the change", body = DropView),
        (status = 400, description = "The terms are not valid: the detail lists everything that is wrong"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "A changed field is already fixed, or the drop has ended"),
    )
)]
pub(super) async fn terms(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    JsonBody(terms): JsonBody<Terms>,
) -> Result<Json<DropView>, Problem> {
    changed("has new terms", &actor, drops.change_terms(id("drop_id", &drop)?, &terms).await)
}

impl EndRequest {
    const fn mode(self) -> EndMode {
        if self.force { EndMode::Forced } else { EndMode::UnlessReserved }
    }
}

/// Logs who changed a drop, and returns the drop as the response.
fn changed(what: &str, actor: &str, drop: Result<DropRecord, Error>) -> Result<Json<DropView>, Problem> {
    let drop = drop.map_err(problem)?;
    tracing::info!(drop = %drop.id, name = drop.name, actor, "the drop {what}");
    Ok(Json(DropView::from(&drop)))
}

fn state(word: &str) -> Result<DropState, Problem> {
    let found = DropState::ALL.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(word));
    let words = || DropState::ALL.map(DropState::as_str).join(", ");
    found.ok_or_else(|| invalid(format!("state must be one of {}, not {word:?}.", words())))
}
