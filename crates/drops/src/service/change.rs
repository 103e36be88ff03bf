//! Changes of drops: schedules, opens, pauses and ends them, and changes their terms.

use std::time::Duration;

use base::Timestamp;
use db::Tx;

use super::Drops;
use crate::DropId;
use crate::error::Error;
use crate::event::{self, DropEventType};
use crate::model::{DropAction, DropRecord, DropState, EndReason, Terms};
use crate::store;

/// Whether a drop may end while units are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndMode {
    /// Fails while units are reserved.
    UnlessReserved,
    /// Ends immediately. Reserved units can still be paid for until their reservation expires.
    Forced,
}

/// A change of how fast players are admitted. None leaves a value as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceChange {
    /// How many players should arrive per period.
    pub batch: Option<u32>,
    pub period: Option<Duration>,
    /// How many players may be inside at once. While more are inside, no player is admitted.
    pub capacity: Option<u32>,
}

/// What must hold for the stock when a change commits. It is checked after the drop was written, when no reserve can follow any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StockCondition {
    Any,
    NothingReserved,
    AllSold,
}

impl Drops {
    /// Sets when a drop opens and closes. Players can join from now on.
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
        self.change(id, DropAction::Schedule, StockCondition::Any, |drop, _| {
            (drop.opens_at, drop.closes_at) = (Some(opens_at), closes_at);
            Ok(DropEventType::Scheduled)
        })
        .await
    }

    /// Opens a drop now. Its seed is public from then on.
    pub async fn open(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, DropAction::Open, StockCondition::Any, |drop, now| {
            drop.opened_at = Some(now);
            Ok(DropEventType::ServiceParts)
        })
        .await
    }

    /// Stops admissions. Players keep their places, and more can join.
    pub async fn pause(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, DropAction::Pause, StockCondition::Any, |_, _| Ok(DropEventType::Paused)).await
    }

    pub async fn resume(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, DropAction::Resume, StockCondition::Any, |_, _| Ok(DropEventType::Resumed)).await
    }

    /// Closes a drop. Admissions stay valid until they expire.
    pub async fn close(&self, id: DropId, mode: EndMode) -> Result<DropRecord, Error> {
        self.end(id, EndReason::Closed, mode.condition()).await
    }

    /// Cancels a drop.
    pub async fn cancel(&self, id: DropId, mode: EndMode) -> Result<DropRecord, Error> {
        self.end(id, EndReason::Cancelled, mode.condition()).await
    }

    /// Ends a drop. [`Room::end_waiting`](crate::Room::end_waiting) then notifies the players who still wait, in batches.
    pub(super) async fn end(
        &self,
        id: DropId,
        reason: EndReason,
        condition: StockCondition,
    ) -> Result<DropRecord, Error> {
        let (action, event_type) = match reason {
            EndReason::Closed | EndReason::SoldOut => (DropAction::Close, DropEventType::Closed),
            EndReason::Cancelled => (DropAction::Cancel, DropEventType::Cancelled),
        };
        self.change(id, action, condition, |drop, now| {
            (drop.closed_at, drop.end_reason) = (Some(now), Some(reason));
            Ok(event_type)
        })
        .await
    }

    /// Changes the terms. Order and lanes are fixed once players can join, price and limit once the drop is open.
    pub async fn change_terms(&self, id: DropId, terms: &Terms) -> Result<DropRecord, Error> {
        terms.check().map_err(Error::Terms)?;
        self.change(id, DropAction::Terms, StockCondition::Any, |drop, _| {
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
            Ok(DropEventType::Changed)
        })
        .await
    }

    /// Changes how fast players are admitted, also while the drop is open. It applies from the next cycle on.
    pub async fn change_pace(&self, id: DropId, pace: PaceChange) -> Result<DropRecord, Error> {
        self.change(id, DropAction::Terms, StockCondition::Any, |drop, _| {
            let admission = &mut drop.terms.admission;
            admission.batch = pace.batch.unwrap_or(admission.batch);
            admission.period = pace.period.unwrap_or(admission.period);
            admission.capacity = pace.capacity.unwrap_or(admission.capacity);
            drop.terms.check().map_err(Error::Terms)?;
            Ok(DropEventType::Changed)
        })
        .await
    }

    /// Sets or removes the message that waiting players see.
    pub async fn set_message(&self, id: DropId, message: Option<&str>) -> Result<DropRecord, Error> {
        self.change(id, DropAction::Terms, StockCondition::Any, |drop, _| {
            drop.terms.message = message.map(str::to_owned);
            drop.terms.check().map_err(Error::Terms)?;
            Ok(DropEventType::Changed)
        })
        .await
    }

    /// Turns the emergency switch on or off. While it is on, no player is admitted; players inside stay.
    pub async fn everyone_waits(&self, id: DropId, is_on: bool) -> Result<DropRecord, Error> {
        self.change(id, DropAction::EveryoneWaits, StockCondition::Any, |drop, _| {
            drop.everyone_waits = is_on;
            Ok(DropEventType::Changed)
        })
        .await
    }

    /// Changes a drop while its head is locked, and appends the event in the same transaction.
    async fn change(
        &self,
        id: DropId,
        action: DropAction,
        condition: StockCondition,
        edit: impl Fn(&mut DropRecord, Timestamp) -> Result<DropEventType, Error>,
    ) -> Result<DropRecord, Error> {
        db::retry_conflicts(Error::is_conflict, || async {
            let changing = async {
                let mut tx = self.db.begin().await?;
                let locked = store::lock(&self.db, &mut tx, id).await?;
                let mut drop = locked.ok_or(Error::NoSuchDrop(id))?.drop;
                let state = drop.state;
                let next = state.after(action).ok_or(Error::WrongState { state, action })?;
                let now = store::now(&mut tx).await?;
                let event_type = edit(&mut drop, now)?;
                drop.state = next;
                drop.version += 1;
                store::save(&mut tx, &drop, &drop.terms.to_stored()?).await?;
                // After the row was written: a reserve holds a shared lock on the drop's row until its commit, so every reserve is counted.
                if !condition.holds(&mut tx, id).await? {
                    return Err(Error::WrongState { state, action });
                }
                let event = event::drop_event(event_type, &drop, self.clock.now())?;
                self.outbox.append(&mut tx, &[(outbox::Uuid::nil(), event)]);
                tx.commit().await?;
                Ok(drop)
            };
            self.db.bounded(changing).await
        })
        .await
    }
}

impl EndMode {
    const fn condition(self) -> StockCondition {
        match self {
            Self::UnlessReserved => StockCondition::NothingReserved,
            Self::Forced => StockCondition::Any,
        }
    }
}

impl StockCondition {
    /// Returns whether the condition holds. Fails with [`Error::OpenReservations`] if units are reserved that must not be.
    async fn holds(self, tx: &mut Tx, drop: DropId) -> Result<bool, Error> {
        if self == Self::Any {
            return Ok(true);
        }
        let (available, reserved) = store::unsold(tx, drop).await?;
        match self {
            Self::NothingReserved if reserved > 0 => Err(Error::OpenReservations(reserved)),
            Self::AllSold => Ok(available + reserved == 0),
            Self::NothingReserved | Self::Any => Ok(true),
        }
    }
}
