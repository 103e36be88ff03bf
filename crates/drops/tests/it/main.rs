//! Stock and orders on real stores: one suite over SQLite, MariaDB and, if installed, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod batching;
mod crashes;
mod creation;
mod erasure;
#[path = "../support/events.rs"]
mod events;
mod interleavings;
mod journey;
#[path = "../support/kendall.rs"]
mod kendall;
mod live_stock;
mod provider;
mod purchases;
mod races;
mod reservations;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use account::{AccountId, Accounts, SignIn, UserId};
use base::{Backoff, Clock, Timestamp};
use config::{Setting, Value as Configured};
use db::{Db, DbUrl};
use drops::orders::{ListRefunds, Order, Orders, RefundDue, Webhook, WebhookKind};
use drops::stock::{Levels, Reservation, Stock, VerifiedAdmission};
use drops::{AdmissionId, DropId, DropsEraser, Error, OrderId};
use entitlement::{Entitlements, Holding, RevokeOnErase};
use hierlock::{LockManager, Options, Provisioner};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions};
use testkit::TestDatabase;
use work_queue::Filter;

const PATIENCE: Duration = Duration::from_secs(30);
const BUCKETS: u32 = 1_000;
/// The time on the clock of every process.
const NOW: i64 = 1_772_366_400_000;
const PRICE: i64 = 1_999;
const MINUTE: u64 = 60_000;

/// The services of one process, with their own connections.
#[derive(Clone)]
struct Shop {
    db: Db,
    outbox: Outbox,
    accounts: Accounts,
    entitlements: Entitlements,
    stock: Stock,
    orders: Orders,
}

/// The terms of a test's drop.
#[derive(Clone, Copy)]
struct Terms {
    units: i64,
    limit: i64,
    hold_ms: u64,
}

impl Shop {
    /// Returns the payments that must be refunded.
    async fn refunds_due(&self, limit: u32) -> Vec<RefundDue> {
        let which = ListRefunds { limit, ..ListRefunds::default() };
        self.orders.refunds_due(&which).await.unwrap().refunds
    }

    /// Creates the tables and opens the services.
    async fn open(place: &TestDatabase) -> Self {
        let config = config(&place.url());
        let db = Db::open(&config).await.unwrap();
        let all = [
            db::MIGRATIONS,
            outbox::MIGRATIONS,
            account::MIGRATIONS,
            entitlement::MIGRATIONS,
            drops::MIGRATIONS,
        ];
        db.migrate(&all).await.unwrap();
        if let Some(server) = config.server() {
            hierlock::create_tables(&mut server.connect().await.unwrap()).await.unwrap();
            Provisioner::new(server, BUCKETS).run(|_| ()).await.unwrap();
        }
        Self::on(db, &config).await
    }

    /// Opens the services on existing tables.
    async fn reopen(url: &str) -> Self {
        let config = config(url);
        Self::on(Db::open(&config).await.unwrap(), &config).await
    }

    /// Opens a second process. Returns this one on SQLite, where only one process may open the file.
    async fn another(&self, place: &TestDatabase) -> Self {
        if place.is_server() { Self::reopen(&place.url()).await } else { self.clone() }
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
        let metrics = entitlement::Metrics::new(&mut Registry::default());
        let entitlements = Entitlements::new(db.clone(), locks, outbox.clone(), clock.clone(), metrics);
        let stock = Stock::new(db.clone());
        accounts.on_erase(Arc::new(RevokeOnErase::new(outbox.clone(), clock.clone())));
        accounts.on_erase(Arc::new(DropsEraser::new(stock.clone())));
        let orders = Orders::new(db.clone(), stock.clone(), entitlements.clone(), outbox.clone(), clock);
        Self { db, outbox, accounts, entitlements, stock, orders }
    }

    /// Creates an open drop.
    async fn drop_of(&self, terms: Terms) -> DropId {
        let Terms { units, limit, hold_ms } = terms;
        let drop = DropId::generate();
        let terms = json!({
            "version": "1",
            "price": { "amount": PRICE, "currency": "EUR" },
            "per_player": limit,
            "admission": { "batch": 50, "period_ms": 3_000, "capacity": 500, "lifetime_ms": 600_000, "arrive_within_ms": 60_000 },
            "reservation_ms": hold_ms,
        });
        let id = drop.as_uuid().as_bytes().to_vec();
        let mut tx = self.db.begin().await.unwrap();
        db::on!(tx, connection => {
            sqlx::query("INSERT INTO drops (drop_id, name, state, resource, created_at, version, terms, seed, everyone_waits) \
                VALUES (?, ?, 2, 'sword', 0, 1, ?, ?, 0)")
                .bind(id.clone()).bind(drop.to_string()).bind(terms.to_string()).bind(vec![7_u8; 32])
                .execute(&mut *connection).await.unwrap();
        });
        self.stock.create_in(&mut tx, drop, units).unwrap();
        tx.commit().await.unwrap();
        drop
    }

