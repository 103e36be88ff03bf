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
use super::{Ids, PlayerApi};
use crate::DropId;
use crate::problem::problem;
use crate::stock::StockWatch;

/// How often the place of a player who waits is read: as often as players are admitted, unless the drop says otherwise.
const PLACE_EVERY: Duration = Duration::from_secs(3);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// Also the caller's place, now and as it changes, until the caller does not wait any more.
    #[serde(default)]
    #[param(required = false)]
    place: bool,
}

/// One of the events of a stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is written by hand; this describes it")]
pub(crate) struct DropEvent {
    /// Of `stock`: its version.
    id: Option<String>,
    event: DropEventKind,
    /// JSON: the counts or the place, as they are answered elsewhere; or `why` there will be no more.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it is written by hand; this describes it")]
pub(crate) enum DropEventKind {
    Stock,
    Place,
    Reconnect,
    End,
}

/// Follow a drop
///
/// Server-sent events: `stock` now, at every change and every few seconds, with the version as its id; with `place=true` also `place`, now
/// and as it changes while the caller waits; `reconnect` when the process stops, `end` when nothing more will come. Every event says all of
/// it, so a missed one is made good by the next. Open it again after joining.
#[utoipa::path(
    get, path = "/v1/drops/{drop_id}/stream", operation_id = "follow_drop", tag = "drops",
    params(("drop_id" = String, Path), StreamQuery),
    responses(
        (status = 200, description = "Events, until the end", content_type = "text/event-stream", body = DropEvent),
        (status = 404, description = "There is no such drop"),
    )
)]
pub(super) async fn stream(
    ids: Ids,
    player: SignedInPlayer,
    Open(api): Open<PlayerApi>,
    Query(query): Query<StreamQuery>,
) -> Result<PlayerEvents, Problem> {
    let drop = api.visible(&ids).await?.id;
    let watch = api.feed.watch(drop).await.map_err(problem)?;
    let sync = api.stock_sync;
    let place = query.place.then(|| Box::new(FollowedPlace { api, drop, player, read_at: None, sent: None }));
    let following = Following { watch, sync, sent_at: None, place };
    let next = |mut following: Following| async {
        let event = following.next().await?;
        Some((event, following))
    };
    Ok(PlayerEvents::new(futures::stream::unfold(following, next)))
}

/// The state of a stream. It is small: there may be many.
struct Following {
    watch: StockWatch,
    /// How often the stock is sent without any change.
    sync: Duration,
    sent_at: Option<Instant>,
    /// None once there is nothing to wait for.
    place: Option<Box<FollowedPlace>>,
}

/// The place of a player, until they do not wait any more.
struct FollowedPlace {
    api: PlayerApi,
    drop: DropId,
    player: SignedInPlayer,
    read_at: Option<Instant>,
    sent: Option<PlaceAnswer>,
}

impl Following {
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
        event(Some(snapshot.version), "stock", &StockAnswer::of(&snapshot))
    }

    /// Reads the place. Returns its event if the player does not know it yet.
    async fn read_place(&mut self) -> Option<Bytes> {
        // Boxed, as it is rare and large.
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
        self.read_at.map_or_else(Instant::now, |read_at| read_at + PLACE_EVERY)
    }

    /// Reads the place. Returns none if it has not changed, or cannot be read: the next read makes up for that.
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
