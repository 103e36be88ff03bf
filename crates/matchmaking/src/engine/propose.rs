//! The first half of a tick: from tickets to matches.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::plugins::{Pools, Profile};
use super::{Inner, ProposedMatches, call, evaluator};
use crate::error::Error;
use crate::metrics::ProfileLabels;
use crate::model::{Match, MatchId, Moment, Pool, Proposal, Ticket, TicketId};
use crate::store::{Claim, FetchedTickets};

impl Inner {
    /// Fetches tickets and proposes matches. Tickets that the engine holds from earlier fetches stay under the same claim. If
    /// this fails, they are released.
    pub(super) async fn propose(&self, held: Option<ProposedMatches>) -> Result<ProposedMatches, Error> {
        self.retry_releases().await;
        let joined = held.as_ref().map(|held| held.claim);
        let held = held.unwrap_or_default();
        let (fetched, tickets) = match self.fetch(joined).await {
            Ok(found) => found,
            Err(error) => {
                let ids: Vec<TicketId> = held.unmatched.iter().map(|ticket| ticket.id.clone()).collect();
                self.release(held.claim, &ids).await;
                return Err(error);
            }
        };
        let now = Moment::from(self.clock.now());
        let active = self.active.borrow().clone();
        let mut proposed = ProposedMatches {
            fetched: fetched.ids.len(),
            fetches: held.fetches + 1,
            claimed: held.claimed + fetched.ids.len(),
            waiting: fetched.waiting,
            claim: fetched.claim,
            active: active.clone(),
            ..ProposedMatches::default()
        };
        // Tickets that are held for those of other engines are new to every function again. Of a long queue only the last part is.
        let is_long = held.fetched >= self.config.fetch_limit;
        let (earlier, mut all) = (if is_long { held.unmatched.len() } else { 0 }, held.unmatched);
        all.extend(tickets);
        if all.is_empty() {
            self.metrics.oldest_age.set(0.0);
            self.report_starving(&[], true, now);
            self.report_rule_ages(&[], now);
            return Ok(proposed);
        }
        let is_last = proposed.fetched < self.config.fetch_limit;
        // Twice as many each time, so that all calls together take twice as long as the last one.
        let considers_all = is_last || proposed.fetches.is_power_of_two();
        let earlier = match considers_all {
            true => self.take_joins(&mut proposed, &mut all, earlier, now).await,
            false => earlier,
        };
        let given = Given { all: considers_all.then_some(&all[..]), new: &all[earlier..] };
        let (matches, failures) = self.make_matches(&active.profiles, given, now).await;
        proposed.failures += failures;
        match self.evaluate(matches).await {
            Ok(matches) => {
                let is_complete = is_last && self.held_elsewhere(&proposed) == 0;
                proposed.matches = self.postpone(matches, is_complete, now);
            }
            Err(cause) => {
                self.record_failure("", "evaluator", &cause);
                proposed.failures += 1;
            }
        }
        if !proposed.matches.is_empty() {
            let matched: HashSet<&TicketId> =
                proposed.matches.iter().flat_map(|match_| &match_.tickets).map(|ticket| &ticket.id).collect();
            all.retain(|ticket| !matched.contains(&ticket.id));
        }
        proposed.unmatched = all;
        let oldest = proposed.unmatched.first().map_or(Duration::ZERO, |ticket| ticket.created.age(now));
        self.metrics.oldest_age.set(oldest.as_secs_f64());
        if considers_all {
            self.report_starving(&proposed.unmatched, is_last, now);
            self.report_rule_ages(&proposed.unmatched, now);
        }
        Ok(proposed)
    }

    /// Takes the tickets out that join matches under way. Returns how many of the first `earlier` ones are left.
    async fn take_joins(
        &self,
        proposed: &mut ProposedMatches,
        all: &mut Vec<Arc<Ticket>>,
        earlier: usize,
        now: Moment,
    ) -> usize {
        let active = proposed.active.clone();
        if !active.profiles.iter().any(|profile| profile.backfill) {
            return earlier;
        }
        let before = all[..earlier].to_vec();
        let (joins, left, failures) =
            self.propose_joins(&active.profiles, proposed.claim, std::mem::take(all), now).await;
        (proposed.joins, proposed.failures, *all) = (joins, failures, left);
        if proposed.joins.is_empty() {
            return earlier;
        }
        // The order is kept, so the earlier ones are still at the front.
        let before: HashSet<&TicketId> = before.iter().map(|ticket| &ticket.id).collect();
        all.iter().take_while(|ticket| before.contains(&ticket.id)).count()
    }

    /// Fetches tickets under this claim, or under a new one, and reads them. Releases them if they cannot be read.
    async fn fetch(&self, joined: Option<Claim>) -> Result<(FetchedTickets, Vec<Arc<Ticket>>), Error> {
        let started = Instant::now();
        let fetched = self.store.fetch_joining(&self.name, self.config.fetch_limit, joined).await?;
        self.metrics.fetch_latency.observe(started.elapsed().as_secs_f64());
        self.set_held_back(fetched.is_held_back);
        self.metrics.fetched.inc_by(fetched.ids.len() as u64);
        self.metrics.waiting.set(fetched.waiting.try_into().unwrap_or(i64::MAX));
        match self.read(&fetched.ids).await {
            Ok(tickets) => Ok((fetched, tickets)),
            Err(error) => {
                self.release(fetched.claim, &fetched.ids).await;
                Err(error)
            }
        }
    }

