//! Turns at locking: transactions that wait for a lock may not occupy the whole pool.
//!
//! A transaction that waits for a lock on the server has a connection. So only a few may wait there: one for each target, a
//! quarter of the pool for each user, three quarters in all. The others queue here, without a connection, in the order of their
//! arrival. A turn ends when the locks are held, so the next in line waits on the server while the holder works.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hierlock::Target;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The lines that somebody stands in or has passed.
    lines: Mutex<HashMap<Line, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
    per_user: usize,
    queued: AtomicU32,
    hashes: RandomState,
}

/// What a line is for. Two that share a hash share a line: they wait without need, and are as safe.
///
/// The order is that in which lines are taken. A target's line comes first: who stands there does not use up the user's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Line {
    Target(u64),
    User(u64),
}

/// The right to lock. Dropping it lets in the next.
#[derive(Debug)]
pub(crate) struct Turn {
    _lines: Vec<Stand>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(crate) fn new(connections: u32) -> Self {
        let connections = connections as usize;
        let per_user = (connections / 4).max(1);
        Self(Arc::new(Shared {
            lines: Mutex::default(),
            // With one connection, waiting has the pool to itself or is impossible.
            all: Arc::new(Semaphore::new((connections - per_user).max(1))),
            per_user,
            queued: AtomicU32::new(0),
            hashes: RandomState::new(),
        }))
    }

    /// Waits until the targets may be locked. Dropping the future leaves all lines.
    pub(crate) async fn next(&self, targets: &[Target<'_>]) -> Turn {
        let hashes = &self.0.hashes;
        let lines_of = |target: &Target<'_>| {
            [Line::Target(hashes.hash_one(target)), Line::User(hashes.hash_one(target.user_id()))]
        };
        let mut lines: Vec<Line> = targets.iter().flat_map(lines_of).collect();
        // All take them in one order, so nobody waits for somebody who waits for them.
        lines.sort_unstable();
        lines.dedup();
        let _queued = Queued::new(&self.0.queued);
        let mut stands = Vec::with_capacity(lines.len());
        for line in lines {
            let mut stand = self.stand(line);
            stand.pass().await;
            stands.push(stand);
        }
        // Never closed.
        let all = self.0.all.clone().acquire_owned().await.ok();
        Turn { _lines: stands, _all: all }
    }

    /// How many transactions wait here.
    pub(crate) fn queued(&self) -> u32 {
        self.0.queued.load(Ordering::Relaxed)
    }

    fn stand(&self, line: Line) -> Stand {
        let places = match line {
            Line::Target(_) => 1,
            Line::User(_) => self.0.per_user,
        };
        let mut lines = self.0.lines();
        let places = lines.entry(line).or_insert_with(|| Arc::new(Semaphore::new(places)));
        Stand { line, places: Some(places.clone()), passed: None, shared: self.0.clone() }
    }
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, HashMap<Line, Arc<Semaphore>>> {
        // Nothing under this lock panics half-way.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody in a line, or past it. The last to leave removes the line.
#[derive(Debug)]
struct Stand {
    line: Line,
    /// Some until it is dropped.
    places: Option<Arc<Semaphore>>,
    passed: Option<OwnedSemaphorePermit>,
    shared: Arc<Shared>,
}

impl Stand {
    async fn pass(&mut self) {
        if let Some(places) = &self.places {
            self.passed = places.clone().acquire_owned().await.ok();
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let mut lines = self.shared.lines();
        drop((self.passed.take(), self.places.take()));
        // Others take theirs from the table, under its lock.
        if lines.get(&self.line).is_some_and(|places| Arc::strong_count(places) == 1) {
            lines.remove(&self.line);
        }
    }
}

/// Counts while it lives.
struct Queued<'a>(&'a AtomicU32);

impl<'a> Queued<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    fn resource<'a>(user: &'a str, resource: &'a str) -> Target<'a> {
        Target::resource(user, "a", resource).unwrap()
    }

    async fn now(turns: &Turns, targets: &[Target<'_>]) -> Option<Turn> {
        turns.next(targets).now_or_never()
    }

    #[tokio::test]
    async fn a_target_has_one_turn_a_user_a_quarter_and_all_have_three_quarters() {
        let turns = Turns::new(8);
        let first = now(&turns, &[resource("u", "1")]).await;
        assert!(now(&turns, &[resource("u", "1")]).await.is_none(), "the same target");
        let second = now(&turns, &[resource("u", "2")]).await;
        assert!(now(&turns, &[resource("u", "3")]).await.is_none(), "the same user");
        let others: Vec<_> = ["v", "w", "x", "y"]
            .map(|user| turns.next(&[resource(user, "1")]).now_or_never().is_some())
            .into();
        assert_eq!(others, [true; 4], "these have ended at once");
        drop((first, second));
        let mut held = Vec::new();
        for user in ["1", "2", "3", "4", "5", "6"] {
            held.push(now(&turns, &[resource(user, "1")]).await.unwrap());
        }
        assert!(now(&turns, &[resource("7", "1")]).await.is_none(), "two connections are left for others");
        drop(held);
        assert!(turns.0.lines().is_empty(), "nothing is remembered");
        assert_eq!((turns.queued(), turns.0.all.available_permits()), (0, 6));
    }

    #[tokio::test]
    async fn whoever_leaves_the_line_lets_the_next_one_in() {
        let turns = Turns::new(4);
        let target = [resource("u", "1")];
        let first = now(&turns, &target).await.unwrap();
        let (mut second, mut third) = (Box::pin(turns.next(&target)), pin!(turns.next(&target)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        assert_eq!(turns.queued(), 2);
        drop((second, first));
        assert!(third.now_or_never().is_some());
        assert!(turns.0.lines().is_empty() && turns.queued() == 0);
    }

    #[tokio::test]
    async fn a_single_connection_can_be_waited_on() {
        assert!(now(&Turns::new(1), &[resource("u", "1"), resource("v", "1")]).await.is_some());
    }
}
