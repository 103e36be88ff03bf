//! Decides on rate limits, in Redis or in process.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use redis_store::RedisStore;

use crate::breaker::{Breaker, Permit};
use crate::memory::Memory;
use crate::shared::Shared;
use crate::tally::Tally;
use crate::{KeyKind, LimitDecision, LimitState, Metrics, Rate, RefusedKey, Rule, RuleCounts};

/// A bucket that a request takes a token from.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The name of the policy, without a colon.
    pub policy: &'static str,
    /// What the key identifies.
    pub kind: KeyKind,
    /// The owner of the bucket, such as a player or an address.
    pub key: &'a str,
    pub rate: Rate,
}

impl Check<'_> {
    pub const fn rule(&self) -> Rule {
        Rule { policy: self.policy, kind: self.kind }
    }
}

/// The rate limits of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Limits(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    shared: Option<Shared>,
    breaker: Breaker,
    /// All buckets if there is no Redis. Otherwise the buckets that this process uses while Redis is unreachable, and to refuse requests
    /// without I/O.
    memory: Memory,
    metrics: Metrics,
    tally: Tally,
}

/// A request that its first bucket allowed, as far as this process knows.
#[derive(Debug)]
#[must_use = "the other buckets must be checked too"]
pub struct PendingTake<'a> {
    limits: &'a Limits,
    first: Check<'a>,
    /// The debt of the first bucket in this process, after the token was taken.
    debt: u64,
}

impl Limits {
    /// Creates limits that are counted in `redis_store`, under keys that start with `prefix`. A decision by Redis may take `timeout`.
    pub fn new(
        redis_store: &RedisStore,
        prefix: &str,
        timeout: Duration,
        metrics: Metrics,
        clock: Clock,
    ) -> Self {
        let shared = match redis_store {
            RedisStore::Memory => None,
            RedisStore::Redis(redis) => Some(Shared::new(redis.clone(), prefix, timeout)),
        };
        let memory = Memory::new(metrics.clone());
        let tally = Tally::new(clock);
        Self(Arc::new(Parts { shared, breaker: Breaker::new(), memory, metrics, tally }))
    }

