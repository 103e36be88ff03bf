//! Full purchases per second on one hot item: reserve, order, and the webhook that sells the units, grants them and publishes the event.
//!
//! The references are purchases whose orders and webhooks each have their own transaction, and reserves without a purchase, by the same
//! players in the same run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use account::{Accounts, SignIn};
use base::{Backoff, Clock};
use config::{Setting, Value};
use db::{Db, DbUrl};
use drops::orders::{Orders, Webhook, WebhookKind};
use drops::stock::{Stock, VerifiedAdmission};
use drops::{AdmissionId, DropId};
use entitlement::Entitlements;
use futures::StreamExt;
use hierlock::{LockManager, Options, Provisioner};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use sqlx::ConnectOptions;
use testkit::bench::Report;
use testkit::{Flavour, SqlServer};

const TASKS: [usize; 3] = [1, 64, 256];
const TURNS: usize = 3;
const TURN: Duration = Duration::from_millis(1_500);
const BUCKETS: u32 = 10_000;
/// Many, so that each buys only a few times, as real players do. A reserve reads all earlier purchases of its player.
const PLAYERS: usize = 5_000;

#[derive(Clone, Copy)]
enum Mode {
    Grouped,
    OneByOne,
    ReserveOnly,
}

const MODES: [(Mode, &str); 3] = [
    (Mode::Grouped, "full purchases"),
    (Mode::OneByOne, "purchases with groups of one (reference)"),
    (Mode::ReserveOnly, "reserves of the same players (reference)"),
];

#[derive(Clone)]
struct Bench {
    stock: Stock,
    orders: Orders,
    /// Gives each request its own transaction.
    ungrouped: Orders,
    /// More players than tasks, since the purchases of one player wait for each other.
    players: Arc<Vec<VerifiedAdmission>>,
    next: Arc<AtomicU64>,
}

pub(super) async fn run(report: &mut Report) {
    let server = SqlServer::builder(Flavour::Mariadb).durable().start().await.unwrap();
    let database = server.database().await;
    let url = DbUrl::parse(&Value::Text(database.url().to_owned())).unwrap();
    let config =
        db::Config { url, max_connections: 64, acquire_timeout: Duration::from_secs(60), migrate: true };
    let bench = prepare(&config).await;
    let mut rates = vec![vec![Vec::new(); TASKS.len()]; MODES.len()];
    for turn in 0..TURNS {
        for (at, tasks) in TASKS.into_iter().enumerate() {
            for (of, (mode, name)) in MODES.into_iter().enumerate() {
                let rate = bench.rate(tasks, mode).await;
                eprintln!("turn {turn}, {tasks} tasks, {name}: {rate:.0}/s");
                rates[of][at].push(rate);
            }
        }
    }
    let audit = bench.stock.audit(bench.players[0].drop).await.unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    let medians: Vec<Vec<f64>> =
        rates.into_iter().map(|of| of.into_iter().map(super::reserves::median).collect()).collect();
    for ((_, name), of) in MODES.iter().zip(&medians) {
        let shown = of.iter().map(|rate| format!("{rate:.0}"));
        report.row(std::iter::once((*name).to_owned()).chain(shown));
    }
    let [grouped, ungrouped] = [&medians[0], &medians[1]];
    report.measure("purchases_256_tasks", grouped[2]);
    report.measure("purchases_256_tasks_against_groups_of_one", grouped[2] / ungrouped[2]);
    report.measure("purchases_1_task_against_groups_of_one", grouped[0] / ungrouped[0]);
}

