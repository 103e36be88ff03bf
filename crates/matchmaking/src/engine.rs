//! The engine: every tick it fetches tickets, lets match functions make matches of them, and assigns those.
//!
//! A tick has two halves. *Proposing* ends with a list of matches and with the tickets that found none. *Settling* releases the
//! latter, asks the assigners, and writes what they answer. Ticks may overlap: while one settles (a game server takes its time
//! to start), the next one proposes, and the tickets in between are pending, so nobody else takes them.
//!
//! Whatever fails, fails for its own tickets only, and those are released in the same tick. What cannot be released because the
//! store is away is owed, and released first thing when it is back.

mod assigners;
mod evaluator;
mod fifo;
mod plugins;
mod webhook;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Clock;
use base::error::chain;
use base::id::ProcessId;
use buffa::Message;
use futures::future::join_all;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use runtime::telemetry::TraceContext;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

use crate::error::Error;
use crate::metrics::{FailureLabels, Metrics, ProfileLabels};
use crate::model::{Assignment, Match, MatchId, Moment, Proposal, Ticket, TicketId};
use crate::store::{EngineName, Group, Outcome, Store};
use crate::wire;

pub use assigners::StaticList;
pub use evaluator::BestFirst;
pub use fifo::Fifo;
pub use plugins::{Answer, Assigner, Evaluator, MatchFunction, PluginError, Pools, Profile};
pub use webhook::{Webhook, WebhookConfig};

/// How many ticks may settle at once.
const SETTLING: usize = 16;
/// How many fetches that made no match may be put aside.
const ASIDE: usize = 16;

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The longest time between two looks at the tickets.
    pub tick: Duration,
    /// The shortest time between two looks: what arrives meanwhile is matched together.
    pub gather: Duration,
    /// How many tickets are fetched at once.
    pub fetch_limit: usize,
    pub function_timeout: Duration,
    pub evaluator_timeout: Duration,
    pub assigner_timeout: Duration,
}

/// What a tick did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Tickets fetched.
    pub fetched: usize,
    /// Tickets assigned.
    pub assigned: usize,
    /// Tickets that go on waiting.
    pub released: usize,
    /// Plugins and writes that failed.
    pub failures: usize,
}

/// Makes matches. Clones are the same engine.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    name: EngineName,
    store: Store,
    profiles: Vec<Profile>,
    evaluator: Arc<dyn Evaluator>,
    config: EngineConfig,
    clock: Clock,
    metrics: Metrics,
    /// A ticket has been made.
    wake: Notify,
    /// A match has been made.
    made: Arc<Notify>,
    /// Tickets that found no match in the last tick: they need not be read again.
    known: Mutex<HashMap<TicketId, Arc<Ticket>>>,
    /// Tickets that could not be released.
    owed: Mutex<Vec<TicketId>>,
    /// How many tickets of ours are being assigned.
    settling: AtomicU64,
}

