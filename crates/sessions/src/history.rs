//! The durable record of sessions in SQL. It stays right when Redis loses its last writes: after a fail-over to a lagging replica, a
//! restore, or the loss of its log.
//!
//! Redis decides at every request whether a session exists. SQL decides whether it has ended, whether its refresh token was presented
//! before, and whether a sign-in or a logout token was used. A process reads the end of a session at most once per
//! `gateway.user_cache`, so most requests cost no query.
//!
//! Failure modes: while SQL is unreachable, a session that was looked up in the last minute is accepted, and others get 503. No user
//! can sign in. A session that ends leaves Redis at once, and its end is recorded when SQL is back.

mod status_cache;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use account::{OnErase, OnSessionsEnd, UserId};
use base::error::{Coded, chain};
use base::id::Uuid;
use base::{Clock, Timestamp};
use db::{Db, Error, Migration, Migrations, Tx};
use futures::FutureExt;
use futures::future::BoxFuture;
use runtime::lifecycle::{Drain, LoopError};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use self::status_cache::StatusCache;
use crate::keyed_mutex::KeyedMutex;
use crate::metrics::Metrics;
use crate::store::history::{self as rows, RecordName, RowKind, SessionEnd, SessionRow};
use crate::store::{Group, Session, SessionId};

/// How much longer than needed a row is kept, because clocks differ.
const SKEW: Duration = Duration::from_secs(600);
/// How long a request waits for SQL if it has an older status.
const REFRESH_WAIT: Duration = Duration::from_millis(500);
/// The pause between two runs of [`SessionHistory::tick`].
const TICK: Duration = Duration::from_secs(5);
/// The most ends that may wait for SQL. Beyond that the oldest are dropped; those sessions have left Redis.
const MAX_PENDING: usize = 10_000;

/// The tables.
pub const MIGRATIONS: Migrations = Migrations {
    component: "sessions",
    list: &[
        Migration {
            version: 1,
            name: "session_ends",
            sqlite: include_str!("../migrations/sqlite/0001_session_ends.sql"),
            mysql: include_str!("../migrations/mysql/0001_session_ends.sql"),
        },
        Migration {
            version: 2,
            name: "session_refreshes",
            sqlite: include_str!("../migrations/sqlite/0002_session_refreshes.sql"),
            mysql: include_str!("../migrations/mysql/0002_session_refreshes.sql"),
        },
        Migration {
            version: 3,
            name: "session_used",
            sqlite: include_str!("../migrations/sqlite/0003_session_used.sql"),
            mysql: include_str!("../migrations/mysql/0003_session_used.sql"),
        },
    ],
};

/// Runs a transaction, and retries it on a conflict.
macro_rules! transact {
    ($history:expr, $tx:ident => $work:expr) => {{
        let db = &$history.0.db;
        let attempt = || {
            db.bounded(async {
                let mut $tx = db.begin().await?;
                let done = $work;
                $tx.commit().await?;
                Ok::<_, Error>(done)
            })
        };
        db::retry_conflicts(Error::is_conflict, attempt).await
    }};
}

/// Whether a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStatus {
    Alive,
    Ended,
    /// All sessions of the user were ended; the user may be banned.
    EndedWithUser,
}

/// The durable record of sessions. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct SessionHistory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    clock: Clock,
    /// The longest life of a session.
    lifetime: Duration,
    statuses: StatusCache,
    /// One query at a time per session.
    looking_up: KeyedMutex<SessionId>,
    /// Ends that SQL does not have yet, each with the time at which it is no longer needed.
    pending: Mutex<Vec<(RecordName, Uuid, Timestamp)>>,
}

impl SessionHistory {
    /// Opens the record. Sessions live for at most `lifetime`; a status is cached for `fresh`.
    pub fn new(db: Db, lifetime: Duration, fresh: Duration, clock: Clock) -> Self {
        let (looking_up, pending) = Default::default();
        Self(Arc::new(Inner { db, clock, lifetime, statuses: StatusCache::new(fresh), looking_up, pending }))
    }

