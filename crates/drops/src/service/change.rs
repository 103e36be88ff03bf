//! Changing drops: scheduling, opening, pausing and ending them, and their terms.

use std::time::Duration;

use base::Timestamp;
use db::Tx;

use super::Drops;
use crate::DropId;
use crate::error::Error;
use crate::event::{self, Happened};
use crate::model::{Change, DropRecord, DropState, EndReason, Terms};
use crate::store;

/// Whether a drop ends although units are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Refuses while units are reserved.
    WithoutReservations,
    /// Ends at once. Reserved units can still be paid for until their time ends.
    Forced,
}

/// How fast players are admitted. What is none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How many players are to arrive per period.
    pub batch: Option<u32>,
    pub period: Option<Duration>,
    /// How many may be inside at once. Fewer than are inside admits nobody until enough of them have left.
    pub capacity: Option<u32>,
}

/// What must be true of the stock for a change, when the drop is written and no reserve can come any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Anything,
    NothingReserved,
    AllSold,
}

impl Drops {
    /// Sets the time at which a drop opens, and the one at which it closes. Players can join from now on.
    pub async fn schedule(
        &self,
        id: DropId,
        opens_at: Timestamp,
        closes_at: Option<Timestamp>,
    ) -> Result<DropRecord, Error> {
        if closes_at.is_some_and(|closes_at| closes_at <= opens_at) {
            let what = "must be after opens_at".to_owned();
            return Err(Error::Invalid { field: "closes_at", what });
        }
        self.change(id, Change::Schedule, Condition::Anything, |drop, _| {
            (drop.opens_at, drop.closes_at) = (Some(opens_at), closes_at);
            Ok(Happened::Scheduled)
        })
        .await
    }

