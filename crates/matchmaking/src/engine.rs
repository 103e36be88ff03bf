//! The engine: in every tick it fetches tickets, lets match functions propose matches, and assigns them.
//!
//! A tick has two halves. *Proposing* ends with a list of matches, and with the tickets that are in none. *Settling*
//! releases those tickets, calls the assigners, and writes the assignments. Ticks may overlap: while one settles (a
//! game server takes time to start), the next one proposes. The tickets in between are pending, so no engine fetches
//! them.
//! A match is assigned in the store of tickets, recorded in SQL, and only then are its players notified
//! (docs/adr/0010). If the profile has a ready check, settling asks the players of a match first, and the match is assigned
//! once all of them have accepted (docs/adr/0032).
//!
//! A failure affects only its own tickets, and those are released in the same tick. Tickets that cannot be released
//! while the store is unreachable are released first when it is back.

mod active;
mod allocate;
mod assigners;
mod breaker;
mod evaluator;
mod fifo;
mod filling;
mod plugins;
mod postpone;
mod propose;
mod ready;
mod roster;
mod rules;
mod settle;
mod starving;
mod webhook;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Clock;
use base::error::chain;
use base::id::ProcessId;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

use crate::allocation::Allocations;
use crate::error::Error;
use crate::metrics::{FailureLabels, Metrics};
use crate::model::{Match, Ticket, TicketId};
use crate::recorder::MatchRecorder;
use crate::store::{Claim, EngineName, Store};

use self::active::ActiveProfiles;
use self::filling::TakenJoin;
use self::postpone::Postponed;

pub use assigners::StaticList;
pub use evaluator::BestFirst;
pub use fifo::Fifo;
pub use plugins::{
    AllocationError, AllocationResponse, Allocator, Assigner, Evaluator, MatchFunction, PluginError,
    PluginFuture, Pools, Profile, ProposedJoin,
};
pub use rules::{PLAYERS_EXTENSION, RuleFunction};
pub use webhook::{Webhook, WebhookConfig};

/// How many ticks may settle at once.
const MAX_SETTLING: usize = 16;
/// How many fetches without a match an engine holds at most. Rules look at 1, 2, 4, 8 and 16 of them together.
const MAX_FETCHES: usize = 16;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The longest time between two fetches.
    pub tick: Duration,
    /// The shortest time between two fetches: tickets that arrive in between are matched together.
    pub gather: Duration,
    /// How many tickets one fetch returns at most.
    pub fetch_limit: usize,
    pub function_timeout: Duration,
    pub evaluator_timeout: Duration,
    pub assigner_timeout: Duration,
}

/// The result of a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Tickets fetched.
    pub fetched: usize,
    /// Tickets assigned.
    pub assigned: usize,
    /// Tickets that keep waiting.
    pub released: usize,
    /// Plugin calls and writes that failed.
    pub failures: usize,
}

/// Makes matches. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    name: EngineName,
    store: Store,
    /// The profiles that the next tick follows.
    active: watch::Sender<Arc<ActiveProfiles>>,
    evaluator: Arc<dyn Evaluator>,
    config: EngineConfig,
    clock: Clock,
    metrics: Metrics,
    /// Notified when a ticket is created.
    wake: Notify,
    recorder: Option<Arc<dyn MatchRecorder>>,
    /// Whether the store hands out no tickets because too many matches are unrecorded.
    is_held_back: AtomicBool,
    /// Tickets without a match in the last tick, cached so that they need not be read again.
    ticket_cache: Mutex<Arc<HashMap<TicketId, Arc<Ticket>>>>,
    /// Tickets whose release failed; released again in the next tick.
    unreleased: Mutex<Vec<(Claim, Vec<TicketId>)>>,
    /// Records allocations, so that unused servers are given back. `None` if the engine does not track them.
    allocations: Option<Allocations>,
    /// How many of our tickets are being assigned.
    settling: AtomicU64,
    /// How many tickets of each profile starve, until all tickets were fetched once.
    starving: Mutex<BTreeMap<Arc<str>, usize>>,
    /// The matches with open places that wait for tickets of other engines.
    postponed: Mutex<Postponed>,
}

