//! Preparing, opening and ending drops.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use http_server::{Body, Problem, Query, answered_before, idempotency_key};
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
use crate::service::{Create, Created, Drops, Ending, ListDrops, Pace};
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
}))]
pub(super) struct CreateRequest {
    /// Unique among all drops; 1 to 100 characters.
    name: String,
    /// What a buyer's account is granted; 1 to 255 characters.
    resource: String,
    /// How many units there are.
    stock: i64,
    terms: Terms,
}

/// When a drop opens and closes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
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
pub(super) struct EndRequest {
    /// `true`: also while units are reserved. They can be paid for until their time ends.
    force: bool,
}

/// The emergency switch.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct EveryoneWaitsRequest {
    /// `true`: nobody is admitted until it is `false` again.
    on: bool,
}

/// A text for players who wait.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct MessageRequest {
    /// At most 1,000 characters; null removes it.
    message: Option<String>,
}

/// How fast players are admitted. What is left out stays as it is.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct PaceRequest {
    /// How many players are to arrive per period.
    batch: Option<u32>,
    period_ms: Option<u64>,
    /// How many may be inside at once.
    capacity: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DropsQuery {
    /// Only those in this state: DRAFT, SCHEDULED, OPEN, PAUSED, CLOSED or CANCELLED.
    state: Option<String>,
    /// From behind this drop.
    after: Option<String>,
    /// How many at most; 100 if not given, 1,000 at most.
    limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct DropList {
    drops: Vec<DropView>,
    /// Where the next page begins, if there is one: give it as `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Create a drop as a draft: nobody sees it until it is scheduled or opened.
#[utoipa::path(
    post, path = "/internal/v1/drops", tag = "drops",
    params(("Idempotency-Key" = String, Header, description = "The request's own key. The same request sent again under it is answered \
        with the drop that it created.")),
    request_body = CreateRequest,
    responses(
        (status = 201, description = "The draft", body = DropView),
        (status = 400, description = "The request is not valid: the detail names everything that is wrong with the terms"),
        (status = 409, description = "A drop has this name"),
        (status = 422, description = "The key was used for another request"),
    )
)]
pub(super) async fn create(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    headers: HeaderMap,
    Body(CreateRequest { name, resource, stock, terms }): Body<CreateRequest>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let new = Create { name, resource, terms, stock, actor };
    let Created { drop, is_repeated } = drops.create_once(&new, key).await.map_err(problem)?;
    tracing::info!(drop = %drop.id, name = drop.name, actor = new.actor, is_repeated, "created a drop");
    let response = (StatusCode::CREATED, Json(DropView::from(&drop))).into_response();
    Ok(answered_before(response, is_repeated))
}

/// List drops in the order of their creation.
#[utoipa::path(
    get, path = "/internal/v1/drops", tag = "drops", params(DropsQuery),
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
    let found = drops.list(ListDrops { state, after, limit }).await.map_err(problem)?;
    let next = found.last().filter(|_| found.len() as u32 == limit).map(|last| last.id.to_string());
    Ok(Json(DropList { drops: found.iter().map(DropView::from).collect(), next }))
}

/// Read a drop, with its stock and how many wait and are inside.
#[utoipa::path(
    get, path = "/internal/v1/drops/{drop_id}", tag = "drops", params(("drop_id" = String, Path)),
    responses((status = 200, description = "As it is", body = DropDetails), (status = 404, description = "There is no such drop"))
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
    // A line that is away is no reason to show nothing.
    let waiting = line.len(id).await.ok();
    Ok(Json(DropDetails { drop: DropView::from(&drop), stock: levels.into(), waiting, inside }))
}

/// Set when a drop opens and closes. Players can join from now on.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/schedule", tag = "drops", params(("drop_id" = String, Path)),
    request_body = ScheduleRequest,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 400, description = "A time cannot be read, or it closes before it opens"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It is open already, or over"),
    )
)]
pub(super) async fn schedule(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(request): Body<ScheduleRequest>,
) -> Result<Json<DropView>, Problem> {
    let opens_at = time("opens_at", &request.opens_at)?;
    let closes_at = request.closes_at.as_deref().map(|text| time("closes_at", text)).transpose()?;
    changed("scheduled", &actor, drops.schedule(id("drop_id", &drop)?, opens_at, closes_at).await)
}

/// Open a drop now. Its seed is public from then on.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/open", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It was opened before, or is over"),
    )
)]
pub(super) async fn open(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropView>, Problem> {
    changed("opened", &actor, drops.open(id("drop_id", &drop)?).await)
}

/// Stop admissions and reservations. Players keep their places, and more can join.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/pause", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It is not open"),
    )
)]
pub(super) async fn pause(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropView>, Problem> {
    changed("paused", &actor, drops.pause(id("drop_id", &drop)?).await)
}

/// Go on after a pause.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/resume", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It is not paused"),
    )
)]
pub(super) async fn resume(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
) -> Result<Json<DropView>, Problem> {
    changed("resumed", &actor, drops.resume(id("drop_id", &drop)?).await)
}

