//! Locks on the rows of a MySQL or MariaDB database.

mod doctor;
mod killer;
mod provision;
mod schema;
mod server;
mod session;
mod sessions;
mod spare;
mod statement;

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Database};
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, timeout_at};

use self::killer::{Killer, Wanted};
use self::sessions::{Place, Sessions};
use self::spare::Spare;
use crate::error::bounded;
use crate::plan::Plan;
use crate::{Error, Options, ServerError};

pub use doctor::examine;
pub use provision::{LevelStatus, Progress, Provision, Status};
pub use schema::{SCHEMA, create_tables};
pub use server::{Wait, waits};
pub use session::end_after_silence;

/// More than there are statement texts, so that none is ever prepared twice in one session.
const STATEMENT_CACHE: usize = 256;

/// How long it may take to connect, and to ask what is answered at once.
const BRIEF: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct MySql(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sessions: Sessions,
    killer: Killer,
    /// For what is not locking.
    spare: Spare,
}

impl MySql {
    pub(crate) async fn open(database: MySqlConnectOptions, options: &Options) -> Result<Self, Error> {
        let database = quiet(database);
        let sessions = Sessions::new(database.clone(), options);
        // The first session checks what every session checks: that the database has our buckets.
        let session = sessions.connect().await?;
        sessions.give_back(session, None);
        // By then the server ends the wait by itself, and what says nothing after that.
        let patience = options.wait_timeout + options.heartbeat * 3;
        let killer = Killer::start(Spare::new(database.clone(), options.heartbeat), patience);
        let spare = Spare::new(database, options.heartbeat);
        let inner = Arc::new(Inner { sessions, killer, spare });
        tokio::spawn(sessions::keep(Arc::downgrade(&inner), options.heartbeat));
        Ok(Self(inner))
    }

    pub(crate) fn buckets(&self) -> u32 {
        self.0.sessions.space.buckets
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.0.sessions.is_idle()
    }

    pub(crate) async fn close(&self) {
        self.0.sessions.close().await;
    }

    pub(crate) async fn waits(&self) -> Result<Vec<Wait>, Error> {
        self.0.spare.run(|connection| Box::pin(server::waits_on(connection))).await
    }

    pub(crate) async fn acquire(
        &self,
        plan: &Plan,
        deadline: Instant,
        patience: Duration,
    ) -> Result<Held, Error> {
        let sessions = &self.0.sessions;
        let place = match timeout_at(deadline, sessions.place()).await {
            Ok(place) => place?,
            Err(_) => return Err(Error::NoPlace { places: sessions.places(), after: patience }),
        };
        let mut place = Some(place);
        loop {
            let (session, used_before) = match timeout_at(deadline, sessions.take()).await {
                Ok(taken) => taken?,
                Err(_) => return Err(Error::Timeout(patience)),
            };
            let wanted = Wanted::new(&self.0.killer, session.id, session.began, place.take());
            let asked = Instant::now();
            let locked = timeout_at(deadline, async {
                let mut connection = session.connection.lock().await;
                // A ping had it until now, and may have found it gone.
                if session.is_lost() {
                    return Err(Error::Lost);
                }
                lock_rows(&mut connection, plan, patience).await
            });
            let Ok(locked) = locked.await else { return Err(Error::Timeout(patience)) };
            place = wanted.ended(&locked);
            match locked {
                Ok(()) => {
                    session.answered(asked);
                    let held = Held { session: Some((session, place.take())), all: self.0.clone() };
                    // The answer may have been long on its way, or in our own buffers, and the server's patience over.
                    if asked.elapsed() > sessions.heartbeat {
                        held.check().await.map_err(|_| Error::Timeout(patience))?;
                    }
                    return Ok(held);
                }
                // It was closed while nobody looked at it. Nothing was locked, so another session may try.
                Err(Error::Lost) => {}
                Err(Error::Unreachable(_)) if used_before => {}
                Err(error @ Error::Unreachable(_)) => return Err(error),
                Err(error) => {
                    // Earlier rows may be locked.
                    Held { session: Some((session, place)), all: self.0.clone() }.let_go();
                    return Err(error);
                }
            }
        }
    }

