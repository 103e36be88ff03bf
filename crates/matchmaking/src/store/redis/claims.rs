//! Claims: scores of the documented sorted set, and a description of each Director that holds one.

use super::foreign::ForeignProgram;
use super::scripts;
use super::{BATCH, Redis};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::{
    BackfillChange, Claim, ClaimOutcome, ClaimRequest, DirectGroup, DirectResult, Holder, NewBackfill,
    Obstacle, UnrecordedBatch,
};
use redis_store::Call;

impl Redis {
    pub(in crate::store) async fn claim(&self, matches: &[ClaimRequest]) -> Result<Vec<ClaimOutcome>, Error> {
        let mut outcomes = Vec::with_capacity(matches.len());
        for matches in chunks(matches, |request| request.tickets.len()) {
            outcomes.extend(self.claim_chunk(matches).await?);
        }
        Ok(outcomes)
    }

    async fn claim_chunk(&self, matches: &[ClaimRequest]) -> Result<Vec<ClaimOutcome>, Error> {
        let tickets = matches.iter().flat_map(|request| &request.tickets);
        let backfills = matches.iter().filter_map(|request| request.backfill.as_ref());
        let own = [self.keys.claim_number(), self.keys.holders(), self.keys.backfill_acks()].into_iter();
        let own = own.chain(tickets.clone().map(|id| self.keys.ticket(id)));
        let own = own.chain(backfills.map(|change| self.keys.backfill(change.id())));
        let add = |step: &mut Call| {
            let rules = &self.rules;
            step.arg(rules.pending_timeout.as_secs()).arg(tickets.clone().count());
            step.arg(rules.backfill_expiry().as_millis() as u64).arg(rules.backfill_ttl().as_millis() as u64);
            for ClaimRequest { number, holder, tickets, backfill } in matches {
                let holder = serde_json::to_string(holder).unwrap_or_default();
                step.arg(number.unwrap_or_default()).arg(holder).arg(tickets.len());
                match backfill {
                    None => step.arg(""),
                    Some(BackfillChange::Create(NewBackfill { id: _, fixed, fields, persistent })) => {
                        step.arg("new").arg(&fields[..]).arg(&fixed[..]).arg(&persistent[..])
                    }
                    Some(BackfillChange::Update { id: _, generation, fields }) => {
                        step.arg(*generation).arg(&fields[..])
                    }
                };
            }
        };
        let (foreign, replies): (u8, Vec<(String, isize)>) =
            self.exclusive_step(&scripts::CLAIM, own, add).await?;
        self.foreign.holds_tickets(ForeignProgram::from_script(foreign));
        let outcome = |(request, (claim, obstacle)): (&ClaimRequest, (String, isize))| {
            let at = usize::try_from(obstacle).map(|position| position.checked_sub(1));
            match at.map(|at| at.and_then(|at| request.tickets.get(at))) {
                Err(_) => ClaimOutcome::StaleBackfill,
                Ok(Some(id)) => ClaimOutcome::Refused(id.clone()),
                Ok(None) => ClaimOutcome::Claimed(claim.parse().map(Claim::from_score).unwrap_or_default()),
            }
        };
        Ok(matches.iter().zip(replies).map(outcome).collect())
    }

    pub(in crate::store) async fn release(
        &self,
        claim: Option<Claim>,
        ids: &[TicketId],
    ) -> Result<u64, Error> {
        let claim = claim.map(|claim| claim.to_string()).unwrap_or_default();
        let add = |step: &mut Call| {
            step.arg(claim);
            ids.iter().for_each(|id| step.arg(id.as_str()).end());
        };
        self.step(&scripts::RELEASE, [], add).await
    }

    pub(in crate::store) async fn release_all(&self) -> Result<u64, Error> {
        self.step(&scripts::RELEASE_ALL, [], |_| {}).await
    }

