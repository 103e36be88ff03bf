//! Processes that are killed at each fault point of a purchase.

use std::os::unix::process::ExitStatusExt;

use drops::orders::{OrderState, PaymentOutcome};
use drops::stock::Adjustment;
use testkit::{Program, eventually};

use super::*;

/// The environment variable that makes the test the child process. Its value is the `PurchaseSetup` as JSON.
const CHILD: &str = "TESTKIT_DROPS_PURCHASE";
/// Set if the child process gives each request its own transaction.
const ONE_BY_ONE: &str = "TESTKIT_DROPS_ALONE";
const SIGKILL: i32 = 9;

/// How the child process writes orders and payments.
#[derive(Clone, Copy, Debug)]
enum TransactionMode {
    Grouped,
    OneByOne,
}

const POINTS: [&str; 13] = [
    "drops.reserve.uncommitted",
    "drops.reserve.committed",
    "drops.pay.uncommitted",
    "drops.pay.committed",
    "drops.adjust.uncommitted",
    "drops.adjust.committed",
    "drops.order.granted",
    "drops.order.uncommitted",
    "drops.order.committed",
    "drops.release.uncommitted",
    "drops.release.committed",
    "drops.expire.uncommitted",
    "drops.expire.committed",
];

/// The fault points that a request in its own transaction passes, too.
const POINTS_ONE_BY_ONE: [&str; 5] = [
    "drops.pay.uncommitted",
    "drops.pay.committed",
    "drops.order.granted",
    "drops.order.uncommitted",
    "drops.order.committed",
];

#[tokio::test(flavor = "multi_thread")]
async fn purchase_resumes_after_a_kill_at_each_fault_point() {
    if let Ok(setup) = std::env::var(CHILD) {
        let setup = PurchaseSetup::parse(&setup);
        let mut shop = Shop::reopen(&setup.url).await;
        if std::env::var(ONE_BY_ONE).is_ok() {
            shop.orders = shop.orders.without_batching();
        }
        purchase(&shop, &setup).await;
        return;
    }
    for place in testkit::need!(TestDatabase::all().await) {
        let mut shop = Shop::open(&place).await;
        let one_by_one = POINTS_ONE_BY_ONE.map(|point| (point, TransactionMode::OneByOne));
        for (point, mode) in
            POINTS.map(|point| (point, TransactionMode::Grouped)).into_iter().chain(one_by_one)
        {
            let setup = PurchaseSetup::new(&shop, &place).await;
            // Only one process may open a SQLite file.
            shop.db.close().await;
            drop(shop);
            let mut child = Program::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "crashes::purchase_resumes_after_a_kill_at_each_fault_point",
                    "--nocapture",
                ])
                .env(CHILD, setup.to_string())
                .env("TESTKIT_FAULT", point);
            if let TransactionMode::OneByOne = mode {
                child = child.env(ONE_BY_ONE, "1");
            }
            let child = child.start().unwrap();
            let status = child.wait(PATIENCE).await;
            assert_eq!(status.signal(), Some(SIGKILL), "{point}, {mode:?}: {:?}", child.lines());
            shop = Shop::reopen(&place.url()).await;
            // No change is half done.
            shop.assert_sound(setup.long.drop).await;
            shop.assert_sound(setup.short.drop).await;
            // A retry with the same keys has its effect once.
            let order = purchase(&shop, &setup).await;
            assert_eq!(counts(shop.assert_sound(setup.long.drop).await), (5, 0, 1), "{point}");
            assert_eq!(counts(shop.assert_sound(setup.short.drop).await), (5, 0, 0), "{point}");
            assert_eq!(shop.owned(&order).await, 1, "{point}");
            assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"], "{point}");
        }
    }
}

/// A player who is inside two drops: one with long reservations, one with very short ones.
struct PurchaseSetup {
    url: String,
    long: VerifiedAdmission,
    short: VerifiedAdmission,
}

impl PurchaseSetup {
    async fn new(shop: &Shop, place: &TestDatabase) -> Self {
        let terms = Terms { units: 5, limit: 3, hold_ms: MINUTE };
        let (long, short) = (shop.drop_of(terms).await, shop.drop_of(Terms { hold_ms: 1, ..terms }).await);
        let player = shop.customer(&format!("player of {long}")).await;
        Self {
            url: place.url(),
            long: shop.admit(long, player).await,
            short: shop.admit(short, player).await,
        }
    }

    fn parse(text: &str) -> Self {
        let setup: Value = serde_json::from_str(text).unwrap();
        let id = |name: &str, at: usize| setup[name][at].as_str().unwrap().parse().unwrap();
        let admitted = |name| VerifiedAdmission {
            drop: DropId::from_uuid(id(name, 0)),
            user: UserId::from_uuid(id(name, 1)),
            admission: AdmissionId::from_uuid(id(name, 2)),
        };
        let url = setup["url"].as_str().unwrap().to_owned();
        Self { url, long: admitted("long"), short: admitted("short") }
    }
}

impl std::fmt::Display for PurchaseSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids =
            |of: &VerifiedAdmission| [of.drop.to_string(), of.user.to_string(), of.admission.to_string()];
        write!(f, "{}", json!({ "url": self.url, "long": ids(&self.long), "short": ids(&self.short) }))
    }
}

