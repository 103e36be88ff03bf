//! A request is applied once, however often it is sent.

use base::Code;
use base::error::Coded;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::*;

testkit::on_all_stores!(
    a_repeated_request_gets_the_recorded_response,
    a_hundred_concurrent_repetitions_apply_once_and_get_one_response,
    a_key_cannot_be_reused_for_another_request,
    callers_do_not_share_keys,
    of_a_hundred_concurrent_requests_under_one_key_one_is_applied,
    a_lock_timeout_is_reported_as_still_running,
    old_keys_are_deleted,
    an_unreadable_recorded_response_is_not_a_reused_key,
    a_retry_from_before_an_upgrade_gets_the_recorded_response,
);

async fn a_repeated_request_gets_the_recorded_response(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let grant = [change(ada, "sword", NOW - 9, GRANT)];
    let first = shop.entitlements.apply("shop", "order-7", &grant).await.unwrap();
    // A later change does not alter the recorded response.
    apply(&shop, change(ada, "sword", NOW - 5, REVOKE)).await;
    let again = shop.another(place).await.entitlements.apply("shop", "order-7", &grant).await.unwrap();
    assert_eq!(again.text(), first.text());
    assert!(again.is_replayed() && !first.is_replayed());
    assert_eq!(shop.versions().await, [1, 2]);
    assert_eq!(shop.entitlements.get(&grant[0].holding).await.unwrap().state, "REVOKED");
}

/// Sends a hundred concurrent requests under one key, alternately through two processes.
async fn send_hundred(
    shops: [&Shop; 2],
    changes: impl Fn(usize) -> Change,
) -> Vec<Result<ApplyResponse, Error>> {
    let tasks = (0..100).map(|n| {
        let (shop, change) = (shops[n % 2].clone(), changes(n));
        tokio::spawn(async move { shop.entitlements.apply("shop", "order-7", &[change]).await })
    });
    futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

async fn a_hundred_concurrent_repetitions_apply_once_and_get_one_response(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let ada = shop.customer("ada").await;
    let responses = send_hundred([&shop, &another], |_| change(ada, "sword", NOW, GRANT)).await;
    let responses: Vec<ApplyResponse> = responses.into_iter().map(Result::unwrap).collect();
    assert!(responses.iter().all(|response| response.text() == responses[0].text()));
    assert_eq!(responses.iter().filter(|response| !response.is_replayed()).count(), 1);
    assert_eq!(shop.versions().await, [1]);
}

async fn a_key_cannot_be_reused_for_another_request(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    shop.entitlements.apply("shop", "order-7", &[change(ada, "sword", NOW, GRANT)]).await.unwrap();
    let same = change(ada, "sword", NOW, GRANT);
    let others = [
        change(ada, "shield", NOW, GRANT),
        change(ada, "sword", NOW - 1, GRANT),
        change(ada, "sword", NOW, REVOKE),
        Change { reference: Some("x".to_owned()), ..same.clone() },
        change(ada, "sword", NOW, Action::Grant { quantity: Some(1), valid_until: None }),
        change(
            ada,
            "sword",
            NOW,
            Action::Grant { quantity: None, valid_until: Some(Timestamp::from_millis(NOW + 1)) },
        ),
        change((UserId::generate(), ada.1), "sword", NOW, GRANT),
        change((ada.0, AccountId::generate()), "sword", NOW, GRANT),
    ];
    for other in others {
        let refused = shop.entitlements.apply("shop", "order-7", &[other]).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.code().http_status()),
            (base::Code::Unprocessable, 422),
            "{refused}"
        );
    }
    let refused = shop.entitlements.apply("shop", "order-7", &[same.clone(), same]).await;
    assert!(matches!(refused, Err(Error::KeyReused)));
    assert_eq!(shop.versions().await, [1]);
}

async fn callers_do_not_share_keys(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    shop.entitlements.apply("shop", "1", &[change(ada, "sword", NOW - 1, GRANT)]).await.unwrap();
    shop.entitlements.apply("drops", "1", &[change(ada, "sword", NOW, REVOKE)]).await.unwrap();
    // Also if caller and key concatenate to the same text.
    for (caller, key) in [("shop1", "2"), ("shop", "12")] {
        let more = Action::Grant { quantity: Some(1), valid_until: None };
        shop.entitlements.apply(caller, key, &[change(ada, "gems", NOW, more)]).await.unwrap();
    }
    assert_eq!(shop.versions().await, [1, 2, 1, 2]);
}

