//! A request is done once, however often it is sent.

use base::Code;
use base::error::Coded;
use entitlement::Answer;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::*;

testkit::on_all_stores!(
    a_request_that_is_sent_again_is_answered_as_before,
    a_hundred_at_once_under_one_key_make_one_event_and_have_one_answer,
    a_key_is_for_one_request,
    a_key_is_the_callers_own,
    a_hundred_different_requests_at_once_under_one_key_leave_one,
    what_takes_too_long_is_said_to_be_still_running,
    old_keys_are_forgotten,
    an_answer_that_cannot_be_read_is_not_a_reused_key,
    a_retry_from_before_an_upgrade_is_answered_as_before,
);

async fn a_request_that_is_sent_again_is_answered_as_before(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let granting = [change(ada, "sword", NOW - 9, GRANT)];
    let first = shop.entitlements.apply("shop", "order-7", &granting).await.unwrap();
    // Whatever has happened since.
    apply(&shop, change(ada, "sword", NOW - 5, REVOKE)).await;
    let again = shop.another(place).await.entitlements.apply("shop", "order-7", &granting).await.unwrap();
    assert_eq!(again.text(), first.text());
    assert!(again.is_replayed() && !first.is_replayed());
    assert_eq!(shop.versions().await, [1, 2]);
    assert_eq!(shop.entitlements.get(&granting[0].holding).await.unwrap().state, "REVOKED");
}

async fn at_once(shops: [&Shop; 2], changes: impl Fn(usize) -> Change) -> Vec<Result<Answer, Error>> {
    let tasks = (0..100).map(|n| {
        let (shop, change) = (shops[n % 2].clone(), changes(n));
        tokio::spawn(async move { shop.entitlements.apply("shop", "order-7", &[change]).await })
    });
    futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

async fn a_hundred_at_once_under_one_key_make_one_event_and_have_one_answer(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let ada = shop.customer("ada").await;
    let answers = at_once([&shop, &another], |_| change(ada, "sword", NOW, GRANT)).await;
    let answers: Vec<Answer> = answers.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|answer| answer.text() == answers[0].text()));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1);
    assert_eq!(shop.versions().await, [1]);
}

async fn a_key_is_for_one_request(place: &SqlPlace) {
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

async fn a_key_is_the_callers_own(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    shop.entitlements.apply("shop", "1", &[change(ada, "sword", NOW - 1, GRANT)]).await.unwrap();
    shop.entitlements.apply("drops", "1", &[change(ada, "sword", NOW, REVOKE)]).await.unwrap();
    // Also where the one ends like the other begins.
    for (caller, key) in [("shop1", "2"), ("shop", "12")] {
        let more = Action::Grant { quantity: Some(1), valid_until: None };
        shop.entitlements.apply(caller, key, &[change(ada, "gems", NOW, more)]).await.unwrap();
    }
    assert_eq!(shop.versions().await, [1, 2, 1, 2]);
}

async fn a_hundred_different_requests_at_once_under_one_key_leave_one(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let ada = shop.customer("ada").await;
    // They do not exclude each other by their locks.
    let answers = at_once([&shop, &another], |n| change(ada, &format!("sword-{n}"), NOW, GRANT)).await;
    let done = answers.iter().filter(|answer| answer.is_ok()).count();
    let reused = answers.iter().filter(|answer| matches!(answer, Err(Error::KeyReused))).count();
    assert_eq!((done, reused), (1, 99), "{:?}", answers.iter().find(|answer| answer.is_err()));
    assert_eq!(shop.versions().await, [1]);
}

async fn what_takes_too_long_is_said_to_be_still_running(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let (user, account) = (ada.0.to_string(), ada.1.to_string());
    let target = hierlock::Target::account(&user, &account).unwrap();
    let held = shop.locks.acquire(target).await.unwrap();
    let hasty = Shop { locks: shop.locks.within(Duration::from_millis(300)), ..shop.clone() };
    let metrics = entitlement::Metrics::new(&mut Registry::default());
    let clock = Clock::manual(Timestamp::from_millis(NOW));
    let entitlements = Entitlements::new(hasty.db, hasty.locks, hasty.outbox, clock, metrics);
    let refused = entitlements.apply("shop", "k", &[change(ada, "sword", NOW, GRANT)]).await.unwrap_err();
    assert!(matches!(refused, Error::StillRunning(_)), "{refused:?}");
    assert_eq!(refused.code().http_status(), 409);
    held.release().await.unwrap();
    entitlements.apply("shop", "k", &[change(ada, "sword", NOW, GRANT)]).await.unwrap();
    assert_eq!(shop.versions().await, [1]);
}

async fn old_keys_are_forgotten(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    for n in 0..3 {
        apply(&shop, change(ada, &format!("r{n}"), NOW, GRANT)).await;
    }
    assert_eq!(shop.db.forget_idempotency_keys(Duration::from_secs(3600)).await.unwrap(), 0);
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(shop.db.forget_idempotency_keys(Duration::from_millis(1)).await.unwrap(), 3);
    assert_eq!(shop.db.forget_idempotency_keys(Duration::from_millis(1)).await.unwrap(), 0);
}

async fn an_answer_that_cannot_be_read_is_not_a_reused_key(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let granting = [change(ada, "sword", NOW, GRANT)];
    shop.entitlements.apply("shop", "order-7", &granting).await.unwrap();
    let is_corrupt = async |damage: &'static str| {
        let mut tx = shop.db.begin().await.unwrap();
        db::on!(tx, connection => { sqlx::query(damage).execute(connection).await.unwrap(); });
        tx.commit().await.unwrap();
        let error = shop.entitlements.apply("shop", "order-7", &granting).await.unwrap_err();
        let entitlement::Error::Db(db::Error::Corrupt { table, .. }) = &error else { panic!("{error:?}") };
        assert_eq!((*table, error.code()), ("idempotency_keys", Code::Internal));
    };
    is_corrupt("UPDATE idempotency_keys SET answer = '[{'").await;
    // A server fills a fingerprint up to its length, SQLite does not.
    if !place.is_server() {
        is_corrupt("UPDATE idempotency_keys SET fingerprint = X''").await;
    }
    assert_eq!(shop.versions().await, [1]);
}

async fn a_retry_from_before_an_upgrade_is_answered_as_before(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let ada = shop.customer("ada").await;
    let granting = [change(ada, "sword", NOW, GRANT)];
    let first = shop.entitlements.apply("shop", "order-7", &granting).await.unwrap();
    // As the versions before had it.
    let (holding, time) = (&granting[0].holding, granting[0].occurred_at.as_millis());
    let (user, account) = (holding.user.as_uuid(), holding.account.as_uuid());
    let before = json!([["grant", user, account, "sword", null, null, time, null]]).to_string();
    let mut tx = shop.db.begin().await.unwrap();
    db::on!(tx, connection => {
        let update = sqlx::query("UPDATE idempotency_keys SET fingerprint = ?");
        update.bind(Sha256::digest(&before).to_vec()).execute(connection).await.unwrap();
    });
    tx.commit().await.unwrap();
    let again = shop.entitlements.apply("shop", "order-7", &granting).await.unwrap();
    assert_eq!((again.text(), again.is_replayed()), (first.text(), true));
    let other = [change(ada, "shield", NOW, GRANT)];
    let error = shop.entitlements.apply("shop", "order-7", &other).await.unwrap_err();
    assert!(matches!(error, Error::KeyReused), "{error:?}");
    assert_eq!(shop.versions().await, [1]);
}
