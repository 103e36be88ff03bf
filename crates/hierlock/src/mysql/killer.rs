//! Ending waits that nobody waits for any more.
//!
//! A server does not notice that the client of a waiting session has left: the session keeps its locks and its place in the
//! queue until it is served. So it is killed, from another connection.

use std::time::Duration;

use base::Backoff;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::sessions::Place;
use super::spare::Spare;
use crate::error::number;

const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Kills sessions, one after the other, in a task that ends with the last handle.
#[derive(Debug)]
pub(super) struct Killer(mpsc::UnboundedSender<Order>);

#[derive(Debug)]
struct Order {
    session: u64,
    /// Free again when the session is gone.
    _place: Option<Place>,
    since: Instant,
}

impl Killer {
    pub(super) fn start(spare: Spare, heartbeat: Duration) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        tokio::spawn(work(inbox, spare, heartbeat * 3));
        Self(orders)
    }
}

/// A session that is to be killed unless its wait ends first.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    killer: &'a Killer,
    session: u64,
    place: Option<Place>,
    is_wanted: bool,
}

impl<'a> Wanted<'a> {
    pub(super) const fn new(killer: &'a Killer, session: u64, place: Option<Place>) -> Self {
        Self { killer, session, place, is_wanted: true }
    }

    pub(super) fn no_longer(mut self) -> Option<Place> {
        self.is_wanted = false;
        self.place.take()
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        if self.is_wanted {
            let order = Order { session: self.session, _place: self.place.take(), since: Instant::now() };
            // Refused only when the runtime is ending, and the connections with it.
            let _ = self.killer.0.send(order);
        }
    }
}

async fn work(mut inbox: mpsc::UnboundedReceiver<Order>, spare: Spare, patience: Duration) {
    while let Some(order) = inbox.recv().await {
        for failures in 1.. {
            let killing = spare.run(|connection| Box::pin(kill(connection, order.session)));
            let Err(error) = killing.await else { break };
            let cause = base::error::chain(&error);
            // By now the server has given it up by itself.
            if order.since.elapsed() > patience {
                tracing::warn!(session = order.session, cause, "a wait that was given up could not be ended");
                break;
            }
            tracing::debug!(session = order.session, cause, "not killed yet");
            tokio::time::sleep(AGAIN.after(failures)).await;
        }
    }
}

async fn kill(connection: &mut MySqlConnection, session: u64) -> Result<(), sqlx::Error> {
    match connection.execute(AssertSqlSafe(format!("KILL {session}"))).await {
        // There is no such session: it has ended already.
        Err(error) if number(&error) == Some(1094) => Ok(()),
        done => done.map(|_| ()),
    }
}
