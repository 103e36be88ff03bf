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

impl Inner {
    pub(super) async fn propose(&self) -> Result<ProposedMatches, Error> {
        self.retry_releases().await;
        let started = Instant::now();
        let fetched = self.store.fetch(&self.name, self.config.fetch_limit).await?;
        self.metrics.fetch_latency.observe(started.elapsed().as_secs_f64());
        self.set_held_back(fetched.is_held_back);
        self.metrics.fetched.inc_by(fetched.ids.len() as u64);
        self.metrics.waiting.set(fetched.waiting.try_into().unwrap_or(i64::MAX));
        let tickets = match self.read(&fetched.ids).await {
            Ok(tickets) => tickets,
            Err(error) => {
                self.release(fetched.claim, &fetched.ids).await;
                return Err(error);
            }
        };
        let now = Moment::from(self.clock.now());
        let active = self.active.borrow().clone();
        let mut proposed = ProposedMatches {
            fetched: fetched.ids.len(),
            waiting: fetched.waiting,
            claim: fetched.claim,
            active: active.clone(),
            ..ProposedMatches::default()
        };
        if tickets.is_empty() {
            self.metrics.oldest_age.set(0.0);
            self.report_starving(&[], true, now);
            return Ok(proposed);
        }
        let (joins, tickets, unfilled) =
            self.propose_joins(&active.profiles, fetched.claim, tickets, now).await;
        let (matches, failures) = self.make_matches(&active.profiles, &tickets, now).await;
        (proposed.joins, proposed.failures) = (joins, unfilled + failures);
        match self.evaluate(matches).await {
            Ok(matches) => proposed.matches = matches,
            Err(cause) => {
                self.record_failure("", "evaluator", &cause);
                proposed.failures += 1;
            }
        }
        let matched: HashSet<&TicketId> =
            proposed.matches.iter().flat_map(|match_| &match_.tickets).map(|ticket| &ticket.id).collect();
        proposed.unmatched = tickets.into_iter().filter(|ticket| !matched.contains(&ticket.id)).collect();
        let oldest = proposed.unmatched.first().map_or(Duration::ZERO, |ticket| ticket.created.age(now));
        self.metrics.oldest_age.set(oldest.as_secs_f64());
        self.report_starving(&proposed.unmatched, proposed.fetched < self.config.fetch_limit, now);
        self.cache(&proposed.unmatched, now);
        Ok(proposed)
    }

    /// Reads the tickets that are not cached from the last tick. Returns them in the order of the ids.
    async fn read(&self, ids: &[TicketId]) -> Result<Vec<Arc<Ticket>>, Error> {
        let cached = std::mem::take(&mut *self.ticket_cache.lock().unwrap_or_else(PoisonError::into_inner));
        let missing: Vec<TicketId> = ids.iter().filter(|id| !cached.contains_key(*id)).cloned().collect();
        let mut read = self.store.read(&missing).await?.into_iter().peekable();
        let next = |id: &TicketId| match cached.get(id) {
            Some(ticket) => Some(ticket.clone()),
            None => read.next_if(|ticket| ticket.id == *id),
        };
        Ok(ids.iter().filter_map(next).collect())
    }

    /// Caches tickets for the next tick, because their data never changes. Skips tickets without a known expiry.
    fn cache(&self, tickets: &[Arc<Ticket>], now: Moment) {
        let lasting = tickets.iter().filter(|ticket| ticket.expires.is_some_and(|expires| expires > now));
        let cached = lasting.map(|ticket| (ticket.id.clone(), ticket.clone())).collect();
        *self.ticket_cache.lock().unwrap_or_else(PoisonError::into_inner) = cached;
    }

    /// Runs the match functions of all profiles concurrently. Also returns how many failed.
    async fn make_matches(
        &self,
        profiles: &[Profile],
        tickets: &[Arc<Ticket>],
        now: Moment,
    ) -> (Vec<Match>, usize) {
        let fetched: HashMap<&TicketId, &Ticket> =
            tickets.iter().map(|ticket| (&ticket.id, ticket.as_ref())).collect();
        let working = profiles.iter().map(async |profile| {
            let pools = Pools { profile: profile.name.clone(), now, pools: pools(profile, tickets, now) };
            let started = Instant::now();
            let function = profile.function.clone();
            let work = async move { function.make_matches(&pools).await };
            let given = |id: &TicketId| {
                let ticket = fetched.get(id);
                ticket.is_some_and(|ticket| profile.pools.iter().any(|pool| pool.admits(ticket, now)))
            };
            let proposals =
                call(self.config.function_timeout, work).await.and_then(|proposals| check(proposals, given));
            let labels = ProfileLabels { profile: profile.name.to_string() };
            self.metrics.function_latency.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
            (profile, proposals)
        });
        let (mut matches, mut failures) = (Vec::new(), 0);
        for (profile, proposals) in join_all(working).await {
            match proposals {
                Ok(proposals) => {
                    let function: Arc<str> = profile.function.name().into();
                    matches.extend(proposals.into_iter().map(|proposal| Match {
                        id: MatchId::generate(),
                        profile: profile.name.clone(),
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
