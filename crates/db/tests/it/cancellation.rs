//! Statements that are cancelled before their result is complete.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use db::{Config, Db, DbUrl, on};
use sqlx::AssertSqlSafe;
use testkit::{FaultProxy, SqlServer, need};

use crate::config;

const ROUNDS: i64 = 10;

/// Counts panics outside of test code. The driver panics in background tasks, which would otherwise go unnoticed.
struct PanicCounter(Arc<AtomicUsize>);

impl PanicCounter {
    fn install() -> Self {
        let counter = Arc::new(AtomicUsize::new(0));
        let (seen, before) = (counter.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            if panic.location().is_some_and(|at| !at.file().contains("tests/it")) {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            before(panic);
        }));
        Self(counter)
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The driver loses its position if it is dropped while it reads a result. It would read the rest as the result of the next statement:
/// an error, a panic, an endless wait, or another query's rows.
#[tokio::test(flavor = "multi_thread")]
async fn connection_with_a_half_read_result_is_not_reused() {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let panics = PanicCounter::install();
    let proxy = FaultProxy::to(server.addr()).await;
    let url = DbUrl::MySql(proxy.url(database.url()).parse().unwrap());
    let acquire_timeout = Duration::from_secs(10);
    let db = Db::open(&Config { max_connections: 1, acquire_timeout, ..config(url) }).await.unwrap();
    // So slow that every result arrives in pieces.
    proxy.bandwidth(10_000).await;
    for round in 0..ROUNDS {
        {
            let mut connection = db.connection().await.unwrap();
            cancel_after(round % 10, async { on!(connection, raw => four(round).fetch_all(raw).await) })
                .await;
        }
        {
            let mut tx = db.begin().await.unwrap();
            cancel_after(round % 10, async { on!(tx, raw => four(round).fetch_all(raw).await) }).await;
        }
        let started = std::time::Instant::now();
        let mut connection = db.connection().await.unwrap();
        let read: Vec<(i64, i64, i64, i64)> =
            on!(connection, raw => four(round + ROUNDS).fetch_all(raw).await.unwrap());
        assert_eq!(read, [(round + ROUNDS, 2, 3, 4)]);
        assert!(
            started.elapsed() < acquire_timeout / 2,
            "the connection waited for a result that was already lost"
        );
    }
    assert_eq!(panics.count(), 0, "the driver panicked on a half-read result");
    db.close().await;
}

/// Returns a statement that no connection has prepared yet.
fn four<'q, D>(round: i64) -> sqlx::query::QueryAs<'q, D, (i64, i64, i64, i64), D::Arguments>
where
    D: sqlx::Database,
    i64: sqlx::Type<D> + sqlx::Encode<'q, D>,
    (i64, i64, i64, i64): for<'r> sqlx::FromRow<'r, D::Row>,
{
    let text = format!("SELECT ? AS one, ? AS two, ? AS three, ? AS four -- {round}");
    sqlx::query_as(AssertSqlSafe(text)).bind(round).bind(2).bind(3).bind(4)
}

/// Polls a future until it was pending `polls` times, then drops it.
async fn cancel_after<F: Future>(polls: i64, future: F) {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() || left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        Poll::Pending
    })
    .await;
}
