//! Locks on the rows of a MySQL or MariaDB database.

mod admin_connection;
mod doctor;
mod killer;
mod provision;
mod schema;
mod server;
mod session;
mod session_pool;
mod statement;

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Database};
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, timeout_at};

use self::admin_connection::AdminConnection;
use self::killer::{KillOnDrop, SessionKiller};
use self::session_pool::{SessionPermit, SessionPool};
use crate::error::bounded;
use crate::plan::Plan;
use crate::{Error, Options, ServerError};

pub use doctor::examine;
pub use provision::{LevelStatus, ProvisionProgress, ProvisionStatus, Provisioner};
pub use schema::{SCHEMA, create_tables};
pub use server::{LockWait, lock_waits};
pub use session::idle_session_timeout_sql;

/// Exceeds the number of distinct statement texts, so a session never prepares one twice.
const STATEMENT_CACHE: usize = 256;

/// The time limit for connecting and for queries that do not wait for locks.
const SHORT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct MySql(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sessions: SessionPool,
    killer: SessionKiller,
    /// For fencing tokens and for reading lock waits.
    admin: AdminConnection,
}

impl MySql {
    pub(crate) async fn open(database: MySqlConnectOptions, options: &Options) -> Result<Self, Error> {
        let database = with_driver_settings(database);
        let sessions = SessionPool::new(database.clone(), options);
        // Like every session, the first one checks that the database has the configured buckets.
        let session = sessions.connect().await?;
        sessions.give_back(session, None);
        // By then the server's own timeouts have ended the wait and the idle session after it.
        let give_up_after = options.wait_timeout + options.heartbeat * 3;
        let killer =
            SessionKiller::start(AdminConnection::new(database.clone(), options.heartbeat), give_up_after);
        let admin = AdminConnection::new(database, options.heartbeat);
        let inner = Arc::new(Inner { sessions, killer, admin });
        tokio::spawn(session_pool::keep_alive(Arc::downgrade(&inner), options.heartbeat));
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

    pub(crate) async fn lock_waits(&self) -> Result<Vec<LockWait>, Error> {
        self.0.admin.run(|connection| Box::pin(server::read_lock_waits(connection))).await
    }

    pub(crate) async fn end_blocking_session(&self, session: u64) -> Result<bool, Error> {
        if !self.lock_waits().await?.iter().any(|wait| wait.holder == session) {
            return Ok(false);
        }
        let seen = Instant::now();
        self.0.admin.run(|connection| Box::pin(killer::kill(connection, session, seen))).await?;
        Ok(true)
    }

    pub(crate) async fn acquire(
        &self,
        plan: &Plan,
        deadline: Instant,
        wait_timeout: Duration,
    ) -> Result<HeldSession, Error> {
        let sessions = &self.0.sessions;
        let permit = match timeout_at(deadline, sessions.permit()).await {
            Ok(permit) => permit?,
            Err(_) => {
                let max_connections = sessions.max_connections();
                return Err(Error::NoConnection { max_connections, waited: wait_timeout });
            }
        };
        let mut permit = Some(permit);
        loop {
            let (session, used_before) = match timeout_at(deadline, sessions.take()).await {
                Ok(taken) => taken?,
                Err(_) => return Err(Error::Timeout(wait_timeout)),
            };
            let guard = KillOnDrop::new(&self.0.killer, session.id, session.began, permit.take());
            let sent = Instant::now();
            let locked = timeout_at(deadline, async {
                let mut connection = session.connection.lock().await;
                // A ping may have held the connection until now and found it dead.
                if session.is_lost() {
                    return Err(Error::Lost);
                }
                lock_rows(&mut connection, plan, wait_timeout).await
            });
            let Ok(locked) = locked.await else { return Err(Error::Timeout(wait_timeout)) };
            permit = guard.wait_ended(&locked);
            match locked {
                Ok(()) => {
                    session.record_contact(sent);
                    let held = HeldSession { session: Some((session, permit.take())), inner: self.0.clone() };
                    // The response may have been delayed on the network or in our buffers for longer than the server's idle timeout.
                    if sent.elapsed() > sessions.heartbeat {
                        held.check().await.map_err(|_| Error::Timeout(wait_timeout))?;
                    }
                    return Ok(held);
                }
                // The idle session had died. Nothing was locked, so try another one.
                Err(Error::Lost) => {}
                Err(Error::Unreachable(_)) if used_before => {}
                Err(error @ Error::Unreachable(_)) => return Err(error),
                Err(error) => {
                    // Earlier rows may be locked: dropping the session rolls back.
                    drop(HeldSession { session: Some((session, permit)), inner: self.0.clone() });
                    return Err(error);
                }
            }
        }
    }

    pub(crate) async fn lock_in_transaction(
        &self,
        transaction: &mut MySqlConnection,
        connection_id: Option<u64>,
        plan: &Plan,
        deadline: Instant,
        wait_timeout: Duration,
    ) -> Result<(), Error> {
        type Manager = <sqlx::MySql as Database>::TransactionManager;
        if connection_id.is_none() && Manager::get_transaction_depth(transaction) == 0 {
            // With autocommit, each statement would release its locks at once.
            return Err(Error::NoTransaction);
        }
        let sessions = &self.0.sessions;
        let id = timeout_at(deadline, async {
            sessions.ensure_connected().await?;
            match connection_id {
                Some(id) => Ok(id),
                None => Ok::<_, Error>(session::connection_id(transaction).await?),
            }
        });
        let Ok(id) = id.await else { return Err(Error::Timeout(wait_timeout)) };
        let guard = KillOnDrop::new(&self.0.killer, id?, Instant::now(), None);
        let Ok(locked) = timeout_at(deadline, lock_rows(transaction, plan, wait_timeout)).await else {
            guard.kill(sessions.heartbeat).await;
            return Err(Error::Timeout(wait_timeout));
        };
        guard.wait_ended(&locked);
        locked
    }
}

/// Locks the rows in order, waiting for each.
async fn lock_rows(
    connection: &mut MySqlConnection,
    plan: &Plan,
    wait_timeout: Duration,
) -> Result<(), Error> {
    for statement in statement::lock_statements(plan.rows()) {
        match statement.lock(connection).await {
            Ok(None) => {}
            Ok(Some(missing)) => return Err(Error::MissingBucket(missing)),
            Err(error) => {
                return Err(match ServerError::classify(&error) {
                    Some(ServerError::LockWaitTimeout | ServerError::StatementTimeout) => {
                        Error::Timeout(wait_timeout)
                    }
                    _ => error.into(),
                });
            }
        }
    }
    Ok(())
}

/// A session whose transaction holds locks. Dropping it rolls back in the background.
#[derive(Debug)]
pub(crate) struct HeldSession {
    /// Some until release or drop.
    session: Option<(Arc<session::Session>, Option<SessionPermit>)>,
    inner: Arc<Inner>,
}

impl HeldSession {
    pub(crate) fn is_valid(&self) -> bool {
        self.session.as_ref().is_some_and(|(session, _)| session.is_valid())
    }