    pub(crate) async fn lock_in(
        &self,
        transaction: &mut MySqlConnection,
        number: Option<u64>,
        plan: &Plan,
        deadline: Instant,
        patience: Duration,
    ) -> Result<(), Error> {
        type Manager = <sqlx::MySql as Database>::TransactionManager;
        if number.is_none() && Manager::get_transaction_depth(transaction) == 0 {
            // Each statement would be a transaction of its own, and its locks gone with its end.
            return Err(Error::NoTransaction);
        }
        let sessions = &self.0.sessions;
        let known = timeout_at(deadline, async {
            sessions.be_there().await?;
            match number {
                Some(number) => Ok(number),
                None => Ok::<_, Error>(session::id(transaction).await?),
            }
        });
        let Ok(id) = known.await else { return Err(Error::Timeout(patience)) };
        let wanted = Wanted::new(&self.0.killer, id?, Instant::now(), None);
        let Ok(locked) = timeout_at(deadline, lock_rows(transaction, plan, patience)).await else {
            wanted.killed(sessions.heartbeat).await;
            return Err(Error::Timeout(patience));
        };
        wanted.ended(&locked);
        locked
    }
}

/// Locks the rows in their order, waiting for each.
async fn lock_rows(connection: &mut MySqlConnection, plan: &Plan, patience: Duration) -> Result<(), Error> {
    for piece in statement::pieces(plan.rows()) {
        match piece.lock(connection).await {
            Ok(None) => {}
            Ok(Some(missing)) => return Err(Error::MissingBucket(missing)),
            Err(error) => {
                return Err(match ServerError::of(&error) {
                    Some(ServerError::LockWaitTimeout | ServerError::StatementTimeout) => {
                        Error::Timeout(patience)
                    }
                    _ => error.into(),
                });
            }
        }
    }
    Ok(())
}

/// A session that holds locks. Dropping it rolls back in the background.
#[derive(Debug)]
pub(crate) struct Held {
    /// Some until it is released.
    session: Option<(Arc<session::Session>, Option<Place>)>,
    all: Arc<Inner>,
}

impl Held {
    pub(crate) fn is_valid(&self) -> bool {
        self.session.as_ref().is_some_and(|(session, _)| session.is_valid())
    }

    pub(crate) fn session_id(&self) -> Option<u64> {
        self.session.as_ref().map(|(session, _)| session.id)
    }

    pub(crate) async fn check(&self) -> Result<(), Error> {
        match &self.session {
            // In a task, since the caller may leave at any moment.
            Some((session, _)) => {
                let session = session.clone();
                tokio::spawn(async move { session.ping().await }).await.unwrap_or(Err(Error::Lost))
            }
            None => Err(Error::Lost),
        }
    }

    pub(crate) async fn lost(&self) {
        if let Some((session, _)) = &self.session {
            session.lost().await;
        }
    }

    pub(crate) async fn next_token(&self) -> Result<u64, Error> {
        let token = self.all.spare.run(|connection| Box::pin(schema::next_token(connection))).await?;
        let token = token.ok_or(Error::NotProvisioned)?;
        // Only if the lock is still held was it held when the number was drawn: else a later holder may have a smaller one.
        self.check().await?;
        Ok(token)
    }

    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let Some((session, place)) = self.session.take() else { return Err(Error::Lost) };
        session.roll_back().await?;
        self.all.sessions.give_back(session, place);
        Ok(())
    }

    fn let_go(mut self) {
        self.roll_back_later();
    }

    fn roll_back_later(&mut self) {
        let Some((session, place)) = self.session.take() else { return };
        // Without a runtime nobody can wait for an answer: the connection is closed, which says enough.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let all = self.all.clone();
        runtime.spawn(async move {
            if session.roll_back().await.is_ok() {
                all.sessions.give_back(session, place);
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.roll_back_later();
    }
}

async fn connect(database: MySqlConnectOptions) -> Result<MySqlConnection, Error> {
    bounded(BRIEF, quiet(database).connect()).await
}

/// Locking is not worth a line in the log each time.
fn quiet(database: MySqlConnectOptions) -> MySqlConnectOptions {
    database.statement_cache_capacity(STATEMENT_CACHE).disable_statement_logging()
}