/// End a drop. Refused while units are reserved, unless by force.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/close", tag = "drops", params(("drop_id" = String, Path)), request_body = EndRequest,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "Units are reserved, it was never open, or it is over"),
    )
)]
pub(super) async fn close(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(request): Body<EndRequest>,
) -> Result<Json<DropView>, Problem> {
    changed("closed", &actor, drops.close(id("drop_id", &drop)?, request.ending()).await)
}

/// Give a drop up. Refused while units are reserved, unless by force.
#[utoipa::path(
    post, path = "/internal/v1/drops/{drop_id}/cancel", tag = "drops", params(("drop_id" = String, Path)), request_body = EndRequest,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "Units are reserved, or it is over"),
    )
)]
pub(super) async fn cancel(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(request): Body<EndRequest>,
) -> Result<Json<DropView>, Problem> {
    changed("cancelled", &actor, drops.cancel(id("drop_id", &drop)?, request.ending()).await)
}

/// Turn the emergency switch on or off: while it is on, nobody is admitted. Players who are inside stay.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/everyone-waits", tag = "drops", params(("drop_id" = String, Path)),
    request_body = EveryoneWaitsRequest,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It is over"),
    )
)]
pub(super) async fn everyone_waits(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(EveryoneWaitsRequest { on }): Body<EveryoneWaitsRequest>,
) -> Result<Json<DropView>, Problem> {
    let what = if on { "holds everyone" } else { "admits again" };
    changed(what, &actor, drops.everyone_waits(id("drop_id", &drop)?, on).await)
}

/// Show players who wait a message, or remove it.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/message", tag = "drops", params(("drop_id" = String, Path)), request_body = MessageRequest,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 400, description = "The message is too long"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It is over"),
    )
)]
pub(super) async fn message(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(MessageRequest { message }): Body<MessageRequest>,
) -> Result<Json<DropView>, Problem> {
    changed("has a new message", &actor, drops.set_message(id("drop_id", &drop)?, message.as_deref()).await)
}

/// Change how fast players are admitted, also while the drop is open. The next admission cycle keeps to it.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/pace", tag = "drops", params(("drop_id" = String, Path)), request_body = PaceRequest,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 400, description = "A number is out of its range"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "It is over"),
    )
)]
pub(super) async fn pace(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(PaceRequest { batch, period_ms, capacity }): Body<PaceRequest>,
) -> Result<Json<DropView>, Problem> {
    let pace = Pace { batch, period: period_ms.map(Duration::from_millis), capacity };
    changed("has a new pace", &actor, drops.set_pace(id("drop_id", &drop)?, pace).await)
}

/// Replace the terms of a drop. Order and lanes are fixed once players can join, price and limit once the drop is open.
#[utoipa::path(
    put, path = "/internal/v1/drops/{drop_id}/terms", tag = "drops", params(("drop_id" = String, Path)), request_body = Terms,
    responses(
        (status = 200, description = "The drop after it", body = DropView),
        (status = 400, description = "The terms are not valid: the detail names everything that is wrong"),
        (status = 404, description = "There is no such drop"),
        (status = 409, description = "A part of them is fixed by now, or the drop is over"),
    )
)]
pub(super) async fn terms(
    Open(drops): Open<Drops>,
    Actor(actor): Actor,
    Path(drop): Path<String>,
    Body(terms): Body<Terms>,
) -> Result<Json<DropView>, Problem> {
    changed("has new terms", &actor, drops.change_terms(id("drop_id", &drop)?, &terms).await)
}

impl EndRequest {
    const fn ending(self) -> Ending {
        if self.force { Ending::Forced } else { Ending::WithoutReservations }
    }
}

/// Logs who changed a drop, and shows it.
fn changed(what: &str, actor: &str, drop: Result<DropRecord, Error>) -> Result<Json<DropView>, Problem> {
    let drop = drop.map_err(problem)?;
    tracing::info!(drop = %drop.id, name = drop.name, actor, "a drop {what}");
    Ok(Json(DropView::from(&drop)))
}

fn state(word: &str) -> Result<DropState, Problem> {
    let found = DropState::ALL.into_iter().find(|state| state.word().eq_ignore_ascii_case(word));
    let words = || DropState::ALL.map(DropState::word).join(", ");
    found.ok_or_else(|| invalid(format!("state is one of {}, not {word:?}.", words())))
}
