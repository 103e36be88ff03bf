//! The second half of a tick: from matches to assignments.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::error::chain;
use buffa::Message;
use futures::future::join_all;
use proto::openmatch;
use runtime::fault;
use runtime::telemetry::TraceContext;
use tokio::time::Instant;

use super::allocate::Servers;
use super::breaker::Breaker;
use super::{Inner, Proposed, Tick, call};
use crate::error::Error;
use crate::metrics::ProfileLabels;
use crate::model::{Assignment, Match, MatchId, Moment, Ticket, TicketId};
use crate::store::{Assigned, AssignerFailure, Assignments, Entry, Group, Outcome, Then};
use crate::wire;

impl Inner {
    pub(super) async fn settle(&self, proposed: Proposed) -> Tick {
        let size = proposed.matches.iter().map(|made| made.tickets.len() as u64).sum();
        self.settling.fetch_add(size, Ordering::Relaxed);
        let mut by_profile: BTreeMap<Arc<str>, Vec<Match>> = BTreeMap::new();
        for made in proposed.matches {
            by_profile.entry(made.profile.clone()).or_default().push(made);
        }
        let unmatched: Vec<TicketId> = proposed.unmatched.iter().map(|ticket| ticket.id.clone()).collect();
        let assigning = by_profile.into_iter().map(|(name, matches)| self.assign(name, matches));
        let ((), settled) = tokio::join!(self.release(&unmatched), join_all(assigning));
        self.settling.fetch_sub(size, Ordering::Relaxed);
        let tick = Tick {
            fetched: proposed.fetched,
            failures: proposed.failures,
            released: unmatched.len(),
            assigned: 0,
        };
        settled.into_iter().fold(tick, |tick, settled| Tick {
            assigned: tick.assigned + settled.assigned,
            released: tick.released + settled.released,
            failures: tick.failures + settled.failures,
            ..tick
        })
    }

    /// Finds servers for the matches of one profile and writes what was found.
    async fn assign(&self, profile: Arc<str>, matches: Vec<Match>) -> Tick {
        let matches: Arc<[Match]> = matches.into();
        let mut servers = self.find_servers(&profile, &matches).await;
        let mut failures = usize::from(servers.is_spared);
        if let Some((step, cause)) = servers.failure.take() {
            self.fail(&profile, step, &cause);
            failures += 1;
        }
        let assigned = match self.write(&profile, &matches, &mut servers).await {
            Ok(assigned) => assigned,
            Err(error) => {
                // Written or not: releasing does no harm to what is assigned, and the sweeper finds out which allocations are used.
                self.fail(&profile, "assign", &chain(&error));
                failures += 1;
                HashSet::new()
            }
        };
        let left = matches.iter().filter(|made| !assigned.contains(&made.id)).flat_map(|made| &made.tickets);
        let left: Vec<TicketId> = left.map(|ticket| ticket.id.clone()).collect();
        self.release(&left).await;
        self.give_up(&profile, servers.unused).await;
        let all: usize = matches.iter().map(|made| made.tickets.len()).sum();
        Tick { fetched: 0, assigned: all - left.len(), released: left.len(), failures }
    }

    /// Asks the profile's assigner for as many of these matches as it may be asked for.
    async fn find_servers(&self, profile: &str, matches: &Arc<[Match]>) -> Servers {
        let Some(place) = self.profiles.iter().position(|known| *known.name == *profile) else {
            return Servers::default();
        };
        let (assigner, breaker) = (self.profiles[place].assigner.clone(), self.breakers[place].clone());
        let limit = breaker.limit();
        let asked: Arc<[Match]> =
            if limit >= matches.len() { matches.clone() } else { matches[..limit].into() };
        let is_spared = asked.len() < matches.len();
        if asked.is_empty() {
            return Servers { is_spared, ..Servers::default() };
        }
        let started = Instant::now();
        let servers = if assigner.allocator().is_some() {
            self.allocate(assigner, &asked, &breaker).await
        } else {
            let trial = breaker.begin();
            let given = asked.clone();
            let work = async move { assigner.assign(&given).await };
            match call(self.config.assigner_timeout, work).await {
                Ok(found) => {
                    trial.succeeded();
                    Servers { found: found.into_iter().collect(), ..Servers::default() }
                }
                Err(cause) => Servers::failed("assigner", cause),
            }
        };
        self.metrics.assigner_latency.observe(started.elapsed().as_secs_f64());
        self.report(&breaker, servers.failure.as_ref().map(|(_, cause)| cause)).await;
        Servers { is_spared, ..servers }
    }