/// The first half of a tick.
#[derive(Debug, Default)]
struct Proposed {
    fetched: usize,
    /// How many take part in matchmaking, pending ones included.
    waiting: u64,
    matches: Vec<Match>,
    unmatched: Vec<Arc<Ticket>>,
    failures: usize,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.0.name)
            .field("profiles", &self.0.profiles)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub fn new(
        id: ProcessId,
        store: Store,
        profiles: Vec<Profile>,
        config: EngineConfig,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        Self(Arc::new(Inner {
            name: id.to_string().into(),
            store,
            profiles,
            evaluator: Arc::new(BestFirst),
            config,
            clock,
            metrics,
            wake: Notify::new(),
            made: Arc::default(),
            known: Mutex::default(),
            owed: Mutex::default(),
            settling: AtomicU64::new(0),
        }))
    }

    /// The same engine with another evaluator. Only before it runs.
    pub fn with_evaluator(self, evaluator: Arc<dyn Evaluator>) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { evaluator, ..inner })),
            Err(running) => Self(running),
        }
    }

    /// Without any there is nothing to do.
    pub fn has_profiles(&self) -> bool {
        !self.0.profiles.is_empty()
    }

    /// Is notified whenever matches have been made.
    pub fn made(&self) -> Arc<Notify> {
        self.0.made.clone()
    }

    /// One tick, both halves.
    pub async fn tick(&self) -> Result<Tick, Error> {
        let proposed = self.0.propose().await?;
        Ok(self.0.settle(proposed).await)
    }

    /// Ticks until told to stop, then finishes what is under way and releases what it holds.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let mut settling = JoinSet::new();
        let settle = |settling: &mut JoinSet<Tick>, proposed: Proposed| {
            let engine = self.0.clone();
            settling.spawn(async move { engine.settle(proposed).await });
        };
        // Tickets that fit nowhere must not keep those behind them from being fetched: they are released when all have been
        // looked at.
        let mut aside: Vec<Proposed> = Vec::new();
        let mut vain_looks = 0;
        while !drain.is_requested() {
            let started = Instant::now();
            let span = tracing::info_span!("matchmaking.tick.propose");
            let mut failed = false;
            let mut next = match self.0.propose().instrument(span).await {
                Ok(proposed) => {
                    vain_looks = if proposed.matches.is_empty() { vain_looks + 1 } else { 0 };
                    let next = self.0.next_look(&proposed, vain_looks);
                    failed |= proposed.failures > 0;
                    if next.is_zero() && proposed.matches.is_empty() && !failed && aside.len() < ASIDE {
                        aside.push(proposed);
                    } else if proposed.fetched > 0 {
                        settle(&mut settling, proposed);
                    }
                    next
                }
                Err(error) => {
                    self.0.fail("", "fetch", &chain(&error));
                    self.0.config.tick
                }
            };
            loop {
                let full = settling.len() >= SETTLING;
                let settled = if full { settling.join_next().await } else { settling.try_join_next() };
                let Some(settled) = settled else { break };
                failed |= settled.is_ok_and(|tick| tick.failures > 0);
            }
            // What fails, or fits nowhere, would do so again at once.
            let in_vain = if next.is_zero() { failed || aside.len() == ASIDE } else { !aside.is_empty() };
            if in_vain {
                next = self.0.config.tick;
            }
            if next.is_zero() {
                // There is more than one fetch can hold.
                continue;
            }
            aside.drain(..).for_each(|proposed| settle(&mut settling, proposed));
            tokio::select! {
                () = drain.requested() => {}
                () = self.0.wake.notified() => {
                    drain.sleep(self.0.config.gather.saturating_sub(started.elapsed())).await;
                }
                () = tokio::time::sleep(next) => {}
            }
        }
        aside.drain(..).for_each(|proposed| settle(&mut settling, proposed));
        while settling.join_next().await.is_some() {}
        self.0.release(&[]).await;
        Ok(())
    }

    /// Hears when tickets are made, until told to stop.
    pub async fn listen(&self, drain: Drain) -> Result<(), LoopError> {
        tokio::select! {
            () = drain.requested() => Ok(()),
            lost = self.0.store.listen_for_wakes(&self.0.name, &self.0.wake) => match lost {
                Ok(()) => Err("the store no longer tells of new tickets".into()),
                Err(error) => Err(error.into()),
            },
        }
    }
}

impl Inner {
    /// How long to wait before the next look, if no ticket arrives.
    fn next_look(&self, proposed: &Proposed, vain_looks: u32) -> Duration {
        let ours = proposed.fetched as u64 + self.settling.load(Ordering::Relaxed);
        let elsewhere = proposed.waiting.saturating_sub(ours);
        if proposed.fetched >= self.config.fetch_limit {
            Duration::ZERO
        } else if !proposed.unmatched.is_empty() && elsewhere > 0 {
            // Another engine holds tickets that may fit these. It releases them in a moment; who looks first is left to chance.
            // If it does not, it is slow or dead: then less and less often.
            let soon = self.config.gather.max(Duration::from_millis(1)).mul_f64(1.0 + fastrand::f64());
            soon.saturating_mul(1 << vain_looks.min(10)).min(self.config.tick)
        } else {
            self.config.tick
        }
    }

    async fn propose(&self) -> Result<Proposed, Error> {
        self.release(&[]).await;
        let started = Instant::now();
        let fetched = self.store.fetch(&self.name, self.config.fetch_limit).await?;
        self.metrics.fetch_latency.observe(started.elapsed().as_secs_f64());
        self.metrics.fetched.inc_by(fetched.ids.len() as u64);
        self.metrics.waiting.set(fetched.waiting.try_into().unwrap_or(i64::MAX));
        let tickets = match self.read(&fetched.ids).await {
            Ok(tickets) => tickets,
            Err(error) => {
                self.release(&fetched.ids).await;
                return Err(error);
            }
        };
        let now = Moment::from(self.clock.now());
        let mut proposed =
            Proposed { fetched: fetched.ids.len(), waiting: fetched.waiting, ..Proposed::default() };
        if tickets.is_empty() {
            self.metrics.oldest_age.set(0.0);
            return Ok(proposed);
        }
        let (matches, failures) = self.make_matches(&tickets, now).await;
        proposed.failures = failures;
        match self.evaluate(matches).await {
            Ok(matches) => proposed.matches = matches,
            Err(cause) => {
                self.fail("", "evaluator", &cause);
                proposed.failures += 1;
            }
        }
        let matched: HashSet<&TicketId> =
            proposed.matches.iter().flat_map(|made| &made.tickets).map(|ticket| &ticket.id).collect();
        proposed.unmatched = tickets.into_iter().filter(|ticket| !matched.contains(&ticket.id)).collect();
        let oldest = proposed.unmatched.first().map_or(Duration::ZERO, |ticket| ticket.created.age(now));
        self.metrics.oldest_age.set(oldest.as_secs_f64());
        self.remember(&proposed.unmatched, now);
        Ok(proposed)
    }

