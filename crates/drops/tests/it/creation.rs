//! Creating drops once, and the secret that all processes sign with.

use std::collections::HashSet;

use config::Secret;
use drops::{Drops, NewDrop, TokenSecrets};
use futures::future::join_all;

use super::*;

testkit::on_all_stores!(one_key_creates_one_drop, all_processes_sign_with_one_secret);

fn create(name: &str, stock: i64) -> NewDrop {
    let terms = json!({
        "price": { "amount": PRICE, "currency": "EUR" }, "per_player": 1, "reservation_ms": MINUTE,
        "admission": { "batch": 50, "capacity": 500, "lifetime_ms": 600_000, "arrive_within_ms": 60_000 },
    });
    NewDrop {
        name: name.to_owned(),
        resource: "sword".to_owned(),
        terms: serde_json::from_value(terms).unwrap(),
        stock,
        actor: "operator:ada".to_owned(),
    }
}

fn drops_of(shop: &Shop) -> Drops {
    Drops::new(shop.db.clone(), shop.outbox.clone(), Clock::manual(Timestamp::from_millis(NOW)))
}

async fn one_key_creates_one_drop(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let (one, other) = (drops_of(&shop), drops_of(&another));
    let new = create("summer", 10);
    // Concurrent requests to two processes.
    let created =
        join_all((0..8).map(|n| if n % 2 == 0 { &one } else { &other }.create_once(&new, "k1"))).await;
    let created: Vec<_> = created.into_iter().map(Result::unwrap).collect();
    assert_eq!(created.iter().filter(|created| !created.is_repeated).count(), 1, "{created:?}");
    assert_eq!(created.iter().map(|created| created.drop.id).collect::<HashSet<_>>().len(), 1);

    let refused = one.create_once(&create("summer", 11), "k1").await.unwrap_err();
    assert!(matches!(refused, Error::KeyReused), "{refused:?}");
    let refused = one.create_once(&new, "k2").await.unwrap_err();
    assert!(matches!(refused, Error::NameTaken(_)), "{refused:?}");
    let others = NewDrop { actor: "operator:eve".to_owned(), ..create("winter", 5) };
    assert!(
        !one.create_once(&others, "k1").await.unwrap().is_repeated,
        "keys of different actors are independent"
    );
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drops").await, 2);
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_stock").await, 2);
}

async fn all_processes_sign_with_one_secret(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let loaded =
        join_all((0..8).map(|n| TokenSecrets::load(if n % 2 == 0 { &shop.db } else { &another.db }, &[])))
            .await;
    let secrets = |loaded: &TokenSecrets| loaded.iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
    let loaded: HashSet<_> = loaded.iter().map(|loaded| secrets(loaded.as_ref().unwrap())).collect();
    assert_eq!(loaded.len(), 1);
    let stored = loaded.into_iter().next().unwrap();
    assert!(stored.len() == 1 && stored[0].len() == 32 && stored[0].iter().any(|byte| *byte != 0));

    // Configured secrets replace the stored one and keep their order. The debug output has none of them.
    let configured = ["new secret of 32 characters .....", "old secret of 32 characters ....."];
    let configured = configured.map(|text| Secret::parse(&Configured::Text(text.to_owned())).unwrap());
    let loaded = TokenSecrets::load(&shop.db, &configured).await.unwrap();
    assert_eq!(secrets(&loaded), configured.map(|secret| secret.expose().as_bytes().to_vec()));
    assert_eq!(format!("{loaded:?}"), "TokenSecrets { count: 2 }");
}