/// The result of the first half of a tick.
#[derive(Debug, Default)]
struct ProposedMatches {
    /// How many tickets the last fetch returned.
    fetched: usize,
    /// How many fetches there were, and how many tickets they returned. All are under one claim.
    fetches: usize,
    claimed: usize,
    /// How many tickets are in matchmaking, including pending ones.
    waiting: u64,
    /// The claim on the fetched tickets.
    claim: Claim,
    /// The profiles that proposed the matches. They are settled by these, whatever the next tick follows.
    active: Arc<ActiveProfiles>,
    matches: Vec<Match>,
    /// Tickets that join matches under way.
    joins: Vec<TakenJoin>,
    unmatched: Vec<Arc<Ticket>>,
    failures: usize,
}

impl ProposedMatches {
    /// Returns whether no ticket found a match.
    fn is_fruitless(&self) -> bool {
        self.matches.is_empty() && self.joins.is_empty()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.0.name)
            .field("profiles", &self.0.active.borrow().profiles)
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
            active: watch::Sender::new(Arc::new(ActiveProfiles::default().followed_by(profiles))),
            evaluator: Arc::new(BestFirst),
            config,
            clock,
            metrics,
            wake: Notify::new(),
            recorder: None,
            is_held_back: AtomicBool::new(false),
            ticket_cache: Mutex::default(),
            unreleased: Mutex::default(),
            allocations: None,
            settling: AtomicU64::new(0),
            starving: Mutex::default(),
            postponed: Mutex::default(),
        }))
    }

    /// Sets another evaluator. Has no effect once the engine has been cloned.
    pub fn with_evaluator(self, evaluator: Arc<dyn Evaluator>) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { evaluator, ..inner })),
            Err(running) => Self(running),
        }
    }

    /// Sets the recorder that records matches before their players are notified. Without one, matches are not recorded.
    /// Has no effect once the engine has been cloned.
    pub fn with_recorder(self, recorder: Arc<dyn MatchRecorder>) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { recorder: Some(recorder), ..inner })),
            Err(running) => Self(running),
        }
    }

    /// Records allocations, so that the servers of unmade matches are given back. Without this no server is given back.
    /// Has no effect once the engine has been cloned.
    pub fn with_allocations(self, allocations: Allocations) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { allocations: Some(allocations), ..inner })),
            Err(running) => Self(running),
        }
    }

    /// Replaces the profiles. The next tick follows them; matches that are being settled keep theirs. Without any, the
    /// engine fetches no tickets.
    pub fn set_profiles(&self, profiles: Vec<Profile>) {
        self.0.active.send_modify(|active| *active = Arc::new(active.followed_by(profiles)));
        self.0.forget_waiting();
        self.0.wake.notify_one();
    }

    /// Runs one tick, both halves.
    pub async fn tick(&self) -> Result<Tick, Error> {
        let proposed = self.0.propose(None).await?;
        self.0.cache(&proposed.unmatched);
        Ok(self.0.settle(proposed).await)
    }

    /// Runs ticks until `drain` is requested, while there are profiles. Then finishes the ticks in flight and releases their tickets.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let mut settling = JoinSet::new();
        let settle = |settling: &mut JoinSet<Tick>, proposed: ProposedMatches| {
            let engine = self.0.clone();
            engine.cache(&proposed.unmatched);
            if proposed.claimed > 0 {
                settling.spawn(async move { engine.settle(proposed).await });
            }
        };
        // Tickets that fit no match must not block the tickets behind them. They stay pending until all tickets have
        // been fetched once. Rules match them with the tickets behind them.
        let mut held: Option<ProposedMatches> = None;
        let mut rounds_without_match = 0;
        let mut active = self.0.active.subscribe();
        while !drain.is_requested() {
            if self.0.active.borrow().is_empty() {
                // Without profiles all tickets belong to Directors.
                held.take().into_iter().for_each(|proposed| settle(&mut settling, proposed));
                self.0.retry_releases().await;
                self.0.leave().await;
                tokio::select! {
                    () = drain.requested() => {}
                    () = until(&mut active, |active| !active.is_empty()) => {}
                }
                continue;
            }
            let started = Instant::now();
            let span = tracing::info_span!("matchmaking.tick.propose");
            let (mut has_failed, mut is_last) = (false, false);
            let mut next = match self.0.propose(held.take()).instrument(span).await {
                Ok(proposed) => {
                    rounds_without_match = if proposed.is_fruitless() { rounds_without_match + 1 } else { 0 };
                    let next = self.0.next_delay(&proposed, rounds_without_match);
                    has_failed |= proposed.failures > 0;
                    // Retrying at once would find no match again.
                    is_last = proposed.is_fruitless() && proposed.fetches >= MAX_FETCHES;
                    let is_end_of_round =
                        proposed.fetches > 1 && !next.is_zero() && !proposed.active.meets_all();
                    if !has_failed && self.0.should_hold(&proposed) {
                        held = Some(proposed);
                    } else {
                        is_last |= is_end_of_round;
                        settle(&mut settling, proposed);
                    }
                    next
                }
                Err(error) => {
                    self.0.record_failure("", "fetch", &chain(&error));
                    self.0.config.tick
                }
            };
            loop {
                let is_full = settling.len() >= MAX_SETTLING;
                let settled = if is_full { settling.join_next().await } else { settling.try_join_next() };
                let Some(settled) = settled else { break };
                has_failed |= settled.is_ok_and(|tick| tick.failures > 0);
            }
            if has_failed {
                held.take().into_iter().for_each(|proposed| settle(&mut settling, proposed));
            }
            if is_last || has_failed && next.is_zero() {
                next = self.0.config.tick;
            }
            if next.is_zero() {
                // There are more tickets than one fetch returns.
                continue;
            }
            tokio::select! {
                () = drain.requested() => {}
                () = self.0.wake.notified() => {
                    drain.sleep(self.0.config.gather.saturating_sub(started.elapsed())).await;
                }
                () = tokio::time::sleep(next) => {}
            }
        }
        held.take().into_iter().for_each(|proposed| settle(&mut settling, proposed));
        while settling.join_next().await.is_some() {}
        self.0.retry_releases().await;
        self.0.leave().await;
        Ok(())
    }

    /// Wakes the engine when tickets are created, until `drain` is requested. Listens while there are profiles.
    pub async fn listen(&self, drain: Drain) -> Result<(), LoopError> {
        let mut active = self.0.active.subscribe();
        loop {
            tokio::select! {
                () = drain.requested() => return Ok(()),
                () = until(&mut active, |active| !active.is_empty()) => {}
            }
            tokio::select! {
                () = drain.requested() => return Ok(()),
                () = until(&mut active, ActiveProfiles::is_empty) => {}
                lost = self.0.store.listen_for_wakes(&self.0.name, &self.0.wake) => return match lost {
                    Ok(()) => Err("the subscription to new tickets has ended".into()),
                    Err(error) => Err(error.into()),
                },
            }
        }
    }
}

