//! Buckets in this process.
//!
//! Only a hash of policy and key is stored, so every bucket takes the same few bytes. Two keys with the same hash share a bucket. With
//! a secret seed and 64 bits that is rare, cannot be provoked, and only makes a limit stricter.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Check, Metrics};

/// The number of shards, so that requests with different keys rarely wait for each other. A power of two.
const SHARDS: usize = 64;

/// The most buckets, plus the few that one request may add.
const CAPACITY: usize = 1 << 18;

/// A smaller shard is not swept when it grows.
const SMALL: usize = 64;

/// How long a shard at its capacity is not swept again, in microseconds.
const SWEEP_PAUSE: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Memory {
    origin: Instant,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// One bucket per policy, shared by the keys that have no room for their own.
    overflow: Mutex<HashMap<&'static str, u64>>,
    metrics: Metrics,
}

/// The times when buckets are full again, in microseconds since the origin. A missing bucket is full.
#[derive(Debug)]
struct Shard {
    full_at: HashMap<u64, u64>,
    capacity: usize,
    /// The size at which full buckets are removed.
    sweep_at: usize,
    /// The time before which a sweep would remove nothing.
    sweep_after: u64,
}

/// The location of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BucketRef {
    Own { shard: usize, hash: u64 },
    Overflow(&'static str),
}

/// The debts of a bucket before and after a token is taken.
struct Taking {
    bucket: BucketRef,
    before: u64,
    /// None if the bucket is empty.
    after: Option<u64>,
}

/// The shards of a request, locked in ascending order to avoid deadlocks.
struct Locked<'a> {
    memory: &'a Memory,
    now: u64,
    shards: Vec<(usize, MutexGuard<'a, Shard>)>,
    /// Locked last, and only if needed.
    overflow: Option<MutexGuard<'a, HashMap<&'static str, u64>>>,
}

