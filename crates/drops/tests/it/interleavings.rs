//! Many buyers, few units, and processes that are killed while they sell.

use std::collections::BTreeMap;

use drops::orders::OrderState;
use drops::stock::Adjustment;
use testkit::{Program, Seed, eventually};

use super::*;

/// The environment variable that makes the test the child process. Its value is the setup as JSON.
const CHILD: &str = "TESTKIT_DROPS_STORM";
const PROGRESS: &str = "steps taken";
const UNITS: i64 = 12;
const LIMIT: i64 = 3;
const BUYERS: usize = 16;
const KILLS: u64 = 3;
/// Short, so that reservations expire while players pay.
const HOLD_MS: u64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn no_unit_is_oversold_or_lost_under_kills() {
    if let Ok(setup) = std::env::var(CHILD) {
        return run_child(&serde_json::from_str(&setup).unwrap()).await;
    }
    for place in testkit::need!(TestDatabase::all().await) {
        run_with_kills(&place).await;
    }
}

async fn run_with_kills(place: &TestDatabase) {
    let seed = Seed::new();
    let mut shop = Shop::open(place).await;
    let item = shop.drop_of(Terms { units: UNITS, limit: LIMIT, hold_ms: HOLD_MS }).await;
    let mut buyers = Vec::new();
    for n in 0..BUYERS {
        buyers.push(shop.admitted(item, &format!("buyer-{n}")).await);
    }
    let ids: Vec<[String; 2]> =
        buyers.iter().map(|buyer| [buyer.user.to_string(), buyer.admission.to_string()]).collect();
    for kill in 0..KILLS {
        let mut choices = seed.choices(1_000 + kill);
        let setup = json!({
            "url": place.url(), "drop": item.to_string(), "buyers": ids, "seed": choices.u64(..),
        });
        // Only one process may open a SQLite file.
        shop.db.close().await;
        drop(shop);
        let child = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "interleavings::no_unit_is_oversold_or_lost_under_kills", "--nocapture"])
            .env(CHILD, setup.to_string())
            .start()
            .unwrap();
        let step = choices.u64(1..40);
        let line = format!("{step} {PROGRESS}");
        let progressing = child.wait_for_line(&line, PATIENCE);
        if place.is_server() {
            // This process sells at the same time.
            let concurrent = Shop::reopen(&place.url()).await;
            let selling = take_random_steps(&concurrent, &buyers, seed.choices(kill), 60, &|| ());
            let killing = async {
                progressing.await;
                child.kill();
            };
            tokio::join!(selling, killing);
            concurrent.db.close().await;
        } else {
            progressing.await;
            child.kill();
        }
        child.wait(PATIENCE).await;
        shop = Shop::reopen(&place.url()).await;
        let levels = shop.assert_sound(item).await;
        assert!(levels.sold + levels.reserved <= levels.total(), "{levels:?}");
    }
    check_at_end(&shop, item, &buyers).await;
}

/// Waits until no unit is reserved, then compares the stock with entitlements, orders and events.
async fn check_at_end(shop: &Shop, drop: DropId, buyers: &[VerifiedAdmission]) {
    eventually("all reservations expire", PATIENCE, || async {
        shop.stock.expire(100).await.unwrap();
        shop.stock.levels(drop).await.unwrap().reserved == 0
    })
    .await;
    let levels = shop.assert_sound(drop).await;
    let owned = shop.scalar("SELECT CAST(COALESCE(SUM(quantity), 0) AS SIGNED) FROM entitlements").await;
    assert_eq!(owned, levels.sold, "every sold unit is owned");
    let published = shop.all_published().await;
    let mut units = 0;
    for buyer in buyers {
        let orders = shop.orders.list(buyer.user, None, 1_000).await.unwrap();
        let paid = orders.iter().filter(|order| order.state == OrderState::Paid);
        let of_buyer: i64 = paid.map(|order| order.quantity).sum();
        assert!(of_buyer <= LIMIT, "{of_buyer}");
        units += of_buyer;
        for order in orders {
            let states = &published[&order.id.to_string()];
            assert_eq!(states.len() as i64, order.version, "one event per change: {states:?}");
            assert_eq!(states.last().map(String::as_str), Some(order.state.as_str()));
        }
    }
    assert_eq!(units, levels.sold);
    eprintln!("{levels:?}, {} orders", published.len());
}

