//! A cache of session statuses.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::cache::make_room;
use tokio::time::Instant;

use super::SessionStatus;
use crate::store::SessionId;

/// The number of shards, so that requests do not contend for one lock.
const SHARDS: usize = 16;
/// The most sessions in a shard: 64 Ki in all.
const SHARD_SIZE: usize = 4096;
/// How long after its expiry a status is reused while SQL is unreachable.
const STALE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct StatusCache {
    fresh: Duration,
    shards: [Mutex<HashMap<SessionId, CachedStatus>>; SHARDS],
}

#[derive(Clone, Copy, Debug)]
struct CachedStatus {
    status: SessionStatus,
    fresh_until: Instant,
    stale_until: Instant,
}

impl StatusCache {
    pub(super) fn new(fresh: Duration) -> Self {
        Self { fresh, shards: Default::default() }
    }

    /// Returns a status that has not expired.
    pub(super) fn fresh(&self, id: &SessionId, now: Instant) -> Option<SessionStatus> {
        self.shard(id).get(id).filter(|entry| entry.fresh_until > now).map(|entry| entry.status)
    }

    /// Returns a status that may be used while SQL is unreachable.
    pub(super) fn stale(&self, id: &SessionId, now: Instant) -> Option<SessionStatus> {
        self.shard(id).get(id).filter(|entry| entry.stale_until > now).map(|entry| entry.status)
    }

    pub(super) fn put(&self, id: &SessionId, status: SessionStatus, now: Instant) {
        let fresh_until = now + self.fresh;
        let entry = CachedStatus { status, fresh_until, stale_until: fresh_until + STALE };
        let mut shard = self.shard(id);
        if shard.len() >= SHARD_SIZE && !shard.contains_key(id) {
            make_room(&mut shard, SHARD_SIZE, |entry| entry.stale_until > now);
        }
        shard.insert(id.clone(), entry);
    }

    /// Treats a stale status as fresh for a while, so that the next requests do not wait.
    pub(super) fn prolong(&self, id: &SessionId, now: Instant) {
        if let Some(entry) = self.shard(id).get_mut(id) {
            entry.fresh_until = (now + self.fresh).min(entry.stale_until);
        }
    }

    pub(super) fn remove(&self, id: &SessionId) {
        self.shard(id).remove(id);
    }

    fn shard(&self, id: &SessionId) -> MutexGuard<'_, HashMap<SessionId, CachedStatus>> {
        // The id is a hash in hexadecimal digits.
        let digit = id.as_str().chars().next().and_then(|digit| digit.to_digit(16)).unwrap_or_default();
        self.shards[digit as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SessionSecret;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn status_is_reusable_for_a_minute_after_it_expires() {
        let (statuses, now) = (StatusCache::new(SECOND), Instant::now());
        let id = SessionSecret::generate().id();
        statuses.put(&id, SessionStatus::Alive, now);
        assert_eq!(statuses.fresh(&id, now), Some(SessionStatus::Alive));
        assert_eq!(statuses.fresh(&id, now + SECOND), None);
        assert_eq!(statuses.stale(&id, now + 60 * SECOND), Some(SessionStatus::Alive));
        assert_eq!(statuses.stale(&id, now + 61 * SECOND), None);
        // While SQL is unreachable it is used, but not beyond that minute.
        statuses.prolong(&id, now + SECOND);
        assert_eq!(statuses.fresh(&id, now + SECOND * 3 / 2), Some(SessionStatus::Alive));
        statuses.prolong(&id, now + 60 * SECOND + SECOND / 2);
        assert_eq!(statuses.fresh(&id, now + 61 * SECOND), None);
        statuses.remove(&id);
        assert_eq!(statuses.stale(&id, now), None);
    }

    #[test]
    fn full_cache_drops_an_eighth() {
        let (statuses, now) = (StatusCache::new(SECOND), Instant::now());
        for _ in 0..2 * SHARDS * SHARD_SIZE {
            let id = SessionSecret::generate().id();
            statuses.put(&id, SessionStatus::Alive, now);
            assert!(statuses.fresh(&id, now).is_some(), "a new status always fits");
        }
        for shard in &statuses.shards {
            let held = shard.lock().unwrap().len();
            assert!((SHARD_SIZE / 2..=SHARD_SIZE).contains(&held), "{held}");
        }
    }
}
