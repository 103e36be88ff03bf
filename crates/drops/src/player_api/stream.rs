//! The stream of a drop: its stock, and the place of a player who waits.

use std::time::Duration;

use ::service::{Open, PlayerEvents, SignedInPlayer, event};
use axum::body::Bytes;
use futures::FutureExt;
use http_server::{Problem, Query};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};
use utoipa::{IntoParams, ToSchema};

use super::answer::PlaceAnswer;
use super::stock::StockAnswer;
use super::{PathIds, PlayerApi};
use crate::DropId;
use crate::problem::problem;
use crate::stock::StockWatch;

/// How often the place of a waiting player is read: once per default admission period.
const PLACE_INTERVAL: Duration = Duration::from_secs(3);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// Also send the caller's place, now and whenever it changes, until the caller no longer waits.
    #[serde(default)]
    #[param(required = false)]
    place: bool,
}

/// An event of the stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only describes events that are serialized by hand")]
pub(crate) struct DropEvent {
    /// The version of the stock, for `stock` events.
    id: Option<String>,
    event: DropEventKind,
    /// JSON: the counts or the place, as in the other endpoints; or `why` the stream ends.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only describes events that are serialized by hand")]
pub(crate) enum DropEventKind {
    Stock,
    Place,
    Reconnect,
    End,
}

/// Follow a drop
///
/// Server-sent events: `stock` now, at every change and every few seconds, with the version as its id; with `place=true` also `place`, now
/// and whenever it changes while the caller waits; `reconnect` when the process stops; `end` when no more events follow. Every event is
/// complete, so the next one makes up for a missed one. Open the stream again after joining.
#[utoipa::path(
    get, path = "/v1/drops/{drop_id}/stream", operation_id = "follow_drop", tag = "drops",
    params(("drop_id" = String, Path), StreamQuery),
    responses(
        (status = 200, description = "The events", content_type = "text/event-stream", body = DropEvent),
        (status = 404, description = "There is no such drop"),
    )
)]
pub(super) async fn stream(
    ids: PathIds,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
    Query(query): Query<StreamQuery>,
) -> Result<PlayerEvents, Problem> {
    let drop = api.visible(&ids).await?.id;
    let watch = api.feed.watch(drop).await.map_err(problem)?;
    let sync = api.stock_sync;
    let place = query.place.then(|| Box::new(FollowedPlace { api, drop, player, read_at: None, sent: None }));
    let stream_state = DropStream { watch, sync, sent_at: None, place };
    let next = |mut stream_state: DropStream| async {
        let event = stream_state.next().await?;
        Some((event, stream_state))
    };
    Ok(PlayerEvents::new(futures::stream::unfold(stream_state, next)))
}

/// The state of a stream. It is kept small, since there may be many.
struct DropStream {
    watch: StockWatch,
    /// How often the stock is sent without a change.
    sync: Duration,
    sent_at: Option<Instant>,
    /// None if the place was not requested or the player no longer waits.
    place: Option<Box<FollowedPlace>>,
}

/// The place of a player, followed until the player no longer waits.
struct FollowedPlace {
    api: PlayerApi,
    drop: DropId,
    player: SignedInPlayer,
    read_at: Option<Instant>,
    sent: Option<PlaceAnswer>,
}

impl DropStream {
    async fn next(&mut self) -> Option<Bytes> {
        let Some(sent_at) = self.sent_at else { return Some(self.stock()) };
        loop {
            let place_at = self.place.as_ref().map(|place| place.due_at());
            tokio::select! {
                changed = self.watch.changed() => {
                    changed?;
                    return Some(self.stock());
                }
                () = sleep_until(sent_at + self.sync) => return Some(self.stock()),
                () = sleep_until(place_at.unwrap_or(sent_at)), if place_at.is_some() => {
                    if let Some(event) = self.read_place().await {
                        return Some(event);
                    }
                }
            }
        }
    }

    fn stock(&mut self) -> Bytes {
        self.sent_at = Some(Instant::now());
        let snapshot = self.watch.current();
        event(Some(snapshot.version), "stock", &StockAnswer::new(&snapshot))
    }

    /// Reads the place. Returns an event if it has changed.
    async fn read_place(&mut self) -> Option<Bytes> {
        // Boxed: this future is large and rarely runs.
        let place = self.place.as_mut()?.read().boxed().await?;
        let event = event(None, "place", &place);
        if !place.is_waiting() {
            self.place = None;
        }
        Some(event)
    }
}

impl FollowedPlace {
    fn due_at(&self) -> Instant {
        self.read_at.map_or_else(Instant::now, |read_at| read_at + PLACE_INTERVAL)
    }

    /// Reads the place. Returns none if it has not changed, or on an error: the next read makes up for it.
    async fn read(&mut self) -> Option<PlaceAnswer> {
        self.read_at = Some(Instant::now());
        let drop = self.api.room.record(self.drop).await.ok()?;
        let place = self.api.read_place(&drop, &self.player).await.ok()?;
        if self.sent.as_ref() == Some(&place) {
            return None;
        }
        self.sent = Some(place.clone());
        Some(place)
    }
}
