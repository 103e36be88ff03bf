//! Verdicts on sessions that were read lately.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Verdict;
use crate::store::SessionId;

/// Shards, so that requests do not queue for one lock.
const SHARDS: usize = 16;
/// How many sessions a shard holds: 64 Ki in all.
const SHARD_SIZE: usize = 4096;
/// How long after its time a verdict is reused while SQL is away.
const STALE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Verdicts {
    fresh: Duration,
    shards: [Mutex<HashMap<SessionId, Entry>>; SHARDS],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    verdict: Verdict,
    fresh_until: Instant,
    stale_until: Instant,
}

impl Verdicts {
    pub(super) fn new(fresh: Duration) -> Self {
        Self { fresh, shards: Default::default() }
    }

    /// Returns a verdict that need not be read again yet.
    pub(super) fn fresh(&self, id: &SessionId, now: Instant) -> Option<Verdict> {
        self.shard(id).get(id).filter(|entry| entry.fresh_until > now).map(|entry| entry.verdict)
    }

    /// Returns a verdict that may be used while SQL is away.
    pub(super) fn stale(&self, id: &SessionId, now: Instant) -> Option<Verdict> {
        self.shard(id).get(id).filter(|entry| entry.stale_until > now).map(|entry| entry.verdict)
    }

    pub(super) fn put(&self, id: &SessionId, verdict: Verdict, now: Instant) {
        let fresh_until = now + self.fresh;
        let entry = Entry { verdict, fresh_until, stale_until: fresh_until + STALE };
        let mut shard = self.shard(id);
        if shard.len() >= SHARD_SIZE && !shard.contains_key(id) {
            make_room(&mut shard, now);
        }
        shard.insert(id.clone(), entry);
    }

    /// Treats a stale verdict as fresh for a while, so that the next requests do not wait.
    pub(super) fn prolong(&self, id: &SessionId, now: Instant) {
        if let Some(entry) = self.shard(id).get_mut(id) {
            entry.fresh_until = (now + self.fresh).min(entry.stale_until);
        }
    }

    pub(super) fn remove(&self, id: &SessionId) {
        self.shard(id).remove(id);
    }

    fn shard(&self, id: &SessionId) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        // Its name is a hash in hexadecimal digits.
        let digit = id.as_str().chars().next().and_then(|digit| digit.to_digit(16)).unwrap_or_default();
        self.shards[digit as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes what is of no use any more, and an eighth of the rest if that is little: it only means to read them again.
fn make_room(shard: &mut HashMap<SessionId, Entry>, now: Instant) {
    shard.retain(|_, entry| entry.stale_until > now);
    let mut surplus = shard.len().saturating_sub(SHARD_SIZE * 7 / 8);
    shard.retain(|_, _| {
        let goes = surplus > 0;
        surplus -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SessionSecret;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_verdict_is_fresh_for_its_time_and_stale_for_a_minute() {
        let (verdicts, now) = (Verdicts::new(SECOND), Instant::now());
        let id = SessionSecret::generate().id();
        verdicts.put(&id, Verdict::Alive, now);
        assert_eq!(verdicts.fresh(&id, now), Some(Verdict::Alive));
        assert_eq!(verdicts.fresh(&id, now + SECOND), None);
        assert_eq!(verdicts.stale(&id, now + 60 * SECOND), Some(Verdict::Alive));
        assert_eq!(verdicts.stale(&id, now + 61 * SECOND), None);
        // While SQL is away it is used, but not beyond that minute.
        verdicts.prolong(&id, now + SECOND);
        assert_eq!(verdicts.fresh(&id, now + SECOND * 3 / 2), Some(Verdict::Alive));
        verdicts.prolong(&id, now + 60 * SECOND + SECOND / 2);
        assert_eq!(verdicts.fresh(&id, now + 61 * SECOND), None);
        verdicts.remove(&id);
        assert_eq!(verdicts.stale(&id, now), None);
    }

    #[test]
    fn a_full_cache_drops_a_little() {
        let (verdicts, now) = (Verdicts::new(SECOND), Instant::now());
        for _ in 0..2 * SHARDS * SHARD_SIZE {
            let id = SessionSecret::generate().id();
            verdicts.put(&id, Verdict::Alive, now);
            assert!(verdicts.fresh(&id, now).is_some(), "a new one always finds room");
        }
        for shard in &verdicts.shards {
            let held = shard.lock().unwrap().len();
            assert!((SHARD_SIZE / 2..=SHARD_SIZE).contains(&held), "{held}");
        }
    }
}
