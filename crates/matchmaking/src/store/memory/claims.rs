//! Claims, and what Directors assign.

use base::Timestamp;

use super::{Memory, State};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::changes::ChangeKind;
use crate::store::{Claim, ClaimOutcome, ClaimRequest, DirectGroup, DirectResult, Holder, Obstacle};

impl State {
    /// Returns the next number: odd for a Director, even for an engine.
    fn next_number(&mut self, is_director: bool) -> u32 {
        self.last_claim = self.last_claim % 1_048_575 + 1;
        2 * self.last_claim + u32::from(is_director)
    }

    pub(super) fn new_claim(&mut self, is_director: bool, now: Timestamp) -> Claim {
        let number = self.next_number(is_director);
        Claim::new(now.as_millis() / 1000, number)
    }

    pub(super) fn holder(&self, claim: Claim) -> Option<Holder> {
        self.holders.get(&claim.number()).map(|(holder, _)| holder.clone())
    }
}

impl Memory {
    pub(super) fn is_live(&self, claim: Claim, now: Timestamp) -> bool {
        // The claim of a ready check begins at its deadline.
        let since = Timestamp::from_millis(claim.second() * 1000);
        since > now || now.distance(since) <= self.rules.pending_timeout
    }

    pub(super) fn is_claimed(&self, state: &State, id: &TicketId, now: Timestamp) -> bool {
        state.pending.get(id).is_some_and(|claim| self.is_live(*claim, now))
    }

    pub(in crate::store) async fn claim(&self, matches: &[ClaimRequest]) -> Result<Vec<ClaimOutcome>, Error> {
        let (mut state, now) = self.state();
        state.holders.retain(|_, (_, until)| *until > now);
        let mut outcomes = Vec::with_capacity(matches.len());
        let expiry = self.rules.backfill_expiry();
        for ClaimRequest { number, holder, tickets, backfill } in matches {
            let is_obstacle = |id: &&TicketId| !state.is_indexed(id) || self.is_claimed(&state, id, now);
            if let Some(id) = tickets.iter().find(is_obstacle) {
                outcomes.push(ClaimOutcome::Refused(id.clone()));
                continue;
            }
            if backfill.as_ref().is_some_and(|change| !state.permits(change, now, expiry)) {
                outcomes.push(ClaimOutcome::StaleBackfill);
                continue;
            }
            let number = number.unwrap_or_else(|| state.next_number(true));
            let claim = Claim::new(now.as_millis() / 1000, number);
            state.pending.extend(tickets.iter().map(|id| (id.clone(), claim)));
            state.changed(ChangeKind::Pending(claim.second() * 1000), tickets);
            if let Some(change) = backfill {
                state.apply(change, tickets, now, expiry);
            }
            state.holders.insert(number, (holder.clone(), now.after(self.rules.pending_timeout * 2)));
            outcomes.push(ClaimOutcome::Claimed(claim));
        }
        Ok(outcomes)
    }

    pub(in crate::store) async fn release(
        &self,
        claim: Option<Claim>,
        ids: &[TicketId],
    ) -> Result<u64, Error> {
        let (mut state, _) = self.state();
        let (mut others, mut released) = (0, Vec::new());
        for id in ids {
            match state.pending.get(id) {
                Some(held) if claim.is_some_and(|claim| claim != *held) => others += 1,
                Some(_) => released.push(id),
                None => {}
            }
        }
        for id in &released {
            state.pending.remove(*id);
        }
        state.changed(ChangeKind::Released, released);
        Ok(others)
    }

    pub(in crate::store) async fn release_all(&self) -> Result<u64, Error> {
        let (mut state, _) = self.state();
        state.changed(ChangeKind::AllReleased, []);
        Ok(std::mem::take(&mut state.pending).len() as u64)
    }

    pub(in crate::store) async fn assign_directly(
        &self,
        groups: &[DirectGroup],
    ) -> Result<DirectResult, Error> {
        let (mut state, now) = self.state();
        let expiry = now.after(self.rules.assigned_ttl);
        let (mut matches, mut tickets) = (Vec::new(), Vec::new());
        let mut result = DirectResult::default();
        for group in groups {
            let live = |id| state.pending.get(id).copied().filter(|claim| self.is_live(*claim, now));
            let holders: Vec<Option<u32>> =
                group.tickets.iter().map(|id| live(id).map(Claim::number)).collect();
            let holder = holders.iter().flatten().find(|number| *number % 2 == 1);
            let obstacle = |(id, held): (&TicketId, &Option<u32>)| match state.tickets.get(id) {
                None => Some(Obstacle::NotFound),
                Some(stored) => match &stored.assignment {
                    Some(assignment) if *assignment == group.assignment => Some(Obstacle::Repeated),
                    Some(_) => Some(Obstacle::AssignedElsewhere),
                    None => held
                        .is_some_and(|held| holder.is_some_and(|own| *own != held))
                        .then_some(Obstacle::Claimed),
                },
            };
            let obstacles: Vec<Option<Obstacle>> = group.tickets.iter().zip(&holders).map(obstacle).collect();
            if obstacles.iter().all(Option::is_none) && !obstacles.is_empty() {
                group.tickets.iter().for_each(|id| state.assign(id, &group.assignment, expiry));
                matches.extend_from_slice(&group.encoded_match);
                tickets.extend_from_slice(&group.tickets);
            }
            result.obstacles.push(obstacles);
        }
        if !tickets.is_empty() {
            result.batches.push(state.add_batch(matches.into(), tickets, now));
        }
        Ok(result)
    }

    pub(in crate::store) async fn holders(&self, ids: &[TicketId]) -> Result<Vec<Option<Holder>>, Error> {
        let (state, _) = self.state();
        Ok(ids.iter().map(|id| state.pending.get(id).and_then(|claim| state.holder(*claim))).collect())
    }
}
