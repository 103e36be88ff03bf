//! What stays true of sessions when Redis goes back in time: after a fail-over to a replica that lags, a restore, or the loss of its log.
//!
//! Redis decides at every request whether a session is there. SQL decides whether it has ended, whether its refresh token was presented
//! before, and whether a sign-in or a logout token was used. Ends are read at most once per session and `gateway.user_cache` in a process,
//! so a request costs no query of its own.
//!
//! Failure modes. SQL is away: a session that was looked up in the last minute is accepted; others get 503; nobody can sign in; a session
//! that ends leaves Redis at once, and its end is recorded when SQL is back.

mod verdicts;

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
use tokio::time::{Instant, timeout};

use self::verdicts::Verdicts;
use crate::keyed_mutex::KeyedMutex;
use crate::metrics::Metrics;
use crate::store::history::{self as rows, End, Name};
use crate::store::{Group, Session, SessionId};

/// How much longer than needed something is recorded, because clocks differ.
const SKEW: Duration = Duration::from_secs(600);
/// How long a request waits for SQL when an older answer is at hand.
const REFRESH_WAIT: Duration = Duration::from_millis(500);
/// Between two looks at what can be removed or has yet to be recorded.
const TICK: Duration = Duration::from_secs(5);
/// How many ends may wait for SQL. The oldest are dropped beyond that: they have left Redis.
const MOST_PENDING: usize = 10_000;

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

/// Runs a transaction, and again if it met another one.
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
        db::retrying(Error::is_conflict, attempt).await
    }};
}

/// Whether a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
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
    verdicts: Verdicts,
    /// One query at a time per session.
    looking_up: KeyedMutex<SessionId>,
    /// Ends that SQL does not have yet, each with when it need not be known any more.
    pending: Mutex<Vec<(Name, Uuid, Timestamp)>>,
}

impl SessionHistory {
    /// Opens the record. Sessions live for `lifetime` at most; a verdict is reused for `fresh`.
    pub fn new(db: Db, lifetime: Duration, fresh: Duration, clock: Clock) -> Self {
        let (looking_up, pending) = Default::default();
        Self(Arc::new(Inner { db, clock, lifetime, verdicts: Verdicts::new(fresh), looking_up, pending }))
    }

    /// Decides whether a session that Redis has is one that has ended.
    pub(crate) async fn verdict(&self, id: &SessionId, session: &Session) -> Result<Verdict, Error> {
        if let Some(verdict) = self.0.verdicts.fresh(id, Instant::now()) {
            return Ok(verdict);
        }
        // Boxed, as it is rare and large: the future of the hot path stays small.
        Box::pin(self.look_up(id, session)).await
    }

    async fn look_up(&self, id: &SessionId, session: &Session) -> Result<Verdict, Error> {
        let mutex = self.0.looking_up.of(id);
        let _turn = mutex.lock().await;
        let now = Instant::now();
        if let Some(verdict) = self.0.verdicts.fresh(id, now) {
            return Ok(verdict);
        }
        let reading = self.read(id, session);
        let Some(before) = self.0.verdicts.stale(id, now) else {
            let verdict = reading.await?;
            self.0.verdicts.put(id, verdict, now);
            return Ok(verdict);
        };
        match timeout(REFRESH_WAIT, reading).await {
            Ok(Ok(verdict)) => {
                self.0.verdicts.put(id, verdict, now);
                Ok(verdict)
            }
            Ok(Err(error)) if !error.is_passing() => Err(error),
            // An older answer beats none while SQL is away.
            _ => {
                self.0.verdicts.prolong(id, now);
                Ok(before)
            }
        }
    }

    async fn read(&self, id: &SessionId, session: &Session) -> Result<Verdict, Error> {
        let (one, user) = (Name::of_session(id), Name::of_user(session.user_id));
        let mut names = vec![one, user];
        names.extend(session.groups().iter().map(Name::of_group));
        let ends = rows::ends(&self.0.db, &names).await?;
        let is_over = |(name, at): &&(Name, Timestamp)| *name == one || at.as_millis() >= session.began_at;
        let over: Vec<Name> = ends.iter().filter(is_over).map(|(name, _)| *name).collect();
        Ok(match over.as_slice() {
            [] => Verdict::Alive,
            over if over.contains(&user) => Verdict::EndedWithUser,
            _ => Verdict::Ended,
        })
    }

    /// Forgets what was read of a session, because somebody says that it has ended.
    pub(crate) fn forget(&self, id: &SessionId) {
        self.0.verdicts.remove(id);
    }