    /// Opens a drop now. Its seed is public from then on.
    pub async fn open(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Open, Condition::Anything, |drop, now| {
            drop.opened_at = Some(now);
            Ok(Happened::Opened)
        })
        .await
    }

    /// Stops admissions. Players keep their places, and more can join.
    pub async fn pause(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Pause, Condition::Anything, |_, _| Ok(Happened::Paused)).await
    }

    pub async fn resume(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Resume, Condition::Anything, |_, _| Ok(Happened::Resumed)).await
    }

    /// Ends a drop. Admissions that are in force end by their time.
    pub async fn close(&self, id: DropId, ending: Ending) -> Result<DropRecord, Error> {
        self.end(id, EndReason::Closed, ending.condition()).await
    }

    /// Gives a drop up.
    pub async fn cancel(&self, id: DropId, ending: Ending) -> Result<DropRecord, Error> {
        self.end(id, EndReason::Cancelled, ending.condition()).await
    }

    /// Ends a drop. Players who still wait are notified by [`Room::end_waiting`](crate::Room::end_waiting), in batches.
    pub(super) async fn end(
        &self,
        id: DropId,
        reason: EndReason,
        condition: Condition,
    ) -> Result<DropRecord, Error> {
        let (change, happened) = match reason {
            EndReason::Closed | EndReason::SoldOut => (Change::Close, Happened::Closed),
            EndReason::Cancelled => (Change::Cancel, Happened::Cancelled),
        };
        self.change(id, change, condition, |drop, now| {
            (drop.closed_at, drop.end_reason) = (Some(now), Some(reason));
            Ok(happened)
        })
        .await
    }

    /// Changes the terms. Order and lanes are fixed once players can join, price and limit once the drop is open.
    pub async fn change_terms(&self, id: DropId, terms: &Terms) -> Result<DropRecord, Error> {
        terms.check().map_err(Error::Terms)?;
        self.change(id, Change::Terms, Condition::Anything, |drop, _| {
            let (old, state) = (&drop.terms, drop.state);
            let is_draft = state == DropState::Draft;
            let is_before_opening = is_draft || state == DropState::Scheduled;
            let fixed = [
                ("order", !is_draft && old.order != terms.order),
                ("lanes", !is_draft && old.lanes != terms.lanes),
                ("price", !is_before_opening && old.price != terms.price),
                ("per_player", !is_before_opening && old.per_player != terms.per_player),
            ];
            if let Some((field, _)) = fixed.into_iter().find(|(_, is_wrong)| *is_wrong) {
                return Err(Error::Fixed { field, state });
            }
            drop.terms = terms.clone();
            Ok(Happened::Changed)
        })
        .await
    }

    /// Changes how fast players are admitted, also while the drop is open. The next cycle keeps to it.
    pub async fn set_pace(&self, id: DropId, pace: Pace) -> Result<DropRecord, Error> {
        self.change(id, Change::Terms, Condition::Anything, |drop, _| {
            let admission = &mut drop.terms.admission;
            admission.batch = pace.batch.unwrap_or(admission.batch);
            admission.period = pace.period.unwrap_or(admission.period);
            admission.capacity = pace.capacity.unwrap_or(admission.capacity);
            drop.terms.check().map_err(Error::Terms)?;
            Ok(Happened::Changed)
        })
        .await
    }

    /// Sets the message to those who wait, or removes it.
    pub async fn set_message(&self, id: DropId, message: Option<&str>) -> Result<DropRecord, Error> {
        self.change(id, Change::Terms, Condition::Anything, |drop, _| {
            drop.terms.message = message.map(str::to_owned);
            drop.terms.check().map_err(Error::Terms)?;
            Ok(Happened::Changed)
        })
        .await
    }

    /// Turns the emergency switch on or off: while it is on, nobody is admitted. Those who are inside stay.
    pub async fn everyone_waits(&self, id: DropId, is_on: bool) -> Result<DropRecord, Error> {
        self.change(id, Change::EveryoneWaits, Condition::Anything, |drop, _| {
            drop.everyone_waits = is_on;
            Ok(Happened::Changed)
        })
        .await
    }

    /// Changes a drop under its head, with its event.
    async fn change(
        &self,
        id: DropId,
        change: Change,
        condition: Condition,
        edit: impl Fn(&mut DropRecord, Timestamp) -> Result<Happened, Error>,
    ) -> Result<DropRecord, Error> {
        db::retrying(Error::is_conflict, || async {
            let changing = async {
                let mut tx = self.db.begin().await?;
                let locked = store::lock(&self.db, &mut tx, id).await?;
                let mut drop = locked.ok_or(Error::NoSuchDrop(id))?.drop;
                let state = drop.state;
                let next = state.after(change).ok_or(Error::WrongState { state, change })?;
                let now = store::now(&mut tx).await?;
                let happened = edit(&mut drop, now)?;
                drop.state = next;
                drop.version += 1;
                store::save(&mut tx, &drop, &drop.terms.to_stored()?).await?;
                // After the row was written: a reserve keeps the drop's row as it is until its commit, so all of them are counted.
                if !condition.holds(&mut tx, id).await? {
                    return Err(Error::WrongState { state, change });
                }
                let event = event::of_drop(happened, &drop, self.clock.now())?;
                self.outbox.append(&mut tx, &[(outbox::Uuid::nil(), event)]);
                tx.commit().await?;
                Ok(drop)
            };
            self.db.bounded(changing).await
        })
        .await
    }
}

impl Ending {
    const fn condition(self) -> Condition {
        match self {
            Self::WithoutReservations => Condition::NothingReserved,
            Self::Forced => Condition::Anything,
        }
    }
}

impl Condition {
    /// Returns whether it is true. Fails with [`Error::OpenReservations`] while units are reserved that must not be.
    async fn holds(self, tx: &mut Tx, drop: DropId) -> Result<bool, Error> {
        if self == Self::Anything {
            return Ok(true);
        }
        let (available, reserved) = store::unsold(tx, drop).await?;
        match self {
            Self::NothingReserved if reserved > 0 => Err(Error::OpenReservations(reserved)),
            Self::AllSold => Ok(available + reserved == 0),
            Self::NothingReserved | Self::Anything => Ok(true),
        }
    }
}