impl Shop {
    /// Returns the states in the events of every order, oldest first.
    pub(super) async fn all_published(&self) -> BTreeMap<String, Vec<String>> {
        let mut entries = self.outbox.queue().list(Filter::All, 1_000_000).await.unwrap();
        entries.reverse();
        let mut published: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in entries {
            let Some(order) = entry.key.strip_prefix("order/") else { continue };
            let (_, data) = std::str::from_utf8(&entry.payload).unwrap().split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            published.entry(order.to_owned()).or_default().push(data["state"].as_str().unwrap().to_owned());
        }
        published
    }
}

/// Sells until this process is killed.
async fn run_child(setup: &Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let shop = Shop::reopen(&text(&setup["url"])).await;
    let drop: DropId = text(&setup["drop"]).parse().unwrap();
    let buyers = setup["buyers"].as_array().unwrap().iter().map(|buyer| VerifiedAdmission {
        drop,
        user: text(&buyer[0]).parse().unwrap(),
        admission: text(&buyer[1]).parse().unwrap(),
    });
    let buyers: Vec<VerifiedAdmission> = buyers.collect();
    let steps = std::sync::atomic::AtomicU64::new(0);
    let progress = || {
        let step = steps.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        eprintln!("{step} {PROGRESS}");
    };
    let choices = (0..4).map(|task| fastrand::Rng::with_seed(setup["seed"].as_u64().unwrap() ^ task));
    let tasks = choices.map(|choices| take_random_steps(&shop, &buyers, choices, usize::MAX, &progress));
    futures::future::join_all(tasks).await;
}

/// Takes random steps. Some are cancelled half-way.
pub(super) async fn take_random_steps(
    shop: &Shop,
    buyers: &[VerifiedAdmission],
    mut choices: fastrand::Rng,
    steps: usize,
    progress: &(impl Fn() + Sync),
) {
    for _ in 0..steps {
        let buyer = buyers[choices.usize(..buyers.len())];
        let (kind, quantity, timeout) =
            (choices.u32(..12), choices.i64(1..=LIMIT), Duration::from_micros(choices.u64(..20_000)));
        let step = take_step(shop, buyer, kind, quantity);
        // Cancelled half-way, as when a client disconnects.
        if choices.u8(..4) == 0 {
            drop(tokio::time::timeout(timeout, step).await);
        } else {
            step.await;
        }
        progress();
    }
}

async fn take_step(shop: &Shop, buyer: VerifiedAdmission, kind: u32, quantity: i64) {
    match kind {
        0..=3 => {
            let reserved = shop.reserve(buyer, quantity).await;
            let Some(reservation) = expected(reserved) else { return };
            let _ = expected(shop.orders.pay(buyer.user, reservation.id, Some(quantity.min(2))).await);
        }
        4 => {
            let _ = expected(shop.stock.expire(5).await);
        }
        5 => {
            let (actor, reason) = ("olga".to_owned(), "random step".to_owned());
            let key = fastrand::u64(..).to_string();
            let by = if quantity == 1 { 1 } else { -1 };
            let _ = expected(shop.stock.adjust(buyer.drop, &Adjustment { by, actor, reason, key }).await);
        }
        6 => {
            for held in shop.stock.held(buyer.user, 1).await.unwrap() {
                let _ = expected(shop.stock.release(buyer.user, held.id).await);
            }
        }
        _ => {
            let webhook_kind = match kind {
                7..=9 => WebhookKind::Succeeded,
                10 => WebhookKind::Failed,
                _ => WebhookKind::Refunded,
            };
            for order in shop.orders.list(buyer.user, None, 2).await.unwrap() {
                let _ = expected(shop.orders.record(&webhook(&order, webhook_kind)).await);
            }
        }
    }
}

/// Returns none for refusals, which random steps may cause. Panics on any other error.
fn expected<T>(done: Result<T, Error>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(
            // A player who has bought up to the limit has left.
            Error::NotAdmitted
            | Error::SoldOut { .. }
            | Error::OverLimit { .. }
            | Error::Invalid { .. }
            | Error::ReservationEnded(_)
            | Error::AlreadyPaid(_)
            | Error::StockInUse { .. },
        ) => None,
        Err(error) => panic!("{error:?}"),
    }
}
