//! The engine: every tick it fetches tickets, lets match functions make matches of them, and assigns those.
//!
//! A tick has two halves. *Proposing* ends with a list of matches and with the tickets that found none. *Settling* releases the
//! latter, asks the assigners, and writes what they answer. Ticks may overlap: while one settles (a game server takes its time
//! to start), the next one proposes, and the tickets in between are pending, so nobody else takes them.
//! A match is written to the store of tickets, recorded in SQL, and only then are its players notified (docs/adr/0010).
//!
//! Whatever fails, fails for its own tickets only, and those are released in the same tick. What cannot be released because the
//! store is away is owed, and released first thing when it is back.

mod allocate;
mod assigners;
mod breaker;
mod evaluator;
mod fifo;
mod plugins;
mod propose;
mod settle;
mod webhook;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Clock;
use base::error::chain;
use base::id::ProcessId;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

use crate::allocation::Allocations;
use crate::error::Error;
use crate::metrics::{FailureLabels, Metrics};
use crate::model::{Match, Ticket, TicketId};
use crate::recorder::Record;
use crate::store::{EngineName, Store};

use self::breaker::Breaker;

pub use assigners::StaticList;
pub use evaluator::BestFirst;
pub use fifo::Fifo;
pub use plugins::{
    Allocated, Allocator, Answer, Assigner, Evaluator, MatchFunction, NotAllocated, PluginError, Pools,
    Profile,
};
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
    /// Of each profile's assigner. Profiles with the same assigner share one.
    breakers: Vec<Arc<Breaker>>,
    evaluator: Arc<dyn Evaluator>,
    config: EngineConfig,
    clock: Clock,
    metrics: Metrics,
    /// A ticket has been made.
    wake: Notify,
    recorder: Option<Arc<dyn Record>>,
    /// Whether the store hands out no tickets because too many matches are unrecorded.
    is_held_back: AtomicBool,
    /// Tickets that found no match in the last tick: they need not be read again.
    known: Mutex<HashMap<TicketId, Arc<Ticket>>>,
    /// Tickets that could not be released.
    owed: Mutex<Vec<TicketId>>,
    /// Where allocations are written down, unless the engine does without.
    allocations: Option<Allocations>,
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
            breakers: breakers(&profiles),
            profiles,
            evaluator: Arc::new(BestFirst),
            config,
            clock,
            metrics,
            wake: Notify::new(),
            recorder: None,
            is_held_back: AtomicBool::new(false),
            known: Mutex::default(),
            owed: Mutex::default(),
            allocations: None,
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

    /// The same engine, which records matches before their players are notified. Without a recorder they are only notified.
    /// Only before it runs.
    pub fn with_recorder(self, recorder: Arc<dyn Record>) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { recorder: Some(recorder), ..inner })),
            Err(running) => Self(running),
        }
    }

    /// The same engine, which gives back the servers of matches that are not made. Only before it runs. Without it nothing
    /// is given back.
    pub fn with_allocations(self, allocations: Allocations) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { allocations: Some(allocations), ..inner })),
            Err(running) => Self(running),
        }
    }

    /// Without any there is nothing to do.
    pub fn has_profiles(&self) -> bool {
        !self.0.profiles.is_empty()
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

    /// Releases these tickets, and those that are owed. What cannot be released is owed.
    async fn release(&self, ids: &[TicketId]) {
        let mut all = std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        all.extend_from_slice(ids);
        match self.store.release(&all).await {
            Ok(()) => drop(self.metrics.released.inc_by(all.len() as u64)),
            Err(error) => {
                tracing::warn!(
                    outage = "tickets",
                    cause = chain(&error),
                    tickets = all.len(),
                    "released later"
                );
                self.owed.lock().unwrap_or_else(PoisonError::into_inner).append(&mut all);
            }
        }
    }

    /// Says, when that changes, whether the store hands out no tickets because too many matches are unrecorded.
    fn hold_back(&self, is_held_back: bool) {
        self.metrics.held_back.set(is_held_back.into());
        if self.is_held_back.swap(is_held_back, Ordering::Relaxed) == is_held_back {
            return;
        }
        if is_held_back {
            tracing::error!(
                "no tickets are fetched: matches that SQL has not recorded take matchmaking.max_unrecorded. Tickets wait until \
                 the database is back"
            );
        } else {
            tracing::info!("tickets are fetched again: matches are recorded");
        }
    }

    fn fail(&self, profile: &str, step: &'static str, cause: &str) {
        tracing::error!(outage = step, profile, step, cause, "matchmaking failed; its tickets are released");
        self.metrics.failures.get_or_create(&FailureLabels { profile: profile.to_owned(), step }).inc();
    }
}

/// A breaker for each profile. Profiles with the same assigner share one.
fn breakers(profiles: &[Profile]) -> Vec<Arc<Breaker>> {
    let same =
        |a: &Profile, b: &Profile| std::ptr::addr_eq(Arc::as_ptr(&a.assigner), Arc::as_ptr(&b.assigner));
    let mut breakers: Vec<Arc<Breaker>> = Vec::with_capacity(profiles.len());
    for profile in profiles {
        let known = profiles.iter().zip(&breakers).find(|(other, _)| same(profile, other));
        let breaker = known.map(|(_, breaker)| breaker.clone()).unwrap_or_else(|| {
            let users = profiles.iter().filter(|other| same(profile, other));
            Arc::new(Breaker::new(users.map(|other| other.name.clone()).collect()))
        });
        breakers.push(breaker);
    }
    breakers
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
