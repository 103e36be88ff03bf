//! Rows, and the numbers that stand for words in them.

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error};

use crate::model::{DropRecord, DropState, Entry, EntryState, Measured, Place, Seed, Spot, Terms};
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
    pub(super) struct SpotRow {
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

pub(super) const fn entry_state_number(state: EntryState) -> i32 {
    match state {
        EntryState::Waiting => 0,
        EntryState::Entered => 1,
        EntryState::Left => 2,
        EntryState::Expired => 3,
    }
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
        let id = Uuid::from_slice(&self.drop_id).unwrap_or_default();
        let corrupt = |cause: &dyn std::fmt::Display| db.corrupt("drops", id, cause);
        let state = DropState::ALL.into_iter().find(|state| drop_state_number(*state) == self.state);
        Ok(DropRecord {
            id: DropId::from_uuid(id),
            name: self.name,
            state: state.ok_or_else(|| corrupt(&"unknown state"))?,
            resource: self.resource,
            opens_at: self.opens_at.map(Timestamp::from_millis),
            closes_at: self.closes_at.map(Timestamp::from_millis),
            opened_at: self.opened_at.map(Timestamp::from_millis),
            closed_at: self.closed_at.map(Timestamp::from_millis),
            created_at: Timestamp::from_millis(self.created_at),
            version: self.version,
            terms: Terms::from_stored(&self.terms).map_err(|cause| corrupt(&cause))?,
            seed: Seed::from_bytes(self.seed.try_into().map_err(|_| corrupt(&"the seed has no 32 bytes"))?),
            everyone_waits: self.everyone_waits != 0,
        })
    }
}

impl EntryRow {
    pub(super) fn read(self, db: &Db) -> Result<Entry, Error> {
        let user = Uuid::from_slice(&self.user_id).unwrap_or_default();
        let corrupt = |cause: &str| db.corrupt("drop_entries", user, cause);
        Ok(Entry {
            user: UserId::from_uuid(user),
            account: AccountId::from_uuid(Uuid::from_slice(&self.account_id).unwrap_or_default()),
            state: entry_state(self.state).ok_or_else(|| corrupt("unknown state"))?,
            number: self.number,
            place: Place::from_stored(self.place).ok_or_else(|| corrupt("no place"))?,
            joined_at: Timestamp::from_millis(self.joined_at),
            admission: AdmissionId::from_uuid(Uuid::from_slice(&self.admission_id).unwrap_or_default()),
            entered_at: self.entered_at.map(Timestamp::from_millis),
            expires_at: self.expires_at.map(Timestamp::from_millis),
            arrived_at: self.arrived_at.map(Timestamp::from_millis),
        })
    }
}

impl SpotRow {
    pub(super) fn read(self, db: &Db) -> Result<Spot, Error> {
        let user = Uuid::from_slice(&self.user_id).unwrap_or_default();
        let place =
            Place::from_stored(self.place).ok_or_else(|| db.corrupt("drop_entries", user, "no place"))?;
        Ok(Spot { place, user: UserId::from_uuid(user) })
    }
}

pub(super) fn read_measured(db: &Db, drop: DropId, text: &str) -> Result<Measured, Error> {
    Measured::from_stored(text).map_err(|cause| db.corrupt("drop_heads", drop, cause))
}

pub(super) fn bytes(id: &Uuid) -> &[u8] {
    &id.as_bytes()[..]
}