impl Memory {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self::with_capacity(CAPACITY, metrics)
    }

    fn with_capacity(capacity: usize, metrics: Metrics) -> Self {
        let shard = |_| Mutex::new(Shard::new(capacity / SHARDS));
        Self {
            origin: Instant::now(),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(shard).collect(),
            overflow: Mutex::default(),
            metrics,
        }
    }

    /// Takes a token from each bucket, or from none. Returns whether it did, and the debts afterwards.
    pub(crate) fn take(&self, checks: &[Check<'_>]) -> (bool, Vec<u64>) {
        let hashes: Vec<u64> =
            checks.iter().map(|check| self.hasher.hash_one((check.policy, check.key))).collect();
        let mut locked = self.lock(&hashes);
        let mut takings: Vec<Taking> = Vec::with_capacity(checks.len());
        for (check, hash) in checks.iter().zip(&hashes) {
            let bucket = locked.bucket(check.policy, *hash);
            // Two tokens are taken from a bucket that is listed twice.
            let taken = takings.iter().rev().find(|taking| taking.bucket == bucket);
            let before = taken.and_then(|taking| taking.after).unwrap_or_else(|| locked.debt(bucket));
            // Caps the debt, because the rate may have been reduced.
            let limit = check.rate.limit();
            if before > limit {
                locked.write(bucket, limit);
            }
            let before = before.min(limit);
            takings.push(Taking { bucket, before, after: check.rate.take(before) });
        }
        let Some(after) = takings.iter().map(|taking| taking.after).collect::<Option<Vec<u64>>>() else {
            return (false, takings.iter().map(|taking| taking.before).collect());
        };
        for (taking, after) in takings.iter().zip(&after) {
            locked.write(taking.bucket, *after);
        }
        (true, after)
    }

    /// Returns the debt of an empty bucket, or none if a token is left. Locks one shard and allocates nothing. An unknown bucket
    /// counts as full, even if its key would share the overflow bucket: then [`take`](Self::take) decides.
    pub(crate) fn empty_debt(&self, check: &Check<'_>) -> Option<u64> {
        let hash = self.hasher.hash_one((check.policy, check.key));
        let full_at = lock(&self.shards[shard_of(hash)]).full_at.get(&hash).copied()?;
        let debt = full_at.saturating_sub(self.now()).min(check.rate.limit());
        check.rate.take(debt).is_none().then_some(debt)
    }

    /// Raises the debt of a bucket to its debt in Redis, so that this process refuses what Redis would refuse. Does not change the
    /// overflow bucket, which belongs to no single key.
    pub(crate) fn raise(&self, check: &Check<'_>, debt: Duration) {
        let hash = self.hasher.hash_one((check.policy, check.key));
        let debt = u64::try_from(debt.as_micros()).unwrap_or(u64::MAX).min(check.rate.limit());
        let mut locked = self.lock(&[hash]);
        let bucket = locked.bucket(check.policy, hash);
        if matches!(bucket, BucketRef::Own { .. }) && locked.debt(bucket) < debt {
            locked.write(bucket, debt);
        }
    }

    /// Removes full buckets. Returns how many.
    pub(crate) fn sweep(&self) -> usize {
        let now = self.now();
        let sweep = |shard: &Mutex<Shard>| {
            let mut shard = lock(shard);
            let removed = shard.sweep(now);
            // Returns the memory after a flood.
            let (len, size) = (shard.full_at.len(), shard.full_at.capacity());
            if size > 4 * len.max(SMALL) {
                shard.full_at.shrink_to(2 * len);
            }
            removed
        };
        let removed = self.shards.iter().map(sweep).sum();
        self.removed(removed);
        removed
    }

    fn lock(&self, hashes: &[u64]) -> Locked<'_> {
        let mut needed: Vec<usize> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        needed.sort_unstable();
        needed.dedup();
        let shards = needed.into_iter().map(|at| (at, lock(&self.shards[at]))).collect();
        Locked { memory: self, now: self.now(), shards, overflow: None }
    }

    fn removed(&self, count: usize) {
        self.metrics.entries.dec_by(count.try_into().unwrap_or(i64::MAX));
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

impl Locked<'_> {
    /// Returns the bucket of a hash. Without room for a new bucket, it is the overflow bucket of the policy.
    fn bucket(&mut self, policy: &'static str, hash: u64) -> BucketRef {
        let (now, memory) = (self.now, self.memory);
        let at = shard_of(hash);
        let Some(shard) = self.shard(at) else { return BucketRef::Overflow(policy) };
        if shard.full_at.contains_key(&hash) {
            return BucketRef::Own { shard: at, hash };
        }
        memory.removed(shard.make_room(now));
        if shard.full_at.len() < shard.capacity {
            return BucketRef::Own { shard: at, hash };
        }
        memory.metrics.overflowed.inc();
        BucketRef::Overflow(policy)
    }

    fn debt(&mut self, bucket: BucketRef) -> u64 {
        let full_at = match bucket {
            BucketRef::Own { shard, hash } => {
                self.shard(shard).and_then(|shard| shard.full_at.get(&hash).copied())
            }
            BucketRef::Overflow(policy) => self.overflow().get(policy).copied(),
        };
        full_at.unwrap_or(0).saturating_sub(self.now)
    }

    fn write(&mut self, bucket: BucketRef, debt: u64) {
        let (full_at, memory) = (self.now + debt, self.memory);
        match bucket {
            BucketRef::Own { shard, hash } => {
                let previous = self.shard(shard).and_then(|shard| shard.full_at.insert(hash, full_at));
                if previous.is_none() {
                    memory.metrics.entries.inc();
                }
            }
            BucketRef::Overflow(policy) => {
                self.overflow().insert(policy, full_at);
            }
        }
    }

    fn shard(&mut self, at: usize) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|(shard, _)| *shard == at).map(|(_, shard)| &mut **shard)
    }

    fn overflow(&mut self) -> &mut HashMap<&'static str, u64> {
        self.overflow.get_or_insert_with(|| lock(&self.memory.overflow))
    }
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self { full_at: HashMap::new(), capacity, sweep_at: SMALL.min(capacity), sweep_after: 0 }
    }

    /// Called before a bucket is added. Removes full buckets whenever the shard has doubled, so the amortized cost per added bucket is
    /// constant. Returns how many were removed.
    fn make_room(&mut self, now: u64) -> usize {
        if self.full_at.len() < self.sweep_at || now < self.sweep_after {
            return 0;
        }
        let removed = self.sweep(now);
        if self.full_at.len() >= self.capacity {
            self.sweep_after = now + SWEEP_PAUSE;
        }
        removed
    }

    /// Removes full buckets. Returns how many.
    fn sweep(&mut self, now: u64) -> usize {
        let before = self.full_at.len();
        self.full_at.retain(|_, full_at| *full_at > now);
        self.sweep_at = (2 * self.full_at.len()).clamp(SMALL.min(self.capacity), self.capacity);
        before - self.full_at.len()
    }
}

