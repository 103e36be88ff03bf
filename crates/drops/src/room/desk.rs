//! Deciding on joins, arrivals and leaves, one after the other.

use std::collections::HashMap;

use account::UserId;
use base::Timestamp;

use super::Join;
use crate::error::Error;
use crate::model::{DropRecord, Entry, EntryState, LeftReason, Spot, Who};
use crate::{AdmissionId, DropId};

/// What the caller knows of a player: it decides whether they may join, and in which lane.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub roles: Vec<String>,
    /// Resources that the account has now.
    pub owns: Vec<String>,
}

/// What somebody wants of the room.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Join { drop: DropId, join: Join },
    Leave { drop: DropId, user: UserId },
    Arrive { drop: DropId, user: UserId, admission: AdmissionId },
}

impl Request {
    pub(super) const fn drop(&self) -> DropId {
        match self {
            Self::Join { drop, .. } | Self::Leave { drop, .. } | Self::Arrive { drop, .. } => *drop,
        }
    }

    pub(super) const fn user(&self) -> UserId {
        match self {
            Self::Join { join, .. } => join.user,
            Self::Leave { user, .. } | Self::Arrive { user, .. } => *user,
        }
    }
}

/// Where requests for one drop are decided, while its head is held.
#[derive(Debug)]
pub(super) struct Desk<'a> {
    drop: &'a DropRecord,
    /// The number of the last join.
    joined: i64,
    now: Timestamp,
    /// Users who were erased lately: a join that was under way must not bring them back.
    erased: Vec<UserId>,
    entries: HashMap<UserId, Seen>,
    expired: Vec<Entry>,
}

#[derive(Debug)]
struct Seen {
    /// As it is stored.
    before: Option<Entry>,
    /// As it is to be stored.
    entry: Entry,
}

/// What requests have changed.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// The number of the last join.
    pub(super) joined: i64,
    pub(super) changed: Vec<Entry>,
    /// Those who wait now and did not before.
    pub(super) waiting: Vec<Spot>,
    /// Spots that nobody has any more.
    pub(super) gone: Vec<Spot>,
    /// Admissions that had ended and were replaced by a new join before a cycle marked them.
    pub(super) expired: Vec<Entry>,
}

/// What requests are decided by: read while the drop's head is held.
#[derive(Debug)]
pub(super) struct Situation {
    /// The number of the last join.
    pub(super) joined: i64,
    /// Of the users of the requests.
    pub(super) entries: Vec<Entry>,
    /// Those of them who were erased lately.
    pub(super) erased: Vec<UserId>,
    /// The store's time.
    pub(super) now: Timestamp,
}

impl<'a> Desk<'a> {
    pub(super) fn new(drop: &'a DropRecord, situation: Situation) -> Self {
        let Situation { joined, entries, erased, now } = situation;
        let seen = |entry: Entry| (entry.user, Seen { before: Some(entry.clone()), entry });
        let entries = entries.into_iter().map(seen).collect();
        Self { drop, joined, now, erased, entries, expired: Vec::new() }
    }

    /// Decides on one request. Returns the player's entry after it.
    pub(super) fn decide(&mut self, request: &Request) -> Result<Entry, Error> {
        match request {
            Request::Join { join, .. } => self.join(join),
            Request::Leave { user, .. } => self.leave(*user),
            Request::Arrive { user, admission, .. } => self.arrive(*user, *admission),
        }
    }

    fn join(&mut self, join: &Join) -> Result<Entry, Error> {
        let (drop, now) = (self.drop, self.now);
        let before = self.entries.get(&join.user).map(|seen| &seen.entry);
        if let Some(entry) = before.filter(|entry| entry.is_present(now)) {
            return Ok(entry.clone());
        }
        let ended = before.filter(|entry| entry.has_ended(now)).cloned();
        if !drop.state.takes_joins() {
            return Err(Error::NotJoinable(drop.state));
        }
        let Facts { roles, owns } = &join.facts;
        let may_join = match &drop.terms.who {
            Who::Anyone => true,
            Who::Role(role) => roles.contains(role),
            Who::Owns(resource) => owns.contains(resource),
        };
        if !may_join || self.erased.contains(&join.user) {
            return Err(Error::NotEligible);
        }
        self.expired.extend(ended);
        self.joined += 1;
        let lane = drop.terms.lane(|resource| owns.iter().any(|owned| owned == resource));
        let entry = Entry {
            user: join.user,
            account: join.account,
            state: EntryState::Waiting,
            left_reason: None,
            number: self.joined,
            place: drop.place_of(join.user, lane, self.joined),
            joined_at: now,
            admission: AdmissionId::generate(),
            entered_at: None,
            expires_at: None,
            arrived_at: None,
        };
        let seen =
            self.entries.entry(join.user).or_insert_with(|| Seen { before: None, entry: entry.clone() });
        seen.entry = entry.clone();
        Ok(entry)
    }

    fn leave(&mut self, user: UserId) -> Result<Entry, Error> {
        let now = self.now;
        let seen = self.entries.get_mut(&user).filter(|seen| seen.entry.is_present(now));
        let entry = &mut seen.ok_or(Error::NotInLine)?.entry;
        (entry.state, entry.left_reason) = (EntryState::Left, Some(LeftReason::ByPlayer));
        Ok(entry.clone())
    }

    fn arrive(&mut self, user: UserId, admission: AdmissionId) -> Result<Entry, Error> {
        let now = self.now;
        let seen = self.entries.get_mut(&user).ok_or(Error::NotAdmitted)?;
        let entry = &mut seen.entry;
        let is_inside = entry.state == EntryState::Entered && !entry.has_ended(now);
        if !is_inside || entry.admission != admission {
            return Err(Error::NotAdmitted);
        }
        if entry.arrived_at.is_none() {
            entry.arrived_at = Some(now);
            let ends_used =
                entry.entered_at.map(|entered_at| self.drop.terms.admission.ends_used(entered_at));
            entry.expires_at = entry.expires_at.max(ends_used);
        }
        Ok(entry.clone())
    }

    /// Returns what is to be written.
    pub(super) fn decided(self) -> Decided {
        let mut decided = Decided { joined: self.joined, expired: self.expired, ..Decided::default() };
        for Seen { before, entry } in self.entries.into_values() {
            if before.as_ref() == Some(&entry) {
                continue;
            }
            if entry.state == EntryState::Waiting {
                decided.waiting.push(entry.spot());
            } else if let Some(before) = before.filter(|before| before.state == EntryState::Waiting) {
                decided.gone.push(before.spot());
            }
            decided.changed.push(entry);
        }
        decided
    }
}
