//! Decides, in Redis or here.

use std::sync::Arc;
use std::time::Duration;

use redis_store::RedisStore;

use crate::breaker::{Breaker, Permit};
use crate::memory::Memory;
use crate::shared::Shared;
use crate::{Metrics, Rate, Verdict};

/// One bucket that a request takes from.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The name of the rule, without a colon.
    pub policy: &'static str,
    /// Whose bucket it is.
    pub key: &'a str,
    pub rate: Rate,
}

/// The limits of this process. Clones are the same.
#[derive(Clone, Debug)]
pub struct Limits(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    shared: Option<Shared>,
    breaker: Breaker,
    /// All buckets where there is no Redis; those of this process while Redis is away.
    memory: Memory,
    metrics: Metrics,
}

/// A request that its first bucket let in, as far as this process knows.
#[derive(Debug)]
#[must_use = "the other buckets have to be asked as well"]
pub struct Begun<'a> {
    limits: &'a Limits,
    first: Check<'a>,
    /// Of the first bucket in this process, after one was taken.
    debt: u64,
}

impl Limits {
    /// Makes limits that count in `redis_store`, under keys that begin with `prefix`. Redis has `timeout` for a decision.
    pub fn new(redis_store: &RedisStore, prefix: &str, timeout: Duration, metrics: Metrics) -> Self {
        let shared = match redis_store {
            RedisStore::Memory => None,
            RedisStore::Redis(redis) => Some(Shared::new(redis.clone(), prefix, timeout)),
        };
        let memory = Memory::new(metrics.clone());
        Self(Arc::new(Parts { shared, breaker: Breaker::new(), memory, metrics }))
    }

    /// Takes one from the bucket of each check, or from none of them.
    pub async fn take(&self, checks: &[Check<'_>]) -> Verdict {
        let verdict = match &self.0.shared {
            Some(shared) if !checks.is_empty() => match self.ask(shared, checks).await {
                Some(verdict) => verdict,
                None => {
                    self.0.metrics.local.inc();
                    self.decide(checks, false)
                }
            },
            _ => self.decide(checks, true),
        };
        self.0.metrics.decided(&verdict);
        verdict
    }

    /// Takes one from a bucket as this process knows it, without I/O. Returns the refusal if it is empty.
    ///
    /// For what is cheap to ask before any work is done, such as the bucket of an address. With Redis, the process knows what it
    /// took itself and what Redis answered last: an address that Redis refused is refused here until Redis would allow one.
    pub fn begin<'a>(&'a self, first: Check<'a>) -> Result<Begun<'a>, Verdict> {
        let (allowed, debts) = self.0.memory.take(&[first]);
        if allowed {
            return Ok(Begun { limits: self, first, debt: debts.first().copied().unwrap_or_default() });
        }
        let verdict = Verdict::new(&[first], false, &debts, true);
        self.0.metrics.decided(&verdict);
        Err(verdict)
    }

    /// Takes one from a bucket of this process alone. Returns whether there was one. Such buckets appear in no verdict or metric.
    pub fn take_here(&self, check: Check<'_>) -> bool {
        self.0.memory.take(&[check]).0
    }

    /// Forgets the buckets in this process that are full again; returns how many. To be called now and then: between calls,
    /// buckets are forgotten only as new ones come.
    pub fn sweep(&self) -> usize {
        self.0.memory.sweep()
    }

    /// What Redis decides, if it answers.
    async fn ask(&self, shared: &Shared, checks: &[Check<'_>]) -> Option<Verdict> {
        let Parts { breaker, metrics, .. } = &*self.0;
        let permit = breaker.permit();
        if permit == Permit::No {
            return None;
        }
        match shared.take(checks).await {
            Ok(verdict) => {
                if permit == Permit::Probe {
                    breaker.recovered();
                    metrics.away.set(0);
                    tracing::info!("limits are shared again");
                }
                Some(verdict)
            }
            Err(error) => {
                if breaker.failed() {
                    metrics.away.set(1);
                    let cause = base::error::chain(&error);
                    tracing::warn!(cause, "Redis does not decide on limits: this process decides alone");
                }
                None
            }
        }
    }

    fn decide(&self, checks: &[Check<'_>], shared: bool) -> Verdict {
        let (allowed, debts) = self.0.memory.take(checks);
        Verdict::new(checks, allowed, &debts, shared)
    }
}

impl Begun<'_> {
    /// Takes one from each of the other buckets, or from none of them. What the first bucket gave is not returned to it, so that a
    /// caller who is refused by another bucket again and again is stopped by the first one.
    pub async fn take(self, rest: &[Check<'_>]) -> Verdict {
        let Self { limits, first, debt } = self;
        let Parts { shared, memory, metrics, .. } = &*limits.0;
        let mut checks = Vec::with_capacity(1 + rest.len());
        checks.push(first);
        checks.extend_from_slice(rest);
        if let Some(shared) = shared {
            if let Some(verdict) = limits.ask(shared, &checks).await {
                if let Some(state) = verdict.states.first() {
                    memory.raise(&first, state.reset);
                }
                metrics.decided(&verdict);
                return verdict;
            }
            metrics.local.inc();
        }
        let (allowed, debts) = memory.take(rest);
        let debts: Vec<u64> = std::iter::once(debt).chain(debts).collect();
        let verdict = Verdict::new(&checks, allowed, &debts, shared.is_none());
        metrics.decided(&verdict);
        verdict
    }
}
