//! Measures committed grants per second, compared with bare transactions of two rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use account::{AccountId, Accounts, SignIn, UserId};
use entitlement::{Action, Change, Entitlements, Holding};
use hierlock::{LockManager, Options, Provisioner};
use sqlx::{ConnectOptions, Executor};

use super::*;

const TASKS: usize = 64;
const USERS: usize = 500;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(4);
const BUCKETS: u32 = 100_000;

pub(super) async fn run(report: &mut Report) {
    let server = server().await;
    let database = server.database().await;
    let (db, config) = open(&database, TASKS as u32).await;
    let options = config.server().unwrap();
    let mut connection = options.connect().await.unwrap();
    hierlock::create_tables(&mut connection).await.unwrap();
    for text in [
        "CREATE TABLE bare_state (id BIGINT NOT NULL PRIMARY KEY, state INT NOT NULL, version BIGINT NOT NULL) ENGINE = InnoDB",
        "CREATE TABLE bare_outbox (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, state INT NOT NULL, due_at BIGINT NOT NULL, \
         payload MEDIUMBLOB NOT NULL, KEY by_state (state, due_at, id)) ENGINE = InnoDB",
    ] {
        connection.execute(text).await.unwrap();
    }
    Provisioner::new(options.clone(), BUCKETS).run(|_| ()).await.unwrap();
    let locks =
        LockManager::mysql(options, &Options { buckets: BUCKETS, ..Options::default() }).await.unwrap();
    let outbox = outbox(&db, queue_config());
    let accounts = Accounts::new(db.clone(), locks.clone(), outbox.clone(), clock());
    let mut customers = Vec::new();
    for n in 0..USERS {
        let sign_in =
            SignIn { issuer: "bench".into(), subject: format!("{n}"), display_name: None, roles: Vec::new() };
        let user = accounts.sign_in(&sign_in).await.unwrap().user.id;
        customers.push((user, accounts.accounts(user).await.unwrap()[0].id));
    }
    let metrics = entitlement::Metrics::new(&mut Registry::default());
    let entitlements = Entitlements::new(db.clone(), locks, outbox, clock(), metrics);
    let (customers, next) = (Arc::new(customers), Arc::new(AtomicU64::new(1)));

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (entitlements, customers, numbers) = (entitlements.clone(), customers.clone(), next.clone());
        let grant = move || {
            let (entitlements, customers) = (entitlements.clone(), customers.clone());
            let n = numbers.fetch_add(1, Ordering::Relaxed);
            async move { apply_grant(&entitlements, &customers, n).await }
        };
        ours.push(rate(grant).await);
        let (db, numbers) = (db.clone(), next.clone());
        let insert = move || {
            let (db, n) = (db.clone(), numbers.fetch_add(1, Ordering::Relaxed));
            async move { insert_two_rows(&db, n).await }
        };
        bare.push(rate(insert).await);
    }
    let what = "grants committed/s, 64 tasks";
    let ratio = add_row(report, what, median(ours), median(bare), ">= 0.5", "two bare inserts and COMMIT");
    report.measure("grants", ratio);
}

async fn apply_grant(entitlements: &Entitlements, customers: &[(UserId, AccountId)], n: u64) {
    let (user, account) = customers[n as usize % customers.len()];
    let change = Change {
        holding: Holding { user, account, resource: format!("item-{}", n / customers.len() as u64) },
        action: Action::Grant { quantity: None, valid_until: None },
        occurred_at: clock().now(),
        reference: None,
    };
    entitlements.apply("shop", &format!("order-{n}"), &[change]).await.unwrap();
}

/// Commits the minimum of a grant: a row for the state and one for the event.
async fn insert_two_rows(db: &Db, n: u64) {
    let mut tx = db.begin().await.unwrap();
    db::on!(tx, connection => {
        sqlx::query("INSERT INTO bare_state (id, state, version) VALUES (?, 0, 1)")
            .bind(n as i64)
            .execute(&mut *connection)
            .await
            .unwrap();
        sqlx::query("INSERT INTO bare_outbox (state, due_at, payload) VALUES (0, ?, ?)")
            .bind(n as i64)
            .bind(&[b'x'; 400][..])
            .execute(&mut *connection)
            .await
            .unwrap();
    });
    tx.commit().await.unwrap();
}

/// Returns how often all tasks together complete `work` per second.
async fn rate<F: Future<Output = ()> + Send + 'static>(
    work: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> f64 {
    let (done, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let tasks = (0..TASKS).map(|_| {
        let (work, done) = (work.clone(), done.clone());
        tokio::spawn(async move {
            while start.elapsed() < ROUND {
                work().await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}
