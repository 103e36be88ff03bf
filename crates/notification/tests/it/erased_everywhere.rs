//! Nothing of an erased user stays: searches every table of the database, including queues and dead letters.

use std::collections::{BTreeMap, BTreeSet};

use account::SignIn;
use events::{cloud_event, memory, sell, sold_event};
use notification::{LIVE, LOG, WEBHOOK};
use receiver::Receiver;
use serde_json::json;

use super::*;

testkit::on_all_stores!(
    nothing_of_an_erased_user_is_left_in_any_table,
    waiting_delivery_to_an_erased_user_is_skipped,
    waiting_delivery_that_expired_is_skipped,
    event_for_an_unknown_user_creates_no_inbox,
);

const NAME: &str = "Ann of Personal";
const SUBJECT: &str = "subject-of-ann";
const THING: &str = "a very private sword";
const ACCOUNT: &str = "ann on another platform";

/// The tables that may keep the id of an erased user, with the reason. They may keep nothing else of the user.
const MAY_KEEP_THE_ID: [(&str, &str); 8] = [
    ("users", "a row without personal data, so that the id is not assigned again"),
    ("user_audit", "proves who erased the user and when; contains no personal data"),
    ("notification_head", "keeps late events out of the inbox"),
    ("notification_broadcast", "the last user who was notified, to continue after"),
    ("entitlements", "the ledger; everything is revoked"),
    ("entitlement_history", "the ledger"),
    ("outbox", "events contain ids and states only, and are removed after outbox.retention"),
    (
        "idempotency_keys",
        "a retry gets the recorded response, which contains ids only and is removed after its retention",
    ),
];

/// Returns every value of every table, in hexadecimal.
async fn all_values(process: &Process) -> BTreeMap<String, Vec<String>> {
    const SQLITE: &str = "SELECT m.name, p.name FROM sqlite_master m JOIN pragma_table_info(m.name) p \
        WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'";
    const MYSQL: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR) FROM information_schema.columns \
        WHERE table_schema = DATABASE() AND table_name NOT LIKE 'hierlock%'";
    let text = process.db.dialect().pick(SQLITE, MYSQL);
    let mut connection = process.db.connection().await.unwrap();
    let columns: Vec<(String, String)> =
        db::on!(connection, raw => sqlx::query_as(text).fetch_all(raw).await.unwrap());
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (table, column) in columns {
        let text = AssertSqlSafe(format!("SELECT HEX({column}) FROM {table} WHERE {column} IS NOT NULL"));
        let found: Vec<String> =
            db::on!(connection, raw => sqlx::query_scalar(text).fetch_all(raw).await.unwrap());
        values.entry(table).or_default().extend(found);
    }
    values
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Returns the tables that contain any of these, also inside payloads.
async fn tables_with(process: &Process, parts: &[String]) -> BTreeSet<String> {
    let has = |values: &Vec<String>| values.iter().any(|value| parts.iter().any(|part| value.contains(part)));
    let tables = all_values(process).await.into_iter().filter(|(_, values)| has(values));
    tables.map(|(table, _)| table).collect()
}

fn ids(user: Uuid) -> Vec<String> {
    let (long, short) = (user.hyphenated().to_string(), user.simple().to_string());
    let texts = [long.to_uppercase(), short.to_uppercase(), long, short];
    texts.iter().map(|text| hex(text.as_bytes())).chain([hex(user.as_bytes())]).collect()
}

async fn open(database: &TestDatabase, status: u16) -> (Process, Receiver) {
    let receiver = Receiver::start(status).await;
    let setup = Setup::with(|config| {
        config.webhooks.insert("crm".to_owned(), receiver.config());
        set_channels(config, &["live", "log", "webhook:crm"]);
    });
    let process = Process::open(database, setup).await;
    process.db.migrate(&[entitlement::MIGRATIONS]).await.unwrap();
    (process, receiver)
}