    pub(crate) fn session_id(&self) -> Option<u64> {
        self.session.as_ref().map(|(session, _)| session.id)
    }

    pub(crate) async fn check(&self) -> Result<(), Error> {
        match &self.session {
            // In a separate task, because cancelling a ping half-way would break the connection.
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
        let token = self.inner.admin.run(|connection| Box::pin(schema::next_token(connection))).await?;
        let token = token.ok_or(Error::NotProvisioned)?;
        // If the lock was lost before the token was drawn, a later holder may have a smaller token. So check that it is still held.
        self.check().await?;
        Ok(token)
    }

    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let Some((session, permit)) = self.session.take() else { return Err(Error::Lost) };
        session.roll_back().await?;
        self.inner.sessions.give_back(session, permit);
        Ok(())
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        let Some((session, permit)) = self.session.take() else { return };
        // Without a runtime the connection is closed instead, which makes the server roll back.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let inner = self.inner.clone();
        runtime.spawn(async move {
            if session.roll_back().await.is_ok() {
                inner.sessions.give_back(session, permit);
            }
        });
    }
}

async fn connect(database: MySqlConnectOptions) -> Result<MySqlConnection, Error> {
    bounded(SHORT_TIMEOUT, with_driver_settings(database).connect()).await
}

/// Sets the statement cache and turns off statement logging, which would write a line per lock.
fn with_driver_settings(database: MySqlConnectOptions) -> MySqlConnectOptions {
    database.statement_cache_capacity(STATEMENT_CACHE).disable_statement_logging()
}
