//! Entitlements on real stores: one suite on SQLite, MariaDB and, if available, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod callers_transaction;
mod changes;
mod concurrency;
mod erasure;
mod idempotency;
mod publishing;

use std::sync::Arc;
use std::time::Duration;

use account::{AccountId, Accounts, SignIn, UserId};
use base::{Backoff, Clock, Timestamp};
use config::{Setting, Value as Configured};
use db::{Db, DbUrl};
use entitlement::{
    Action, ApplyResponse, Change, Entitlements, Error, Holding, ListOptions, NewRequest, RevokeOnErase,
};
use hierlock::{LockManager, Options, Provisioner};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use serde_json::Value;
use sqlx::ConnectOptions;
use testkit::TestDatabase;
use work_queue::Filter;

const PATIENCE: Duration = Duration::from_secs(20);
const BUCKETS: u32 = 1_000;
/// The time on the clock of every process.
const NOW: i64 = 1_772_366_400_000;

const GRANT: Action = Action::Grant { quantity: None, valid_until: None };
const REVOKE: Action = Action::Revoke { quantity: None };

/// The services of one process, with their own connections.
#[derive(Clone)]
struct Shop {
    db: Db,
    locks: LockManager,
    outbox: Outbox,
    accounts: Accounts,
    entitlements: Entitlements,
}

impl Shop {
    /// Creates the tables and opens the services.
    async fn open(place: &TestDatabase) -> Self {
        let config = config(&place.url(), Duration::from_secs(10));
        let db = Db::open(&config).await.unwrap();
        db.migrate(&[db::MIGRATIONS, outbox::MIGRATIONS, account::MIGRATIONS, entitlement::MIGRATIONS])
            .await
            .unwrap();
        if let Some(server) = config.server() {
            hierlock::create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provisioner::new(server, BUCKETS).run(|_| ()).await.unwrap();
        }
        Self::on(db, &config).await
    }

    /// Opens another process on the same database. An embedded database has only one: returns a clone of this process.
    async fn another(&self, place: &TestDatabase) -> Self {
        if !place.is_server() {
            return self.clone();
        }
        let config = config(&place.url(), Duration::from_secs(10));
        Self::on(Db::open(&config).await.unwrap(), &config).await
    }

    async fn on(db: Db, config: &db::Config) -> Self {
        let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
        let clock = Clock::manual(Timestamp::from_millis(NOW));
        let locks = match config.server() {
            Some(server) => LockManager::mysql(server, &options).await.unwrap(),
            None => LockManager::in_process(&options, &clock),
        };
        let metrics = outbox::Metrics::new(&mut Registry::default(), "outbox");
        let outbox = Outbox::new(db.clone(), queue_config(), metrics, clock.clone());
        let accounts = Accounts::new(db.clone(), locks.clone(), outbox.clone(), clock.clone());
        accounts.on_erase(Arc::new(RevokeOnErase::new(outbox.clone(), clock.clone())));
        let metrics = entitlement::Metrics::new(&mut Registry::default());
        let entitlements = Entitlements::new(db.clone(), locks.clone(), outbox.clone(), clock, metrics);
        Self { db, locks, outbox, accounts, entitlements }
    }

    /// Signs a user in, who gets a default account.
    async fn customer(&self, name: &str) -> (UserId, AccountId) {
        let sign_in = SignIn {
            issuer: "test".to_owned(),
            subject: name.to_owned(),
            display_name: None,
            roles: Vec::new(),
        };
        let user = self.accounts.sign_in(&sign_in).await.unwrap().user.id;
        let accounts = self.accounts.accounts(user).await.unwrap();
        (user, accounts[0].id)
    }

    /// Returns the data of the entitlement events in the outbox, oldest first, with their kind and key.
    async fn events(&self) -> Vec<Value> {
        let mut items = self.outbox.queue().list(Filter::All, 10_000).await.unwrap();
        items.reverse();
        let data = |payload: &[u8]| {
            let text = std::str::from_utf8(payload).unwrap();
            let (head, data) = text.split_once('\n').unwrap();
            let head: Value = serde_json::from_str(head).unwrap();
            let mut data: Value = serde_json::from_str(data).unwrap();
            data["kind"] = head["kind"].clone();
            data["key"] = head["key"].clone();
            data
        };
        let all = items.iter().map(|item| data(&item.payload));
        all.filter(|event| event["kind"].as_str().unwrap().contains("entitlement")).collect()
    }

    /// Returns the versions in the entitlement events, oldest first.
    async fn versions(&self) -> Vec<i64> {
        self.events().await.iter().map(|event| event["version"].as_i64().unwrap()).collect()
    }
}

fn config(url: &str, acquire_timeout: Duration) -> db::Config {
    let url = DbUrl::parse(&Configured::Text(url.to_owned())).unwrap();
    db::Config { url, max_connections: 16, acquire_timeout, migrate: false }
}

fn queue_config() -> outbox::Config {
    outbox::Config {
        workers: 1,
        batch: 100,
        poll: Duration::from_millis(20),
        lease: Duration::from_secs(60),
        max_attempts: 5,
        retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(100)),
        retention: Duration::from_secs(3600),
    }
}

fn change((user, account): (UserId, AccountId), resource: &str, at: i64, action: Action) -> Change {
    Change {
        holding: Holding { user, account, resource: resource.to_owned() },
        action,
        occurred_at: Timestamp::from_millis(at),
        reference: None,
    }
}

/// Applies one change under a new key and returns its result.
async fn apply(shop: &Shop, change: Change) -> Value {
    let key = format!("key-{}", fastrand::u64(..));
    let response = shop.entitlements.apply("shop", &key, &[change]).await.unwrap();
    response.results().unwrap().remove(0)
}
