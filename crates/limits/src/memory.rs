//! Buckets in this process.
//!
//! Only a hash of policy and key is kept, so a bucket has the same few bytes whatever its key is. Two keys with the same hash
//! share a bucket: with a secret seed and 64 bits that is rare, cannot be brought about, and errs on the strict side.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Check, Metrics};

/// Requests with different keys rarely wait for each other. A power of two.
const SHARDS: usize = 64;

/// How many buckets are held at the most, give or take the few that one request may add.
const CAPACITY: usize = 1 << 18;

/// A shard that is smaller is not swept when it grows.
const SMALL: usize = 64;

/// How long a shard in which nothing was full again is not swept, in microseconds.
const REST: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Memory {
    origin: Instant,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// One bucket per policy, for those that no bucket of their own can be had for.
    crowd: Mutex<HashMap<&'static str, u64>>,
    metrics: Metrics,
}

/// The times when buckets are full again, in microseconds since the origin. One that is not there is full.
#[derive(Debug)]
struct Shard {
    full_at: HashMap<u64, u64>,
    capacity: usize,
    /// At this size, those that are full again are forgotten.
    sweep_at: usize,
    /// Before this time, that would be in vain.
    sweep_after: u64,
}

/// Where a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Own { shard: usize, hash: u64 },
    Crowd(&'static str),
}

/// One taken from a bucket: its debts before and after.
struct Taking {
    place: Place,
    before: u64,
    after: Option<u64>,
}

