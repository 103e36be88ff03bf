//! A corrupt row causes an error that names the row, and is never mistaken for something else.

use base::Code;
use base::error::Coded;
use notification::{BROADCAST, Content, Error, LOG, NotificationId, Recipients};
use sending::{broadcast, request, texts};
use sha2::{Digest, Sha256};

use super::*;

testkit::on_all_stores!(
    corrupt_recorded_response_is_not_a_reused_key,
    retry_from_before_an_upgrade_gets_the_recorded_response,
    inbox_skips_corrupt_rows,
    corrupt_delivery_and_corrupt_broadcast_are_dead_letters,
);

fn unreadable_rows(process: &Process, table: &str) -> u64 {
    process.measured(&format!("playhouse_db_unreadable_rows_total{{table=\"{table}\"}}"))
}

async fn corrupt_recorded_response_is_not_a_reused_key(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let ann = process.user("ann").await;
    let hello = request(Recipients::Users(vec![ann]), texts("Hello"));
    process.notifications.send("shop", "k", &hello).await.unwrap();
    process.sql("UPDATE idempotency_keys SET answer = '{\"id\":'").await;
    let error = process.notifications.send("shop", "k", &hello).await.unwrap_err();
    let Error::Db(db::Error::Corrupt { table, row, .. }) = &error else { panic!("{error:?}") };
    assert_eq!((*table, error.code()), ("idempotency_keys", Code::Internal));
    assert_eq!(row.len(), 64, "{row}");
    assert_eq!(
        (unreadable_rows(&process, "idempotency_keys"), process.all(*ann.as_uuid()).await.len()),
        (1, 1)
    );
    // MySQL and MariaDB pad the column to its length; SQLite does not.
    if !database.is_server() {
        process.sql("UPDATE idempotency_keys SET fingerprint = X''").await;
        let error = process.notifications.send("shop", "k", &hello).await.unwrap_err();
        assert!(matches!(error, Error::Db(db::Error::Corrupt { .. })), "{error:?}");
    }
}

async fn retry_from_before_an_upgrade_gets_the_recorded_response(database: &TestDatabase) {
    let setup = Setup::with(|config| {
        config.templates.insert("news".to_owned(), template(None, &[], "News"));
    });
    let process = Process::open(database, setup).await;
    let all = request(Recipients::All, Content::Template("news".to_owned()));
    let (receipt, _) = process.notifications.send("shop", "k", &all).await.unwrap();
    // The fingerprint of earlier versions.
    let legacy: [u8; 32] = Sha256::digest("all\nTemplate(\"news\")\n{}\nNone").into();
    let legacy: String = legacy.iter().map(|byte| format!("{byte:02x}")).collect();
    process.sql(&format!("UPDATE idempotency_keys SET fingerprint = X'{legacy}'")).await;
    assert_eq!(process.notifications.send("shop", "k", &all).await.unwrap(), (receipt, true));
    let other = request(Recipients::All, texts("Other"));
    let error = process.notifications.send("shop", "k", &other).await.unwrap_err();
    assert!(matches!(error, Error::KeyReused), "{error:?}");
    assert_eq!(process.count(BROADCAST).await, 1);
}

async fn inbox_skips_corrupt_rows(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    events::sell(&process, uuid(1), &["1", "2", "3", "4"]).await;
    let second = process.all(uuid(1)).await[1].notification_id;
    process.sql("UPDATE notification SET texts = '{' WHERE position = 2").await;
    process.sql("UPDATE notification SET data = '' WHERE position = 3").await;
    let error = process.inbox.get(uuid(1), NotificationId::from_uuid(second)).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.to_string().contains(&format!("{second} of user {}", uuid(1))), "{error}");
    assert_eq!(process.titles(uuid(1)).await, ["You bought 1", "You bought 4"]);
    // A page of corrupt rows is not the last page.
    let tail = process.inbox.after(uuid(1), 1, 2).await.unwrap();
    assert_eq!((tail.notifications.len(), tail.up_to, tail.has_more), (0, 3, true));
    let page = process.inbox.list(uuid(1), Filter::Inbox, Some(4), 2).await.unwrap();
    assert_eq!((page.notifications.len(), page.next), (0, Some(2)));
    assert_eq!(unreadable_rows(&process, "notification"), 7);
}

async fn corrupt_delivery_and_corrupt_broadcast_are_dead_letters(database: &TestDatabase) {
    let process = Process::open(database, Setup::with(|config| set_channels(config, &["log"]))).await;
    events::sell(&process, uuid(1), &["a sword"]).await;
    let all = request(Recipients::All, texts("To all"));
    let (receipt, _) = process.notifications.send("shop", "k", &all).await.unwrap();
    process.sql(&format!("UPDATE {LOG} SET payload = X'7b'")).await;
    process.sql(&format!("UPDATE {BROADCAST} SET payload = X'7b'")).await;
    let progress = process.notifications.broadcasts().progress(receipt.id).await.unwrap().unwrap();
    assert!(progress.cause.is_some_and(|cause| cause.contains("cannot be read")));
    let (deliveries, broadcasts) = (process.deliver(), broadcast(&process));
    testkit::eventually("both are dead letters", PATIENCE, async || process.dead_letters().await.len() == 2)
        .await;
    deliveries.stop().await;
    broadcasts.stop().await;
    for dead_letter in process.dead_letters().await {
        let named = format!("the row {} of notification_{}", dead_letter.id, dead_letter.kind);
        assert!(dead_letter.cause.contains(&named), "{named}: {}", dead_letter.cause);
    }
    assert_eq!((unreadable_rows(&process, LOG), unreadable_rows(&process, BROADCAST)), (1, 1));
}
