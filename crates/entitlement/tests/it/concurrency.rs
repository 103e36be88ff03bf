//! Concurrent requests.

use testkit::Seed;

use super::*;

testkit::on_all_stores!(
    concurrent_changes_of_one_entitlement_are_serialized,
    batches_in_any_order_do_not_deadlock
);

async fn concurrent_changes_of_one_entitlement_are_serialized(place: &TestDatabase) {
    const CHANGES_PER_TASK: i64 = 40;
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let ada = shop.customer("ada").await;
    let more = Action::Grant { quantity: Some(1), valid_until: None };
    let tasks = (0..4).map(|n| {
        let shop = if n % 2 == 0 { shop.clone() } else { another.clone() };
        tokio::spawn(async move {
            for _ in 0..CHANGES_PER_TASK {
                apply(&shop, change(ada, "gems", NOW, more)).await;
            }
        })
    });
    for done in futures::future::join_all(tasks).await {
        done.unwrap();
    }
    let view = shop.entitlements.get(&change(ada, "gems", NOW, more).holding).await.unwrap();
    assert_eq!((view.quantity, view.version), (Some(4 * CHANGES_PER_TASK), 4 * CHANGES_PER_TASK));
    // The outbox has the same order, which is the order of publication.
    assert_eq!(shop.versions().await, (1..=4 * CHANGES_PER_TASK).collect::<Vec<_>>());
}

async fn batches_in_any_order_do_not_deadlock(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let ada = shop.customer("ada").await;
    let more = Action::Grant { quantity: Some(1), valid_until: None };
    let seed = Seed::new();
    let tasks = (0..8).map(|n| {
        let shop = if n % 2 == 0 { shop.clone() } else { another.clone() };
        tokio::spawn(async move {
            let mut choices = seed.choices(n);
            for round in 0..10 {
                let mut changes: Vec<Change> =
                    (0..6).map(|r| change(ada, &format!("r{r}"), NOW, more)).collect();
                choices.shuffle(&mut changes);
                let key = format!("{n}-{round}");
                shop.entitlements.apply("shop", &key, &changes).await.unwrap();
            }
        })
    });
    for done in futures::future::join_all(tasks).await {
        done.unwrap();
    }
    for r in 0..6 {
        let holding = change(ada, &format!("r{r}"), NOW, more).holding;
        assert_eq!(shop.entitlements.get(&holding).await.unwrap().quantity, Some(80));
    }
}
