//! Ending waits that nobody waits for any more.
//!
//! A server does not notice that the client of a waiting session has left: the session keeps its locks and its place in the
//! queue until it is served. So it is killed, from another connection.

use std::time::Duration;

use base::Backoff;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::sessions::Place;
use super::spare::Spare;
use crate::{Error, ServerError};

const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Kills sessions, one after the other, in a task that ends with the last handle.
#[derive(Debug)]
pub(super) struct Killer(mpsc::UnboundedSender<Order>);

#[derive(Debug)]
struct Order {
    session: u64,
    /// When the session was there.
    seen: Instant,
    /// Free again when the session is gone.
    _place: Option<Place>,
    /// Closed when the session is gone.
    _done: Option<oneshot::Sender<()>>,
    since: Instant,
}

impl Killer {
    /// One that cannot kill a session for as long as `patience` leaves it to the server.
    pub(super) fn start(spare: Spare, patience: Duration) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        tokio::spawn(work(inbox, spare, patience));
        Self(orders)
    }
}

/// A session that is to be killed unless its wait ends first.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    killer: &'a Killer,
    session: u64,
    seen: Instant,
    place: Option<Place>,
    done: Option<oneshot::Sender<()>>,
    is_wanted: bool,
}

impl<'a> Wanted<'a> {
    /// `seen` is when the session was there, and is now known by its number.
    pub(super) const fn new(killer: &'a Killer, session: u64, seen: Instant, place: Option<Place>) -> Self {
        Self { killer, session, seen, place, done: None, is_wanted: true }
    }

    /// Its wait has ended; but if the connection broke, only ours: the server may not know of it.
    pub(super) fn ended<T>(mut self, how: &Result<T, Error>) -> Option<Place> {
        self.is_wanted = matches!(how, Err(Error::Unreachable(_)));
        self.place.take()
    }

    /// Has it killed and waits until it is, for a while: who goes on using its connection must not be hit later.
    pub(super) async fn killed(mut self, limit: Duration) {
        let (done, gone) = oneshot::channel();
        self.done = Some(done);
        drop(self);
        let _ = timeout(limit, gone).await;
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        if self.is_wanted {
            let Self { session, seen, .. } = *self;
            let (_place, _done) = (self.place.take(), self.done.take());
            let order = Order { session, seen, _place, _done, since: Instant::now() };
            // Refused only when the runtime is ending, and the connections with it.
            let _ = self.killer.0.send(order);
        }
    }
}

async fn work(mut inbox: mpsc::UnboundedReceiver<Order>, spare: Spare, patience: Duration) {
    while let Some(order) = inbox.recv().await {
        for failures in 1.. {
            let killing = spare.run(|connection| Box::pin(kill(connection, order.session, order.seen)));
            let Err(error) = killing.await else { break };
            let cause = base::error::chain(&error);
            // What the server refuses, for the session is another user's, it refuses again.
            let is_refused = matches!(error, Error::Statement(_));
            if is_refused || order.since.elapsed() > patience {
                tracing::warn!(
                    outage = "locks",
                    session = order.session,
                    cause,
                    "a wait that was given up could not be ended"
                );
                break;
            }
            tracing::debug!(session = order.session, cause, "not killed yet");
            tokio::time::sleep(AGAIN.after(failures)).await;
        }
    }
}

/// Kills a session, unless the server was started after it was seen: then it is gone, and its number may be another's.
async fn kill(connection: &mut MySqlConnection, session: u64, seen: Instant) -> Result<(), sqlx::Error> {
    const UPTIME: &str = "SHOW GLOBAL STATUS LIKE 'Uptime'";
    let age = seen.elapsed();
    let (_, uptime): (String, String) = sqlx::query_as(UPTIME).fetch_one(&mut *connection).await?;
    // In seconds, and up to one more than it says.
    let most = |uptime: u64| Duration::from_secs(uptime.saturating_add(1));
    if uptime.parse().is_ok_and(|uptime| most(uptime) < age) {
        return Ok(());
    }
    match connection.execute(AssertSqlSafe(format!("KILL {session}"))).await {
        // It has ended already.
        Err(error) if ServerError::of(&error) == Some(ServerError::NoSession) => Ok(()),
        done => done.map(|_| ()),
    }
}
