//! The tickets of players in process.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;

use super::{Kept, Memory, State};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::{Claim, Claimed, Found, GoneAfter, Push};

/// Whose a ticket is.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    user: Uuid,
    queue: String,
    /// When it is overdue, if it is cancelled once its player is gone.
    due: Option<Timestamp>,
}

impl State {
    /// The tickets of a player.
    fn tickets_of(&self, user: Uuid) -> impl Iterator<Item = (&TicketId, &Owner, &Kept)> {
        self.players.get(&user).into_iter().flatten().filter_map(|id| {
            let kept = self.tickets.get(id)?;
            Some((id, kept.owner.as_ref()?, kept))
        })
    }

    fn own(&mut self, id: &TicketId, owner: Owner) {
        self.players.entry(owner.user).or_default().insert(id.clone());
        if let Some(due) = owner.due {
            self.due.insert((due, id.clone()));
        }
        if let Some(kept) = self.tickets.get_mut(id) {
            kept.owner = Some(owner);
        }
    }

    /// The ticket is nobody's any more.
    pub(super) fn disown(&mut self, id: &TicketId) {
        self.set_due(id, |_| None);
        let Some(owner) = self.tickets.get_mut(id).and_then(|kept| kept.owner.take()) else { return };
        if let Some(tickets) = self.players.get_mut(&owner.user) {
            tickets.remove(id);
            if tickets.is_empty() {
                self.players.remove(&owner.user);
            }
        }
    }

    /// Changes when a ticket is overdue, where it can be.
    pub(super) fn set_due(&mut self, id: &TicketId, change: impl FnOnce(Timestamp) -> Option<Timestamp>) {
        let Some(owner) = self.tickets.get_mut(id).and_then(|kept| kept.owner.as_mut()) else { return };
        let Some(before) = owner.due else { return };
        owner.due = change(before);
        self.due.remove(&(before, id.clone()));
        if let Some(due) = owner.due {
            self.due.insert((due, id.clone()));
        }
    }

    /// The ticket that answers this claim before any is made, or those of the same queue that are done with.
    fn judge(&self, claim: &Claim) -> Result<Vec<TicketId>, Claimed> {
        let (mut waiting, mut assigned, mut elsewhere) = (None, None, None);
        let mut done = Vec::new();
        for (id, owner, kept) in self.tickets_of(claim.user) {
            let (waits, id) = (self.is_indexed(id), id.clone());
            if owner.queue != claim.queue {
                if waits && !claim.beside.contains(&owner.queue) {
                    elsewhere = Some(Claimed::Elsewhere { queue: owner.queue.clone(), id });
                }
            } else if waits {
                waiting = Some(Claimed::Ticket { id, found: kept.found() });
            } else if kept.assignment.is_some() && claim.replaces.as_ref() != Some(&id) {
                assigned = Some(Claimed::Ticket { id, found: kept.found() });
            } else {
                done.push(id);
            }
        }
        waiting.or(assigned).or(elsewhere).map_or(Ok(done), Err)
    }
}

impl Memory {
    pub(in crate::store) async fn join(&self, claim: &Claim) -> Result<Claimed, Error> {
        let (mut state, now) = self.state();
        let done = match state.judge(claim) {
            Ok(done) => done,
            Err(there) => return Ok(there),
        };
        done.iter().for_each(|id| state.disown(id));
        let (id, data) = (claim.ticket.id.clone(), claim.ticket.data.clone());
        state.insert(claim.ticket.clone(), now);
        let due = claim.cancel_when_gone.map(|after| now.after(after));
        state.own(&id, Owner { user: claim.user, queue: claim.queue.clone(), due });
        drop(state);
        self.arrived.notify_one();
        Ok(Claimed::Ticket { id, found: Found { data: Some(data), assignment: None } })
    }

    pub(in crate::store) async fn of_player(&self, user: Uuid) -> Result<Vec<(TicketId, Found)>, Error> {
        let (state, _) = self.state();
        let there = state
            .tickets_of(user)
            .filter(|(id, _, kept)| kept.assignment.is_some() || state.is_indexed(id))
            .map(|(id, _, kept)| (id.clone(), kept.found()));
        Ok(there.collect())
    }

    pub(in crate::store) async fn present(
        &self,
        users: &[Uuid],
        gone_after: &GoneAfter,
    ) -> Result<(), Error> {
        let (mut state, now) = self.state();
        let after = |owner: &Owner| gone_after.get(&owner.queue).copied();
        let of_user = |user: &Uuid| {
            let due = |(id, owner, _): (&TicketId, _, _)| Some((id.clone(), after(owner)?));
            state.tickets_of(*user).filter_map(due).collect::<Vec<(TicketId, Duration)>>()
        };
        for (id, after) in users.iter().flat_map(of_user).collect::<Vec<_>>() {
            state.set_due(&id, |before| Some(before.max(now.after(after))));
        }
        Ok(())
    }

    pub(in crate::store) async fn sweep(&self) -> Result<usize, Error> {
        let (mut state, now) = self.state();
        let overdue = state.due.iter().take_while(|(due, _)| *due <= now).map(|(_, id)| id.clone());
        let overdue: Vec<TicketId> = overdue.collect();
        for id in &overdue {
            state.forget(id);
            self.push(Push::Gone(id.clone()));
        }
        Ok(overdue.len())
    }
}