impl Inner {
    /// Removes the engine from the idle ones, which new tickets wake.
    async fn leave(&self) {
        if let Err(error) = self.store.forget_engine(&self.name).await {
            // A new ticket finds out that nobody listens, and tries the next engine.
            tracing::debug!(cause = chain(&error), "Cannot remove the engine from the idle ones");
        }
    }

    /// Returns how long to wait before the next fetch if no ticket arrives.
    fn next_delay(&self, proposed: &ProposedMatches, rounds_without_match: u32) -> Duration {
        if proposed.fetched >= self.config.fetch_limit {
            Duration::ZERO
        } else if !proposed.unmatched.is_empty() && self.held_elsewhere(proposed) > 0 {
            // Another engine holds tickets that may fit these and releases them in a moment. The random delay decides
            // which engine fetches first. If the tickets stay away, that engine is slow or dead: back off.
            let soon = self.config.gather.max(Duration::from_millis(1)).mul_f64(1.0 + fastrand::f64());
            soon.saturating_mul(1 << rounds_without_match.min(10)).min(self.config.tick)
        } else {
            self.config.tick
        }
    }

    /// Returns how many tickets are in matchmaking that this engine neither holds nor assigns. After a fetch of fewer than the
    /// limit, others hold all of them: engines and Directors that look for a match, assign one, or ask its players.
    fn held_elsewhere(&self, proposed: &ProposedMatches) -> u64 {
        let ours = proposed.claimed as u64 + self.settling.load(Ordering::Relaxed);
        proposed.waiting.saturating_sub(ours)
    }

