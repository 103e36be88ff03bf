//! A queue for lock waiters, so that they cannot occupy the whole connection pool.
//!
//! A transaction that waits for a lock on the server occupies a connection. So only a few may wait there: one per
//! target, a quarter of the pool per user, three quarters in total. The others queue here without a connection, in
//! order of arrival.
//!
//! A permit is released as soon as the locks are held, so the next waiter already waits on the server while the
//! holder works.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hierlock::{OwnedTarget, Target};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The queue of lock waiters. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct LockQueue(Arc<Shared>);

/// A transaction that waits in this process before it may wait for locks on the server.
#[derive(Clone, Debug)]
pub struct QueuedTransaction {
    /// The target that it waits for, or the first one if it waits for a connection.
    pub target: OwnedTarget,
    pub since: Instant,
    pub reason: QueueReason,
}

/// Why a transaction waits before it may wait for locks on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueReason {
    /// Another transaction of this process waits for the same target on the server.
    SameTarget,
    /// Other transactions wait for the same user and use the user's share of the connections.
    SameUser,
    /// Transactions that wait for locks use all connections that they may use.
    Connections,
}

#[derive(Debug)]
struct Shared {
    /// The semaphores that a waiter waits for or holds a permit of.
    semaphores: Mutex<HashMap<Scope, Arc<Semaphore>>>,
    total: Arc<Semaphore>,
    per_user: usize,
    queued: AtomicU32,
    /// Transactions that found no free permit, for operators.
    waiting: Mutex<HashMap<u64, QueuedTransaction>>,
    next_waiting: AtomicU64,
    hashes: RandomState,
}

/// The scope of a semaphore. Two scopes with the same hash share a semaphore, which is safe: they only wait longer than necessary.
///
/// The order of the variants is the acquisition order. Targets come first, so that waiting for a target does not use up the user's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Scope {
    Target(u64),
    User(u64),
}

/// The permission to wait for locks on the server. Dropping it admits the next waiter.
#[derive(Debug)]
pub(crate) struct LockPermit {
    _scopes: Vec<ScopePermit>,
    _total: Option<OwnedSemaphorePermit>,
}

impl LockQueue {
    pub(crate) fn new(connections: u32) -> Self {
        let connections = connections as usize;
        let per_user = (connections / 4).max(1);
        Self(Arc::new(Shared {
            semaphores: Mutex::default(),
            // At least one: with a single connection a waiter has to occupy the whole pool.
            total: Arc::new(Semaphore::new((connections - per_user).max(1))),
            per_user,
            queued: AtomicU32::new(0),
            waiting: Mutex::default(),
            next_waiting: AtomicU64::new(0),
            hashes: RandomState::new(),
        }))
    }

    /// Waits for permission to lock the targets. Dropping the future leaves the queue.
    pub(crate) async fn acquire(&self, targets: &[Target<'_>]) -> LockPermit {
        let hashes = &self.0.hashes;
        let scopes_of = |target: &Target<'_>| {
            [Scope::Target(hashes.hash_one(target)), Scope::User(hashes.hash_one(target.user_id()))]
        };
        let mut scopes: Vec<Scope> = targets.iter().flat_map(scopes_of).collect();
        // A total order prevents deadlocks between waiters.
        scopes.sort_unstable();
        scopes.dedup();
        let _queued = QueuedGuard::new(&self.0.queued);
        let mut permits = Vec::with_capacity(scopes.len());
        for scope in scopes {
            let mut permit = self.scope_permit(scope);
            // Free permits go to waiters first, so this cannot overtake one.
            if !permit.try_acquire() {
                let waited_for = targets.iter().find(|target| scopes_of(target).contains(&scope));
                let reason = match scope {
                    Scope::Target(_) => QueueReason::SameTarget,
                    Scope::User(_) => QueueReason::SameUser,
                };
                let _shown = self.0.show(waited_for, reason);
                permit.acquire().await;
            }
            permits.push(permit);
        }
        let total = if let Ok(total) = self.0.total.clone().try_acquire_owned() {
            Some(total)
        } else {
            let _shown = self.0.show(targets.first(), QueueReason::Connections);
            // The semaphore is never closed.
            self.0.total.clone().acquire_owned().await.ok()
        };
        LockPermit { _scopes: permits, _total: total }
    }

    /// Returns the transactions that wait here, the longest waiting first.
    pub(crate) fn waiting(&self) -> Vec<QueuedTransaction> {
        let mut waiting: Vec<(u64, QueuedTransaction)> =
            self.0.waiting().iter().map(|(id, waiting)| (*id, waiting.clone())).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        waiting.into_iter().map(|(_, waiting)| waiting).collect()
    }

    /// Returns how many transactions are queued.
    pub(crate) fn queued(&self) -> u32 {
        self.0.queued.load(Ordering::Relaxed)
    }

    fn scope_permit(&self, scope: Scope) -> ScopePermit {
        let permits = match scope {
            Scope::Target(_) => 1,
            Scope::User(_) => self.0.per_user,
        };
        let mut semaphores = self.0.semaphores();
        let semaphore = semaphores.entry(scope).or_insert_with(|| Arc::new(Semaphore::new(permits)));
        ScopePermit { scope, semaphore: Some(semaphore.clone()), permit: None, shared: self.0.clone() }
    }
}

