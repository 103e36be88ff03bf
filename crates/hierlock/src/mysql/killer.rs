//! Ends abandoned waits by killing their sessions.
//!
//! A server does not notice that the client of a waiting session has disconnected: the session keeps its locks and its place in the queue
//! until it is granted the lock. So it is killed, from another connection.

use std::time::Duration;

use base::Backoff;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::admin_connection::AdminConnection;
use super::session_pool::SessionPermit;
use crate::{Error, ServerError};

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Kills sessions one at a time, in a task that ends with the last handle.
#[derive(Debug)]
pub(super) struct SessionKiller(mpsc::UnboundedSender<KillRequest>);

#[derive(Debug)]
struct KillRequest {
    session: u64,
    /// A time at which the session existed.
    seen: Instant,
    /// Released when the session is gone.
    _permit: Option<SessionPermit>,
    /// Closed when the session is gone.
    _done: Option<oneshot::Sender<()>>,
    requested: Instant,
}

impl SessionKiller {
    /// Starts the task. If it fails to kill a session for as long as `give_up_after`, it leaves the session to the server's own timeouts.
    pub(super) fn start(admin: AdminConnection, give_up_after: Duration) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(run(requests, admin, give_up_after));
        Self(sender)
    }
}

/// Kills a session on drop, unless its wait has ended by then.
#[derive(Debug)]
pub(super) struct KillOnDrop<'a> {
    killer: &'a SessionKiller,
    session: u64,
    seen: Instant,
    permit: Option<SessionPermit>,
    done: Option<oneshot::Sender<()>>,
    is_armed: bool,
}

impl<'a> KillOnDrop<'a> {
    /// Guards a session that existed at the time `seen`.
    pub(super) const fn new(
        killer: &'a SessionKiller,
        session: u64,
        seen: Instant,
        permit: Option<SessionPermit>,
    ) -> Self {
        Self { killer, session, seen, permit, done: None, is_armed: true }
    }

    /// Disarms the guard because the wait has ended, and returns the permit. If the connection broke, the guard stays armed: the server may
    /// still have the session waiting.
    pub(super) fn wait_ended<T>(mut self, result: &Result<T, Error>) -> Option<SessionPermit> {
        self.is_armed = matches!(result, Err(Error::Unreachable(_)));
        self.permit.take()
    }

    /// Kills the session and waits for that, at most for `limit`. Otherwise a caller that continues to use the connection could be hit
    /// by the kill later.
    pub(super) async fn kill(mut self, limit: Duration) {
        let (done, gone) = oneshot::channel();
        self.done = Some(done);
        drop(self);
        let _ = timeout(limit, gone).await;
    }
}

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            let Self { session, seen, .. } = *self;
            let (_permit, _done) = (self.permit.take(), self.done.take());
            let request = KillRequest { session, seen, _permit, _done, requested: Instant::now() };
            // Fails only if the runtime is shutting down, and the connections with it.
            let _ = self.killer.0.send(request);
        }
    }
}

async fn run(
    mut requests: mpsc::UnboundedReceiver<KillRequest>,
    admin: AdminConnection,
    give_up_after: Duration,
) {
    while let Some(request) = requests.recv().await {
        for failures in 1.. {
            let killing = admin.run(|connection| Box::pin(kill(connection, request.session, request.seen)));
            let Err(error) = killing.await else { break };
            let cause = base::error::chain(&error);
            // A refusal is final: the session belongs to another database user.
            let is_refused = matches!(error, Error::Statement(_) | Error::MissingPrivilege(_));
            if is_refused || request.requested.elapsed() > give_up_after {
                tracing::warn!(
                    outage = "locks",
                    session = request.session,
                    cause,
                    "cannot kill the session of an abandoned lock wait; the server ends it when its own timeout expires"
                );
                break;
            }
            tracing::debug!(session = request.session, cause, "cannot kill the session yet; retrying");
            tokio::time::sleep(RETRY_BACKOFF.after(failures)).await;
        }
    }
}

/// Kills a session, unless the server was started after the session was seen. Then it is gone, and its id may belong to another one.
pub(super) async fn kill(
    connection: &mut MySqlConnection,
    session: u64,
    seen: Instant,
) -> Result<(), sqlx::Error> {
    const UPTIME: &str = "SHOW GLOBAL STATUS LIKE 'Uptime'";
    let age = seen.elapsed();
    let (_, uptime): (String, String) = sqlx::query_as(UPTIME).fetch_one(&mut *connection).await?;
    // The server reports whole seconds, so the real uptime may be up to one more.
    let longest = |uptime: u64| Duration::from_secs(uptime.saturating_add(1));
    if uptime.parse().is_ok_and(|uptime| longest(uptime) < age) {
        return Ok(());
    }
    match connection.execute(AssertSqlSafe(format!("KILL {session}"))).await {
        // The session has ended already.
        Err(error) if ServerError::classify(&error) == Some(ServerError::UnknownSession) => Ok(()),
        done => done.map(|_| ()),
    }
}