async fn of_a_hundred_concurrent_requests_under_one_key_one_is_applied(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let ada = shop.customer("ada").await;
    // Their locks do not exclude each other.
    let responses = send_hundred([&shop, &another], |n| change(ada, &format!("sword-{n}"), NOW, GRANT)).await;
    let applied = responses.iter().filter(|response| response.is_ok()).count();
    let reused = responses.iter().filter(|response| matches!(response, Err(Error::KeyReused))).count();
    assert_eq!((applied, reused), (1, 99), "{:?}", responses.iter().find(|response| response.is_err()));
    assert_eq!(shop.versions().await, [1]);
}

async fn a_lock_timeout_is_reported_as_still_running(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let (user, account) = (ada.0.to_string(), ada.1.to_string());
    let target = hierlock::Target::account(&user, &account).unwrap();
    let held = shop.locks.acquire(target).await.unwrap();
    let impatient = Shop { locks: shop.locks.with_timeout(Duration::from_millis(300)), ..shop.clone() };
    let metrics = entitlement::Metrics::new(&mut Registry::default());
    let clock = Clock::manual(Timestamp::from_millis(NOW));
    let entitlements = Entitlements::new(impatient.db, impatient.locks, impatient.outbox, clock, metrics);
    let refused = entitlements.apply("shop", "k", &[change(ada, "sword", NOW, GRANT)]).await.unwrap_err();
    assert!(matches!(refused, Error::StillRunning(_)), "{refused:?}");
    assert_eq!(refused.code().http_status(), 409);
    held.release().await.unwrap();
    entitlements.apply("shop", "k", &[change(ada, "sword", NOW, GRANT)]).await.unwrap();
    assert_eq!(shop.versions().await, [1]);
}

async fn old_keys_are_deleted(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    for n in 0..3 {
        apply(&shop, change(ada, &format!("r{n}"), NOW, GRANT)).await;
    }
    assert_eq!(shop.db.delete_old_idempotency_keys(Duration::from_secs(3600)).await.unwrap(), 0);
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(shop.db.delete_old_idempotency_keys(Duration::from_millis(1)).await.unwrap(), 3);
    assert_eq!(shop.db.delete_old_idempotency_keys(Duration::from_millis(1)).await.unwrap(), 0);
}

async fn an_unreadable_recorded_response_is_not_a_reused_key(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    shop.entitlements.apply("shop", "order-7", &grant).await.unwrap();
    let is_corrupt = async |damage: &'static str| {
        let mut tx = shop.db.begin().await.unwrap();
        db::on!(tx, connection => { sqlx::query(damage).execute(connection).await.unwrap(); });
        tx.commit().await.unwrap();
        let error = shop.entitlements.apply("shop", "order-7", &grant).await.unwrap_err();
        let entitlement::Error::Db(db::Error::Corrupt { table, .. }) = &error else { panic!("{error:?}") };
        assert_eq!((*table, error.code()), ("idempotency_keys", Code::Internal));
    };
    is_corrupt("UPDATE idempotency_keys SET answer = '[{'").await;
    // A server pads the fingerprint column; SQLite does not.
    if !place.is_server() {
        is_corrupt("UPDATE idempotency_keys SET fingerprint = X''").await;
    }
    assert_eq!(shop.versions().await, [1]);
}

async fn a_retry_from_before_an_upgrade_gets_the_recorded_response(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let grant = [change(ada, "sword", NOW, GRANT)];
    let first = shop.entitlements.apply("shop", "order-7", &grant).await.unwrap();
    // The legacy fingerprint.
    let (holding, time) = (&grant[0].holding, grant[0].occurred_at.as_millis());
    let (user, account) = (holding.user.as_uuid(), holding.account.as_uuid());
    let legacy = json!([["grant", user, account, "sword", null, null, time, null]]).to_string();
    let mut tx = shop.db.begin().await.unwrap();
    db::on!(tx, connection => {
        let update = sqlx::query("UPDATE idempotency_keys SET fingerprint = ?");
        update.bind(Sha256::digest(&legacy).to_vec()).execute(connection).await.unwrap();
    });
    tx.commit().await.unwrap();
    let again = shop.entitlements.apply("shop", "order-7", &grant).await.unwrap();
    assert_eq!((again.text(), again.is_replayed()), (first.text(), true));
    let other = [change(ada, "shield", NOW, GRANT)];
    let error = shop.entitlements.apply("shop", "order-7", &other).await.unwrap_err();
    assert!(matches!(error, Error::KeyReused), "{error:?}");
    assert_eq!(shop.versions().await, [1]);
}
