//! The line: a copy of the waiting players that answers position queries quickly.
//!
//! The rows in SQL are the source of truth. The line can be lost at any time, can lack players, or can hold some who no longer wait.
//! Admissions never read it. A completely filled line has an [`Epoch`]; without one, positions are unknown.
//!
//! Guarantees, checked by one suite for both adapters (`tests/room/line.rs`):
//! - the order is that of [`LineMember`]: place, then user id
//! - a player has one place in the line; adding them again moves them
//! - removing a member has no effect if the player has another place by now
//! - only the holder of the newest [`FillToken`] fills the line and sets its epoch

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
use crate::model::LineMember;

/// How many players one Redis command changes at most, since Redis runs nothing else meanwhile.
pub const CHUNK: usize = 1_000;

/// The lines of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Line(Adapter);

#[derive(Clone, Debug)]
enum Adapter {
    Memory(Memory),
    Redis(Redis),
}

/// Marks a line that was completely filled from SQL. Every fill sets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(Uuid);

/// Proves the right to fill a line, for the time of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillToken(Uuid);

/// The result of looking a player up in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionLookup {
    /// The line has no epoch: it is new or was lost, and has not been filled yet.
    LineNotFilled,
    NotInLine,
    Found(Position),
}

/// A player's position in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// How many players are before this one.
    pub ahead: u64,
    /// How many players wait in all.
    pub waiting: u64,
}

/// The right to fill the line was lost: the fill took longer than its lease, or another one began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillLeaseLost;

impl PositionLookup {
    /// Returns the position if the player was found.
    pub const fn position(self) -> Option<Position> {
        match self {
            Self::Found(position) => Some(position),
            Self::LineNotFilled | Self::NotInLine => None,
        }
    }
}

/// Calls a method of the adapter in use.
macro_rules! dispatch {
    ($line:expr, $adapter:ident => $body:expr) => {
        match &$line.0 {
            Adapter::Memory($adapter) => Ok($body),
            Adapter::Redis($adapter) => $body.await,
        }
    };
}

impl Line {
    /// Opens the lines in the store. Redis keys begin with the prefix.
    pub fn new(store: &RedisStore, prefix: &str) -> Self {
        Self(match store {
            RedisStore::Memory => Adapter::Memory(Memory::default()),
            RedisStore::Redis(redis) => Adapter::Redis(Redis::new(redis.clone(), prefix)),
        })
    }

    /// Adds players. Moves those who are already in the line.
    pub async fn add(&self, drop: DropId, members: &[LineMember]) -> Result<(), Error> {
        dispatch!(self, line => line.add(drop, members))
    }

    /// Removes players who still have these places. Returns how many were removed.
    pub async fn remove(&self, drop: DropId, members: &[LineMember]) -> Result<u64, Error> {
        dispatch!(self, line => line.remove(drop, members))
    }

    /// Looks up a player's position in one round trip.
    pub async fn position(&self, drop: DropId, user: UserId) -> Result<PositionLookup, Error> {
        dispatch!(self, line => line.position(drop, user))
    }

    /// Returns how many players are in the line.
    pub async fn len(&self, drop: DropId) -> Result<u64, Error> {
        dispatch!(self, line => line.len(drop))
    }

    /// Returns the first players, in order.
    pub async fn first(&self, drop: DropId, limit: usize) -> Result<Vec<LineMember>, Error> {
        self.after(drop, None, limit).await
    }

    /// Returns the next players behind `after`, in order.
    pub async fn after(
        &self,
        drop: DropId,
        after: Option<LineMember>,
        limit: usize,
    ) -> Result<Vec<LineMember>, Error> {
        dispatch!(self, line => line.after(drop, after, limit))
    }

    /// Returns the line's epoch. None for a line that was lost or never filled.
    pub async fn epoch(&self, drop: DropId) -> Result<Option<Epoch>, Error> {
        dispatch!(self, line => line.epoch(drop))
    }

    /// Empties the line and begins to fill it. Returns none while another fill holds its lease.
    pub async fn begin_filling(&self, drop: DropId, lease: Duration) -> Result<Option<FillToken>, Error> {
        let token = FillToken(Uuid::new_v4());
        let has_begun = dispatch!(self, line => line.begin_filling(drop, token, lease))?;
        Ok(has_begun.then_some(token))
    }

    /// Adds players to a line that is being filled and renews the lease.
    pub async fn fill(
        &self,
        drop: DropId,
        token: FillToken,
        members: &[LineMember],
        lease: Duration,
    ) -> Result<Result<(), FillLeaseLost>, Error> {
        let is_ours = dispatch!(self, line => line.fill(drop, token, members, lease))?;
        Ok(if is_ours { Ok(()) } else { Err(FillLeaseLost) })
    }

    /// Marks the line as completely filled: sets its epoch.
    pub async fn finish_filling(
        &self,
        drop: DropId,
        token: FillToken,
    ) -> Result<Result<Epoch, FillLeaseLost>, Error> {
        let is_ours = dispatch!(self, line => line.finish_filling(drop, token))?;
        Ok(if is_ours { Ok(Epoch(token.0)) } else { Err(FillLeaseLost) })
    }

    /// Removes a line and its epoch. It is filled again when needed.
    pub async fn clear(&self, drop: DropId) -> Result<(), Error> {
        dispatch!(self, line => line.clear(drop))
    }
}
