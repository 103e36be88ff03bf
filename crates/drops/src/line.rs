//! The line: a copy of who waits, which answers positions quickly.
//!
//! The rows in SQL are what is true. The line can be lost at any time, can lack players or hold some who no longer wait; nobody is admitted
//! by it. A line that is known to have been filled has an [`Epoch`]; without one, positions are unknown.
//!
//! The promises, which one suite holds for both adapters (`tests/it/line.rs`):
//! - the order is that of [`Spot`]: place, then user id
//! - a player has one place in it; adding them again moves them
//! - removing a spot does not remove a player who has another place by now
//! - only the holder of the newest [`Filling`] fills the line and sets its epoch

mod memory;
mod ranked;
mod redis;

use std::time::Duration;

use account::UserId;
use base::id::Uuid;
use redis_store::{Error, RedisStore};

use self::memory::Memory;
use self::redis::Redis;
pub(crate) use self::redis::TRIALS;
use crate::DropId;
use crate::model::Spot;

/// How many players one step of an adapter has at most: Redis does nothing else meanwhile.
pub const AT_ONCE: usize = 1_000;

/// The lines of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Line(Adapter);

#[derive(Clone, Debug)]
enum Adapter {
    Memory(Memory),
    Redis(Redis),
}

/// Marks a line that was filled from SQL. Every filling has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(Uuid);

/// The right to fill a line, for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling(Uuid);

/// Where a player is in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The line was lost and is not filled yet.
    Unknown,
    /// The player is not in the line.
    Absent,
    Waiting {
        /// How many are before the player.
        ahead: u64,
        /// How many wait in all.
        waiting: u64,
    },
}

/// The filling was lost: it took longer than its lease, or another one began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillingLost;

/// Runs a method of whichever adapter it is.
macro_rules! either {
    ($line:expr, $adapter:ident => $body:expr) => {
        match &$line.0 {
            Adapter::Memory($adapter) => Ok($body),
            Adapter::Redis($adapter) => $body.await,
        }
    };
}

impl Line {
    /// Opens the lines in the store. Keys begin with the prefix.
    pub fn new(store: &RedisStore, prefix: &str) -> Self {
        Self(match store {
            RedisStore::Memory => Adapter::Memory(Memory::default()),
            RedisStore::Redis(redis) => Adapter::Redis(Redis::new(redis.clone(), prefix)),
        })
    }

    /// Adds players, or moves those who are there.
    pub async fn add(&self, drop: DropId, spots: &[Spot]) -> Result<(), Error> {
        either!(self, line => line.add(drop, spots))
    }

    /// Removes players who still have these places. Returns how many.
    pub async fn remove(&self, drop: DropId, spots: &[Spot]) -> Result<u64, Error> {
        either!(self, line => line.remove(drop, spots))
    }

    /// Finds a player, in one round trip.
    pub async fn position(&self, drop: DropId, user: UserId) -> Result<Position, Error> {
        either!(self, line => line.position(drop, user))
    }

    /// Returns how many are in the line.
    pub async fn len(&self, drop: DropId) -> Result<u64, Error> {
        either!(self, line => line.len(drop))
    }

    /// Returns the first players, in order.
    pub async fn first(&self, drop: DropId, limit: usize) -> Result<Vec<Spot>, Error> {
        self.after(drop, None, limit).await
    }

    /// Returns the next players behind a spot, in order.
    pub async fn after(&self, drop: DropId, after: Option<Spot>, limit: usize) -> Result<Vec<Spot>, Error> {
        either!(self, line => line.after(drop, after, limit))
    }

    /// Returns the line's epoch. None for a line that was lost or never filled.
    pub async fn epoch(&self, drop: DropId) -> Result<Option<Epoch>, Error> {
        either!(self, line => line.epoch(drop))
    }

    /// Empties the line and begins to fill it. Returns none while another filling has its lease.
    pub async fn begin_filling(&self, drop: DropId, lease: Duration) -> Result<Option<Filling>, Error> {
        let filling = Filling(Uuid::new_v4());
        let has_begun = either!(self, line => line.begin_filling(drop, filling, lease))?;
        Ok(has_begun.then_some(filling))
    }

    /// Adds players to a line that is being filled, and renews the lease.
    pub async fn fill(
        &self,
        drop: DropId,
        filling: Filling,
        spots: &[Spot],
        lease: Duration,
    ) -> Result<Result<(), FillingLost>, Error> {
        let is_ours = either!(self, line => line.fill(drop, filling, spots, lease))?;
        Ok(if is_ours { Ok(()) } else { Err(FillingLost) })
    }

    /// Gives a filled line its epoch.
    pub async fn finish_filling(
        &self,
        drop: DropId,
        filling: Filling,
    ) -> Result<Result<Epoch, FillingLost>, Error> {
        let is_ours = either!(self, line => line.finish_filling(drop, filling))?;
        Ok(if is_ours { Ok(Epoch(filling.0)) } else { Err(FillingLost) })
    }

    /// Removes a line and its epoch. It is filled again when it is needed.
    pub async fn clear(&self, drop: DropId) -> Result<(), Error> {
        either!(self, line => line.clear(drop))
    }
}
