//! The leased work queue on real stores: one suite over SQLite, MariaDB and, where available, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod bulk_decisions;
mod claims;
mod conflicts;
mod decisions;
mod failure_hook;
mod local;
mod operators;
mod order;
mod progress;
mod push_claimed;
mod unordered;
mod workers;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::id::{ProcessId, Uuid};
use base::{Backoff, Clock};
use config::{Setting, Value};
use db::{Db, DbUrl, Migration, Migrations};
use prometheus_client::registry::Registry;
use testkit::{SqlServer, TestDatabase};
use work_queue::{Config, Handler, Item, ItemOutcome, Metrics, NewItem, WorkQueue, Worker};

const PATIENCE: Duration = Duration::from_secs(30);

const MIGRATIONS: Migrations = Migrations {
    component: "test",
    list: &[
        Migration {
            version: 1,
            name: "chores",
            sqlite: work_queue::sqlite_table!("chores"),
            mysql: work_queue::mysql_table!("chores"),
        },
        Migration {
            version: 2,
            name: "failures",
            sqlite: "CREATE TABLE failures (item_id BLOB NOT NULL, user_id BLOB NOT NULL, payload BLOB NOT NULL, \
                     attempts INTEGER NOT NULL, cause TEXT NOT NULL) STRICT",
            mysql: "CREATE TABLE failures (item_id BINARY(16) NOT NULL, user_id BINARY(16) NOT NULL, \
                    payload MEDIUMBLOB NOT NULL, attempts BIGINT NOT NULL, cause TEXT NOT NULL)",
        },
    ],
};

async fn open(place: &TestDatabase) -> Db {
    open_url(&place.url()).await
}

async fn open_url(url: &str) -> Db {
    let url = DbUrl::parse(&Value::Text(url.to_owned())).unwrap();
    let config =
        db::Config { url, max_connections: 20, acquire_timeout: Duration::from_secs(5), migrate: true };
    let db = Db::open(&config).await.unwrap();
    db.migrate(&[MIGRATIONS]).await.unwrap();
    db
}

fn queue_on(db: Db, config: Config) -> WorkQueue {
    queue_by(Clock::system(), db, config)
}

fn queue_by(clock: Clock, db: Db, config: Config) -> WorkQueue {
    WorkQueue::new("chores", db, config, Metrics::new(&mut Registry::default(), "chores"), clock)
}

/// Short times, but long enough on a busy machine where a test expects that nothing happens.
fn config() -> Config {
    Config {
        workers: 1,
        batch: 100,
        poll: Duration::from_millis(20),
        lease: Duration::from_secs(60),
        max_attempts: 5,
        retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(100)),
        retention: Duration::from_secs(3600),
    }
}

/// Pushes one item per text `key:value`, each in its own transaction.
async fn push(db: &Db, queue: &WorkQueue, items: &[&str]) {
    for item in items {
        let mut tx = db.begin().await.unwrap();
        push_in(&mut tx, queue, item);
        tx.commit().await.unwrap();
    }
}

fn push_in(tx: &mut db::Tx, queue: &WorkQueue, item: &str) {
    let (key, _) = item.split_once(':').unwrap();
    let new = NewItem { id: Uuid::now_v7(), user: Uuid::nil(), key, payload: item.as_bytes() };
    queue.push(tx, &[new]);
}

fn text(item: &Item) -> String {
    String::from_utf8(item.payload.clone()).unwrap()
}

/// Claims a batch for a new process.
async fn claim(queue: &WorkQueue) -> Vec<Item> {
    queue.claim(ProcessId::generate()).await.unwrap().items
}

fn texts(items: &[Item]) -> Vec<String> {
    items.iter().map(text).collect()
}

/// Claims until an item is due.
async fn claim_something(queue: &WorkQueue) -> Vec<Item> {
    testkit::eventually("something can be claimed", PATIENCE, async || {
        let items = claim(queue).await;
        if items.is_empty() { Err("nothing is due") } else { Ok(items) }
    })
    .await
}

fn all(items: &[Item], outcome: &ItemOutcome) -> Vec<(Item, ItemOutcome)> {
    items.iter().map(|item| (item.clone(), outcome.clone())).collect()
}

/// Returns the outcome that `decide` chooses, and records the done items in their order.
#[derive(Clone)]
struct Recorder<F> {
    done: Arc<Mutex<Vec<String>>>,
    decide: F,
}

impl<F: Fn(&str) -> ItemOutcome + Clone + Send + Sync + 'static> Recorder<F> {
    fn new(decide: F) -> Self {
        Self { done: Arc::default(), decide }
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }

    fn worker(&self, queue: &WorkQueue) -> Worker<Self> {
        Worker::new(queue.clone(), self.clone(), ProcessId::generate())
    }
}

impl<F: Fn(&str) -> ItemOutcome + Clone + Send + Sync + 'static> Handler for Recorder<F> {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let outcome = |item: &Item| {
            let text = text(item);
            let outcome = (self.decide)(&text);
            if outcome == ItemOutcome::Done {
                self.done.lock().unwrap().push(text);
            }
            outcome
        };
        items.iter().map(outcome).collect()
    }
}
