//! The status of players in drops: waiting at a position, admitted, or out.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use account::UserId;
use base::Timestamp;
use tokio::time::Instant;

use super::{Admission, Room, with_line_timeout};
use crate::DropId;
use crate::error::Error;
use crate::line::{Position, PositionLookup};
use crate::model::{CycleStats, DropRecord, DropState, EntryState, LineEntry};
use crate::store;

/// How old a cached drop may be.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// How many drops of a player are listed at most.
const MAX_DROPS: u32 = 100;

/// A drop with its stats, cached so that a position query costs one round trip.
#[derive(Clone, Debug)]
pub(super) struct CachedDrop {
    read_at: Instant,
    pub(super) drop: Arc<DropRecord>,
    stats: CycleStats,
}

/// The status of a player in a drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlayerStatus {
    NotJoined,
    Waiting(WaitStatus),
    Entered(Admission),
    Left,
    /// The admission has expired.
    Expired,
}

/// The status of a player who waits. Each part is none while it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitStatus {
    pub position: Option<Position>,
    /// The estimated wait at the present pace.
    pub wait: Option<Duration>,
}

/// A drop in which a player waits or is inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerDrop {
    pub drop: DropId,
    pub drop_name: String,
    pub drop_state: DropState,
    /// [`PlayerStatus::Waiting`] without a position (see [`Room::status`]), or [`PlayerStatus::Entered`].
    pub status: PlayerStatus,
}

impl Room {
    /// Returns the status of a player in a drop. For most players who wait, it costs one round trip to the line.
    ///
    /// For players at the front it also reads their row: a process that admitted them may have died before it removed them from the line.
    /// A missing line, such as that of a new drop, is filled by the first call.
    pub async fn status(&self, drop: DropId, user: UserId) -> Result<PlayerStatus, Error> {
        let cached = self.cached_drop(drop).await?;
        let lookup = self.look_up(drop, user).await;
        let mut position = lookup.and_then(PositionLookup::position);
        let is_at_the_front = position.is_some_and(|at| at.ahead < cached.drop.terms.admission.batch.into());
        if position.is_some() && !is_at_the_front && !cached.drop.state.is_final() {
            return Ok(PlayerStatus::Waiting(cached.wait_status(position)));
        }
        let db = &self.inner.drops.db;
        let reading = async { store::find_entry(db, &mut db.connection().await?, drop, user).await };
        let Some(found) = db.bounded(reading).await? else { return Ok(PlayerStatus::NotJoined) };
        match PlayerStatus::from_entry(drop, &found.entry, found.now) {
            PlayerStatus::Waiting(_) => {
                if let Some(lookup) = lookup.filter(|_| position.is_none() && !cached.drop.state.is_final()) {
                    position = self.put_into_line(drop, &found.entry, lookup).await;
                }
                Ok(PlayerStatus::Waiting(cached.wait_status(position)))
            }
            status => Ok(status),
        }
    }

    /// Looks a player up in the line. Returns none if the line is unreachable.
    async fn look_up(&self, drop: DropId, user: UserId) -> Option<PositionLookup> {
        match with_line_timeout(self.inner.line.position(drop, user)).await {
            Ok(lookup) => Some(lookup),
            Err(error) => {
                self.inner.line_failed("read", drop, &error);
                None
            }
        }
    }

    /// Adds a waiting player to a line that lacks them. Returns the player's position.
    async fn put_into_line(
        &self,
        drop: DropId,
        entry: &LineEntry,
        lookup: PositionLookup,
    ) -> Option<Position> {
        match lookup {
            PositionLookup::LineNotFilled => self.filler(drop).fill(drop).await,
            // The process of the join died before it copied the join to the line, or has not done so yet.
            PositionLookup::NotInLine => {
                if let Err(error) = with_line_timeout(self.inner.line.add(drop, &[entry.line_member()])).await
                {
                    self.inner.line_failed("add", drop, &error);
                    return None;
                }
            }
            PositionLookup::Found(_) => {}
        }
        self.look_up(drop, entry.user).await.and_then(PositionLookup::position)
    }

    /// Returns a drop as it was at most a second ago. Players request it far more often than it changes.
    pub async fn record(&self, id: DropId) -> Result<Arc<DropRecord>, Error> {
        Ok(self.cached_drop(id).await?.drop)
    }

    /// Lists the drops in which a player waits or is inside, the latest join first. It is one SQL query, so positions are unknown.
    pub async fn drops_of_player(&self, user: UserId) -> Result<Vec<PlayerDrop>, Error> {
        let db = &self.inner.drops.db;
        let reading =
            async { store::entries_of_player(db, &mut db.connection().await?, user, MAX_DROPS).await };
        let drops = db.bounded(reading).await?.into_iter().map(|found| PlayerDrop {
            status: PlayerStatus::from_entry(found.drop, &found.entry, found.now),
            drop: found.drop,
            drop_name: found.drop_name,
            drop_state: found.drop_state,
        });
        Ok(drops
            .filter(|drop| matches!(drop.status, PlayerStatus::Waiting(_) | PlayerStatus::Entered(_)))
            .collect())
    }

    /// Returns a drop as it was at most [`CACHE_TTL`] ago.
    pub(super) async fn cached_drop(&self, id: DropId) -> Result<CachedDrop, Error> {
        let fresh = {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.get(&id).filter(|cached| cached.read_at.elapsed() < CACHE_TTL).cloned()
        };
        if let Some(cached) = fresh {
            return Ok(cached);
        }
        let db = &self.inner.drops.db;
        let read_at = Instant::now();
        let reading = async {
            let mut connection = db.connection().await?;
            let drop = store::get(db, &mut connection, id).await?.ok_or(Error::NoSuchDrop(id))?;
            Ok::<_, Error>((drop, store::cycle_stats(db, &mut connection, id).await?))
        };
        let (drop, stats) = db.bounded(reading).await?;
        let fresh = CachedDrop { read_at, drop: Arc::new(drop), stats };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes stale drops, so that the cache stays small. Drops that do not exist are never cached.
        cache.retain(|_, cached| cached.read_at.elapsed() < CACHE_TTL);
        cache.insert(id, fresh.clone());
        Ok(fresh)
    }
}

impl CachedDrop {
    fn wait_status(&self, position: Option<Position>) -> WaitStatus {
        let is_admitting = self.drop.state == DropState::Open && !self.drop.everyone_waits;
        let wait = position.filter(|_| is_admitting).and_then(|at| self.stats.wait_behind(at.ahead));
        WaitStatus { position, wait }
    }
}

impl PlayerStatus {
    /// Derives the status from the player's entry. The entry has no position.
    fn from_entry(drop: DropId, entry: &LineEntry, now: Timestamp) -> Self {
        match entry.state {
            EntryState::Waiting => Self::Waiting(WaitStatus { position: None, wait: None }),
            // It has expired, but no cycle has marked it yet.
            EntryState::Entered if entry.has_ended(now) => Self::Expired,
            EntryState::Entered => Admission::from_entry(drop, entry).map_or(Self::Expired, Self::Entered),
            EntryState::Left => Self::Left,
            EntryState::Expired => Self::Expired,
        }
    }
}