    /// Reads the tickets that are not cached from the last tick. Returns them in the order of the ids.
    async fn read(&self, ids: &[TicketId]) -> Result<Vec<Arc<Ticket>>, Error> {
        let cached = self.ticket_cache.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let missing: Vec<TicketId> = ids.iter().filter(|id| !cached.contains_key(*id)).cloned().collect();
        let mut read = self.store.read(&missing).await?.into_iter().peekable();
        let next = |id: &TicketId| match cached.get(id) {
            Some(ticket) => Some(ticket.clone()),
            None => read.next_if(|ticket| ticket.id == *id),
        };
        Ok(ids.iter().filter_map(next).collect())
    }

    /// Caches tickets for the next tick, because their data never changes. Skips tickets without a known expiry.
    pub(super) fn cache(&self, tickets: &[Arc<Ticket>]) {
        let now = Moment::from(self.clock.now());
        let lasting = tickets.iter().filter(|ticket| ticket.expires.is_some_and(|expires| expires > now));
        let cached = lasting.map(|ticket| (ticket.id.clone(), ticket.clone())).collect();
        *self.ticket_cache.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(cached);
    }

    /// Runs the match functions of all profiles concurrently. Also returns how many failed.
    async fn make_matches(&self, profiles: &[Profile], given: Given<'_>, now: Moment) -> (Vec<Match>, usize) {
        let called = profiles.iter().filter_map(|profile| Some((profile, given.to(profile)?)));
        let called: Vec<(&Profile, &[Arc<Ticket>])> = called.collect();
        let known = called.iter().map(|(_, tickets)| *tickets).max_by_key(|tickets| tickets.len());
        let known: HashMap<&TicketId, &Ticket> =
            known.into_iter().flatten().map(|ticket| (&ticket.id, ticket.as_ref())).collect();
        let working = called.iter().map(async |(profile, tickets)| {
            let pools = Pools { profile: profile.name.clone(), now, pools: pools(profile, tickets, now) };
            let started = Instant::now();
            let function = profile.function.clone();
            let work = async move { function.make_matches(&pools).await };
            let given = |id: &TicketId| {
                let ticket = known.get(id);
                ticket.is_some_and(|ticket| profile.pools.iter().any(|pool| pool.admits(ticket, now)))
            };
            let proposals =
                call(self.config.function_timeout, work).await.and_then(|proposals| check(proposals, given));
            let labels = ProfileLabels { profile: profile.name.to_string() };
            self.metrics.function_latency.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
            (*profile, proposals)
        });
        let (mut matches, mut failures) = (Vec::new(), 0);
        for (profile, proposals) in join_all(working).await {
            match proposals {
                Ok(proposals) => {
                    let function: Arc<str> = profile.function.name().into();
                    matches.extend(proposals.into_iter().map(|proposal| Match {
                        id: MatchId::generate(),
                        profile: profile.name.clone(),
                        profile_version: profile.version,
                        function: function.clone(),
                        proposal,
                        backfill: None,
                    }));
                }
                Err(cause) => {
                    failures += 1;
                    self.record_failure(&profile.name, "match_function", &cause);
                }
            }
        }
        (matches, failures)
    }

    /// Returns the matches to make. No two of them share a ticket, whatever the evaluator returns.
    async fn evaluate(&self, matches: Vec<Match>) -> Result<Vec<Match>, String> {
        if matches.is_empty() {
            return Ok(matches);
        }
        let matches: Arc<[Match]> = matches.into();
        let (evaluator, proposed) = (self.evaluator.clone(), matches.clone());
        let work = async move { evaluator.evaluate(&proposed).await };
        let chosen = call(self.config.evaluator_timeout, work).await?;
        let by_id: HashMap<MatchId, &Match> = matches.iter().map(|match_| (match_.id, match_)).collect();
        if let Some(unknown) = chosen.iter().find(|id| !by_id.contains_key(id)) {
            return Err(format!("chose {unknown}, which was not proposed"));
        }
        let chosen = chosen.iter().filter_map(|id| by_id.get(id).copied());
        Ok(evaluator::without_overlaps(chosen).into_iter().cloned().collect())
    }
}

/// The tickets that match functions are given.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// All that the engine holds, if functions that want to see them are called this time.
    all: Option<&'a [Arc<Ticket>]>,
    /// Those of the last fetch, or all if the fetch before was not full.
    new: &'a [Arc<Ticket>],
}

impl<'a> Given<'a> {
    /// Returns the tickets that the function of this profile is given. `None` does not call it.
    fn to(self, profile: &Profile) -> Option<&'a [Arc<Ticket>]> {
        if profile.function.meets_all() { self.all } else { Some(self.new).filter(|new| !new.is_empty()) }
    }
}

pub(super) fn pools(
    profile: &Profile,
    tickets: &[Arc<Ticket>],
    now: Moment,
) -> Vec<(Arc<Pool>, Vec<Arc<Ticket>>)> {
    let members = |pool: &Pool| tickets.iter().filter(|ticket| pool.admits(ticket, now)).cloned().collect();
    profile.pools.iter().map(|pool| (pool.clone(), members(pool))).collect()
}

/// Rejects proposals that a match function must not return.
fn check(proposals: Vec<Proposal>, given: impl Fn(&TicketId) -> bool) -> Result<Vec<Proposal>, String> {
    for proposal in &proposals {
        let mut seen = HashSet::new();
        for ticket in &proposal.tickets {
            if !given(&ticket.id) {
                return Err(format!("proposed ticket {}, which it was not given", ticket.id));
            }
            if !seen.insert(&ticket.id) {
                return Err(format!("proposed ticket {} twice in one match", ticket.id));
            }
        }
        if seen.is_empty() {
            return Err("proposed a match without tickets".to_owned());
        }
    }
    Ok(proposals)
}