    /// Takes a token from the bucket of each check, or from none of them.
    pub async fn take(&self, checks: &[Check<'_>]) -> LimitDecision {
        let decision = match &self.0.shared {
            Some(shared) if !checks.is_empty() => match self.decide_shared(shared, checks).await {
                Some(decision) => decision,
                None => {
                    self.0.metrics.local.inc();
                    self.decide_local(checks, false)
                }
            },
            _ => self.decide_local(checks, true),
        };
        self.0.count(checks, &decision);
        decision
    }

    /// Takes a token from this process's copy of a bucket, without I/O. Returns the refusal if the bucket is empty.
    ///
    /// For a check before any other work, such as the limit of an address. With Redis, the copy includes the tokens that this process
    /// took and the last response of Redis: an address that Redis refused is refused here until Redis would allow a request.
    pub fn begin<'a>(&'a self, first: Check<'a>) -> Result<PendingTake<'a>, LimitDecision> {
        let (allowed, debts) = self.0.memory.take(&[first]);
        if allowed {
            return Ok(PendingTake { limits: self, first, debt: debts.first().copied().unwrap_or_default() });
        }
        let decision = LimitDecision::new(&[first], false, &debts, true);
        self.0.count(&[first], &decision);
        Err(decision)
    }

    /// Returns the state of the bucket if this process's copy of it is empty, and counts the refusal. Takes no token.
    pub fn refusal(&self, check: Check<'_>) -> Option<LimitState> {
        let debt = self.0.memory.empty_debt(&check)?;
        self.0.metrics.refused(check.rule());
        self.0.tally.refused(&check);
        Some(LimitState::new(&check, false, debt))
    }

    /// Takes a token from a bucket that exists only in this process. Returns whether there was one. Such buckets appear in no decision or
    /// metric.
    pub fn take_local(&self, check: Check<'_>) -> bool {
        // The lookup is cheaper, and in a flood the bucket is empty.
        self.0.memory.empty_debt(&check).is_none() && self.0.memory.take(&[check]).0
    }

    /// Removes full buckets from this process. Returns how many. Must be called every few seconds: otherwise buckets are removed only
    /// when new ones are added, and the counts of the last minute cover a longer time.
    pub fn sweep(&self) -> usize {
        self.0.tally.sweep(self.0.metrics.counts());
        self.0.memory.sweep()
    }

    /// Returns the decisions of this process by rule. Rules without a decision are missing.
    pub fn counts(&self) -> Vec<RuleCounts> {
        self.0.tally.counts(self.0.metrics.counts())
    }

    /// Returns the keys that this process refused most, the worst first. A key is kept for an hour after its last refusal.
    pub fn most_refused(&self, limit: usize) -> Vec<RefusedKey> {
        self.0.tally.most_refused(limit)
    }

    /// Returns whether Redis decides. False if there is no Redis, or while it does not answer.
    pub fn is_shared(&self) -> bool {
        self.0.shared.is_some() && self.0.metrics.unreachable.get() == 0
    }

    /// Returns whether this process decides because its stores are embedded.
    pub fn is_embedded(&self) -> bool {
        self.0.shared.is_none()
    }

    /// Lets Redis decide. Returns none if it does not answer.
    async fn decide_shared(&self, shared: &Shared, checks: &[Check<'_>]) -> Option<LimitDecision> {
        let Parts { breaker, metrics, .. } = &*self.0;
        let permit = breaker.permit();
        if permit == Permit::No {
            return None;
        }
        match shared.take(checks).await {
            Ok(decision) => {
                if permit == Permit::Probe {
                    breaker.recovered();
                    metrics.unreachable.set(0);
                    tracing::info!("Redis decides on rate limits again");
                }
                Some(decision)
            }
            Err(error) => {
                if breaker.failed() {
                    metrics.unreachable.set(1);
                    let cause = base::error::chain(&error);
                    tracing::warn!(
                        cause,
                        "Redis does not answer; this process decides on rate limits on its own"
                    );
                }
                None
            }
        }
    }

    fn decide_local(&self, checks: &[Check<'_>], shared: bool) -> LimitDecision {
        let (allowed, debts) = self.0.memory.take(checks);
        LimitDecision::new(checks, allowed, &debts, shared)
    }
}

impl Parts {
    /// Counts a decision. A bucket that would have allowed a request that another bucket refused is not counted.
    fn count(&self, checks: &[Check<'_>], decision: &LimitDecision) {
        for (check, state) in checks.iter().zip(&decision.states) {
            match (decision.allowed, state.retry_after) {
                (true, _) => self.metrics.allowed(check.rule()),
                (false, Some(_)) => {
                    self.metrics.refused(check.rule());
                    self.tally.refused(check);
                }
                (false, None) => {}
            }
        }
    }
}

impl PendingTake<'_> {
    /// Takes a token from each of the other buckets, or from none of them. The token of the first bucket is not returned, so a caller
    /// that other buckets refuse repeatedly is eventually refused by the first one.
    pub async fn take(self, rest: &[Check<'_>]) -> LimitDecision {
        let Self { limits, first, debt } = self;
        let parts = &*limits.0;
        let Parts { shared, memory, metrics, .. } = parts;
        let mut checks = Vec::with_capacity(1 + rest.len());
        checks.push(first);
        checks.extend_from_slice(rest);
        if let Some(shared) = shared {
            if let Some(decision) = limits.decide_shared(shared, &checks).await {
                if let Some(state) = decision.states.first() {
                    memory.raise(&first, state.reset);
                }
                parts.count(&checks, &decision);
                return decision;
            }
            metrics.local.inc();
        }
        let (allowed, debts) = memory.take(rest);
        let debts: Vec<u64> = std::iter::once(debt).chain(debts).collect();
        let decision = LimitDecision::new(&checks, allowed, &debts, shared.is_none());
        parts.count(&checks, &decision);
        decision
    }
}
