//! The tickets of players, in memory.

use std::collections::BTreeSet;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;

use super::{Memory, MemoryTicket, State};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::{AbsenceTimeouts, JoinOutcome, NewPlayerTicket, StoredTicket, TicketEvent};

/// The owner of a ticket.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    user: Uuid,
    queue: String,
    /// When the ticket becomes overdue, if its queue cancels the tickets of absent players.
    due: Option<Timestamp>,
}

impl Owner {
    pub(super) fn queue(&self) -> &str {
        &self.queue
    }
}

impl State {
    /// Returns the tickets of a player.
    pub(super) fn tickets_of(&self, user: Uuid) -> impl Iterator<Item = (&TicketId, &Owner, &MemoryTicket)> {
        self.players.get(&user).into_iter().flatten().filter_map(move |id| {
            let stored = self.tickets.get(id)?;
            Some((id, stored.owners.iter().find(|owner| owner.user == user)?, stored))
        })
    }

    /// Lists a ticket under a player.
    pub(super) fn add_owner(&mut self, id: &TicketId, user: Uuid, queue: &str, due: Option<Timestamp>) {
        self.players.entry(user).or_default().insert(id.clone());
        if let Some(due) = due {
            self.due.insert((due, id.clone(), user));
        }
        if let Some(stored) = self.tickets.get_mut(id) {
            stored.owners.push(Owner { user, queue: queue.to_owned(), due });
        }
    }

    /// Removes all owners of a ticket.
    pub(super) fn clear_owners(&mut self, id: &TicketId) {
        let Some(stored) = self.tickets.get_mut(id) else { return };
        for owner in std::mem::take(&mut stored.owners) {
            self.forget_owner(id, &owner);
        }
    }

    /// Removes an owner of a ticket.
    pub(super) fn clear_owner(&mut self, id: &TicketId, user: Uuid) {
        let Some(stored) = self.tickets.get_mut(id) else { return };
        let Some(at) = stored.owners.iter().position(|owner| owner.user == user) else { return };
        let owner = stored.owners.swap_remove(at);
        self.forget_owner(id, &owner);
    }

    fn forget_owner(&mut self, id: &TicketId, owner: &Owner) {
        if let Some(due) = owner.due {
            self.due.remove(&(due, id.clone(), owner.user));
        }
        if let Some(tickets) = self.players.get_mut(&owner.user) {
            tickets.remove(id);
            if tickets.is_empty() {
                self.players.remove(&owner.user);
            }
        }
    }

    /// Keeps a ticket from becoming overdue.
    pub(super) fn clear_due(&mut self, id: &TicketId) {
        for owner in self.tickets.get_mut(id).into_iter().flat_map(|stored| &mut stored.owners) {
            if let Some(due) = owner.due.take() {
                self.due.remove(&(due, id.clone(), owner.user));
            }
        }
    }

    /// Postpones when a ticket becomes overdue because of this player, if it can.
    fn postpone(&mut self, id: &TicketId, user: Uuid, until: Timestamp) {
        let Some(stored) = self.tickets.get_mut(id) else { return };
        let Some(owner) = stored.owners.iter_mut().find(|owner| owner.user == user) else { return };
        let Some(before) = owner.due else { return };
        let due = before.max(until);
        owner.due = Some(due);
        self.due.remove(&(before, id.clone(), user));
        self.due.insert((due, id.clone(), user));
    }

    /// Checks the player's existing tickets. Returns the outcome if one of them prevents a new ticket, else the
    /// finished tickets of the same queue.
    fn find_blocking_ticket(&self, request: &NewPlayerTicket) -> Result<Vec<TicketId>, JoinOutcome> {
        let (mut waiting, mut assigned, mut other_queue) = (None, None, None);
        let mut done = Vec::new();
        for (id, owner, stored) in self.tickets_of(request.user) {
            let (waits, id) = (self.is_indexed(id), id.clone());
            if owner.queue != request.queue {
                if waits && !request.allowed_queues.contains(&owner.queue) {
                    other_queue = Some(JoinOutcome::OtherQueue { queue: owner.queue.clone(), id });
                }
            } else if waits {
                waiting = Some(JoinOutcome::Ticket { id, found: stored.to_stored() });
            } else if stored.assignment.is_some() && request.replaces.as_ref() != Some(&id) {
                assigned = Some(JoinOutcome::Ticket { id, found: stored.to_stored() });
            } else {
                done.push(id);
            }
        }
        waiting.or(assigned).or(other_queue).map_or(Ok(done), Err)
    }
}

impl Memory {
    pub(in crate::store) async fn join(&self, request: &NewPlayerTicket) -> Result<JoinOutcome, Error> {
        let (mut state, now) = self.state();
        let done = match state.find_blocking_ticket(request) {
            Ok(done) => done,
            Err(outcome) => return Ok(outcome),
        };
        done.iter().for_each(|id| state.clear_owner(id, request.user));
        let (id, data) = (request.ticket.id.clone(), request.ticket.data.clone());
        state.insert(request.ticket.clone(), now);
        let due = request.cancel_when_gone.map(|after| now.after(after));
        state.add_owner(&id, request.user, &request.queue, due);
        drop(state);
        self.created.notify_one();
        Ok(JoinOutcome::Ticket { id, found: StoredTicket { data: Some(data), assignment: None } })
    }

    pub(in crate::store) async fn player_tickets(
        &self,
        user: Uuid,
    ) -> Result<Vec<(TicketId, StoredTicket)>, Error> {
        let (state, _) = self.state();
        let tickets = state
            .tickets_of(user)
            .filter(|(id, _, stored)| stored.assignment.is_some() || state.is_indexed(id))
            .map(|(id, _, stored)| (id.clone(), stored.to_stored()));
        Ok(tickets.collect())
    }

    pub(in crate::store) async fn mark_present(
        &self,
        users: &[Uuid],
        absence_timeouts: &AbsenceTimeouts,
    ) -> Result<(), Error> {
        let (mut state, now) = self.state();
        let after = |owner: &Owner| absence_timeouts.get(&owner.queue).copied();
        let of_user = |user: &Uuid| {
            let due = |(id, owner, _): (&TicketId, _, _)| Some((id.clone(), *user, after(owner)?));
            state.tickets_of(*user).filter_map(due).collect::<Vec<(TicketId, Uuid, Duration)>>()
        };
        for (id, user, after) in users.iter().flat_map(of_user).collect::<Vec<_>>() {
            state.postpone(&id, user, now.after(after));
        }
        Ok(())
    }

    pub(in crate::store) async fn cancel_overdue(&self) -> Result<usize, Error> {
        let (mut state, now) = self.state();
        let overdue = state.due.iter().take_while(|(due, _, _)| *due <= now);
        // Several members of a party may be absent.
        let overdue: BTreeSet<TicketId> = overdue.map(|(_, id, _)| id.clone()).collect();
        for id in &overdue {
            state.forget(id);
            self.publish(TicketEvent::Gone(id.clone()));
            self.leave_check(&mut state, now, id);
        }
        Ok(overdue.len())
    }
}
