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

use super::active::ActiveProfiles;
use super::allocate::RequestedServers;
use super::breaker::Breaker;
use super::{Inner, ProposedMatches, Tick, call};
use crate::error::Error;
use crate::metrics::ProfileLabels;
use crate::model::{Assignment, Match, MatchId, Moment, Ticket, TicketId};
use crate::recorder;
use crate::store::{AssignOutcome, AssignResult, AssignerFailure, AssignmentGroup, Assignments, Claim};
use crate::wire;

impl Inner {
    pub(super) async fn settle(&self, proposed: ProposedMatches) -> Tick {
        let size = proposed.matches.iter().map(|match_| match_.tickets.len() as u64).sum();
        self.settling.fetch_add(size, Ordering::Relaxed);
        let mut by_profile: BTreeMap<Arc<str>, Vec<Match>> = BTreeMap::new();
        for match_ in proposed.matches {
            by_profile.entry(match_.profile.clone()).or_default().push(match_);
        }
        let unmatched: Vec<TicketId> = proposed.unmatched.iter().map(|ticket| ticket.id.clone()).collect();
        let (claim, active) = (proposed.claim, &proposed.active);
        let assigning =
            by_profile.into_iter().map(|(name, matches)| self.settle_or_ask(active, name, matches, claim));
        let ((), (), settled) =
            tokio::join!(self.release(claim, &unmatched), self.join(proposed.joins), join_all(assigning));
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

    /// Finds servers for the matches of one profile and assigns them.
    pub(super) async fn assign(
        &self,
        active: &ActiveProfiles,
        profile: Arc<str>,
        matches: Vec<Match>,
        claim: Claim,
    ) -> Tick {
        let matches: Arc<[Match]> = self.with_backfills(active, &profile, matches).into();
        let mut servers = self.find_servers(active, &profile, &matches).await;
        let mut failures = usize::from(servers.is_throttled);
        if let Some((step, cause)) = servers.failure.take() {
            self.record_failure(&profile, step, &cause);
            failures += 1;
        }
        let assigned = match self.write(active, &profile, &matches, claim, &mut servers).await {
            Ok(assigned) => assigned,
            Err(error) => {
                // The write may have succeeded. Releasing assigned tickets does no harm, and the sweeper finds out
                // which servers are used.
                self.record_failure(&profile, "assign", &chain(&error));
                failures += 1;
                HashSet::new()
            }
        };
        let left =
            matches.iter().filter(|match_| !assigned.contains(&match_.id)).flat_map(|match_| &match_.tickets);
        let left: Vec<TicketId> = left.map(|ticket| ticket.id.clone()).collect();
        self.release(claim, &left).await;
        self.settle_unused(&profile, servers.unused).await;
        let all: usize = matches.iter().map(|match_| match_.tickets.len()).sum();
        Tick { fetched: 0, assigned: all - left.len(), released: left.len(), failures }
    }

    /// Calls the profile's assigner for as many of these matches as its breaker allows.
    async fn find_servers(
        &self,
        active: &ActiveProfiles,
        profile: &str,
        matches: &Arc<[Match]>,
    ) -> RequestedServers {
        let Some((assigner, breaker)) = active.assigner(profile) else {
            return RequestedServers::default();
        };
        let limit = breaker.allowed_matches();
        let requested: Arc<[Match]> =
            if limit >= matches.len() { matches.clone() } else { matches[..limit].into() };
        let is_throttled = requested.len() < matches.len();
        if requested.is_empty() {
            return RequestedServers { is_throttled, ..RequestedServers::default() };
        }
        let started = Instant::now();
        let servers = if assigner.allocator().is_some() {
            self.allocate(assigner, &requested, &breaker).await
        } else {
            let guarded_call = breaker.start_call();
            let given = requested.clone();
            let work = async move { assigner.assign(&given).await };
            match call(self.config.assigner_timeout, work).await {
                Ok(found) => {
                    guarded_call.succeeded();
                    RequestedServers { found: found.into_iter().collect(), ..RequestedServers::default() }
                }
                Err(cause) => RequestedServers::failed("assigner", cause),
            }
        };
        self.metrics.assigner_latency.observe(started.elapsed().as_secs_f64());
        self.report_failure(&breaker, servers.failure.as_ref().map(|(_, cause)| cause)).await;
        RequestedServers { is_throttled, ..servers }
    }

    /// Records in the store that an assigner fails, or has recovered, so that operators see it at any process.
    async fn report_failure(&self, breaker: &Breaker, cause: Option<&String>) {
        if !breaker.set_reported(cause.is_some()) && cause.is_none() {
            return;
        }
        let (failures, rest) = breaker.failures();
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
            if let Err(error) = self.store.set_assigner_failure(&self.name, profile, failure.as_ref()).await {
                // Operators then see a slightly outdated failure.
                tracing::debug!(cause = chain(&error), "Cannot record the failure of an assigner");
                breaker.set_reported(true);
            }
        }
    }