/// The shards that a request needs, locked in their order so that no two requests wait for each other.
struct Locked<'a> {
    memory: &'a Memory,
    now: u64,
    shards: Vec<(usize, MutexGuard<'a, Shard>)>,
    /// Locked last, and only where it is needed.
    crowd: Option<MutexGuard<'a, HashMap<&'static str, u64>>>,
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
            crowd: Mutex::default(),
            metrics,
        }
    }

    /// Decides; returns the debts after the decision as well.
    pub(crate) fn take(&self, checks: &[Check<'_>]) -> (bool, Vec<u64>) {
        let hashes: Vec<u64> =
            checks.iter().map(|check| self.hasher.hash_one((check.policy, check.key))).collect();
        let mut locked = self.lock(&hashes);
        let mut takings: Vec<Taking> = Vec::with_capacity(checks.len());
        for (check, hash) in checks.iter().zip(&hashes) {
            let place = locked.place(check.policy, *hash);
            // A bucket that is named twice is taken from twice.
            let taken = takings.iter().rev().find(|taking| taking.place == place);
            let before = taken.and_then(|taking| taking.after).unwrap_or_else(|| locked.debt(place));
            // No more than the most, from now on: the rate may have been made smaller.
            let most = check.rate.limit();
            if before > most {
                locked.write(place, most);
            }
            let before = before.min(most);
            takings.push(Taking { place, before, after: check.rate.take(before) });
        }
        let Some(after) = takings.iter().map(|taking| taking.after).collect::<Option<Vec<u64>>>() else {
            return (false, takings.iter().map(|taking| taking.before).collect());
        };
        for (taking, after) in takings.iter().zip(&after) {
            locked.write(taking.place, *after);
        }
        (true, after)
    }

    /// Raises the debt of a bucket to what Redis has for it, so that this process refuses what Redis would. The bucket that strangers
    /// share is left alone: it is nobody's.
    pub(crate) fn raise(&self, check: &Check<'_>, debt: Duration) {
        let hash = self.hasher.hash_one((check.policy, check.key));
        let debt = u64::try_from(debt.as_micros()).unwrap_or(u64::MAX).min(check.rate.limit());
        let mut locked = self.lock(&[hash]);
        let place = locked.place(check.policy, hash);
        if matches!(place, Place::Own { .. }) && locked.debt(place) < debt {
            locked.write(place, debt);
        }
    }

    /// Forgets the buckets that are full again; returns how many.
    pub(crate) fn sweep(&self) -> usize {
        let now = self.now();
        let sweep = |shard: &Mutex<Shard>| {
            let mut shard = lock(shard);
            let forgotten = shard.sweep(now);
            // After a flood, its memory is given back.
            let (held, size) = (shard.full_at.len(), shard.full_at.capacity());
            if size > 4 * held.max(SMALL) {
                shard.full_at.shrink_to(2 * held);
            }
            forgotten
        };
        let forgotten = self.shards.iter().map(sweep).sum();
        self.forgot(forgotten);
        forgotten
    }

    fn lock(&self, hashes: &[u64]) -> Locked<'_> {
        let mut needed: Vec<usize> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        needed.sort_unstable();
        needed.dedup();
        let shards = needed.into_iter().map(|at| (at, lock(&self.shards[at]))).collect();
        Locked { memory: self, now: self.now(), shards, crowd: None }
    }

    fn forgot(&self, count: usize) {
        self.metrics.entries.dec_by(count.try_into().unwrap_or(i64::MAX));
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

impl Locked<'_> {
    /// Where the bucket is, or is to be.
    fn place(&mut self, policy: &'static str, hash: u64) -> Place {
        let (now, memory) = (self.now, self.memory);
        let at = shard_of(hash);
        let Some(shard) = self.shard(at) else { return Place::Crowd(policy) };
        if shard.full_at.contains_key(&hash) {
            return Place::Own { shard: at, hash };
        }
        memory.forgot(shard.make_room(now));
        if shard.full_at.len() < shard.capacity {
            return Place::Own { shard: at, hash };
        }
        memory.metrics.crowded.inc();
        Place::Crowd(policy)
    }

    fn debt(&mut self, place: Place) -> u64 {
        let full_at = match place {
            Place::Own { shard, hash } => {
                self.shard(shard).and_then(|shard| shard.full_at.get(&hash).copied())
            }
            Place::Crowd(policy) => self.crowd().get(policy).copied(),
        };
        full_at.unwrap_or(0).saturating_sub(self.now)
    }

    fn write(&mut self, place: Place, debt: u64) {
        let (full_at, memory) = (self.now + debt, self.memory);
        match place {
            Place::Own { shard, hash } => {
                let known = self.shard(shard).and_then(|shard| shard.full_at.insert(hash, full_at));
                if known.is_none() {
                    memory.metrics.entries.inc();
                }
            }
            Place::Crowd(policy) => {
                self.crowd().insert(policy, full_at);
            }
        }
    }

    fn shard(&mut self, at: usize) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|(shard, _)| *shard == at).map(|(_, shard)| &mut **shard)
    }

    fn crowd(&mut self) -> &mut HashMap<&'static str, u64> {
        self.crowd.get_or_insert_with(|| lock(&self.memory.crowd))
    }
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self { full_at: HashMap::new(), capacity, sweep_at: SMALL.min(capacity), sweep_after: 0 }
    }

    /// Before one more is added: forgets those that are full again whenever the shard has doubled, so that each one added
    /// pays for a few looked at. Returns how many were forgotten.
    fn make_room(&mut self, now: u64) -> usize {
        if self.full_at.len() < self.sweep_at || now < self.sweep_after {
            return 0;
        }
        let forgotten = self.sweep(now);
        if self.full_at.len() >= self.capacity {
            self.sweep_after = now + REST;
        }
        forgotten
    }

    fn sweep(&mut self, now: u64) -> usize {
        let held = self.full_at.len();
        self.full_at.retain(|_, full_at| *full_at > now);
        self.sweep_at = (2 * self.full_at.len()).clamp(SMALL.min(self.capacity), self.capacity);
        held - self.full_at.len()
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
    use crate::Rate;

    fn memory(capacity: usize) -> Memory {
        Memory::with_capacity(capacity, Metrics::new(&mut Registry::default()))
    }

    fn take(memory: &Memory, policy: &'static str, key: &str, rate: &str) -> bool {
        let rate: Rate = rate.parse().unwrap();
        memory.take(&[Check { policy, key, rate }]).0
    }

    fn held(memory: &Memory) -> usize {
        let held = memory.shards.iter().map(|shard| lock(shard).full_at.len()).sum();
        assert_eq!(memory.metrics.entries.get(), i64::try_from(held).unwrap());
        held
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_full_again_is_forgotten() {
        let memory = memory(CAPACITY);
        for key in 0..1_000 {
            assert!(take(&memory, "p", &key.to_string(), if key < 300 { "1/s" } else { "1/m" }));
        }
        assert_eq!((memory.sweep(), held(&memory)), (0, 1_000));
        advance(Duration::from_secs(1)).await;
        assert_eq!((memory.sweep(), held(&memory)), (300, 700));
        advance(Duration::from_secs(59)).await;
        assert_eq!((memory.sweep(), held(&memory)), (700, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn it_forgets_by_itself_as_it_grows() {
        let memory = memory(CAPACITY);
        // A hundred new ones each second, for ten minutes.
        for key in 0..60_000 {
            assert!(take(&memory, "p", &key.to_string(), "1/s"));
            if key % 100 == 0 {
                advance(Duration::from_secs(1)).await;
            }
        }
        assert!(held(&memory) <= SHARDS * SMALL, "{}", held(&memory));
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_cap_strangers_share_a_bucket_and_those_who_are_known_keep_theirs() {
        let memory = memory(SHARDS * 4);
        let mut allowed = 0;
        for key in 0..5_000 {
            allowed += usize::from(take(&memory, "p", &key.to_string(), "2/m"));
        }
        assert_eq!(held(&memory), SHARDS * 4);
        assert_eq!(allowed, SHARDS * 4 + 2, "one each for those who are known, and two for all the others");
        assert_eq!(memory.metrics.crowded.get(), 5_000 - 4 * SHARDS as u64);
        assert!(take(&memory, "q", "a stranger", "2/m"), "each policy has its own");
        // Those who came first still have one left, and no more.
        let again = |key: i32| take(&memory, "p", &key.to_string(), "2/m");
        let known: Vec<i32> = (0..5_000).filter(|key| again(*key)).collect();
        assert_eq!(known.len(), SHARDS * 4);
        assert!(!known.into_iter().any(again));

        // After a flood there is room again.
        advance(Duration::from_secs(60)).await;
        let new = (0..100).filter(|key| take(&memory, "p", &format!("new {key}"), "1/m")).count();
        assert!(new > 50, "{new}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_is_allowed_at_the_very_microsecond() {
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
    async fn a_rate_that_was_made_smaller_counts_at_once() {
        let memory = memory(CAPACITY);
        assert!((0..100).all(|_| take(&memory, "p", "k", "1/s burst 100")));
        assert!(!take(&memory, "p", "k", "1/s burst 5"));
        advance(Duration::from_secs(1)).await;
        assert!(take(&memory, "p", "k", "1/s burst 5"), "nobody waits for longer than the new window");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_named_twice_is_taken_from_twice() {
        let memory = memory(CAPACITY);
        let rate: Rate = "3/m".parse().unwrap();
        let check = Check { policy: "p", key: "k", rate };
        let twice = [check, check];
        assert_eq!([memory.take(&twice).0, memory.take(&twice).0], [true, false]);
        assert_eq!([memory.take(&[check]).0, memory.take(&[check]).0], [true, false]);
    }
}