/// Passes every fault point, each request with its own key.
async fn purchase(shop: &Shop, PurchaseSetup { long, short, .. }: &PurchaseSetup) -> Order {
    let held = shop.stock.reserve(*long, 2, "buy").await.unwrap();
    let order = shop.orders.pay(long.user, held.id, Some(1)).await.unwrap();
    let adjustment = Adjustment {
        by: 1,
        actor: "olga".to_owned(),
        reason: "found one".to_owned(),
        key: long.drop.to_string(),
    };
    shop.stock.adjust(long.drop, &adjustment).await.unwrap();
    let paid = Webhook { id: format!("msg_{}", order.id), ..webhook(&order, WebhookKind::Succeeded) };
    shop.orders.record(&paid).await.unwrap();
    let other = shop.stock.reserve(*long, 1, "other").await.unwrap();
    shop.stock.release(long.user, other.id).await.unwrap();
    shop.stock.reserve(*short, 1, "short").await.unwrap();
    eventually("the reservation expires", PATIENCE, || async {
        shop.stock.expire(10).await.unwrap();
        shop.stock.levels(short.drop).await.unwrap().reserved == 0
    })
    .await;
    order
}

/// The environment variable that makes the test the child process. Its value has the orders that are paid together, as JSON.
const GROUP_CHILD: &str = "TESTKIT_DROPS_GROUP";
/// More payments than connections, so that the first group cannot take all of them.
const PAYMENTS: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn grouped_payments_resume_after_kill() {
    if let Ok(setup) = std::env::var(GROUP_CHILD) {
        let setup: Value = serde_json::from_str(&setup).unwrap();
        let shop = Shop::reopen(setup["url"].as_str().unwrap()).await;
        let webhooks: Vec<Webhook> = setup["orders"].as_array().unwrap().iter().map(confirmation).collect();
        let drop = setup["drop"].as_str().unwrap().parse().unwrap();
        shop.send_together(drop, &webhooks, 2).await;
        return;
    }
    for place in testkit::need!(TestDatabase::all().await) {
        let mut shop = Shop::open(&place).await;
        // The second group gathers while the first one is in flight.
        for (point, is_committed) in [("drops.order.uncommitted@2", false), ("drops.order.committed@2", true)]
        {
            let drop = shop.drop_of(Terms { units: 100, limit: 1, hold_ms: 10 * MINUTE }).await;
            let mut orders = Vec::new();
            for n in 0..PAYMENTS {
                let player = shop.admitted(drop, &format!("{point}-{n}")).await;
                orders.push(shop.ordered(player, 1).await);
            }
            let encoded: Vec<Value> = orders.iter().map(encode).collect();
            let setup = json!({ "url": place.url(), "drop": drop.to_string(), "orders": encoded });
            // Only one process may open a SQLite file.
            shop.db.close().await;
            std::mem::drop(shop);
            let child = Program::new(std::env::current_exe().unwrap())
                .args(["--exact", "crashes::grouped_payments_resume_after_kill", "--nocapture"])
                .env(GROUP_CHILD, setup.to_string())
                .env("TESTKIT_FAULT", point)
                .start()
                .unwrap();
            let status = child.wait(PATIENCE).await;
            assert_eq!(status.signal(), Some(SIGKILL), "{point}: {:?}", child.lines());
            shop = Shop::reopen(&place.url()).await;
            // A group commits as a whole or not at all.
            let levels = shop.assert_sound(drop).await;
            let (sales, transactions) = shop.sales(drop).await;
            assert_eq!((levels.sold, transactions), (sales, if is_committed { 2 } else { 1 }), "{point}");
            let mut paid = 0;
            for order in &orders {
                let is_paid = shop.published(order.id).await == ["PENDING", "PAID"];
                assert_eq!(shop.owned(order).await, i64::from(is_paid), "{point}");
                paid += i64::from(is_paid);
            }
            assert_eq!(paid, sales, "{point}");
            if is_committed {
                assert!(sales > 2, "the second group has more than one payment: {sales}");
            }
            // The provider sends all webhooks again.
            let webhooks: Vec<Webhook> = encoded.iter().map(confirmation).collect();
            let again = futures::future::join_all(webhooks.iter().map(|webhook| shop.orders.record(webhook)));
            let repeated = again.await.into_iter().filter(|answer| is_repeated(answer.as_ref().unwrap()));
            assert_eq!(repeated.count() as i64, sales, "{point}");
            assert_eq!(counts(shop.assert_sound(drop).await), (60, 0, 40), "{point}");
            for order in &orders {
                assert_eq!(shop.owned(order).await, 1, "{point}");
                assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"], "{point}");
            }
        }
    }
}

const fn is_repeated(outcome: &PaymentOutcome) -> bool {
    matches!(outcome, PaymentOutcome::Repeated(OrderState::Paid))
}

/// Encodes an order for the child process.
fn encode(order: &Order) -> Value {
    json!([order.id.to_string(), order.amount])
}

/// Returns the webhook that pays for an order. Both processes build the same one.
fn confirmation(order: &Value) -> Webhook {
    let id = order[0].as_str().unwrap();
    Webhook {
        id: format!("msg_{id}"),
        kind: WebhookKind::Succeeded,
        order: id.parse().unwrap(),
        payment: format!("pay_{id}"),
        amount: order[1].as_i64().unwrap(),
        currency: "EUR".to_owned(),
    }
}