    /// Records that a session has ended. If SQL is away, it is recorded later.
    pub(crate) async fn end(&self, id: &SessionId, session: &Session) {
        let (name, user) = (Name::of_session(id), session.user_id);
        self.forget(id);
        let keep = self.left(session);
        if let Err(error) = self.write(&[End { name, user: Some(user), keep }]).await {
            tracing::warn!(cause = chain(&error), "the end of a session is recorded later");
            let mut pending = self.pending();
            if pending.len() >= MOST_PENDING {
                pending.remove(0);
            }
            pending.push((name, user, self.0.clock.now().after(keep)));
        }
    }

    /// Uses up a logout token and ends the groups that it names, both or neither. Returns false if the token was used before.
    pub(crate) async fn back_channel(
        &self,
        jti: &str,
        expires_at: Timestamp,
        groups: &[Group],
        user: Option<UserId>,
    ) -> Result<bool, Error> {
        let word = Name::of_word("logout token", jti);
        let (word_keep, keep) = (expires_at.distance(self.0.clock.now()) + SKEW, self.0.lifetime + SKEW);
        let user = user.map(|user| *user.as_uuid());
        transact!(self, tx => {
            if rows::use_up(&mut tx, word, word_keep).await?.is_none() {
                return Ok(false);
            }
            for group in groups {
                rows::end(&mut tx, &End { name: Name::of_group(group), user, keep }).await?;
            }
            true
        })
    }

    /// Uses up the state of a sign-in. Returns when, by the store's clock; none if it was used before.
    pub(crate) async fn use_up_state(&self, state: &str, keep: Duration) -> Result<Option<Timestamp>, Error> {
        let word = Name::of_word("sign-in", state);
        transact!(self, tx => rows::use_up(&mut tx, word, keep + SKEW).await?)
    }

    /// Records that the session's refresh token is presented to the issuer. Returns false if it was presented before: then Redis has
    /// brought back an old one, which the issuer would take for stolen.
    pub(crate) async fn spend(&self, id: &SessionId, session: &Session) -> Result<bool, Error> {
        let (name, keep) = (Name::of_session(id), self.left(session));
        let (user, generation) = (session.user_id, session.generation);
        transact!(self, tx => rows::spend(&mut tx, name, user, generation, keep).await?)
    }

    /// Takes back [`spend`](Self::spend) for a token that the issuer did not take. Without it, the session ends at its next refresh.
    pub(crate) async fn unspend(&self, id: &SessionId, session: &Session) {
        let name = Name::of_session(id);
        let back: Result<(), Error> =
            transact!(self, tx => rows::unspend(&mut tx, name, session.generation).await?);
        if let Err(error) = back {
            tracing::warn!(cause = chain(&error), "a session will end at its next refresh");
        }
    }

    /// Removes rows that are no longer needed, and records ends that had to wait. Returns how many of both.
    pub async fn tick(&self) -> Result<u64, Error> {
        let pending = std::mem::take(&mut *self.pending());
        let now = self.0.clock.now();
        let ends: Vec<End> = pending
            .iter()
            .filter(|(.., until)| *until > now)
            .map(|(name, user, until)| End { name: *name, user: Some(*user), keep: until.distance(now) })
            .collect();
        if let Err(error) = self.write(&ends).await {
            self.pending().splice(0..0, pending);
            return Err(error);
        }
        Ok(rows::remove_expired(&self.0.db).await? + ends.len() as u64)
    }

    /// Repeats [`tick`](Self::tick) until told to stop.
    pub async fn run(&self, metrics: &Metrics, drain: Drain) -> Result<(), LoopError> {
        loop {
            match self.tick().await {
                Err(error) if !error.is_passing() => return Err(error.into()),
                _ => {}
            }
            metrics.unrecorded_ends(self.pending().len());
            if !drain.sleep(TICK).await {
                return Ok(());
            }
        }
    }

    async fn write(&self, ends: &[End]) -> Result<(), Error> {
        if ends.is_empty() {
            return Ok(());
        }
        transact!(self, tx => {
            for end in ends {
                rows::end(&mut tx, end).await?;
            }
        })
    }

    /// How long an end of this session has to be known.
    fn left(&self, session: &Session) -> Duration {
        session.ends_at().distance(self.0.clock.now()) + SKEW
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Vec<(Name, Uuid, Timestamp)>> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnSessionsEnd for SessionHistory {
    fn end_sessions<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        let user = *user.as_uuid();
        // Without the column: the row stays when the user is erased, and names nobody who is known.
        let end = End { name: Name::of_user(user), user: None, keep: self.0.lifetime + SKEW };
        async move { Ok(rows::end(tx, &end).await?) }.boxed()
    }
}

impl OnErase for SessionHistory {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        async move {
            rows::erase(tx, *user.as_uuid()).await?;
            // Redis still has them, and they would sign in a new user with the name of the erased one.
            self.end_sessions(tx, user).await
        }
        .boxed()
    }
}
