//! What becomes of entitlements when their user is erased.

use super::*;

testkit::on_all_stores!(an_erased_user_has_nothing_and_gets_nothing);

async fn an_erased_user_has_nothing_and_gets_nothing(place: &SqlPlace) {
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
    assert_eq!(revoked, 101 + 1, "of each that was active, and of the one that was revoked before");
    assert_eq!(
        shop.entitlements.get(&change(bob, "sword", NOW, GRANT).holding).await.unwrap().state,
        "ACTIVE"
    );
    // Nothing new, nothing back.
    for (resource, at) in [("new", NOW), ("r001", NOW + 1)] {
        let refused = shop.entitlements.apply("shop", resource, &[change(ada, resource, at, GRANT)]).await;
        assert!(matches!(refused, Err(Error::NoAccount(_))), "{refused:?}");
    }
}
