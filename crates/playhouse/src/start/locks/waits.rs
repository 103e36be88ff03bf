//! Who waits for a lock now: on the database server, or in this process.

use std::collections::{BTreeMap, BTreeSet};

use base::Timestamp;
use base::error::chain;
use base::id::ProcessId;
use db::{Db, QueueReason, QueuedTransaction};
use hierlock::{Error, InProcessWait, LockManager, LockWait, OwnedTarget, Row};
use service::Context;
use tokio::time::Instant;

/// The privileges that the server requires, for an administrator to grant.
pub(super) const GRANTS: [&str; 2] =
    ["GRANT PROCESS ON *.* TO USER", "GRANT SELECT ON performance_schema.* TO USER (MySQL only)"];

/// The locks, for operators. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct LocksAdmin {
    pub(super) locks: LockManager,
    pub(super) process: ProcessId,
    db: Db,
    /// The same moment on both clocks, so that the time of an `Instant` is the same whenever it is shown.
    origin: (Instant, Timestamp),
}

/// Who waits for a lock at one moment.
#[derive(Debug)]
pub(super) struct CurrentWaits {
    pub(super) waits: Waits,
    /// Transactions of this process that wait for their turn to wait on the server. None without a server.
    pub(super) queue: Option<Vec<QueuedWait>>,
}

#[derive(Debug)]
pub(super) enum Waits {
    /// Sessions that wait on the database server, of all processes.
    Server(Vec<SessionWait>),
    /// The server does not show its waits to the database user. The text is the server's.
    MissingPrivilege(String),
    /// Requests that wait in this process.
    InProcess(Vec<InProcessWait>),
}

/// A session that waits for a row on the database server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionWait {
    pub(super) session: u64,
    pub(super) row: Row,
    pub(super) since: Option<Timestamp>,
    /// The sessions that it waits for. Those that do not wait themselves come first.
    pub(super) blocked_by: Vec<u64>,
}

/// A transaction of this process that waits for its turn.
#[derive(Clone, Debug)]
pub(super) struct QueuedWait {
    pub(super) target: OwnedTarget,
    pub(super) since: Timestamp,
    pub(super) reason: QueueReason,
}

impl LocksAdmin {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            locks: context.stores.locks.clone(),
            process: context.process,
            db: context.stores.db.clone(),
            origin: (Instant::now(), context.clock.now()),
        }
    }

    /// Reads the current waits. Fails if the database server does not answer.
    pub(super) async fn current(&self) -> Result<CurrentWaits, Error> {
        let waits = match self.locks.in_process_waits() {
            Some(waits) => Waits::InProcess(waits),
            None => match self.locks.lock_waits().await {
                Ok(waits) => Waits::Server(by_session(&waits.unwrap_or_default())),
                Err(error @ Error::MissingPrivilege(_)) => Waits::MissingPrivilege(chain(&error)),
                Err(error) => return Err(error),
            },
        };
        let queue = self.db.queued_for_locks();
        Ok(CurrentWaits {
            waits,
            queue: queue.map(|queue| queue.into_iter().map(|queued| self.queued(queued)).collect()),
        })
    }

    fn queued(&self, queued: QueuedTransaction) -> QueuedWait {
        let QueuedTransaction { target, since, reason } = queued;
        let (origin, time) = self.origin;
        QueuedWait { target, since: time.after(since.saturating_duration_since(origin)), reason }
    }
}

/// Describes why a transaction waits for its turn.
pub(super) const fn reason_text(reason: QueueReason) -> &'static str {
    match reason {
        QueueReason::SameTarget => "another transaction of this process waits for the same target",
        QueueReason::SameUser => {
            "other transactions of the same player use the player's share of connections"
        }
        QueueReason::Connections => "transactions that wait for locks use all connections that they may use",
    }
}

/// Combines the pairs of sessions into one wait per session and row, the longest first.
fn by_session(pairs: &[LockWait]) -> Vec<SessionWait> {
    let waiters: BTreeSet<u64> = pairs.iter().map(|pair| pair.waiter).collect();
    let mut waits: BTreeMap<(u64, Row), SessionWait> = BTreeMap::new();
    for LockWait { waiter, holder, row, since, .. } in pairs {
        let wait = waits.entry((*waiter, *row)).or_insert_with(|| SessionWait {
            session: *waiter,
            row: *row,
            since: *since,
            blocked_by: Vec::new(),
        });
        wait.blocked_by.push(*holder);
    }
    let mut waits: Vec<SessionWait> = waits.into_values().collect();
    for wait in &mut waits {
        wait.blocked_by.sort_unstable_by_key(|session| (waiters.contains(session), *session));
        wait.blocked_by.dedup();
    }
    // A wait without a time has only just begun.
    waits.sort_by_key(|wait| (wait.since.is_none(), wait.since, wait.row, wait.session));
    waits
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hierlock::Level;

    use super::*;

    #[test]
    fn sessions_that_hold_come_before_sessions_that_wait_too() {
        let row = Row { level: Level::Account, bucket: 7 };
        let at = |seconds: i64| Some(Timestamp::from_millis(seconds * 1_000));
        let pair = |waiter, holder, since| LockWait { waiter, holder, row, since, waited: Duration::ZERO };
        // 9 holds the row, 5 waits since second 1, 4 waits behind both.
        let waits = by_session(&[pair(4, 5, at(2)), pair(4, 9, at(2)), pair(5, 9, at(1)), pair(3, 9, None)]);
        let shown: Vec<(u64, Vec<u64>)> =
            waits.iter().map(|wait| (wait.session, wait.blocked_by.clone())).collect();
        assert_eq!(shown, [(5, vec![9]), (4, vec![9, 5]), (3, vec![9])]);
        assert_eq!(waits[0].since, at(1));
    }
}
