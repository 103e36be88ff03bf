//! The rows of drops and entries, and the numeric codes of their states and reasons.

use account::{AccountId, UserId};
use base::Timestamp;
use db::{Db, Error};

use super::{PlayerEntry, uuid};
use crate::model::{
    CycleStats, DropRecord, DropState, EndReason, EntryState, LeftReason, LineEntry, LineMember, Place, Seed,
    Terms,
};
use crate::{AdmissionId, DropId};

db::row! {
    pub(super) struct DropRow {
        drop_id: Vec<u8>,
        name: String,
        state: i32,
        resource: String,
        opens_at: Option<i64>,
        closes_at: Option<i64>,
        opened_at: Option<i64>,
        closed_at: Option<i64>,
        end_reason: Option<i32>,
        created_at: i64,
        version: i64,
        terms: String,
        seed: Vec<u8>,
        everyone_waits: i32,
    }
}

db::row! {
    pub(super) struct EntryRow {
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        state: i32,
        left_reason: Option<i32>,
        number: i64,
        place: i64,
        joined_at: i64,
        admission_id: Vec<u8>,
        entered_at: Option<i64>,
        expires_at: Option<i64>,
        arrived_at: Option<i64>,
    }
}

db::row! {
    pub(super) struct PlayerEntryRow {
        drop_id: Vec<u8>,
        drop_name: String,
        drop_state: i32,
        now: i64,
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        state: i32,
        left_reason: Option<i32>,
        number: i64,
        place: i64,
        joined_at: i64,
        admission_id: Vec<u8>,
        entered_at: Option<i64>,
        expires_at: Option<i64>,
        arrived_at: Option<i64>,
    }
}

db::row! {
    pub(super) struct LineMemberRow {
        user_id: Vec<u8>,
        place: i64,
    }
}

pub(crate) const fn drop_state_number(state: DropState) -> i32 {
    match state {
        DropState::Draft => 0,
        DropState::Scheduled => 1,
        DropState::Open => 2,
        DropState::Paused => 3,
        DropState::Closed => 4,
        DropState::Cancelled => 5,
    }
}

pub(crate) const fn entry_state_number(state: EntryState) -> i32 {
    match state {
        EntryState::Waiting => 0,
        EntryState::Entered => 1,
        EntryState::Left => 2,
        EntryState::Expired => 3,
    }
}

pub(super) const fn end_reason_number(reason: EndReason) -> i32 {
    match reason {
        EndReason::Closed => 0,
        EndReason::SoldOut => 1,
        EndReason::Cancelled => 2,
    }
}

pub(crate) const fn left_reason_number(reason: LeftReason) -> i32 {
    match reason {
        LeftReason::ByPlayer => 0,
        LeftReason::BoughtAll => 1,
        LeftReason::DropEnded => 2,
    }
}

/// Returns the drop state with this code.
fn drop_state(number: i32) -> Option<DropState> {
    DropState::ALL.into_iter().find(|state| drop_state_number(*state) == number)
}

const fn entry_state(number: i32) -> Option<EntryState> {
    Some(match number {
        0 => EntryState::Waiting,
        1 => EntryState::Entered,
        2 => EntryState::Left,
        3 => EntryState::Expired,
        _ => return None,
    })
}

impl DropRow {
    pub(super) fn read(self, db: &Db) -> Result<DropRecord, Error> {
        let id = uuid(&self.drop_id);
        let corrupt = |cause: &dyn std::fmt::Display| db.corrupt("drops", id, cause);
        let end_reason =
            |number| EndReason::ALL.into_iter().find(|reason| end_reason_number(*reason) == number);
        Ok(DropRecord {
            id: DropId::from_uuid(id),
            name: self.name,
            state: drop_state(self.state).ok_or_else(|| corrupt(&"unknown state"))?,
            resource: self.resource,
            opens_at: self.opens_at.map(Timestamp::from_millis),
            closes_at: self.closes_at.map(Timestamp::from_millis),
            opened_at: self.opened_at.map(Timestamp::from_millis),
            closed_at: self.closed_at.map(Timestamp::from_millis),
            end_reason: self.end_reason.and_then(end_reason),
            created_at: Timestamp::from_millis(self.created_at),
            version: self.version,
            terms: Terms::from_stored(&self.terms).map_err(|cause| corrupt(&cause))?,
            seed: Seed::from_bytes(
                self.seed.try_into().map_err(|_| corrupt(&"the seed does not have 32 bytes"))?,
            ),
            everyone_waits: self.everyone_waits != 0,
        })
    }
}

impl EntryRow {
    pub(super) fn read(self, db: &Db) -> Result<LineEntry, Error> {
        let user = uuid(&self.user_id);
        let left_reason =
            |number| LeftReason::ALL.into_iter().find(|reason| left_reason_number(*reason) == number);
        let corrupt = |cause: &str| db.corrupt("drop_entries", user, cause);
        Ok(LineEntry {
            user: UserId::from_uuid(user),
            account: AccountId::from_uuid(uuid(&self.account_id)),
            state: entry_state(self.state).ok_or_else(|| corrupt("unknown state"))?,
            left_reason: self.left_reason.and_then(left_reason),
            number: self.number,
            place: Place::from_stored(self.place).ok_or_else(|| corrupt("invalid place"))?,
            joined_at: Timestamp::from_millis(self.joined_at),
            admission: AdmissionId::from_uuid(uuid(&self.admission_id)),
            entered_at: self.entered_at.map(Timestamp::from_millis),
            expires_at: self.expires_at.map(Timestamp::from_millis),
            arrived_at: self.arrived_at.map(Timestamp::from_millis),
        })
    }
}

impl PlayerEntryRow {
    pub(super) fn read(self, db: &Db) -> Result<PlayerEntry, Error> {
        let drop = uuid(&self.drop_id);
        let entry = EntryRow {
            user_id: self.user_id,
            account_id: self.account_id,
            state: self.state,
            left_reason: self.left_reason,
            number: self.number,
            place: self.place,
            joined_at: self.joined_at,
            admission_id: self.admission_id,
            entered_at: self.entered_at,
            expires_at: self.expires_at,
            arrived_at: self.arrived_at,
        };
        Ok(PlayerEntry {
            drop: DropId::from_uuid(drop),
            drop_name: self.drop_name,
            drop_state: drop_state(self.drop_state)
                .ok_or_else(|| db.corrupt("drops", drop, "unknown state"))?,
            entry: entry.read(db)?,
            now: Timestamp::from_millis(self.now),
        })
    }
}

impl LineMemberRow {
    pub(super) fn read(self, db: &Db) -> Result<LineMember, Error> {
        let user = uuid(&self.user_id);
        let place = Place::from_stored(self.place)
            .ok_or_else(|| db.corrupt("drop_entries", user, "invalid place"))?;
        Ok(LineMember { place, user: UserId::from_uuid(user) })
    }
}

pub(super) fn read_stats(db: &Db, drop: DropId, text: &str) -> Result<CycleStats, Error> {
    CycleStats::from_stored(text).map_err(|cause| db.corrupt("drop_heads", drop, cause))
}
