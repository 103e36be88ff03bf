//! Decides on joins, arrivals and leaves of one drop, one after the other.

use std::collections::HashMap;

use account::UserId;
use base::Timestamp;
use runtime::fault;

use super::Join;
use crate::error::Error;
use crate::model::{Audience, DropRecord, EntryState, LeftReason, LineEntry, LineMember};
use crate::{AdmissionId, DropId};

/// What decides whether a player may join a drop, and in which lane.
#[derive(Clone, Debug, Default)]
pub struct Eligibility {
    pub roles: Vec<String>,
    /// Resources that the account owns now.
    pub owns: Vec<String>,
}

/// A player's request to the waiting room of a drop.
#[derive(Clone, Debug)]
pub(super) enum RoomRequest {
    Join { drop: DropId, join: Join },
    Leave { drop: DropId, user: UserId },
    Arrive { drop: DropId, user: UserId, admission: AdmissionId },
}

impl RoomRequest {
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

/// Applies requests for one drop in memory, while the transaction holds the drop's head.
#[derive(Debug)]
pub(super) struct Decider<'a> {
    drop: &'a DropRecord,
    /// The number of the last join.
    joined: i64,
    now: Timestamp,
    /// Recently erased users: a join that was in flight must not bring them back.
    erased: Vec<UserId>,
    entries: HashMap<UserId, TrackedEntry>,
    expired: Vec<LineEntry>,
}

/// An entry before and after the requests.
#[derive(Debug)]
struct TrackedEntry {
    /// The stored entry.
    before: Option<LineEntry>,
    /// The entry to store.
    entry: LineEntry,
}

/// The changes of a batch of requests.
#[derive(Debug, Default)]
pub(super) struct EntryChanges {
    /// The number of the last join.
    pub(super) joined: i64,
    /// The entries to store.
    pub(super) entries: Vec<LineEntry>,
    /// Players who wait now and did not before.
    pub(super) added: Vec<LineMember>,
    /// Players who no longer wait, each with the place they had.
    pub(super) removed: Vec<LineMember>,
    /// Expired admissions that a new join replaced before a cycle marked them.
    pub(super) expired: Vec<LineEntry>,
}

/// What the transaction read while it held the drop's head.
#[derive(Debug)]
pub(super) struct DecisionInput {
    /// The number of the last join.
    pub(super) joined: i64,
    /// The entries of the users who sent the requests.
    pub(super) entries: Vec<LineEntry>,
    /// Those of the users who were erased recently.
    pub(super) erased: Vec<UserId>,
    /// The store's time.
    pub(super) now: Timestamp,
}

impl<'a> Decider<'a> {
    pub(super) fn new(drop: &'a DropRecord, input: DecisionInput) -> Self {
        let DecisionInput { joined, entries, erased, now } = input;
        let tracked = |entry: LineEntry| (entry.user, TrackedEntry { before: Some(entry.clone()), entry });
        let entries = entries.into_iter().map(tracked).collect();
        Self { drop, joined, now, erased, entries, expired: Vec::new() }
    }

    /// Applies one request. Returns the player's entry after it.
    pub(super) fn decide(&mut self, request: &RoomRequest) -> Result<LineEntry, Error> {
        match request {
            RoomRequest::Join { join, .. } => self.join(join),
            RoomRequest::Leave { user, .. } => self.leave(*user),
            RoomRequest::Arrive { user, admission, .. } => self.arrive(*user, *admission),
        }
    }

    fn join(&mut self, join: &Join) -> Result<LineEntry, Error> {
        let (drop, now) = (self.drop, self.now);
        let before = self.entries.get(&join.user).map(|tracked| &tracked.entry);
        if let Some(entry) = before.filter(|entry| entry.is_present(now)) {
            return Ok(entry.clone());
        }
        let expired = before.filter(|entry| entry.has_ended(now)).cloned();
        if !drop.state.accepts_joins() {
            return Err(Error::NotJoinable(drop.state));
        }
        let Eligibility { roles, owns } = &join.eligibility;
        let may_join = match &drop.terms.who {
            Audience::Anyone => true,
            Audience::Role(role) => roles.contains(role),
            Audience::Owns(resource) => owns.contains(resource),
        };
        if !may_join || self.erased.contains(&join.user) {
            return Err(Error::NotEligible);
        }
        self.expired.extend(expired);
        self.joined += 1;
        let lane = drop.terms.lane(|resource| owns.iter().any(|owned| owned == resource));
        // Planted faults put this player at the front. The second one also says that nobody has joined before.
        let number = if fault::is_planted("drops.inverted_join") { 0 } else { self.joined };
        let counted = if fault::is_planted("drops.inverted_line") { 0 } else { number };
        let entry = LineEntry {
            user: join.user,
            account: join.account,
            state: EntryState::Waiting,
            left_reason: None,
            number,
            place: drop.place_of(join.user, lane, counted),
            joined_at: now,
            admission: AdmissionId::generate(),
            entered_at: None,
            expires_at: None,
            arrived_at: None,
        };
        let tracked = self
            .entries
            .entry(join.user)
            .or_insert_with(|| TrackedEntry { before: None, entry: entry.clone() });
        tracked.entry = entry.clone();
        Ok(entry)
    }

    fn leave(&mut self, user: UserId) -> Result<LineEntry, Error> {
        let now = self.now;
        let tracked = self.entries.get_mut(&user).filter(|tracked| tracked.entry.is_present(now));
        let entry = &mut tracked.ok_or(Error::NotInLine)?.entry;
        (entry.state, entry.left_reason) = (EntryState::Left, Some(LeftReason::ByPlayer));
        Ok(entry.clone())
    }

    fn arrive(&mut self, user: UserId, admission: AdmissionId) -> Result<LineEntry, Error> {
        let now = self.now;
        let tracked = self.entries.get_mut(&user).ok_or(Error::NotAdmitted)?;
        let entry = &mut tracked.entry;
        let is_inside = entry.state == EntryState::Entered && !entry.has_ended(now);
        if !is_inside || entry.admission != admission {
            return Err(Error::NotAdmitted);
        }
        if entry.arrived_at.is_none() {
            entry.arrived_at = Some(now);
            let used_expiry =
                entry.entered_at.map(|entered_at| self.drop.terms.admission.used_expiry(entered_at));
            entry.expires_at = entry.expires_at.max(used_expiry);
        }
        Ok(entry.clone())
    }

    /// Returns what has to be stored and copied to the line.
    pub(super) fn into_changes(self) -> EntryChanges {
        let mut changes =
            EntryChanges { joined: self.joined, expired: self.expired, ..EntryChanges::default() };
        for TrackedEntry { before, entry } in self.entries.into_values() {
            if before.as_ref() == Some(&entry) {
                continue;
            }
            if entry.state == EntryState::Waiting {
                changes.added.push(entry.line_member());
            } else if let Some(before) = before.filter(|before| before.state == EntryState::Waiting) {
                changes.removed.push(before.line_member());
            }
            changes.entries.push(entry);
        }
        changes
    }
}
