//! Reserves and payments racing with the end of a drop and with audits.

use std::sync::atomic::{AtomicBool, Ordering};

use drops::{Drops, EndMode, NewDrop};
use testkit::Seed;

use super::interleavings::take_random_steps;
use super::*;

testkit::on_all_stores!(close_races_with_reserves, the_audit_balances_at_every_moment);

/// The drop service of one process.
struct DropService {
    drops: Drops,
}

impl DropService {
    fn new(shop: &Shop) -> Self {
        let clock = Clock::manual(Timestamp::from_millis(NOW));
        let drops = Drops::new(shop.db.clone(), shop.outbox.clone(), clock);
        Self { drops }
    }

    /// Creates an open drop.
    async fn open(&self, stock: i64, limit: i64) -> DropId {
        let terms = serde_json::from_value(json!({
            "price": { "amount": PRICE, "currency": "EUR" },
            "per_player": limit,
            "admission": { "batch": 50, "period_ms": 3_000, "capacity": 500, "lifetime_ms": 600_000, "arrive_within_ms": 60_000 },
            "reservation_ms": MINUTE,
        }));
        let name = format!("drop {}", DropId::generate());
        let (resource, actor) = ("sword".to_owned(), "olga".to_owned());
        let new = NewDrop { name, resource, terms: terms.unwrap(), stock, actor };
        let drop = self.drops.create(&new).await.unwrap().id;
        self.drops.open(drop).await.unwrap();
        drop
    }
}

async fn close_races_with_reserves(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let service = DropService::new(&shop);
    let mut closed_first = 0;
    for round in 0..12 {
        let drop = service.open(100, 1).await;
        let mut players = Vec::new();
        for n in 0..4 {
            players.push(shop.admitted(drop, &format!("player-{round}-{n}")).await);
        }
        let reserves = players.iter().enumerate().map(|(n, player)| {
            let shop = if n % 2 == 0 { &shop } else { &another };
            shop.reserve(*player, 1)
        });
        let closing = service.drops.close(drop, EndMode::UnlessReserved);
        // In half of the rounds the reserves begin later, so that either side can win.
        let (closed, reserved) = tokio::join!(closing, async {
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            futures::future::join_all(reserves).await
        });
        let sold = reserved.iter().filter(|reserved| reserved.is_ok()).count();
        let levels = shop.assert_sound(drop).await;
        assert_eq!(levels.reserved, sold as i64, "{reserved:?}");
        match closed {
            Ok(_) => {
                closed_first += 1;
                assert_eq!(sold, 0, "a closed drop has no open reservation: {reserved:?}");
                assert!(reserved.iter().all(|reserved| matches!(reserved, Err(Error::NotOpen(_)))));
            }
            Err(Error::OpenReservations(_)) => assert!(sold > 0),
            Err(error) => panic!("{error:?}"),
        }
        // A forced close succeeds at once, and no unit is reserved afterwards.
        if levels.reserved > 0 {
            service.drops.close(drop, EndMode::Forced).await.unwrap();
        }
        let late = shop.admitted(drop, &format!("late-{round}")).await;
        assert!(matches!(another.reserve(late, 1).await, Err(Error::NotOpen(_))));
    }
    eprintln!("closed first in {closed_first} of 12 rounds");
}

async fn the_audit_balances_at_every_moment(place: &TestDatabase) {
    let (seed, shop) = (Seed::new(), Shop::open(place).await);
    let another = shop.another(place).await;
    let drop = shop.drop_of(Terms { units: 12, limit: 3, hold_ms: 30 }).await;
    let mut buyers = Vec::new();
    for n in 0..12 {
        buyers.push(shop.admitted(drop, &format!("buyer-{n}")).await);
    }
    let is_over = AtomicBool::new(false);
    let stepping = async {
        let tasks = (0..4).map(|n| {
            let shop = if n % 2 == 0 { &shop } else { &another };
            take_random_steps(shop, &buyers, seed.choices(n), 60, &|| ())
        });
        futures::future::join_all(tasks).await;
        is_over.store(true, Ordering::SeqCst);
    };
    let auditing = async {
        let mut versions = std::collections::BTreeSet::new();
        while !is_over.load(Ordering::SeqCst) {
            versions.insert(shop.assert_sound(drop).await.version);
        }
        versions.len()
    };
    let ((), versions) = tokio::join!(stepping, auditing);
    assert!(versions > 10, "{versions} versions were audited");
    shop.assert_sound(drop).await;
}
