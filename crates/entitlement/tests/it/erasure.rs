//! Entitlements of erased users.

use super::*;

testkit::on_all_stores!(
    an_erased_user_loses_everything_and_gets_nothing_new,
    a_user_with_thousands_of_entitlements_can_be_erased
);

async fn an_erased_user_loses_everything_and_gets_nothing_new(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let (ada, bob) = (shop.customer("ada").await, shop.customer("bob").await);
    let many: Vec<Change> = (0..100).map(|n| change(ada, &format!("r{n:03}"), NOW, GRANT)).collect();
    shop.entitlements.apply("shop", "many", &many).await.unwrap();
    let more = Action::Grant { quantity: Some(7), valid_until: None };
    apply(&shop, change(ada, "gems", NOW + 60_000, more)).await;
    apply(&shop, change(ada, "old", NOW, REVOKE)).await;
    apply(&shop, change(bob, "sword", NOW, GRANT)).await;
    shop.accounts.erase(ada.0, "service/test").await.unwrap();

    let everything = ListOptions { in_force: false, after: String::new(), limit: 1000 };
    let left = shop.entitlements.list(ada.0, ada.1, &everything).await.unwrap();
    assert_eq!(left.len(), 102);
    assert!(left.iter().all(|view| view.state == "REVOKED" && !view.in_force));
    let events = shop.events().await;
    let revoked = events.iter().filter(|event| event["kind"] == "playhouse.entitlement.revoked.v1").count();
    assert_eq!(revoked, 101 + 1, "one per active entitlement, and the earlier revoke");
    assert_eq!(
        shop.entitlements.get(&change(bob, "sword", NOW, GRANT).holding).await.unwrap().state,
        "ACTIVE"
    );
    // Neither a new grant nor one of an earlier resource is accepted.
    for (resource, at) in [("new", NOW), ("r001", NOW + 1)] {
        let refused = shop.entitlements.apply("shop", resource, &[change(ada, resource, at, GRANT)]).await;
        assert!(matches!(refused, Err(Error::NoAccount(_))), "{refused:?}");
    }
}

/// The erasure writes more than a server accepts in one message: 16 MiB by default.
async fn a_user_with_thousands_of_entitlements_can_be_erased(place: &TestDatabase) {
    const COUNT: usize = 6_000;
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let long = "\u{8a9e}".repeat(240);
    for from in (0..COUNT).step_by(100) {
        let some: Vec<Change> =
            (from..from + 100).map(|n| change(ada, &format!("{long}{n}"), NOW, GRANT)).collect();
        shop.entitlements.apply("shop", &format!("{from}"), &some).await.unwrap();
    }
    shop.accounts.erase(ada.0, "service/test").await.unwrap();
    let in_force = ListOptions { in_force: true, after: String::new(), limit: 1 };
    assert!(shop.entitlements.list(ada.0, ada.1, &in_force).await.unwrap().is_empty());
    let events = shop.events().await;
    assert_eq!(events.iter().filter(|event| event["state"] == "REVOKED").count(), COUNT);
}