    /// Sets a drop's state by its number in the table.
    async fn set_state(&self, drop: DropId, state: i32) {
        self.execute("UPDATE drops SET state = ? WHERE drop_id = ?", state.into(), drop).await;
    }

    async fn execute(&self, text: &'static str, value: i64, drop: DropId) {
        let mut tx = self.db.begin().await.unwrap();
        let id = drop.as_uuid().as_bytes().to_vec();
        db::on!(tx, connection => { sqlx::query(text).bind(value).bind(id).execute(connection).await.unwrap(); });
        tx.commit().await.unwrap();
    }

    /// Admits a user to a drop.
    async fn admit(&self, drop: DropId, (user, account): (UserId, AccountId)) -> VerifiedAdmission {
        self.admit_until(drop, (user, account), i64::MAX).await
    }

    async fn admit_until(
        &self,
        drop: DropId,
        (user, account): (UserId, AccountId),
        until: i64,
    ) -> VerifiedAdmission {
        let admission = AdmissionId::generate();
        let mut tx = self.db.begin().await.unwrap();
        let ids = [drop.as_uuid(), user.as_uuid(), account.as_uuid(), admission.as_uuid()];
        let [drop_id, user_id, account_id, admission_id] = ids.map(|id| id.as_bytes().to_vec());
        db::on!(tx, connection => {
            sqlx::query("INSERT INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, \
                entered_at, expires_at, changed_at) VALUES (?, ?, ?, 1, 1, 1, 0, ?, 0, ?, 0)")
                .bind(drop_id).bind(user_id).bind(account_id).bind(admission_id).bind(until)
                .execute(connection).await.unwrap();
        });
        tx.commit().await.unwrap();
        VerifiedAdmission { drop, user, admission }
    }

    /// Creates a user with a default account.
    async fn customer(&self, name: &str) -> (UserId, AccountId) {
        let sign_in = SignIn {
            issuer: "test".to_owned(),
            subject: name.to_owned(),
            display_name: None,
            roles: Vec::new(),
        };
        let user = self.accounts.sign_in(&sign_in).await.unwrap().user.id;
        (user, self.accounts.accounts(user).await.unwrap()[0].id)
    }

    async fn admitted(&self, drop: DropId, name: &str) -> VerifiedAdmission {
        self.admit(drop, self.customer(name).await).await
    }

    async fn reserve(&self, admitted: VerifiedAdmission, quantity: i64) -> Result<Reservation, Error> {
        self.stock.reserve(admitted, quantity, &format!("key-{}", fastrand::u64(..))).await
    }

    /// Reserves units and orders them.
    async fn ordered(&self, admitted: VerifiedAdmission, quantity: i64) -> Order {
        let reservation = self.reserve(admitted, quantity).await.unwrap();
        self.orders.pay(admitted.user, reservation.id, None).await.unwrap()
    }

    /// Returns how many swords the account of an order owns.
    async fn owned(&self, order: &Order) -> i64 {
        let holding = Holding { user: order.user, account: order.account, resource: "sword".to_owned() };
        match self.entitlements.get(&holding).await {
            Ok(view) => view.quantity.unwrap_or_default(),
            Err(entitlement::Error::NotFound(_)) => 0,
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Returns the states in the events of an order, oldest first.
    async fn published(&self, order: OrderId) -> Vec<String> {
        self.states_of(&format!("order/{order}")).await
    }

    /// Returns the states in the events of a key, oldest first.
    async fn states_of(&self, key: &str) -> Vec<String> {
        let mut entries = self.outbox.queue().list(Filter::All, 100_000).await.unwrap();
        entries.reverse();
        let state = |payload: &[u8]| {
            let (_, data) = std::str::from_utf8(payload).unwrap().split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            data["state"].as_str().unwrap().to_owned()
        };
        entries.iter().filter(|entry| entry.key == key).map(|entry| state(&entry.payload)).collect()
    }

    /// Fails unless every unit is accounted for.
    async fn assert_sound(&self, drop: DropId) -> Levels {
        let audit = self.stock.audit(drop).await.unwrap();
        assert!(audit.is_sound(), "{audit:?}");
        audit.levels
    }

    async fn scalar(&self, text: &str) -> i64 {
        let mut connection = self.db.connection().await.unwrap();
        let text = text.to_owned();
        db::on!(connection, raw => sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(raw).await.unwrap())
    }
}

fn config(url: &str) -> db::Config {
    let url = DbUrl::parse(&Configured::Text(url.to_owned())).unwrap();
    db::Config { url, max_connections: 16, acquire_timeout: Duration::from_secs(10), migrate: false }
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

/// Returns a webhook about an order, with a new webhook id.
fn webhook(order: &Order, kind: WebhookKind) -> Webhook {
    Webhook {
        id: format!("msg_{}", fastrand::u64(..)),
        kind,
        order: order.id,
        payment: format!("pay_{}", order.id),
        amount: order.amount,
        currency: order.currency.clone(),
    }
}

/// Returns the available, reserved and sold units, without adjustments by operators.
const fn counts(levels: Levels) -> (i64, i64, i64) {
    (levels.available, levels.reserved, levels.sold)
}