async fn prepare(config: &db::Config) -> Bench {
    let db = Db::open(config).await.unwrap();
    let all =
        [db::MIGRATIONS, outbox::MIGRATIONS, account::MIGRATIONS, entitlement::MIGRATIONS, drops::MIGRATIONS];
    db.migrate(&all).await.unwrap();
    let server = config.server().unwrap();
    hierlock::create_tables(&mut server.connect().await.unwrap()).await.unwrap();
    Provisioner::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
    let clock = Clock::system();
    let options = Options { buckets: BUCKETS, ..Options::default() };
    let locks = LockManager::mysql(server, &options).await.unwrap();
    let queue = outbox::Config {
        workers: 1,
        batch: 100,
        poll: Duration::from_secs(1),
        lease: Duration::from_secs(60),
        max_attempts: 5,
        retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(1)),
        retention: Duration::from_secs(3_600),
    };
    let metrics = outbox::Metrics::new(&mut Registry::default(), outbox::TABLE);
    let outbox = Outbox::new(db.clone(), queue, metrics, clock.clone());
    let accounts = Accounts::new(db.clone(), locks.clone(), outbox.clone(), clock.clone());
    let metrics = entitlement::Metrics::new(&mut Registry::default());
    let entitlements = Entitlements::new(db.clone(), locks, outbox.clone(), clock.clone(), metrics);
    let stock = Stock::new(db.clone());
    let orders = Orders::new(db.clone(), stock.clone(), entitlements, outbox, clock);
    let drop = DropId::generate();
    let terms = r#"{"version":"1","price":{"amount":1,"currency":"EUR"},"per_player":1000000,
        "admission":{"batch":1,"capacity":1,"lifetime_ms":600000,"arrive_within_ms":60000},"reservation_ms":600000}"#;
    let mut tx = db.begin().await.unwrap();
    let id = drop.as_uuid().as_bytes().to_vec();
    db::on!(tx, connection => {
        sqlx::query("INSERT INTO drops (drop_id, name, state, resource, created_at, version, terms, seed, everyone_waits) \
            VALUES (?, 'purchases', 2, 'sword', 0, 1, ?, REPEAT('x', 32), 0)")
            .bind(id.clone()).bind(terms).execute(connection).await.unwrap();
    });
    stock.create_in(&mut tx, drop, 1_000_000_000).unwrap();
    tx.commit().await.unwrap();
    let players = futures::stream::iter(0..PLAYERS).map(async |n| {
        let (id, accounts, db) = (id.clone(), &accounts, &db);
        let (issuer, subject) = ("bench".to_owned(), n.to_string());
        let sign_in = SignIn { issuer, subject, display_name: None, roles: Vec::new() };
        let user = accounts.sign_in(&sign_in).await.unwrap().user.id;
        let account = accounts.accounts(user).await.unwrap()[0].id;
        let admission = AdmissionId::generate();
        let ids = [user.as_uuid(), account.as_uuid(), admission.as_uuid()];
        let [user_id, account_id, admission_id] = ids.map(|id| id.as_bytes().to_vec());
        let mut tx = db.begin().await.unwrap();
        db::on!(tx, connection => {
            sqlx::query("INSERT INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, \
                entered_at, expires_at, changed_at) VALUES (?, ?, ?, 1, ?, ?, 0, ?, 0, 9000000000000000, 0)")
                .bind(id.clone()).bind(user_id).bind(account_id).bind(n as i64).bind(n as i64).bind(admission_id)
                .execute(connection).await.unwrap();
        });
        tx.commit().await.unwrap();
        VerifiedAdmission { drop, user, admission }
    });
    let players: Vec<VerifiedAdmission> = players.buffer_unordered(32).collect().await;
    Bench {
        stock,
        ungrouped: orders.clone().without_batching(),
        orders,
        players: Arc::new(players),
        next: Arc::default(),
    }
}

impl Bench {
    /// Returns the operations per second of all tasks together.
    async fn rate(&self, tasks: usize, mode: Mode) -> f64 {
        let (done, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let all = (0..tasks).map(|_| {
            let (bench, done) = (self.clone(), done.clone());
            tokio::spawn(async move {
                while began.elapsed() < TURN {
                    bench.buy(mode).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        for task in all.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
    }

    async fn buy(&self, mode: Mode) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let player = self.players[number as usize % PLAYERS];
        let number = number.to_string();
        let held = self.stock.reserve(player, 1, &number).await.unwrap();
        let orders = match mode {
            Mode::Grouped => &self.orders,
            Mode::OneByOne => &self.ungrouped,
            Mode::ReserveOnly => return,
        };
        let order = orders.pay(player.user, held.id, None).await.unwrap();
        let webhook = Webhook {
            id: format!("msg_{number}"),
            kind: WebhookKind::Succeeded,
            order: order.id,
            payment: format!("pay_{number}"),
            amount: order.amount,
            currency: order.currency,
        };
        orders.record(&webhook).await.unwrap();
    }
}
