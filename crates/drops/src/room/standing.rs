//! Where players stand.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use account::UserId;
use base::Timestamp;
use tokio::time::Instant;

use super::{Admission, Room, within};
use crate::DropId;
use crate::error::Error;
use crate::line::Position;
use crate::model::{DropRecord, DropState, Entry, EntryState, Measured};
use crate::store;

/// How old the terms and the pace may be that a position is answered with.
const FRESH: Duration = Duration::from_secs(1);
/// How many places of a player are listed at most.
const MAX_PLACES: u32 = 100;

/// What is remembered of a drop for a moment, so that a position costs one round trip.
#[derive(Clone, Debug)]
pub(super) struct Known {
    read_at: Instant,
    pub(super) drop: Arc<DropRecord>,
    measured: Measured,
}

/// Where a player stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    NotJoined,
    Waiting(Waiting),
    Entered(Admission),
    Left,
    /// The admission has ended.
    Expired,
}

/// A player who waits. Each part is none while it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub position: Option<InLine>,
    /// How long it will take, at the present pace.
    pub wait: Option<Duration>,
}

/// A position in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InLine {
    /// How many are before the player.
    pub ahead: u64,
    /// How many wait in all.
    pub waiting: u64,
}

/// Where a player waits, or is inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerPlace {
    pub drop: DropId,
    pub drop_name: String,
    pub drop_state: DropState,
    /// [`Standing::Waiting`] without a position (see [`Room::standing`]), or [`Standing::Entered`].
    pub standing: Standing,
}

impl Room {
    /// Returns where a player stands. For one who waits that is one round trip to the line.
    ///
    /// Players at the front may have been admitted by a process that died before it removed them from the line, so their rows are asked.
    /// A line that is not there, as that of a new drop, is filled by the first question.
    pub async fn standing(&self, drop: DropId, user: UserId) -> Result<Standing, Error> {
        let known = self.known(drop).await?;
        let position = self.position(drop, user).await;
        let mut in_line = position.and_then(InLine::of);
        let is_at_the_front = in_line.is_some_and(|at| at.ahead < known.drop.terms.admission.batch.into());
        if in_line.is_some() && !is_at_the_front && !known.drop.state.is_final() {
            return Ok(Standing::Waiting(known.waiting(in_line)));
        }
        let db = &self.rows.drops.db;
        let reading = async { store::entry(db, &mut db.connection().await?, drop, user).await };
        let Some(found) = db.bounded(reading).await? else { return Ok(Standing::NotJoined) };
        match Standing::of(drop, &found.entry, found.now) {
            Standing::Waiting(_) => {
                if let Some(position) = position.filter(|_| in_line.is_none() && !known.drop.state.is_final())
                {
                    in_line = self.put_into_line(drop, &found.entry, position).await;
                }
                Ok(Standing::Waiting(known.waiting(in_line)))
            }
            standing => Ok(standing),
        }
    }

    /// Asks the line for a player. Returns none if it does not answer.
    async fn position(&self, drop: DropId, user: UserId) -> Option<Position> {
        match within(self.rows.line.position(drop, user)).await {
            Ok(position) => Some(position),
            Err(error) => {
                self.rows.line_failed("read", drop, &error);
                None
            }
        }
    }

    /// Sees to it that the line has a player who waits and was not found in it. Returns where they are in it then.
    async fn put_into_line(&self, drop: DropId, entry: &Entry, found: Position) -> Option<InLine> {
        match found {
            Position::Unknown => self.filler(drop).fill(drop).await,
            // Killed between the commit of the join and the line, or just between the two.
            Position::Absent => {
                if let Err(error) = within(self.rows.line.add(drop, &[entry.spot()])).await {
                    self.rows.line_failed("add", drop, &error);
                    return None;
                }
            }
            Position::Waiting { .. } => {}
        }
        self.position(drop, entry.user).await.and_then(InLine::of)
    }

    /// Returns a drop as it was at most a second ago: players ask for it far more often than it changes.
    pub async fn record(&self, id: DropId) -> Result<Arc<DropRecord>, Error> {
        Ok(self.known(id).await?.drop)
    }

    /// Lists where a player waits or is inside, over all drops, the latest join first. It is one query, so positions are unknown.
    pub async fn of_player(&self, user: UserId) -> Result<Vec<PlayerPlace>, Error> {
        let db = &self.rows.drops.db;
        let reading = async { store::of_player(db, &mut db.connection().await?, user, MAX_PLACES).await };
        let places = db.bounded(reading).await?.into_iter().map(|found| PlayerPlace {
            standing: Standing::of(found.drop, &found.entry, found.now),
            drop: found.drop,
            drop_name: found.drop_name,
            drop_state: found.drop_state,
        });
        Ok(places
            .filter(|place| matches!(place.standing, Standing::Waiting(_) | Standing::Entered(_)))
            .collect())
    }

    /// Returns a drop as it was at most [`FRESH`] ago.
    pub(super) async fn known(&self, id: DropId) -> Result<Known, Error> {
        let fresh = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&id).filter(|known| known.read_at.elapsed() < FRESH).cloned()
        };
        if let Some(known) = fresh {
            return Ok(known);
        }
        let db = &self.rows.drops.db;
        let read_at = Instant::now();
        let reading = async {
            let mut connection = db.connection().await?;
            let drop = store::get(db, &mut connection, id).await?.ok_or(Error::NoSuchDrop(id))?;
            Ok::<_, Error>((drop, store::measured(db, &mut connection, id).await?))
        };
        let (drop, measured) = db.bounded(reading).await?;
        let fresh = Known { read_at, drop: Arc::new(drop), measured };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Only drops that exist are remembered, and none for long.
        known.retain(|_, known| known.read_at.elapsed() < FRESH);
        known.insert(id, fresh.clone());
        Ok(fresh)
    }
}

impl Known {
    fn waiting(&self, position: Option<InLine>) -> Waiting {
        let is_moving = self.drop.state == DropState::Open && !self.drop.everyone_waits;
        let wait = position.filter(|_| is_moving).and_then(|at| self.measured.wait_behind(at.ahead));
        Waiting { position, wait }
    }
}

impl InLine {
    const fn of(position: Position) -> Option<Self> {
        match position {
            Position::Waiting { ahead, waiting } => Some(Self { ahead, waiting }),
            Position::Unknown | Position::Absent => None,
        }
    }
}

impl Standing {
    /// Returns where a player stands by their entry. A position is not known from it.
    fn of(drop: DropId, entry: &Entry, now: Timestamp) -> Self {
        match entry.state {
            EntryState::Waiting => Self::Waiting(Waiting { position: None, wait: None }),
            // No cycle has marked it yet.
            EntryState::Entered if entry.has_ended(now) => Self::Expired,
            EntryState::Entered => Admission::of(drop, entry).map_or(Self::Expired, Self::Entered),
            EntryState::Left => Self::Left,
            EntryState::Expired => Self::Expired,
        }
    }
}