    /// Reads the tickets that are not known from the last tick. The order is that of the ids.
    async fn read(&self, ids: &[TicketId]) -> Result<Vec<Arc<Ticket>>, Error> {
        let known = std::mem::take(&mut *self.known.lock().unwrap_or_else(PoisonError::into_inner));
        let unknown: Vec<TicketId> = ids.iter().filter(|id| !known.contains_key(*id)).cloned().collect();
        let mut read = self.store.read(&unknown).await?.into_iter().peekable();
        let next = |id: &TicketId| match known.get(id) {
            Some(ticket) => Some(ticket.clone()),
            None => read.next_if(|ticket| ticket.id == *id),
        };
        Ok(ids.iter().filter_map(next).collect())
    }

    /// Data never changes, so tickets are kept for the next tick, unless nobody can tell when their data goes.
    fn remember(&self, tickets: &[Arc<Ticket>], now: Moment) {
        let lasting = tickets.iter().filter(|ticket| ticket.expires.is_some_and(|expires| expires > now));
        let known = lasting.map(|ticket| (ticket.id.clone(), ticket.clone())).collect();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Lets all profiles make matches, at the same time. Also returns how many failed.
    async fn make_matches(&self, tickets: &[Arc<Ticket>], now: Moment) -> (Vec<Match>, usize) {
        let fetched: HashMap<&TicketId, &Ticket> =
            tickets.iter().map(|ticket| (&ticket.id, ticket.as_ref())).collect();
        let working = self.profiles.iter().map(async |profile| {
            let pools = Pools { profile: profile.name.clone(), now, pools: pools(profile, tickets, now) };
            let started = Instant::now();
            let function = profile.function.clone();
            let work = async move { function.make_matches(&pools).await };
            let given = |id: &TicketId| {
                let ticket = fetched.get(id);
                ticket.is_some_and(|ticket| profile.pools.iter().any(|pool| pool.admits(ticket, now)))
            };
            let proposals =
                call(self.config.function_timeout, work).await.and_then(|made| check(made, given));
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
                    }));
                }
                Err(cause) => {
                    failures += 1;
                    self.fail(&profile.name, "match_function", &cause);
                }
            }
        }
        (matches, failures)
    }

    /// The matches to be made. No two of them share a ticket, whatever the evaluator says.
    async fn evaluate(&self, matches: Vec<Match>) -> Result<Vec<Match>, String> {
        if matches.is_empty() {
            return Ok(matches);
        }
        let matches: Arc<[Match]> = matches.into();
        let (evaluator, proposed) = (self.evaluator.clone(), matches.clone());
        let work = async move { evaluator.evaluate(&proposed).await };
        let chosen = call(self.config.evaluator_timeout, work).await?;
        let by_id: HashMap<MatchId, &Match> = matches.iter().map(|made| (made.id, made)).collect();
        if let Some(unknown) = chosen.iter().find(|id| !by_id.contains_key(id)) {
            return Err(format!("chose {unknown}, which nobody proposed"));
        }
        let chosen = chosen.iter().filter_map(|id| by_id.get(id).copied());
        Ok(evaluator::without_overlaps(chosen).into_iter().cloned().collect())
    }

    async fn settle(&self, proposed: Proposed) -> Tick {
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
        let (assigned, failures) = match self.find_servers(&profile, &matches).await {
            Ok(servers) => match self.write(&profile, &matches, servers).await {
                Ok(assigned) => (assigned, 0),
                Err(error) => {
                    // Written or not: releasing does no harm to what is assigned.
                    self.fail(&profile, "assign", &chain(&error));
                    (HashSet::new(), 1)
                }
            },
            Err(cause) => {
                self.fail(&profile, "assigner", &cause);
                (HashSet::new(), 1)
            }
        };
        let left = matches.iter().filter(|made| !assigned.contains(&made.id)).flat_map(|made| &made.tickets);
        let left: Vec<TicketId> = left.map(|ticket| ticket.id.clone()).collect();
        self.release(&left).await;
        let all: usize = matches.iter().map(|made| made.tickets.len()).sum();
        Tick { fetched: 0, assigned: all - left.len(), released: left.len(), failures }
    }

    async fn find_servers(
        &self,
        profile: &str,
        matches: &Arc<[Match]>,
    ) -> Result<HashMap<MatchId, Assignment>, String> {
        let Some(profile) = self.profiles.iter().find(|known| *known.name == *profile) else {
            return Ok(HashMap::new());
        };
        let started = Instant::now();
        let (assigner, given) = (profile.assigner.clone(), matches.clone());
        let work = async move { assigner.assign(&given).await };
        let assigned = call(self.config.assigner_timeout, work).await;
        self.metrics.assigner_latency.observe(started.elapsed().as_secs_f64());
        Ok(assigned?.into_iter().collect())
    }

    /// Returns the matches that were made.
    async fn write(
        &self,
        profile: &str,
        matches: &[Match],
        servers: HashMap<MatchId, Assignment>,
    ) -> Result<HashSet<MatchId>, Error> {
        let found: Vec<(&Match, &Assignment)> =
            matches.iter().filter_map(|made| Some((made, servers.get(&made.id)?))).collect();
        if found.is_empty() {
            return Ok(HashSet::new());
        }
        let (now, trace) = (self.clock.now(), TraceContext::current());
        let traceparent =
            trace.headers().find(|(name, _)| *name == "traceparent").map_or("", |(_, value)| value);
        let group = |(made, assignment): &(&Match, &Assignment)| {
            let assignment = wire::assignment_to_wire(assignment);
            Group {
                tickets: made.tickets.iter().map(|ticket| ticket.id.clone()).collect(),
                assignment: assignment.encode_to_bytes(),
                made: wire::made(made, assignment, now, traceparent),
            }
        };
        let groups: Vec<Group> = found.iter().map(group).collect();
        let started = Instant::now();
        let outcomes = self.store.assign(&groups).await?;
        self.metrics.assign_latency.observe(started.elapsed().as_secs_f64());

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
                Outcome::Refused(ticket) => {
                    self.metrics.refused.get_or_create(&labels).inc();
                    tracing::debug!(%ticket, profile, "a match is dropped: the ticket is gone or assigned elsewhere");
                }
            }
        }
        if !assigned.is_empty() {
            self.made.notify_one();
        }
        Ok(assigned)
    }

    /// Releases these tickets, and those that are owed. What cannot be released is owed.
    async fn release(&self, ids: &[TicketId]) {
        let mut all = std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        all.extend_from_slice(ids);
        match self.store.release(&all).await {
            Ok(()) => drop(self.metrics.released.inc_by(all.len() as u64)),
            Err(error) => {
                tracing::warn!(cause = chain(&error), tickets = all.len(), "released later");
                self.owed.lock().unwrap_or_else(PoisonError::into_inner).append(&mut all);
            }
        }
    }

    fn fail(&self, profile: &str, step: &'static str, cause: &str) {
        tracing::error!(profile, step, cause, "matchmaking failed; its tickets are released");
        self.metrics.failures.get_or_create(&FailureLabels { profile: profile.to_owned(), step }).inc();
    }
}

fn pools(
    profile: &Profile,
    tickets: &[Arc<Ticket>],
    now: Moment,
) -> Vec<(Arc<crate::model::Pool>, Vec<Arc<Ticket>>)> {
    let members = |pool: &crate::model::Pool| {
        tickets.iter().filter(|ticket| pool.admits(ticket, now)).cloned().collect()
    };
    profile.pools.iter().map(|pool| (pool.clone(), members(pool))).collect()
}

/// Calls a plugin: in its own task, so that a panic or an endless loop is its own affair.
async fn call<T: Send + 'static>(
    limit: Duration,
    work: impl Future<Output = Result<T, PluginError>> + Send + 'static,
) -> Result<T, String> {
    let task = tokio::spawn(work);
    let abort = task.abort_handle();
    match tokio::time::timeout(limit, task).await {
        Ok(Ok(answer)) => answer.map_err(|error| chain(error.as_ref())),
        Ok(Err(_)) => Err("panicked".to_owned()),
        Err(_) => {
            abort.abort();
            Err(format!("took longer than {limit:?}"))
        }
    }
}

/// Refuses what a match function must not propose.
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