    pub(in crate::store) async fn assign_directly(
        &self,
        groups: &[DirectGroup],
    ) -> Result<DirectResult, Error> {
        let mut all = DirectResult::default();
        for groups in chunks(groups, |group| group.tickets.len()) {
            let tickets = || groups.iter().flat_map(|group| &group.tickets);
            let own = [self.keys.events(), self.keys.holders()]
                .into_iter()
                .chain(tickets().map(|id| self.keys.ticket(id)))
                .chain(tickets().map(|id| self.keys.assign(id)));
            let add = |step: &mut Call| {
                step.arg(self.rules.pending_timeout.as_secs());
                step.arg(self.rules.assigned_ttl.as_millis() as u64).arg(tickets().count());
                for group in groups {
                    step.arg(group.tickets.len()).arg(&group.assignment[..]).arg(&group.encoded_match[..]);
                }
            };
            let (key, letters): (Option<String>, Vec<String>) =
                self.exclusive_step(&scripts::ASSIGN_GROUP, own, add).await?;
            let assigned = groups.iter().zip(&letters);
            let assigned = assigned.filter(|(_, letters)| letters.bytes().all(|letter| letter == b'f'));
            let matches: Vec<&[u8]> = assigned.map(|(group, _)| &group.encoded_match[..]).collect();
            all.batches.extend(key.map(|key| UnrecordedBatch { key, matches: matches.concat().into() }));
            all.obstacles.extend(letters.iter().map(|letters| letters.bytes().map(obstacle).collect()));
        }
        Ok(all)
    }

    pub(in crate::store) async fn holders(&self, ids: &[TicketId]) -> Result<Vec<Option<Holder>>, Error> {
        let ids = ids.iter().map(TicketId::as_str);
        let mut scores = ::redis::cmd("ZMSCORE");
        scores.arg(self.keys.pending()).arg(ids.collect::<Vec<_>>());
        let scores: Vec<Option<f64>> = scores.query_async(&mut self.servers.primary()).await?;
        let claims: Vec<Option<Claim>> =
            scores.into_iter().map(|score| score.map(Claim::from_score)).collect();
        self.holders_of(&claims).await
    }

    /// Returns the Directors of these claims.
    pub(super) async fn holders_of(&self, claims: &[Option<Claim>]) -> Result<Vec<Option<Holder>>, Error> {
        let numbers =
            claims.iter().map(|claim| claim.filter(|claim| claim.is_of_director()).map(Claim::number));
        let numbers: Vec<Option<u32>> = numbers.collect();
        let mut known: Vec<u32> = numbers.iter().flatten().copied().collect();
        known.sort_unstable();
        known.dedup();
        if known.is_empty() {
            return Ok(vec![None; claims.len()]);
        }
        let keys: Vec<_> = known.iter().map(|number| self.keys.holder(*number)).collect();
        let found = super::get_many(self.servers.primary(), &keys).await?;
        let holder = |number: u32| {
            let at = known.binary_search(&number).ok()?;
            // In front of the description is the number of the call.
            let (_, holder) = std::str::from_utf8(found.get(at)?.as_ref()?).ok()?.split_once(' ')?;
            serde_json::from_str(holder).ok()
        };
        Ok(numbers.into_iter().map(|number| number.and_then(holder)).collect())
    }
}

/// Reads a letter of the reply of `assign_group.lua`.
const fn obstacle(letter: u8) -> Option<Obstacle> {
    match letter {
        b's' => Some(Obstacle::Repeated),
        b'o' => Some(Obstacle::AssignedElsewhere),
        b'n' => Some(Obstacle::NotFound),
        b'h' => Some(Obstacle::Claimed),
        _ => None,
    }
}

/// Splits a list where a script would touch more than [`BATCH`] tickets. An item that is larger is a chunk of its own.
pub(super) fn chunks<T>(items: &[T], size_of: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut size = 0;
        let fits = |item: &&T| {
            size += size_of(item).max(1);
            size <= BATCH
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (chunk, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(chunk)
    })
}
