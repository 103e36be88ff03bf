//! The drops that players see.

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
use super::{Ids, PlayerApi};
use crate::error::Error;
use crate::model::{DropRecord, DropState};
use crate::problem::problem;
use crate::{Drops, ListDrops};

/// How often the list is read. Thousands of players ask for it at an opening; the database is asked once in this time.
const FRESH: Duration = Duration::from_secs(1);
/// How old the list may be while it is being read again, or cannot be.
const USABLE: Duration = Duration::from_secs(5);
/// How many drops of a state are listed.
const MOST: u32 = 100;

/// The drops that are to come or under way, as they were a moment ago. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    drops: Drops,
    known: Arc<Mutex<Option<Known>>>,
}

#[derive(Debug)]
struct Known {
    read_at: Instant,
    /// When somebody last began to read it.
    asked_at: Instant,
    drops: Arc<[DropRecord]>,
}

/// The drops that are to come or under way.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DropList {
    /// Those that are open first, then those that are paused, then those to come.
    drops: Vec<DropAnswer>,
}

impl Catalog {
    pub(crate) fn new(drops: Drops) -> Self {
        Self { drops, known: Arc::default() }
    }

    /// Returns the drops that players can join. One caller per second reads them; the others get the list of a moment ago, and do not wait.
    pub(super) async fn joinable(&self) -> Result<Arc<[DropRecord]>, Error> {
        const SHOWN: [DropState; 3] = [DropState::Open, DropState::Paused, DropState::Scheduled];
        let read_at = Instant::now();
        if let Some(known) = self.lock().as_mut() {
            if known.asked_at.elapsed() < FRESH && known.read_at.elapsed() < USABLE {
                return Ok(known.drops.clone());
            }
            known.asked_at = read_at;
        }
        let listed =
            SHOWN.map(|state| self.drops.list(ListDrops { state: Some(state), after: None, limit: MOST }));
        let drops: Arc<[DropRecord]> = try_join_all(listed).await?.into_iter().flatten().collect();
        *self.lock() = Some(Known { read_at, asked_at: read_at, drops: drops.clone() });
        Ok(drops)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlayerApi {
    /// Returns a drop that players may see: drafts are the operators' own.
    pub(super) async fn visible(&self, ids: &Ids) -> Result<Arc<DropRecord>, Problem> {
        let id = ids.drop()?;
        let drop = self.room.record(id).await.map_err(problem)?;
        if drop.state == DropState::Draft {
            return Err(problem(Error::NoSuchDrop(id)));
        }
        Ok(drop)
    }
}

/// The drops there are
///
/// Those that are open, paused or to come. It may be a second old.
#[utoipa::path(
    get, path = "/v1/drops", operation_id = "list_drops", tag = "drops",
    responses((status = 200, description = "The drops", body = DropList))
)]
pub(super) async fn list(Open(api): Open<PlayerApi>) -> Result<Json<DropList>, Problem> {
    let now = api.clock.now();
    let drops = api.catalog.joinable().await.map_err(problem)?;
    Ok(Json(DropList { drops: drops.iter().map(|drop| DropAnswer::of(drop, now)).collect() }))
}

/// One drop
#[utoipa::path(
    get, path = "/v1/drops/{drop_id}", operation_id = "drop", tag = "drops", params(("drop_id" = String, Path)),
    responses(
        (status = 200, description = "The drop", body = DropAnswer),
        (status = 404, description = "There is no such drop"),
    )
)]
pub(super) async fn show(ids: Ids, Open(api): Open<PlayerApi>) -> Result<Json<DropAnswer>, Problem> {
    let drop = api.visible(&ids).await?;
    Ok(Json(DropAnswer::of(&drop, api.clock.now())))
}