    /// Lets operators see, at any process, that an assigner fails, or no longer does.
    async fn report(&self, breaker: &Breaker, cause: Option<&String>) {
        if !breaker.report(cause.is_some()) && cause.is_none() {
            return;
        }
        let (failures, rest) = breaker.failing();
        let now = self.clock.now();
        let reports = breaker.profiles.iter().map(|profile| {
            let failure = cause.map(|cause| AssignerFailure {
                profile: profile.to_string(),
                engine: self.name.to_string(),
                cause: cause.clone(),
                failures,
                failed_at: now.as_millis(),
                next_at: now.after(rest).as_millis(),
            });
            (profile, failure)
        });
        for (profile, failure) in reports {
            if let Err(error) = self.store.report_assigner(&self.name, profile, failure.as_ref()).await {
                // What is shown to operators is a little old then.
                tracing::debug!(cause = chain(&error), "the failure of an assigner is not reported");
                breaker.report(true);
            }
        }
    }

    /// Returns the matches that were made.
    async fn write(
        &self,
        profile: &str,
        matches: &[Match],
        servers: &mut Servers,
    ) -> Result<HashSet<MatchId>, Error> {
        let found: Vec<(&Match, &Assignment)> =
            matches.iter().filter_map(|made| Some((made, servers.found.get(&made.id)?))).collect();
        if found.is_empty() {
            return Ok(HashSet::new());
        }
        let (now, trace) = (self.clock.now(), TraceContext::current());
        let traceparent =
            trace.headers().find(|(name, _)| *name == "traceparent").map_or("", |(_, value)| value);
        let group = |(made, assignment): &(&Match, &Assignment)| {
            let shared = wire::assignment_to_wire(assignment);
            let of_ticket = |ticket: &Arc<Ticket>| wire::assignment_of_ticket(assignment, &ticket.id);
            let each: Vec<openmatch::Assignment> = match assignment.of_ticket.is_empty() {
                true => Vec::new(),
                false => made.tickets.iter().map(of_ticket).collect(),
            };
            let assignments = match each.is_empty() {
                true => Assignments::Shared(shared.encode_to_bytes()),
                false => Assignments::Each(each.iter().map(Message::encode_to_bytes).collect()),
            };
            Group {
                fence: servers.is_fenced.then_some(made.id),
                tickets: made.tickets.iter().map(|ticket| ticket.id.clone()).collect(),
                assignments,
                made: wire::made(made, shared, each, servers.is_fenced, now, traceparent),
            }
        };
        let groups: Vec<Group> = found.iter().map(group).collect();
        let started = Instant::now();
        let Assigned { outcomes, entries } = self.store.assign(&groups).await?;
        self.metrics.assign_latency.observe(started.elapsed().as_secs_f64());
        fault::point("matchmaking.assigned");
        join_all(entries.iter().map(|entry| self.record_and_notify(entry))).await;

        let labels = ProfileLabels { profile: profile.to_owned() };
        let waited = self.metrics.time_to_assignment.get_or_create(&labels).clone();
        let now = Moment::from(self.clock.now());
        let mut assigned = HashSet::with_capacity(found.len());
        for ((made, _), outcome) in found.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Assigned => {
                    assigned.insert(made.id);
                    made.tickets
                        .iter()
                        .for_each(|ticket| waited.observe(ticket.created.age(now).as_secs_f64()));
                    self.metrics.assigned.inc_by(made.tickets.len() as u64);
                }
                Outcome::Abandoned => {
                    self.metrics.refused.get_or_create(&labels).inc();
                    tracing::warn!(match_id = %made.id, profile, "a match is dropped: it took so long that it was given back");
                }
                Outcome::Refused(ticket) => {
                    // Other assigners allocate nothing: giving nothing back would cost a transaction.
                    if servers.is_fenced {
                        servers.unused.refused(made.id);
                    }
                    self.metrics.refused.get_or_create(&labels).inc();
                    tracing::debug!(%ticket, profile, "a match is dropped: the ticket is gone or assigned elsewhere");
                }
            }
        }
        Ok(assigned)
    }

    /// What fails here is left to the recovery: the matches stand.
    async fn record_and_notify(&self, entry: &Entry) {
        let is_recorded = match &self.recorder {
            Some(recorder) => recorder.record(entry).await,
            None => true,
        };
        fault::point("matchmaking.recorded");
        let then = if is_recorded { Then::Remove } else { Then::Keep };
        if let Err(error) = self.store.notify(std::slice::from_ref(entry), then).await {
            tracing::warn!(outage = "tickets", cause = chain(&error), "players are notified by the recovery");
        }
        fault::point("matchmaking.notified");
    }
}
