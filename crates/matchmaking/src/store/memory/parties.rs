//! Parties, in memory.

use std::collections::BTreeSet;

use base::Timestamp;
use base::id::Uuid;

use super::{Memory, State};
use crate::error::Error;
use crate::model::{PartyId, TicketId};
use crate::store::{
    Membership, NewPartyTicket, PartyChange, PartyOutcome, StoredParty, TicketEvent, TicketStep,
};

#[derive(Debug)]
pub(super) struct MemoryParty {
    stored: StoredParty,
    code: String,
    members: Vec<Uuid>,
    invited: Vec<Uuid>,
    expiry: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct MemoryMembership {
    party: Option<PartyId>,
    invitations: BTreeSet<PartyId>,
}

impl State {
    pub(super) fn expire_parties(&mut self, now: Timestamp) {
        while let Some((expiry, id)) = self.party_expiry.first().cloned() {
            if expiry > now {
                break;
            }
            self.remove_party(&id);
        }
    }

    /// Removes a party, if there is one.
    fn remove_party(&mut self, id: &PartyId) {
        let Some(party) = self.parties.remove(id) else { return };
        self.party_expiry.remove(&(party.expiry, id.clone()));
        self.party_codes.remove(&party.code);
        for user in party.members.iter().chain(&party.invited) {
            self.change_membership(*user, |membership| {
                membership.party.take_if(|party| party == id);
                membership.invitations.remove(id);
            });
        }
    }

    fn change_membership(&mut self, user: Uuid, change: impl FnOnce(&mut MemoryMembership)) {
        let membership = self.memberships.entry(user).or_default();
        change(membership);
        if membership.party.is_none() && membership.invitations.is_empty() {
            self.memberships.remove(&user);
        }
    }

    /// Returns why a change is refused, if it is.
    fn party_obstacle(&self, change: &PartyChange) -> Option<PartyOutcome> {
        let version = self.parties.get(&change.id).map_or(0, |party| party.stored.version);
        if version != change.version {
            return Some(PartyOutcome::Stale);
        }
        if self.party_codes.get(&change.code).is_some_and(|owner| *owner != change.id) {
            return Some(PartyOutcome::CodeTaken);
        }
        for user in &change.members {
            let party = self.memberships.get(user).and_then(|membership| membership.party.clone());
            if let Some(party) = party.filter(|party| *party != change.id) {
                return Some(PartyOutcome::InAnotherParty { user: *user, party });
            }
        }
        let waits = change.ticket.as_ref().is_some_and(|ticket| self.is_indexed(ticket));
        (matches!(change.step, TicketStep::RequireIdle) && waits).then_some(PartyOutcome::Queued)
    }

    /// Checks the tickets of all members. Returns the outcome if one of them prevents a new ticket, else the finished
    /// tickets of the same queue.
    fn find_blocking_member(
        &self,
        change: &PartyChange,
        new: &NewPartyTicket,
    ) -> Result<Vec<(TicketId, Uuid)>, PartyOutcome> {
        let (mut waiting, mut assigned, mut elsewhere) = (None, None, None);
        let mut done = Vec::new();
        for user in &change.members {
            for (id, owner, stored) in self.tickets_of(*user) {
                let (queue, waits) = (owner.queue(), self.is_indexed(id));
                let is_ours = change.ticket.as_ref() == Some(id);
                let found = || PartyOutcome::Ticket { id: id.clone(), found: stored.to_stored() };
                if is_ours && queue == new.queue && waits {
                    waiting = Some(found());
                } else if waits {
                    if queue == new.queue || !new.allowed_queues.iter().any(|allowed| allowed == queue) {
                        let queue = queue.to_owned();
                        elsewhere =
                            Some(PartyOutcome::MemberWaits { user: *user, queue, ticket: id.clone() });
                    }
                } else if queue == new.queue {
                    if is_ours && stored.assignment.is_some() && new.replaces.as_ref() != Some(id) {
                        assigned = Some(found());
                    } else {
                        done.push((id.clone(), *user));
                    }
                }
            }
        }
        waiting.or(assigned).or(elsewhere).map_or(Ok(done), Err)
    }

    fn write_party(&mut self, change: &PartyChange, now: Timestamp) {
        self.remove_party(&change.id);
        let Some(data) = &change.data else { return };
        let expiry = now.after(change.ttl);
        self.party_expiry.insert((expiry, change.id.clone()));
        self.party_codes.insert(change.code.clone(), change.id.clone());
        for user in &change.members {
            self.change_membership(*user, |membership| membership.party = Some(change.id.clone()));
        }
        for user in &change.invited {
            self.change_membership(*user, |membership| {
                membership.invitations.insert(change.id.clone());
            });
        }
        let party = MemoryParty {
            stored: StoredParty { version: change.version + 1, data: data.clone() },
            code: change.code.clone(),
            members: change.members.clone(),
            invited: change.invited.clone(),
            expiry,
        };
        self.parties.insert(change.id.clone(), party);
    }
}

impl Memory {
    pub(in crate::store) async fn membership(&self, user: Uuid) -> Result<Membership, Error> {
        let (mut state, now) = self.state();
        state.expire_parties(now);
        let found = state.memberships.get(&user).map(|membership| Membership {
            party: membership.party.clone(),
            invitations: membership.invitations.iter().cloned().collect(),
        });
        Ok(found.unwrap_or_default())
    }

    pub(in crate::store) async fn party(&self, id: &PartyId) -> Result<Option<StoredParty>, Error> {
        let (mut state, now) = self.state();
        state.expire_parties(now);
        Ok(state.parties.get(id).map(|party| party.stored.clone()))
    }

    pub(in crate::store) async fn party_by_code(&self, code: &str) -> Result<Option<PartyId>, Error> {
        let (mut state, now) = self.state();
        state.expire_parties(now);
        Ok(state.party_codes.get(code).cloned())
    }

    pub(in crate::store) async fn change_party(&self, change: &PartyChange) -> Result<PartyOutcome, Error> {
        let (mut state, now) = self.state();
        state.expire_parties(now);
        if let Some(obstacle) = state.party_obstacle(change) {
            return Ok(obstacle);
        }
        match &change.step {
            TicketStep::Keep | TicketStep::RequireIdle => {}
            TicketStep::Cancel => {
                if let Some(id) = change.ticket.as_ref().filter(|id| state.is_indexed(id)) {
                    state.forget(id);
                    self.publish(TicketEvent::Gone(id.clone()));
                    self.leave_check(&mut state, now, id);
                }
            }
            TicketStep::Create(new) => {
                let done = match state.find_blocking_member(change, new) {
                    Ok(done) => done,
                    Err(outcome) => return Ok(outcome),
                };
                done.iter().for_each(|(id, user)| state.clear_owner(id, *user));
                state.insert(new.ticket.clone(), now);
                let due = new.cancel_when_gone.map(|after| now.after(after));
                for user in &change.members {
                    state.add_owner(&new.ticket.id, *user, &new.queue, due);
                }
                self.created.notify_one();
            }
        }
        state.write_party(change, now);
        Ok(PartyOutcome::Changed)
    }
}