fn shard_of(hash: u64) -> usize {
    // The map uses the lowest and the highest bits itself.
    usize::try_from(hash >> 32).unwrap_or(0) % SHARDS
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tokio::time::advance;

    use super::*;
    use crate::{KeyKind, Rate};

    fn memory(capacity: usize) -> Memory {
        Memory::with_capacity(capacity, Metrics::new(&mut Registry::default()))
    }

    fn take(memory: &Memory, policy: &'static str, key: &str, rate: &str) -> bool {
        let rate: Rate = rate.parse().unwrap();
        memory.take(&[Check { policy, kind: KeyKind::Address, key, rate }]).0
    }

    fn bucket_count(memory: &Memory) -> usize {
        let bucket_count = memory.shards.iter().map(|shard| lock(shard).full_at.len()).sum();
        assert_eq!(memory.metrics.entries.get(), i64::try_from(bucket_count).unwrap());
        bucket_count
    }

    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_removed() {
        let memory = memory(CAPACITY);
        for key in 0..1_000 {
            assert!(take(&memory, "p", &key.to_string(), if key < 300 { "1/s" } else { "1/m" }));
        }
        assert_eq!((memory.sweep(), bucket_count(&memory)), (0, 1_000));
        advance(Duration::from_secs(1)).await;
        assert_eq!((memory.sweep(), bucket_count(&memory)), (300, 700));
        advance(Duration::from_secs(59)).await;
        assert_eq!((memory.sweep(), bucket_count(&memory)), (700, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_removed_while_the_memory_grows() {
        let memory = memory(CAPACITY);
        // A hundred new keys each second, for ten minutes.
        for key in 0..60_000 {
            assert!(take(&memory, "p", &key.to_string(), "1/s"));
            if key % 100 == 0 {
                advance(Duration::from_secs(1)).await;
            }
        }
        assert!(bucket_count(&memory) <= SHARDS * SMALL, "{}", bucket_count(&memory));
    }

    #[tokio::test(start_paused = true)]
    async fn at_capacity_new_keys_share_a_bucket_and_known_keys_keep_theirs() {
        let memory = memory(SHARDS * 4);
        let mut allowed = 0;
        for key in 0..5_000 {
            allowed += usize::from(take(&memory, "p", &key.to_string(), "2/m"));
        }
        assert_eq!(bucket_count(&memory), SHARDS * 4);
        assert_eq!(allowed, SHARDS * 4 + 2, "one for each known key, and two for all others");
        assert_eq!(memory.metrics.overflowed.get(), 5_000 - 4 * SHARDS as u64);
        assert!(take(&memory, "q", "a new key", "2/m"), "each policy has its own overflow bucket");
        // The known keys have exactly one token left.
        let again = |key: i32| take(&memory, "p", &key.to_string(), "2/m");
        let known: Vec<i32> = (0..5_000).filter(|key| again(*key)).collect();
        assert_eq!(known.len(), SHARDS * 4);
        assert!(!known.into_iter().any(again));

        // After the flood there is room for new keys.
        advance(Duration::from_secs(60)).await;
        let new = (0..100).filter(|key| take(&memory, "p", &format!("new {key}"), "1/m")).count();
        assert!(new > 50, "{new}");
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_allowed_at_the_exact_microsecond() {
        let memory = memory(CAPACITY);
        let take = || take(&memory, "p", "k", "3/s burst 2");
        assert_eq!([take(), take(), take()], [true, true, false]);
        for _ in 0..10 {
            // A third of a second, rounded up.
            advance(Duration::from_micros(333_333)).await;
            assert!(!take());
            advance(Duration::from_micros(1)).await;
            assert_eq!([take(), take()], [true, false]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reduced_rate_applies_at_once() {
        let memory = memory(CAPACITY);
        assert!((0..100).all(|_| take(&memory, "p", "k", "1/s burst 100")));
        assert!(!take(&memory, "p", "k", "1/s burst 5"));
        advance(Duration::from_secs(1)).await;
        assert!(take(&memory, "p", "k", "1/s burst 5"), "no wait is longer than the new window");
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_listed_twice_gives_two_tokens() {
        let memory = memory(CAPACITY);
        let rate: Rate = "3/m".parse().unwrap();
        let check = Check { policy: "p", kind: KeyKind::Address, key: "k", rate };
        let twice = [check, check];
        assert_eq!([memory.take(&twice).0, memory.take(&twice).0], [true, false]);
        assert_eq!([memory.take(&[check]).0, memory.take(&[check]).0], [true, false]);
    }
}