impl Shared {
    fn semaphores(&self) -> MutexGuard<'_, HashMap<Scope, Arc<Semaphore>>> {
        // No code under this lock can panic half-way through a change.
        self.semaphores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, QueuedTransaction>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a transaction as waiting until the guard is dropped.
    fn show(&self, target: Option<&Target<'_>>, reason: QueueReason) -> Option<ShownGuard<'_>> {
        let target = OwnedTarget::from(*target?);
        let id = self.next_waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(id, QueuedTransaction { target, since: Instant::now(), reason });
        Some(ShownGuard { shared: self, id })
    }
}

/// Lists a waiting transaction until drop.
struct ShownGuard<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for ShownGuard<'_> {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.id);
    }
}

/// A waiter for, or holder of, a permit of one scope. The last one to drop removes the scope's semaphore.
#[derive(Debug)]
struct ScopePermit {
    scope: Scope,
    /// Some until drop.
    semaphore: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
    shared: Arc<Shared>,
}

impl ScopePermit {
    fn try_acquire(&mut self) -> bool {
        self.permit =
            self.semaphore.as_ref().and_then(|semaphore| semaphore.clone().try_acquire_owned().ok());
        self.permit.is_some()
    }

    async fn acquire(&mut self) {
        if let Some(semaphore) = &self.semaphore {
            self.permit = semaphore.clone().acquire_owned().await.ok();
        }
    }
}

impl Drop for ScopePermit {
    fn drop(&mut self) {
        let mut semaphores = self.shared.semaphores();
        drop((self.permit.take(), self.semaphore.take()));
        // New references are only taken from the map, under its lock, so the count cannot grow here.
        if semaphores.get(&self.scope).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            semaphores.remove(&self.scope);
        }
    }
}

/// Counts a queued transaction until drop.
struct QueuedGuard<'a>(&'a AtomicU32);

impl<'a> QueuedGuard<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for QueuedGuard<'_> {
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

    async fn try_acquire(queue: &LockQueue, targets: &[Target<'_>]) -> Option<LockPermit> {
        queue.acquire(targets).now_or_never()
    }

    #[tokio::test]
    async fn one_permit_per_target_a_quarter_per_user_three_quarters_in_total() {
        let queue = LockQueue::new(8);
        let first = try_acquire(&queue, &[resource("u", "1")]).await;
        assert!(try_acquire(&queue, &[resource("u", "1")]).await.is_none(), "the same target");
        let second = try_acquire(&queue, &[resource("u", "2")]).await;
        assert!(try_acquire(&queue, &[resource("u", "3")]).await.is_none(), "the same user");
        let others: Vec<_> = ["v", "w", "x", "y"]
            .map(|user| queue.acquire(&[resource(user, "1")]).now_or_never().is_some())
            .into();
        assert_eq!(others, [true; 4], "their permits are dropped at once");
        drop((first, second));
        let mut held = Vec::new();
        for user in ["1", "2", "3", "4", "5", "6"] {
            held.push(try_acquire(&queue, &[resource(user, "1")]).await.unwrap());
        }
        assert!(
            try_acquire(&queue, &[resource("7", "1")]).await.is_none(),
            "two connections are left for other transactions"
        );
        drop(held);
        assert!(queue.0.semaphores().is_empty(), "no semaphore is left");
        assert_eq!((queue.queued(), queue.0.total.available_permits()), (0, 6));
    }

    #[tokio::test]
    async fn cancelled_waiter_does_not_block_the_next() {
        let queue = LockQueue::new(4);
        let target = [resource("u", "1")];
        let first = try_acquire(&queue, &target).await.unwrap();
        let (mut second, mut third) = (Box::pin(queue.acquire(&target)), pin!(queue.acquire(&target)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        assert_eq!((queue.queued(), queue.waiting().len()), (2, 2));
        drop((second, first));
        assert_eq!(queue.waiting().len(), 1);
        assert!(third.now_or_never().is_some());
        assert!(queue.0.semaphores().is_empty() && queue.queued() == 0 && queue.waiting().is_empty());
    }

    #[tokio::test]
    async fn waiting_transactions_are_listed_with_target_and_reason() {
        let queue = LockQueue::new(4);
        let (sword, shield) = ([resource("u", "sword")], [resource("u", "shield")]);
        let _held = try_acquire(&queue, &sword).await.unwrap();
        let (mut same_target, mut same_user) = (pin!(queue.acquire(&sword)), pin!(queue.acquire(&shield)));
        assert!(same_target.as_mut().now_or_never().is_none() && same_user.as_mut().now_or_never().is_none());
        let others = [[resource("v", "1")], [resource("w", "1")], [resource("x", "1")]];
        let _others = [try_acquire(&queue, &others[0]).await, try_acquire(&queue, &others[1]).await];
        let mut last = pin!(queue.acquire(&others[2]));
        assert!(last.as_mut().now_or_never().is_none());
        let waiting = queue.waiting();
        let shown: Vec<(String, QueueReason)> =
            waiting.iter().map(|queued| (queued.target.as_target().to_string(), queued.reason)).collect();
        let expected = [
            ("u/a/sword", QueueReason::SameTarget),
            ("u/a/shield", QueueReason::SameUser),
            ("x/a/1", QueueReason::Connections),
        ];
        assert_eq!(shown, expected.map(|(target, reason)| (target.to_owned(), reason)));
    }

    #[tokio::test]
    async fn pool_of_one_connection_admits_a_waiter() {
        assert!(try_acquire(&LockQueue::new(1), &[resource("u", "1"), resource("v", "1")]).await.is_some());
    }
}