    /// Returns whether to hold tickets without a match and to fetch more: younger ones, or those that other engines release.
    fn should_hold(&self, proposed: &ProposedMatches) -> bool {
        if !proposed.is_fruitless() || proposed.fetches >= MAX_FETCHES {
            return false;
        }
        let has_more = proposed.fetched >= self.config.fetch_limit;
        // Two engines that hold the tickets of one match must not both hold on. Chance decides: a random delay does not, if
        // the rules take much longer.
        has_more
            || proposed.active.meets_all()
                && !proposed.unmatched.is_empty()
                && self.held_elsewhere(proposed) > 0
                && fastrand::bool()
    }

    /// Releases the tickets that a claim still holds. Keeps them for the next tick if the store is unreachable.
    async fn release(&self, claim: Claim, ids: &[TicketId]) {
        match self.store.release_claim(claim, ids).await {
            Ok(stale) => {
                self.metrics.released.inc_by((ids.len() as u64).saturating_sub(stale));
                self.metrics.claims_stale("release", stale);
            }
            Err(error) => {
                tracing::warn!(
                    outage = "tickets",
                    cause = chain(&error),
                    tickets = ids.len(),
                    "Cannot release tickets; retrying in the next tick"
                );
                let mut unreleased = self.unreleased.lock().unwrap_or_else(PoisonError::into_inner);
                unreleased.push((claim, ids.to_vec()));
            }
        }
    }

    /// Releases the tickets whose earlier release failed.
    async fn retry_releases(&self) {
        let unreleased = std::mem::take(&mut *self.unreleased.lock().unwrap_or_else(PoisonError::into_inner));
        for (claim, ids) in unreleased {
            self.release(claim, &ids).await;
        }
    }

    /// Updates the metric, and logs when the store stops or resumes handing out tickets.
    fn set_held_back(&self, is_held_back: bool) {
        self.metrics.held_back.set(is_held_back.into());
        if self.is_held_back.swap(is_held_back, Ordering::Relaxed) == is_held_back {
            return;
        }
        if is_held_back {
            tracing::error!(
                "Stopped fetching tickets: unrecorded matches have reached matchmaking.max_unrecorded; tickets wait until the \
                 database is back"
            );
        } else {
            tracing::info!("Fetching tickets again: matches are recorded");
        }
    }

    fn record_failure(&self, profile: &str, step: &'static str, cause: &str) {
        tracing::error!(
            outage = step,
            profile,
            step,
            cause,
            "A matchmaking step failed; its tickets keep waiting"
        );
        self.metrics.failures.get_or_create(&FailureLabels { profile: profile.to_owned(), step }).inc();
    }
}

/// Waits until the profiles are as required.
async fn until(active: &mut watch::Receiver<Arc<ActiveProfiles>>, holds: impl Fn(&ActiveProfiles) -> bool) {
    // The engine has the sender, so the channel is not closed.
    drop(active.wait_for(|active| holds(active)).await);
}

/// Calls a plugin in its own task, so that a panic or an endless loop cannot harm the engine.
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
