//! Stored values that cannot be read are errors that name their row, and are never taken for something else.

use base::Code;
use base::error::Coded;
use notification::{BROADCAST, Content, Error, LOG, NotificationId, Recipients};
use sending::{broadcast, request, texts};
use sha2::{Digest, Sha256};

use super::*;

testkit::on_all_stores!(
    an_answer_that_cannot_be_read_is_not_a_reused_key,
    a_retry_from_before_an_upgrade_is_answered_as_before,
    an_inbox_goes_on_around_a_row_that_cannot_be_read,
    a_delivery_and_a_broadcast_that_cannot_be_read_are_dead_letters,
);

fn found(house: &House, table: &str) -> u64 {
    house.measured(&format!("playhouse_db_unreadable_rows_total{{table=\"{table}\"}}"))
}

async fn an_answer_that_cannot_be_read_is_not_a_reused_key(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let ann = house.user("ann").await;
    let hello = request(Recipients::Users(vec![ann]), texts("Hello"));
    house.notifications.send("shop", "k", &hello).await.unwrap();
    house.sql("UPDATE idempotency_keys SET answer = '{\"id\":'").await;
    let error = house.notifications.send("shop", "k", &hello).await.unwrap_err();
    let Error::Db(db::Error::Corrupt { table, row, .. }) = &error else { panic!("{error:?}") };
    assert_eq!((*table, error.code()), ("idempotency_keys", Code::Internal));
    assert_eq!(row.len(), 64, "{row}");
    assert_eq!((found(&house, "idempotency_keys"), house.all(*ann.as_uuid()).await.len()), (1, 1));
    // A server fills a fingerprint up to its length, SQLite does not.
    if !place.is_server() {
        house.sql("UPDATE idempotency_keys SET fingerprint = X''").await;
        let error = house.notifications.send("shop", "k", &hello).await.unwrap_err();
        assert!(matches!(error, Error::Db(db::Error::Corrupt { .. })), "{error:?}");
    }
}

async fn a_retry_from_before_an_upgrade_is_answered_as_before(place: &SqlPlace) {
    let setup = Setup::with(|config| {
        config.templates.insert("news".to_owned(), template(None, &[], "News"));
    });
    let house = House::open(place, setup).await;
    let all = request(Recipients::All, Content::Template("news".to_owned()));
    let (sent, _) = house.notifications.send("shop", "k", &all).await.unwrap();
    // As the versions before had it.
    let before: [u8; 32] = Sha256::digest("all\nTemplate(\"news\")\n{}\nNone").into();
    let before: String = before.iter().map(|byte| format!("{byte:02x}")).collect();
    house.sql(&format!("UPDATE idempotency_keys SET fingerprint = X'{before}'")).await;
    assert_eq!(house.notifications.send("shop", "k", &all).await.unwrap(), (sent, true));
    let other = request(Recipients::All, texts("Other"));
    let error = house.notifications.send("shop", "k", &other).await.unwrap_err();
    assert!(matches!(error, Error::KeyReused), "{error:?}");
    assert_eq!(house.count(BROADCAST).await, 1);
}

async fn an_inbox_goes_on_around_a_row_that_cannot_be_read(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    events::sell(&house, uuid(1), &["1", "2", "3", "4"]).await;
    let second = house.all(uuid(1)).await[1].notification_id;
    house.sql("UPDATE notification SET texts = '{' WHERE position = 2").await;
    house.sql("UPDATE notification SET data = '' WHERE position = 3").await;
    let error = house.inbox.get(uuid(1), NotificationId::from_uuid(second)).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.to_string().contains(&format!("{second} of user {}", uuid(1))), "{error}");
    assert_eq!(house.titles(uuid(1)).await, ["You bought 1", "You bought 4"]);
    // A page with nothing readable in it is not the last one.
    let rest = house.inbox.after(uuid(1), 1, 2).await.unwrap();
    assert_eq!((rest.notifications.len(), rest.up_to, rest.more), (0, 3, true));
    let page = house.inbox.list(uuid(1), Filter::Inbox, Some(4), 2).await.unwrap();
    assert_eq!((page.notifications.len(), page.next), (0, Some(2)));
    assert_eq!(found(&house, "notification"), 7);
}

async fn a_delivery_and_a_broadcast_that_cannot_be_read_are_dead_letters(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| by(config, &["log"]))).await;
    events::sell(&house, uuid(1), &["a sword"]).await;
    let all = request(Recipients::All, texts("To all"));
    let (sent, _) = house.notifications.send("shop", "k", &all).await.unwrap();
    house.sql(&format!("UPDATE {LOG} SET payload = X'7b'")).await;
    house.sql(&format!("UPDATE {BROADCAST} SET payload = X'7b'")).await;
    let shown = house.notifications.broadcasts().progress(sent.id).await.unwrap().unwrap();
    assert!(shown.cause.is_some_and(|cause| cause.contains("cannot be read")));
    let (delivering, telling) = (house.deliver(), broadcast(&house));
    testkit::eventually("both are letters", PATIENCE, async || house.letters().await.len() == 2).await;
    delivering.stop().await;
    telling.stop().await;
    for letter in house.letters().await {
        let named = format!("the row {} of notification_{}", letter.id, letter.kind);
        assert!(letter.cause.contains(&named), "{named}: {}", letter.cause);
    }
    assert_eq!((found(&house, LOG), found(&house, BROADCAST)), (1, 1));
}