    /// Decides whether a session that is still in Redis has ended.
    pub(crate) async fn status(&self, id: &SessionId, session: &Session) -> Result<SessionStatus, Error> {
        if let Some(status) = self.0.statuses.fresh(id, Instant::now()) {
            return Ok(status);
        }
        // Boxed, as it is rare and large: the future of the fast path stays small.
        Box::pin(self.look_up(id, session)).await
    }

    async fn look_up(&self, id: &SessionId, session: &Session) -> Result<SessionStatus, Error> {
        let mutex = self.0.looking_up.get(id);
        let _guard = mutex.lock().await;
        let now = Instant::now();
        if let Some(status) = self.0.statuses.fresh(id, now) {
            return Ok(status);
        }
        let reading = self.read(id, session);
        let Some(before) = self.0.statuses.stale(id, now) else {
            let status = reading.await?;
            self.0.statuses.put(id, status, now);
            return Ok(status);
        };
        match timeout(REFRESH_WAIT, reading).await {
            Ok(Ok(status)) => {
                self.0.statuses.put(id, status, now);
                Ok(status)
            }
            Ok(Err(error)) if !error.is_transient() => Err(error),
            // While SQL is unreachable, an older status is better than none.
            _ => {
                self.0.statuses.prolong(id, now);
                Ok(before)
            }
        }
    }

    async fn read(&self, id: &SessionId, session: &Session) -> Result<SessionStatus, Error> {
        let (one, user) = (RecordName::for_session(id), RecordName::for_user(session.user_id));
        let mut names = vec![one, user];
        names.extend(session.groups().iter().map(RecordName::for_group));
        let ends = rows::ends(&self.0.db, &names).await?;
        let is_over =
            |(name, at): &&(RecordName, Timestamp)| *name == one || at.as_millis() >= session.began_at;
        let over: Vec<RecordName> = ends.iter().filter(is_over).map(|(name, _)| *name).collect();
        Ok(match over.as_slice() {
            [] => SessionStatus::Alive,
            over if over.contains(&user) => SessionStatus::EndedWithUser,
            _ => SessionStatus::Ended,
        })
    }

    /// Drops the cached status of a session, because a message says that it has ended.
    pub(crate) fn drop_cached(&self, id: &SessionId) {
        self.0.statuses.remove(id);
    }

    /// Records that a session has ended. If SQL is unreachable, it is recorded later.
    pub(crate) async fn end(&self, id: &SessionId, session: &Session) {
        let (name, user) = (RecordName::for_session(id), session.user_id);
        self.drop_cached(id);
        let keep = self.remaining(session);
        if let Err(error) = self.write(&[SessionEnd { name, user: Some(user), keep }]).await {
            tracing::warn!(
                cause = chain(&error),
                "cannot record the end of a session in SQL; it is recorded later"
            );
            let mut pending = self.pending();
            if pending.len() >= MAX_PENDING {
                pending.remove(0);
            }
            pending.push((name, user, self.0.clock.now().after(keep)));
        }
    }

    /// Consumes a logout token and ends the groups that it names, atomically. Returns false if the token was used before.
    pub(crate) async fn back_channel(
        &self,
        jti: &str,
        expires_at: Timestamp,
        groups: &[Group],
        user: Option<UserId>,
    ) -> Result<bool, Error> {
        let token = RecordName::for_one_time_token("logout token", jti);
        let (token_keep, keep) = (expires_at.distance(self.0.clock.now()) + SKEW, self.0.lifetime + SKEW);
        let user = user.map(|user| *user.as_uuid());
        transact!(self, tx => {
            if rows::consume(&mut tx, token, token_keep).await?.is_none() {
                return Ok(false);
            }
            for group in groups {
                rows::end(&mut tx, &SessionEnd { name: RecordName::for_group(group), user, keep }).await?;
            }
            true
        })
    }

    /// Consumes the state of a sign-in. Returns the time by SQL's clock, or none if the state was used before.
    pub(crate) async fn consume_state(
        &self,
        state: &str,
        keep: Duration,
    ) -> Result<Option<Timestamp>, Error> {
        let token = RecordName::for_one_time_token("sign-in", state);
        transact!(self, tx => rows::consume(&mut tx, token, keep + SKEW).await?)
    }

