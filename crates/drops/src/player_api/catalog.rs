//! The catalog: the drops that players see.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::service::Open;
use axum::Json;
use futures::future::try_join_all;
use http_server::Problem;
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::answer::DropAnswer;
use super::{PathIds, PlayerApi};
use crate::error::Error;
use crate::model::{DropRecord, DropState};
use crate::problem::problem;
use crate::{Drops, ListDrops};

/// How often the list is read from the database. Thousands of players request it at an opening.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// How old the list may be while it is being refreshed or the database does not answer.
const MAX_AGE: Duration = Duration::from_secs(5);
/// How many drops per state are listed at most.
const MAX_PER_STATE: u32 = 100;

/// A cache of the scheduled, open and paused drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    drops: Drops,
    cache: Arc<Mutex<Option<CachedList>>>,
}

#[derive(Debug)]
struct CachedList {
    read_at: Instant,
    /// When the last refresh began.
    refresh_began_at: Instant,
    drops: Arc<[DropRecord]>,
}

/// The scheduled, open and paused drops.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DropList {
    /// Open ones first, then paused ones, then scheduled ones.
    drops: Vec<DropAnswer>,
}

impl Catalog {
    pub(crate) fn new(drops: Drops) -> Self {
        Self { drops, cache: Arc::default() }
    }

    /// Returns the drops that players can join. One caller per second refreshes the list; the others get the cached one and do not wait.
    pub(super) async fn joinable(&self) -> Result<Arc<[DropRecord]>, Error> {
        const STATES: [DropState; 3] = [DropState::Open, DropState::Paused, DropState::Scheduled];
        let read_at = Instant::now();
        if let Some(cached) = self.lock().as_mut() {
            if cached.refresh_began_at.elapsed() < REFRESH_INTERVAL && cached.read_at.elapsed() < MAX_AGE {
                return Ok(cached.drops.clone());
            }
            cached.refresh_began_at = read_at;
        }
        let listed = STATES.map(|state| {
            self.drops.list(ListDrops { state: Some(state), after: None, limit: MAX_PER_STATE })
        });
        let drops: Arc<[DropRecord]> = try_join_all(listed).await?.into_iter().flatten().collect();
        *self.lock() = Some(CachedList { read_at, refresh_began_at: read_at, drops: drops.clone() });
        Ok(drops)
    }

    fn lock(&self) -> MutexGuard<'_, Option<CachedList>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlayerApi {
    /// Returns the drop that the path names. Fails for drafts, which players may not see.
    pub(super) async fn visible(&self, ids: &PathIds) -> Result<Arc<DropRecord>, Problem> {
        let id = ids.drop()?;
        let drop = self.room.record(id).await.map_err(problem)?;
        if drop.state == DropState::Draft {
            return Err(problem(Error::NoSuchDrop(id)));
        }
        Ok(drop)
    }
}

/// List drops
///
/// The open, paused and scheduled drops. The list may be a second old.
#[utoipa::path(
    get, path = "/v1/drops", operation_id = "list_drops", tag = "drops",
    responses((status = 200, description = "The drops", body = DropList))
)]
pub(super) async fn list(Open(api): Open<PlayerApi>) -> Result<Json<DropList>, Problem> {
    let now = api.clock.now();
    let drops = api.catalog.joinable().await.map_err(problem)?;
    Ok(Json(DropList { drops: drops.iter().map(|drop| DropAnswer::new(drop, now)).collect() }))
}

/// One drop
#[utoipa::path(
    get, path = "/v1/drops/{drop_id}", operation_id = "drop", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 200, description = "The drop", body = DropAnswer),
        (status = 404, description = "There is no such drop"),
    )
)]
pub(super) async fn show(ids: PathIds, Open(api): Open<PlayerApi>) -> Result<Json<DropAnswer>, Problem> {
    let drop = api.visible(&ids).await?;
    Ok(Json(DropAnswer::new(&drop, api.clock.now())))
}
