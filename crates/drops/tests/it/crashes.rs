//! A process that is killed at each point of a purchase.

use std::os::unix::process::ExitStatusExt;

use drops::orders::{OrderState, Outcome};
use drops::stock::Adjustment;
use testkit::{Program, eventually};

use super::*;

/// What the process that is killed works on, as JSON.
const DOOMED: &str = "TESTKIT_DROPS_PURCHASE";
/// Set for a process that gives each request a transaction of its own.
const ALONE: &str = "TESTKIT_DROPS_ALONE";
const SIGKILL: i32 = 9;

/// How the process makes orders and confirms payments.
#[derive(Clone, Copy, Debug)]
enum Way {
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

/// Those that are also passed by a request that has a transaction of its own.
const POINTS_ALONE: [&str; 5] = [
    "drops.pay.uncommitted",
    "drops.pay.committed",
    "drops.order.granted",
    "drops.order.uncommitted",
    "drops.order.committed",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_survives_a_kill_at_each_point() {
    if let Ok(scene) = std::env::var(DOOMED) {
        let scene = Scene::read(&scene);
        let mut shop = Shop::reopen(&scene.url).await;
        if std::env::var(ALONE).is_ok() {
            shop.orders = shop.orders.one_by_one();
        }
        purchase(&shop, &scene).await;
        return;
    }
    for place in testkit::need!(SqlPlace::all().await) {
        let mut shop = Shop::open(&place).await;
        let alone = POINTS_ALONE.map(|point| (point, Way::OneByOne));
        for (point, way) in POINTS.map(|point| (point, Way::Grouped)).into_iter().chain(alone) {
            let scene = Scene::new(&shop, &place).await;
            // A SQLite file has one process.
            shop.db.close().await;
            drop(shop);
            let mut doomed = Program::new(std::env::current_exe().unwrap())
                .args(["--exact", "crashes::a_purchase_survives_a_kill_at_each_point", "--nocapture"])
                .env(DOOMED, scene.to_string())
                .env("TESTKIT_FAULT", point);
            if let Way::OneByOne = way {
                doomed = doomed.env(ALONE, "1");
            }
            let doomed = doomed.start().unwrap();
            let status = doomed.wait(PATIENCE).await;
            assert_eq!(status.signal(), Some(SIGKILL), "{point}, {way:?}: {:?}", doomed.lines());
            shop = Shop::reopen(&place.url()).await;
            // Nothing is half done.
            shop.assert_sound(scene.long.drop).await;
            shop.assert_sound(scene.short.drop).await;
            // Who tries again with the same keys gets what they asked for, once.
            let order = purchase(&shop, &scene).await;
            assert_eq!(counts(shop.assert_sound(scene.long.drop).await), (5, 0, 1), "{point}");
            assert_eq!(counts(shop.assert_sound(scene.short.drop).await), (5, 0, 0), "{point}");
            assert_eq!(shop.owned(&order).await, 1, "{point}");
            assert_eq!(shop.published(order.id).await, ["PENDING", "PAID"], "{point}");
        }
    }
}

/// A player inside of two drops, one of which holds reservations for a moment only.
struct Scene {
    url: String,
    long: Admitted,
    short: Admitted,
}

impl Scene {
    async fn new(shop: &Shop, place: &SqlPlace) -> Self {
        let terms = Terms { units: 5, limit: 3, hold_ms: MINUTE };
        let (long, short) = (shop.drop_of(terms).await, shop.drop_of(Terms { hold_ms: 1, ..terms }).await);
        let player = shop.customer(&format!("player of {long}")).await;
        Self {
            url: place.url(),
            long: shop.admit(long, player).await,
            short: shop.admit(short, player).await,
        }
    }

    fn read(text: &str) -> Self {
        let scene: Value = serde_json::from_str(text).unwrap();
        let id = |name: &str, at: usize| scene[name][at].as_str().unwrap().parse().unwrap();
        let admitted = |name| Admitted {
            drop: DropId::from_uuid(id(name, 0)),
            user: UserId::from_uuid(id(name, 1)),
            admission: AdmissionId::from_uuid(id(name, 2)),
        };
        let url = scene["url"].as_str().unwrap().to_owned();
        Self { url, long: admitted("long"), short: admitted("short") }
    }
}

impl std::fmt::Display for Scene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = |of: &Admitted| [of.drop.to_string(), of.user.to_string(), of.admission.to_string()];
        write!(f, "{}", json!({ "url": self.url, "long": ids(&self.long), "short": ids(&self.short) }))
    }
}

/// Does everything that has a point, each under its own key.
async fn purchase(shop: &Shop, Scene { long, short, .. }: &Scene) -> Order {
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

/// The orders that the process which is killed confirms together, as JSON.
const DOOMED_GROUP: &str = "TESTKIT_DROPS_GROUP";
/// More than connections, so that they do not all make the first group.
const IN_GROUPS: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn payments_of_a_group_survive_a_kill() {
    if let Ok(scene) = std::env::var(DOOMED_GROUP) {
        let scene: Value = serde_json::from_str(&scene).unwrap();
        let shop = Shop::reopen(scene["url"].as_str().unwrap()).await;
        let webhooks: Vec<Webhook> = scene["orders"].as_array().unwrap().iter().map(confirmation).collect();
        let drop = scene["drop"].as_str().unwrap().parse().unwrap();
        shop.send_together(drop, &webhooks, 2).await;
        return;
    }
    for place in testkit::need!(SqlPlace::all().await) {
        let mut shop = Shop::open(&place).await;
        // The first group is what came first; the second one gathered while that was under way.
        for (point, is_committed) in [("drops.order.uncommitted@2", false), ("drops.order.committed@2", true)]
        {
            let drop = shop.drop_of(Terms { units: 100, limit: 1, hold_ms: 10 * MINUTE }).await;
            let mut orders = Vec::new();
            for n in 0..IN_GROUPS {
                let player = shop.admitted(drop, &format!("{point}-{n}")).await;
                orders.push(shop.ordered(player, 1).await);
            }
            let written: Vec<Value> = orders.iter().map(written).collect();
            let scene = json!({ "url": place.url(), "drop": drop.to_string(), "orders": written });
            // A SQLite file has one process.
            shop.db.close().await;
            std::mem::drop(shop);
            let doomed = Program::new(std::env::current_exe().unwrap())
                .args(["--exact", "crashes::payments_of_a_group_survive_a_kill", "--nocapture"])
                .env(DOOMED_GROUP, scene.to_string())
                .env("TESTKIT_FAULT", point)
                .start()
                .unwrap();
            let status = doomed.wait(PATIENCE).await;
            assert_eq!(status.signal(), Some(SIGKILL), "{point}: {:?}", doomed.lines());
            shop = Shop::reopen(&place.url()).await;
            // All of a group happened, or nothing of it.
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
            // The provider sends all of them again.
            let webhooks: Vec<Webhook> = written.iter().map(confirmation).collect();
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

const fn is_repeated(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Repeated(OrderState::Paid))
}

/// An order as the other process reads it.
fn written(order: &Order) -> Value {
    json!([order.id.to_string(), order.amount])
}

/// The webhook that pays for an order: the same whichever process makes it.
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
