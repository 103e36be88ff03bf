//! A process that is killed at each point of a purchase.

use std::os::unix::process::ExitStatusExt;

use drops::stock::Adjustment;
use testkit::{Program, eventually};

use super::*;

/// What the process that is killed works on, as JSON.
const DOOMED: &str = "TESTKIT_DROPS_PURCHASE";
const SIGKILL: i32 = 9;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_survives_a_kill_at_each_point() {
    if let Ok(scene) = std::env::var(DOOMED) {
        let scene = Scene::read(&scene);
        purchase(&Shop::reopen(&scene.url).await, &scene).await;
        return;
    }
    for place in testkit::need!(SqlPlace::all().await) {
        let mut shop = Shop::open(&place).await;
        for point in POINTS {
            let scene = Scene::new(&shop, &place).await;
            // A SQLite file has one process.
            shop.db.close().await;
            drop(shop);
            let doomed = Program::new(std::env::current_exe().unwrap())
                .args(["--exact", "crashes::a_purchase_survives_a_kill_at_each_point", "--nocapture"])
                .env(DOOMED, scene.to_string())
                .env("TESTKIT_FAULT", point)
                .start()
                .unwrap();
            let status = doomed.wait(PATIENCE).await;
            assert_eq!(status.signal(), Some(SIGKILL), "{point}: {:?}", doomed.lines());
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
