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
        self.holders.get(&claim.number()).map(|(holder, ..)| holder.clone())
    }

    /// Returns the number of the holder of a claim: for a Director that of the first claim of its call.
    fn holder_number(&self, claim: Claim) -> u32 {
        let number = claim.number();
        self.holders.get(&number).map_or(number, |(_, call, _)| *call)
    }
}

impl State {
    /// Returns for each ticket of a group whether its match is claimed with tickets that none of these groups names, while the
    /// group has tickets that are not in this match.
    fn cut_matches(&self, group: &[Option<Claim>], groups: &[Vec<Option<Claim>>]) -> Vec<bool> {
        let is_mixed = group.windows(2).any(|pair| pair[0] != pair[1]);
        let is_cut = |claim: Claim| {
            let named = groups.iter().flatten().filter(|other| **other == Some(claim)).count();
            claim.is_of_director() && self.pending.values().filter(|held| **held == claim).count() > named
        };
        group.iter().map(|claim| is_mixed && claim.is_some_and(is_cut)).collect()
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
        state.holders.retain(|_, (.., until)| *until > now);
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
            let claim = state.new_claim(true, now);
            state.pending.extend(tickets.iter().map(|id| (id.clone(), claim)));
            state.changed(ChangeKind::Pending(claim.second() * 1000), tickets);
            if let Some(change) = backfill {
                state.apply(change, tickets, now, expiry);
            }
            let (call, until) = (number.unwrap_or(claim.number()), now.after(self.rules.pending_timeout * 2));
            state.holders.insert(claim.number(), (holder.clone(), call, until));
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
        let live = |id: &TicketId| state.pending.get(id).copied().filter(|claim| self.is_live(*claim, now));
        let claims: Vec<Vec<Option<Claim>>> =
            groups.iter().map(|group| group.tickets.iter().map(live).collect()).collect();
        let cut: Vec<Vec<bool>> = claims.iter().map(|group| state.cut_matches(group, &claims)).collect();
        for ((group, claims), cut) in groups.iter().zip(claims).zip(cut) {
            let holder_number = |claim: &Option<Claim>| claim.map(|claim| state.holder_number(claim));
            let holders: Vec<Option<u32>> = claims.iter().map(holder_number).collect();
            let holder = holders.iter().flatten().find(|number| *number % 2 == 1);
            let obstacle =
                |((id, held), is_cut): ((&TicketId, &Option<u32>), bool)| match state.tickets.get(id) {
                    None => Some(Obstacle::NotFound),
                    Some(stored) => match &stored.assignment {
                        Some(assignment) if *assignment == group.assignment => Some(Obstacle::Repeated),
                        Some(_) => Some(Obstacle::AssignedElsewhere),
                        None => {
                            let is_other = held.is_some_and(|held| holder.is_some_and(|own| *own != held));
                            (is_other || is_cut).then_some(Obstacle::Claimed)
                        }
                    },
                };
            let obstacles: Vec<Option<Obstacle>> =
                group.tickets.iter().zip(&holders).zip(cut).map(obstacle).collect();
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