    /// Assigns the matches that have a server. Returns those that were assigned.
    async fn write(
        &self,
        active: &ActiveProfiles,
        profile: &str,
        matches: &[Match],
        claim: Claim,
        servers: &mut RequestedServers,
    ) -> Result<HashSet<MatchId>, Error> {
        for match_ in matches {
            if let Some(assignment) = servers.found.get_mut(&match_.id) {
                assignment.add_match(match_);
                match_.lineup.iter().for_each(|lineup| assignment.add_lineup(lineup));
            }
        }
        let found: Vec<(&Match, &Assignment)> =
            matches.iter().filter_map(|match_| Some((match_, servers.found.get(&match_.id)?))).collect();
        if found.is_empty() {
            return Ok(HashSet::new());
        }
        let (now, trace) = (self.clock.now(), TraceContext::current());
        let traceparent =
            trace.headers().find(|(name, _)| *name == "traceparent").map_or("", |(_, value)| value);
        let group = |(match_, assignment): &(&Match, &Assignment)| {
            let shared = wire::assignment_to_wire(assignment);
            let of_ticket = |ticket: &Arc<Ticket>| wire::assignment_of_ticket(assignment, ticket);
            let each: Vec<openmatch::Assignment> =
                match assignment.of_ticket.is_empty() && assignment.of_player.is_empty() {
                    true => Vec::new(),
                    false => match_.tickets.iter().map(of_ticket).collect(),
                };
            let assignments = match each.is_empty() {
                true => Assignments::Shared(shared.encode_to_bytes()),
                false => Assignments::PerTicket(each.iter().map(Message::encode_to_bytes).collect()),
            };
            AssignmentGroup {
                fence: servers.is_fenced.then_some(match_.id),
                claim: Some(claim),
                tickets: match_.tickets.iter().map(|ticket| ticket.id.clone()).collect(),
                assignments,
                encoded_match: wire::encode_match(match_, shared, each, servers.is_fenced, now, traceparent),
                room: self.new_room(active, match_, assignment),
            }
        };
        let groups: Vec<AssignmentGroup> = found.iter().map(group).collect();
        let started = Instant::now();
        let AssignResult { outcomes, batches } = self.store.assign(&groups).await?;
        self.metrics.assign_latency.observe(started.elapsed().as_secs_f64());
        fault::point("matchmaking.assigned");
        let recorder = self.recorder.as_deref();
        join_all(batches.iter().map(|batch| recorder::record_and_notify(&self.store, recorder, batch))).await;

        let labels = ProfileLabels { profile: profile.to_owned() };
        let waited = self.metrics.time_to_assignment.get_or_create(&labels).clone();
        let now = Moment::from(self.clock.now());
        let mut assigned = HashSet::with_capacity(found.len());
        for (((match_, _), group), outcome) in found.into_iter().zip(&groups).zip(outcomes) {
            let is_stale = matches!(outcome, AssignOutcome::Stale(_));
            match outcome {
                AssignOutcome::Assigned => {
                    assigned.insert(match_.id);
                    if group.room.is_some() {
                        self.metrics.backfill_opened(profile);
                    }
                    match_
                        .tickets
                        .iter()
                        .for_each(|ticket| waited.observe(ticket.created.age(now).as_secs_f64()));
                    self.metrics.assigned.inc_by(match_.tickets.len() as u64);
                }
                AssignOutcome::Abandoned => {
                    self.metrics.refused.get_or_create(&labels).inc();
                    tracing::warn!(match_id = %match_.id, profile, "Dropped a match: it took so long that it was abandoned");
                }
                AssignOutcome::Refused(ticket) | AssignOutcome::Stale(ticket) => {
                    if is_stale {
                        self.metrics.claims_stale("assign", 1);
                    }
                    // Other assigners allocate nothing, and recording an empty give-back would cost a transaction.
                    if servers.is_fenced {
                        servers.unused.add_refused(match_.id);
                    }
                    self.metrics.refused.get_or_create(&labels).inc();
                    tracing::debug!(%ticket, profile, "Dropped a match: a ticket is gone or assigned elsewhere");
                }
            }
        }
        Ok(assigned)
    }
}
