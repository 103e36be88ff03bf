//! Users and accounts on real servers: one suite over SQLite, MariaDB and, where there is one, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod accounts;
mod banning;
mod erasing;
mod http;
mod identities;
mod outages;
mod signing_in;

use std::sync::Arc;
use std::time::Duration;

use account::{Accounts, OnErase, Role, SignIn, UserView};
use base::{Backoff, Clock, Timestamp};
use config::{Setting, Value as Configured};
use db::{Config, Db, DbUrl, Dialect, Tx, on};
use hierlock::{Locks, Options, Provision, create_tables};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use serde_json::Value;
use sqlx::{AssertSqlSafe, ConnectOptions};
use testkit::{SqlPlace as Place, SqlServer, eventually};

const PATIENCE: Duration = Duration::from_secs(20);
const BUCKETS: u32 = 1_000;
/// When everything happens, by the clock of the process.
const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_120);
const ACTOR: &str = "service/test";

/// How a place is opened here.
trait Opened {
    fn config(&self) -> Config;
    async fn prepare(&self);
    async fn process(&self, on_erase: Vec<Arc<dyn OnErase>>) -> Process;
}

impl Opened for Place {
    fn config(&self) -> Config {
        let url = DbUrl::parse(&Configured::Text(self.url())).unwrap();
        Config { url, max_connections: 10, acquire_timeout: PATIENCE, migrate: false }
    }

    /// Makes the rows of the locks where locks are rows.
    async fn prepare(&self) {
        if let Some(server) = self.config().server() {
            create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provision::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
        }
    }

    /// What one process has of it. SQLite is opened here and nowhere before: the lock of a file that was closed may live on for
    /// a moment, in a server that is being started just then.
    async fn process(&self, on_erase: Vec<Arc<dyn OnErase>>) -> Process {
        let db = Db::open(&self.config()).await.unwrap();
        db.migrate(&[account::MIGRATIONS, outbox::MIGRATIONS]).await.unwrap();
        let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
        let locks = match self.config().server() {
            None => Locks::in_process(&options, &Clock::manual(NOW)),
            Some(server) => Locks::mysql(server, &options).await.unwrap(),
        };
        let outbox = outbox(&db);
        let accounts = Accounts::new(db.clone(), locks.clone(), outbox, Clock::manual(NOW));
        on_erase.into_iter().for_each(|part| accounts.on_erase(part));
        Process { db, locks, accounts }
    }
}

/// One process with its connections.
struct Process {
    db: Db,
    locks: Locks,
    accounts: Accounts,
}

impl Process {
    /// The same with other parts that keep something of users.
    fn with(&self, on_erase: Vec<Arc<dyn OnErase>>) -> Accounts {
        let (db, locks) = (self.db.clone(), self.locks.clone());
        let accounts = Accounts::new(db.clone(), locks, outbox(&db), Clock::manual(NOW));
        on_erase.into_iter().for_each(|part| accounts.on_erase(part));
        accounts
    }

    async fn sign_in(&self, subject: &str) -> UserView {
        self.accounts.sign_in(&sign_in(subject)).await.unwrap().user
    }

    /// How many rows a table has.
    async fn count(&self, table: &str) -> i64 {
        let mut connection = self.db.connection().await.unwrap();
        let text = format!("SELECT COUNT(*) FROM {table}");
        on!(connection, raw => sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(raw).await.unwrap())
    }

    /// The events in the outbox: what the row says around the data, with the data in it.
    async fn events(&self) -> Vec<Value> {
        const READ: &str = "SELECT payload FROM outbox ORDER BY id";
        let mut connection = self.db.connection().await.unwrap();
        let rows: Vec<Vec<u8>> =
            on!(connection, raw => sqlx::query_scalar(READ).fetch_all(raw).await.unwrap());
        let event = |row: &Vec<u8>| {
            let text = str::from_utf8(row).unwrap();
            let (head, data) = text.split_once('\n').unwrap();
            let mut event: Value = serde_json::from_str(head).unwrap();
            event["data"] = serde_json::from_str(data).unwrap();
            event
        };
        rows.iter().map(event).collect()
    }

    /// Waits until a caller is blocked by a lock that another one holds.
    async fn until_blocked(&self) {
        let waiters = || {
            let (mut registry, mut text) = (Registry::default(), String::new());
            self.locks.metrics().register(&mut registry);
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            !text.lines().any(|line| line.ends_with("waiters 0"))
        };
        eventually("a caller that waits for a lock", PATIENCE, async || {
            // In process an acquisition that need not wait never shows as one that waits.
            self.locks.waits().await.unwrap().map_or_else(waiters, |waits| !waits.is_empty())
        })
        .await;
    }

    /// Waits until several transactions wait to insert the same identity, asking in `tx`: they may have taken every other connection. SQLite
    /// has one writer: there the others queue before they begin.
    async fn until_inserts_wait(&self, tx: &mut Tx) {
        const WAITING: &str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
            WHERE DB = DATABASE() AND INFO LIKE 'INSERT%identities%'";
        if self.db.dialect() == Dialect::Sqlite {
            return;
        }
        let tx = tokio::sync::Mutex::new(tx);
        eventually("inserts that wait", PATIENCE, async || {
            let mut tx = tx.lock().await;
            let waiting: i64 = on!(tx, raw => sqlx::query_scalar(WAITING).fetch_one(raw).await.unwrap());
            waiting >= 2
        })
        .await;
    }

    async fn kinds(&self) -> Vec<String> {
        self.events().await.iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    }

    /// What was done to a user, the last first.
    async fn actions(&self, user: &UserView) -> Vec<String> {
        let records = self.accounts.audit(user.id, 100).await.unwrap();
        records.into_iter().map(|record| record.action).collect()
    }

    async fn close(self) {
        self.db.close().await;
        self.locks.close().await;
    }
}

fn outbox(db: &Db) -> Outbox {
    let second = Duration::from_secs(1);
    let config = outbox::Config {
        workers: 1,
        batch: 10,
        poll: second,
        lease: 10 * second,
        max_attempts: 3,
        retry: Backoff::new(second, second),
        retention: 300 * second,
    };
    let metrics = outbox::Metrics::new(&mut Registry::default(), outbox::TABLE);
    Outbox::new(db.clone(), config, metrics, Clock::manual(NOW))
}

fn sign_in(subject: &str) -> SignIn {
    SignIn {
        issuer: "https://id.example.com".to_owned(),
        subject: subject.to_owned(),
        display_name: None,
        roles: vec![Role::Player],
    }
}

/// A fresh place on every store that can be had here.
async fn places() -> Result<Vec<Place>, testkit::Error> {
    let places = Place::all().await?;
    for place in &places {
        place.prepare().await;
    }
    Ok(places)
}
