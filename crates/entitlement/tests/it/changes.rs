//! Grants, revokes, lists and histories.

use super::*;

testkit::on_all_stores!(
    a_grant_is_stored_with_its_history_and_event,
    a_late_change_does_not_undo_a_newer_one,
    the_history_records_each_change_and_its_effect,
    quantities_add_up,
    a_batch_is_all_or_nothing,
    a_batch_may_change_an_entitlement_twice,
    a_grant_needs_an_account_of_the_user,
    lists_are_paged_and_can_show_only_what_is_in_force,
    an_invalid_request_is_refused_and_changes_nothing,
    resource_names_are_compared_alike_on_every_store,
);

async fn a_grant_is_stored_with_its_history_and_event(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let mut grant = change(ada, "sword", NOW - 10, GRANT);
    grant.reference = Some("order 7".to_owned());
    let granted = apply(&shop, grant.clone()).await;
    assert_eq!(
        (granted["effect"].as_str(), granted["entitlement"]["version"].as_i64()),
        (Some("applied"), Some(1))
    );
    let view = shop.entitlements.get(&grant.holding).await.unwrap();
    assert_eq!((view.state.as_str(), view.in_force, view.version), ("ACTIVE", true, 1));

    apply(&shop, change(ada, "sword", NOW - 5, REVOKE)).await;
    apply(&shop, change(ada, "sword", NOW - 2, GRANT)).await;
    let events = shop.events().await;
    let published: Vec<_> = events
        .iter()
        .map(|event| {
            (
                event["kind"].as_str().unwrap(),
                event["version"].as_i64().unwrap(),
                event["state"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        published,
        [
            ("playhouse.entitlement.granted.v1", 1, "ACTIVE"),
            ("playhouse.entitlement.revoked.v1", 2, "REVOKED"),
            ("playhouse.entitlement.granted.v1", 3, "ACTIVE"),
        ]
    );
    assert_eq!(events[0]["reference"], "order 7");
    assert_eq!(events[0]["occurred_at"], "2026-03-01T11:59:59.990Z");
    assert_eq!(events[0]["key"], format!("entitlement/{}/{}/sword", ada.0, ada.1));

    let history = shop.entitlements.history(&grant.holding, i64::MAX, 10).await.unwrap();
    let seen: Vec<_> =
        history.iter().map(|entry| (entry.entry, entry.action.as_str(), entry.version)).collect();
    assert_eq!(seen, [(3, "grant", 3), (2, "revoke", 2), (1, "grant", 1)]);
    assert_eq!((history[2].caller.as_str(), history[2].reference.as_deref()), ("shop", Some("order 7")));
    assert_eq!(granted["event_id"].as_str(), history[2].event_id.as_deref());
    let unknown = Holding { resource: "shield".to_owned(), ..grant.holding };
    assert!(matches!(shop.entitlements.get(&unknown).await, Err(Error::NotFound(_))));
}

async fn a_late_change_does_not_undo_a_newer_one(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    // Revoked before the grant arrives: the late grant has no effect.
    let revoked = apply(&shop, change(ada, "sword", NOW - 5, REVOKE)).await;
    assert_eq!(revoked["entitlement"]["state"], "REVOKED");
    let late = apply(&shop, change(ada, "sword", NOW - 10, GRANT)).await;
    assert_eq!((late["effect"].as_str(), late["event_id"].as_str()), (Some("superseded"), None));
    assert_eq!(late["entitlement"]["state"], "REVOKED");
    assert_eq!(shop.versions().await, [1]);
    let holding = change(ada, "sword", NOW, GRANT).holding;
    let history = shop.entitlements.history(&holding, i64::MAX, 10).await.unwrap();
    assert_eq!((history.len(), history[0].effect.as_str()), (2, "superseded"));
    apply(&shop, change(ada, "sword", NOW - 4, GRANT)).await;
    assert_eq!(shop.entitlements.get(&holding).await.unwrap().state, "ACTIVE");
}

async fn the_history_records_each_change_and_its_effect(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let until = Some(Timestamp::from_millis(NOW + 60_000));
    let more = |n| Action::Grant { quantity: Some(n), valid_until: until };
    let fewer = |n| Action::Revoke { quantity: Some(n) };
    apply(&shop, change(ada, "gems", NOW - 9_000, more(100))).await;
    apply(&shop, change(ada, "gems", NOW - 8_000, REVOKE)).await;
    apply(&shop, change(ada, "gems", NOW - 8_500, more(7))).await;
    apply(&shop, change(ada, "gems", NOW - 7_000, fewer(30))).await;
    let holding = change(ada, "gems", NOW, REVOKE).holding;
    let history = shop.entitlements.history(&holding, i64::MAX, 10).await.unwrap();
    let records = history.iter().rev().map(|entry| {
        assert_eq!(
            (entry.recorded_at.as_str(), entry.state == "ACTIVE"),
            ("2026-03-01T12:00:00.000Z", entry.entry == 1)
        );
        assert_eq!(entry.event_id.is_some(), entry.effect == "applied");
        let times = (entry.occurred_at[17..].to_owned(), entry.valid_until.is_some());
        (entry.entry, entry.version, entry.effect.as_str(), entry.change_quantity, entry.quantity, times)
    });
    let at = |second: &str, until| (format!("{second}Z"), until);
    assert_eq!(
        records.collect::<Vec<_>>(),
        [
            (1, 1, "applied", Some(100), Some(100), at("51.000", true)),
            (2, 2, "applied", None, Some(0), at("52.000", false)),
            (3, 2, "superseded", Some(7), Some(0), at("51.500", true)),
            (4, 3, "applied", Some(30), Some(0), at("53.000", false)),
        ]
    );
    let page = shop.entitlements.history(&holding, 3, 1).await.unwrap();
    assert_eq!(page.iter().map(|entry| entry.entry).collect::<Vec<_>>(), [2]);
}

async fn quantities_add_up(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let more = |n| Action::Grant { quantity: Some(n), valid_until: None };
    let fewer = |n| Action::Revoke { quantity: Some(n) };
    apply(&shop, change(ada, "gems", NOW - 3, more(100))).await;
    apply(&shop, change(ada, "gems", NOW - 5, more(20))).await;
    let left = apply(&shop, change(ada, "gems", NOW - 2, fewer(50))).await;
    assert_eq!(left["entitlement"]["quantity"], 70);
    let events = shop.events().await;
    assert_eq!((&events[2]["quantity"], &events[2]["change_quantity"]), (&70.into(), &50.into()));
    let mixed = shop.entitlements.apply("shop", "k", &[change(ada, "gems", NOW, GRANT)]).await;
    assert!(matches!(mixed, Err(Error::Counted)));
    let gone = apply(&shop, change(ada, "gems", NOW - 1, fewer(70))).await;
    assert_eq!(
        (&gone["entitlement"]["quantity"], &gone["entitlement"]["state"]),
        (&0.into(), &"REVOKED".into())
    );
}

async fn a_batch_is_all_or_nothing(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let (ada, bob) = (shop.customer("ada").await, shop.customer("bob").await);
    let stranger = (UserId::generate(), AccountId::generate());
    let mixed = [
        change(ada, "sword", NOW, GRANT),
        change(bob, "shield", NOW, GRANT),
        change(stranger, "bow", NOW, GRANT),
    ];
    let refused = shop.entitlements.apply("shop", "k", &mixed).await;
    assert!(matches!(refused, Err(Error::NoAccount(_))), "{refused:?}");
    assert!(shop.events().await.is_empty());
    assert!(matches!(shop.entitlements.get(&mixed[0].holding).await, Err(Error::NotFound(_))));
    // A refused request does not use up its key.
    let response = shop.entitlements.apply("shop", "k", &mixed[..2]).await.unwrap();
    assert_eq!(response.results().unwrap().len(), 2);
    assert_eq!(shop.events().await.len(), 2);
    let many: Vec<Change> = (0..100).map(|n| change(bob, &format!("r{n}"), NOW, GRANT)).collect();
    shop.entitlements.apply("shop", "many", &many).await.unwrap();
    assert_eq!(shop.events().await.len(), 102);
    let too_many: Vec<Change> = (0..101).map(|n| change(bob, &format!("r{n}"), NOW, GRANT)).collect();
    let refused = shop.entitlements.apply("shop", "too-many", &too_many).await;
    assert!(matches!(refused, Err(Error::Invalid { field: "changes", .. })));
}

async fn a_batch_may_change_an_entitlement_twice(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let twice = [change(ada, "sword", NOW - 2, GRANT), change(ada, "sword", NOW - 1, REVOKE)];
    shop.entitlements.apply("shop", "k", &twice).await.unwrap();
    assert_eq!(shop.versions().await, [1, 2]);
    let view = shop.entitlements.get(&twice[0].holding).await.unwrap();
    assert_eq!((view.state.as_str(), view.version), ("REVOKED", 2));
    assert_eq!(shop.entitlements.history(&twice[0].holding, i64::MAX, 10).await.unwrap().len(), 2);
}

async fn a_grant_needs_an_account_of_the_user(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let (ada, bob) = (shop.customer("ada").await, shop.customer("bob").await);
    // The account of another user, and an unknown user.
    for wrong in [(ada.0, bob.1), (UserId::generate(), ada.1)] {
        let refused = shop.entitlements.apply("shop", "k", &[change(wrong, "sword", NOW, GRANT)]).await;
        assert!(matches!(refused, Err(Error::NoAccount(_))), "{refused:?}");
    }
    assert!(shop.events().await.is_empty());
}

async fn lists_are_paged_and_can_show_only_what_is_in_force(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let until = |at| Action::Grant { quantity: None, valid_until: Some(Timestamp::from_millis(at)) };
    apply(&shop, change(ada, "a", NOW - 9, GRANT)).await;
    apply(&shop, change(ada, "b", NOW - 9, until(NOW))).await;
    apply(&shop, change(ada, "c", NOW - 9, until(NOW + 1))).await;
    apply(&shop, change(ada, "d", NOW - 9, REVOKE)).await;
    apply(&shop, change(ada, "ä", NOW - 9, GRANT)).await;
    let list = async |in_force, after: &str, limit| {
        let options = ListOptions { in_force, after: after.to_owned(), limit };
        let found = shop.entitlements.list(ada.0, ada.1, &options).await.unwrap();
        found.into_iter().map(|view| view.resource).collect::<Vec<_>>()
    };
    assert_eq!(list(false, "", 10).await, ["a", "b", "c", "d", "ä"]);
    assert_eq!(list(true, "", 10).await, ["a", "c", "ä"]);
    assert_eq!(list(true, "", 2).await, ["a", "c"]);
    assert_eq!(list(true, "c", 2).await, ["ä"]);
}

async fn an_invalid_request_is_refused_and_changes_nothing(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let refused = shop.entitlements.apply("shop", "k", &[change(ada, "", NOW, GRANT)]).await;
    assert!(matches!(refused, Err(Error::Invalid { field: "resource", .. })));
    let refused = shop.entitlements.apply("shop", "k", &[]).await;
    assert!(matches!(refused, Err(Error::Invalid { field: "changes", .. })));
    for key in ["", " ", "a b", "ä", &"x".repeat(256)] {
        let refused = shop.entitlements.apply("shop", key, &[change(ada, "sword", NOW, GRANT)]).await;
        assert!(matches!(refused, Err(Error::InvalidKey(_))), "{key:?}");
    }
    // The longest allowed texts fit on every store.
    let longest = Change { reference: Some("ä".repeat(255)), ..change(ada, &"語".repeat(255), NOW, GRANT) };
    shop.entitlements.apply("shop", &"x".repeat(255), &[longest]).await.unwrap();
    assert_eq!(shop.events().await.len(), 1);
}

/// MySQL ignores trailing spaces when it compares text. Two such names would be one entitlement with two keys in the outbox.
async fn resource_names_are_compared_alike_on_every_store(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    apply(&shop, change(ada, "sword", NOW - 1, GRANT)).await;
    let refused = shop.entitlements.apply("shop", "k", &[change(ada, "sword ", NOW, GRANT)]).await;
    assert!(matches!(refused, Err(Error::Invalid { field: "resource", .. })), "{refused:?}");
    for (n, other) in ["Sword", "sw\u{f6}rd", "sword\0", "swo\u{308}rd"].into_iter().enumerate() {
        let granted = apply(&shop, change(ada, other, NOW, GRANT)).await;
        assert_eq!(granted["entitlement"]["version"], 1, "{other:?}");
        let view = shop.entitlements.get(&change(ada, other, NOW, GRANT).holding).await.unwrap();
        assert_eq!(view.resource, other);
        let everything = ListOptions { in_force: true, after: String::new(), limit: 100 };
        assert_eq!(shop.entitlements.list(ada.0, ada.1, &everything).await.unwrap().len(), n + 2);
    }
}