async fn nothing_of_an_erased_user_is_left_in_any_table(database: &TestDatabase) {
    let (process, receiver) = open(database, 500).await;
    let sign_in = SignIn {
        issuer: "test".to_owned(),
        subject: SUBJECT.to_owned(),
        display_name: Some(NAME.to_owned()),
        roles: Vec::new(),
    };
    let ann = process.accounts.sign_in(&sign_in).await.unwrap().user.id;
    process.accounts.create_account(ann, ACCOUNT).await.unwrap();
    let (user, ben) = (*ann.as_uuid(), process.user("ben").await);
    // Failed deliveries with dead letters, whose notification is removed from the inbox.
    sell(&process, user, &[THING]).await;
    let working = process.deliver();
    testkit::eventually("it has failed", PATIENCE, async || process.dead_letters().await.len() == 1).await;
    working.stop().await;
    process.sql("UPDATE notification SET remove_at = 1").await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 1);
    // Waiting deliveries: of one the notification is removed, and the webhook destinations no longer exist.
    sell(&process, user, &[THING, THING]).await;
    process.sql("DELETE FROM notification WHERE position = 2").await;
    process.sql(&format!("UPDATE {WEBHOOK} SET item_key = 'webhook:old' WHERE state = 0")).await;
    // Events that could not be interpreted: for this user alone, for another one as well, and one that is not JSON.
    let missing = |users: &[Uuid]| json!({ "user_ids": users, "note": THING });
    let both = cloud_event(uuid(901), SOLD, &missing(&[user, *ben.as_uuid()]));
    let alone = cloud_event(uuid(902), SOLD, &missing(&[user]));
    let (both, alone) =
        (String::from_utf8(both).unwrap().replace(THING, "x"), String::from_utf8(alone).unwrap());
    let garbage = format!("{{{}", user.simple()).to_uppercase();
    for (at, body) in [&both, &alone, &garbage].into_iter().enumerate() {
        process
            .sql(&format!(
                "INSERT INTO notification_dlq (letter_id, kind, destination, attempts, cause, payload, created_at, died_at) \
                 VALUES (X'{}', 'event', 'sold', 1, 'bad {user}', X'{}', 1, 9999999999999)",
                uuid(at as u128).simple(),
                hex(body.as_bytes())
            ))
            .await;
    }
    let queues = [LIVE, LOG, WEBHOOK, "notification_dlq", "notification", "users", "accounts", "outbox"];
    let before = tables_with(&process, &ids(user)).await;
    for table in queues {
        assert!(before.contains(table), "the search finds the user before the erasure: {table}: {before:?}");
    }
    let personal: Vec<String> = [NAME, SUBJECT, THING, ACCOUNT].map(|text| hex(text.as_bytes())).into();
    assert!(tables_with(&process, &personal).await.len() >= 6);

    process.accounts.erase(ann, "test").await.unwrap();

    assert_eq!(tables_with(&process, &personal).await, BTreeSet::new());
    let allowed: BTreeSet<String> = MAY_KEEP_THE_ID.iter().map(|(table, _)| (*table).to_owned()).collect();
    let kept = tables_with(&process, &ids(user)).await;
    assert!(kept.is_subset(&allowed), "{kept:?} is more than {allowed:?}");
    // The dead letter of the event that names another user stays, without this user's id.
    let dead_letters = process.dead_letters().await;
    let [dead_letter] = &dead_letters[..] else { panic!("{dead_letters:?}") };
    let nil = Uuid::nil().to_string();
    assert_eq!(dead_letter.payload, both.replace(&user.to_string(), &nil).into_bytes());
    assert_eq!(dead_letter.cause, format!("bad {nil}"));
    // None of the waiting deliveries is sent.
    let sent = receiver.count();
    receiver.answer_with(200);
    let working = process.deliver();
    sell(&process, *ben.as_uuid(), &["a bow"]).await;
    testkit::eventually("the delivery to ben arrives", PATIENCE, async || receiver.count() > sent).await;
    working.stop().await;
    let last = receiver.received().last().unwrap().2.clone();
    assert_eq!((receiver.count() - sent, last["data"]["user_id"].as_str()), (1, Some(&*ben.to_string())));
}

async fn waiting_delivery_to_an_erased_user_is_skipped(database: &TestDatabase) {
    let (process, receiver) = open(database, 200).await;
    sell(&process, uuid(1), &["a sword"]).await;
    // As if the worker had claimed the delivery before the erasure.
    process.sql("UPDATE notification_head SET erased_at = 1").await;
    let working = process.deliver();
    let done = [State::Done];
    testkit::eventually("it is done", PATIENCE, async || process.states(WEBHOOK).await == done).await;
    testkit::eventually("it is done", PATIENCE, async || process.states(LOG).await == done).await;
    working.stop().await;
    assert_eq!((receiver.count(), process.dead_letters().await.len()), (0, 0));
    assert_eq!(process.measured("playhouse_notification_withheld_total{why=\"erased\"}"), 2);
}

async fn waiting_delivery_that_expired_is_skipped(database: &TestDatabase) {
    let receiver = Receiver::start(200).await;
    let setup = Setup::with(|config| {
        config.webhooks.insert("crm".to_owned(), receiver.config());
        set_channels(config, &["webhook:crm"]);
        config.templates.get_mut("sold").unwrap().expires_after = Some(Duration::from_millis(1));
    });
    let process = Process::open(database, setup).await;
    sell(&process, uuid(1), &["fresh fish"]).await;
    let expires_at = process.number("SELECT MAX(expires_at) FROM notification").await;
    let is_over = async || Clock::system().now().as_millis() > expires_at;
    testkit::eventually("it has expired", PATIENCE, is_over).await;
    let working = process.deliver();
    let is_done = async || process.states(WEBHOOK).await == [State::Done];
    testkit::eventually("it is done", PATIENCE, is_done).await;
    working.stop().await;
    assert_eq!(receiver.count(), 0);
    assert_eq!(process.measured("playhouse_notification_withheld_total{why=\"expired\"}"), 1);
}

async fn event_for_an_unknown_user_creates_no_inbox(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let (bus, unknown) = (memory().await, uuid(77_777));
    bus.publish(&[sold_event(&[unknown, uuid(1)], "a sword"), sold_event(&[unknown], "a bow")]).await;
    let intake = process.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    let report = intake.tick(&consumer, PATIENCE).await.unwrap();
    assert_eq!((report.events, report.notifications, report.dead_letters), (2, 1, 0));
    assert_eq!(tables_with(&process, &[hex(unknown.as_bytes())]).await, BTreeSet::new());
    assert_eq!(process.titles(uuid(1)).await, ["You bought a sword"]);
    assert_eq!(process.measured("playhouse_notification_unknown_users_total"), 2);
}