    /// Records that the session's refresh token is about to be presented to the issuer. Returns false if it was presented before:
    /// then Redis has brought back an old one, which the issuer would treat as stolen.
    pub(crate) async fn spend(&self, id: &SessionId, session: &Session) -> Result<bool, Error> {
        let (name, keep) = (RecordName::for_session(id), self.remaining(session));
        let (user, generation) = (session.user_id, session.generation);
        transact!(self, tx => rows::spend(&mut tx, name, user, generation, keep).await?)
    }

    /// Undoes [`spend`](Self::spend) for a token that the issuer did not accept. Otherwise the session would end at its next refresh.
    pub(crate) async fn undo_spend(&self, id: &SessionId, session: &Session) {
        let name = RecordName::for_session(id);
        let result: Result<(), Error> =
            transact!(self, tx => rows::undo_spend(&mut tx, name, session.generation).await?);
        if let Err(error) = result {
            tracing::warn!(
                cause = chain(&error),
                "cannot undo the record of a refresh; the session will end at its next refresh"
            );
        }
    }

    /// Removes expired rows and records pending ends. Returns the number of both.
    pub async fn tick(&self) -> Result<u64, Error> {
        let pending = std::mem::take(&mut *self.pending());
        let now = self.0.clock.now();
        let ends: Vec<SessionEnd> = pending
            .iter()
            .filter(|(.., until)| *until > now)
            .map(|(name, user, until)| SessionEnd {
                name: *name,
                user: Some(*user),
                keep: until.distance(now),
            })
            .collect();
        if let Err(error) = self.write(&ends).await {
            self.pending().splice(0..0, pending);
            return Err(error);
        }
        Ok(rows::remove_expired(&self.0.db).await? + ends.len() as u64)
    }

    /// Repeats [`tick`](Self::tick) until the drain starts.
    pub async fn run(&self, metrics: &Metrics, drain: Drain) -> Result<(), LoopError> {
        loop {
            match self.tick().await {
                Err(error) if !error.is_transient() => return Err(error.into()),
                _ => {}
            }
            metrics.unrecorded_ends(self.pending().len());
            if !drain.sleep(TICK).await {
                return Ok(());
            }
        }
    }

    /// Returns everything that the record has about a user, for the export of the user. Sessions themselves are not listed: their
    /// names are secrets.
    pub async fn export(&self, user: UserId) -> Result<Value, Error> {
        let row = |row: &SessionRow| {
            let expires_at = row.expires_at.to_rfc3339();
            match row.what {
                RowKind::EndedAt(at) => json!({ "ended_at": at.to_rfc3339(), "kept_until": expires_at }),
                RowKind::Refreshed(count) => json!({ "refreshes": count, "kept_until": expires_at }),
            }
        };
        let rows = rows::of_user(&self.0.db, *user.as_uuid()).await?;
        Ok(rows.iter().map(row).collect())
    }

    async fn write(&self, ends: &[SessionEnd]) -> Result<(), Error> {
        if ends.is_empty() {
            return Ok(());
        }
        transact!(self, tx => {
            for end in ends {
                rows::end(&mut tx, end).await?;
            }
        })
    }

    /// Returns how long an end of this session must be kept.
    fn remaining(&self, session: &Session) -> Duration {
        session.ends_at().distance(self.0.clock.now()) + SKEW
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Vec<(RecordName, Uuid, Timestamp)>> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnSessionsEnd for SessionHistory {
    fn end_sessions<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        let user = *user.as_uuid();
        // Without `user_id`: the row must survive the erasure of the user, and must not identify the user then.
        let end = SessionEnd { name: RecordName::for_user(user), user: None, keep: self.0.lifetime + SKEW };
        async move { Ok(rows::end(tx, &end).await?) }.boxed()
    }
}

impl OnErase for SessionHistory {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        async move {
            rows::erase(tx, *user.as_uuid()).await?;
            // Redis still has the sessions, and they would sign in a new user under the erased identity.
            self.end_sessions(tx, user).await
        }
        .boxed()
    }
}
