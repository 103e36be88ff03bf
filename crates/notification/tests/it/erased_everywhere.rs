//! Nothing of an erased user stays: one walk over every table that the catalog knows, queues and dead letters included.

use std::collections::{BTreeMap, BTreeSet};

use account::SignIn;
use events::{cloud_event, memory, sell, sold_event};
use notification::{LIVE, LOG, WEBHOOK};
use receiver::Receiver;
use serde_json::json;

use super::*;

testkit::on_all_stores!(
    nothing_of_an_erased_user_is_left_in_any_table,
    a_delivery_to_a_user_erased_meanwhile_is_not_made,
    a_delivery_that_expired_while_it_waited_is_not_made,
    an_event_that_names_an_unknown_user_makes_no_inbox,
);

const NAME: &str = "Ann of Personal";
const SUBJECT: &str = "subject-of-ann";
const THING: &str = "a very private sword";
const ACCOUNT: &str = "ann on another platform";

/// Where the id of an erased user may stay, and why. Nothing else of the user may stay anywhere.
const MAY_KEEP_THE_ID: [(&str, &str); 8] = [
    ("users", "a row without anything personal keeps the id from being given again"),
    ("user_audit", "who erased the user, and when, must be provable; it names nothing personal"),
    ("notification_head", "keeps the inbox closed when an event comes late"),
    ("notification_broadcast", "the last user who was told, to go on behind"),
    ("entitlements", "the ledger; everything is revoked"),
    ("entitlement_history", "the ledger"),
    ("outbox", "events carry ids and states only, and go after outbox.retention"),
    (
        "idempotency_keys",
        "a retry is answered as before; answers carry ids only, and go after their retention",
    ),
];

/// Every value of every table, in hexadecimal digits.
async fn everything(house: &House) -> BTreeMap<String, Vec<String>> {
    const SQLITE: &str = "SELECT m.name, p.name FROM sqlite_master m JOIN pragma_table_info(m.name) p \
        WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'";
    const MYSQL: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR) FROM information_schema.columns \
        WHERE table_schema = DATABASE() AND table_name NOT LIKE 'hierlock%'";
    let text = house.db.dialect().pick(SQLITE, MYSQL);
    let mut connection = house.db.connection().await.unwrap();
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

/// The tables that have any of these anywhere, also inside of payloads.
async fn tables_with(house: &House, parts: &[String]) -> BTreeSet<String> {
    let has = |values: &Vec<String>| values.iter().any(|value| parts.iter().any(|part| value.contains(part)));
    let tables = everything(house).await.into_iter().filter(|(_, values)| has(values));
    tables.map(|(table, _)| table).collect()
}

fn ids(user: Uuid) -> Vec<String> {
    let (long, short) = (user.hyphenated().to_string(), user.simple().to_string());
    let texts = [long.to_uppercase(), short.to_uppercase(), long, short];
    texts.iter().map(|text| hex(text.as_bytes())).chain([hex(user.as_bytes())]).collect()
}

async fn open(place: &SqlPlace, status: u16) -> (House, Receiver) {
    let receiver = Receiver::start(status).await;
    let setup = Setup::with(|config| {
        config.webhooks.insert("crm".to_owned(), receiver.config());
        by(config, &["live", "log", "webhook:crm"]);
    });
    let house = House::open(place, setup).await;
    house.db.migrate(&[entitlement::MIGRATIONS]).await.unwrap();
    (house, receiver)
}

async fn nothing_of_an_erased_user_is_left_in_any_table(place: &SqlPlace) {
    let (house, receiver) = open(place, 500).await;
    let sign_in = SignIn {
        issuer: "test".to_owned(),
        subject: SUBJECT.to_owned(),
        display_name: Some(NAME.to_owned()),
        roles: Vec::new(),
    };
    let ann = house.accounts.sign_in(&sign_in).await.unwrap().user.id;
    house.accounts.create_account(ann, ACCOUNT).await.unwrap();
    let (user, ben) = (*ann.as_uuid(), house.user("ben").await);
    // Deliveries that have failed, with letters; the inbox has forgotten the notification.
    sell(&house, user, &[THING]).await;
    let working = house.deliver();
    testkit::eventually("it has failed", PATIENCE, async || house.letters().await.len() == 1).await;
    working.stop().await;
    house.sql("UPDATE notification SET remove_at = 1").await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 1);
    // Deliveries that wait; of some the notification has gone, of one the destination.
    sell(&house, user, &[THING, THING]).await;
    house.sql("DELETE FROM notification WHERE position = 2").await;
    house.sql(&format!("UPDATE {WEBHOOK} SET item_key = 'webhook:old' WHERE state = 0")).await;
    // Events that could not be understood: for the user alone, for another one as well, and such that are no JSON.
    let missing = |users: &[Uuid]| json!({ "user_ids": users, "note": THING });
    let both = cloud_event(uuid(901), SOLD, &missing(&[user, *ben.as_uuid()]));
    let alone = cloud_event(uuid(902), SOLD, &missing(&[user]));
    let (both, alone) =
        (String::from_utf8(both).unwrap().replace(THING, "x"), String::from_utf8(alone).unwrap());
    let garbage = format!("{{{}", user.simple()).to_uppercase();
    for (at, body) in [&both, &alone, &garbage].into_iter().enumerate() {
        house
            .sql(&format!(
                "INSERT INTO notification_dlq (letter_id, kind, destination, attempts, cause, payload, created_at, died_at) \
                 VALUES (X'{}', 'event', 'sold', 1, 'bad {user}', X'{}', 1, 9999999999999)",
                uuid(at as u128).simple(),
                hex(body.as_bytes())
            ))
            .await;
    }
    let queues = [LIVE, LOG, WEBHOOK, "notification_dlq", "notification", "users", "accounts", "outbox"];
    let before = tables_with(&house, &ids(user)).await;
    for table in queues {
        assert!(before.contains(table), "the walk finds what is there: {table}: {before:?}");
    }
    let personal: Vec<String> = [NAME, SUBJECT, THING, ACCOUNT].map(|text| hex(text.as_bytes())).into();
    assert!(tables_with(&house, &personal).await.len() >= 6);

    house.accounts.erase(ann, "test").await.unwrap();

    assert_eq!(tables_with(&house, &personal).await, BTreeSet::new());
    let allowed: BTreeSet<String> = MAY_KEEP_THE_ID.iter().map(|(table, _)| (*table).to_owned()).collect();
    let kept = tables_with(&house, &ids(user)).await;
    assert!(kept.is_subset(&allowed), "{kept:?} and not only {allowed:?}");
    // The letter of the event that concerns another one stays, without the user.
    let letters = house.letters().await;
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let nobody = Uuid::nil().to_string();
    assert_eq!(letter.payload, both.replace(&user.to_string(), &nobody).into_bytes());
    assert_eq!(letter.cause, format!("bad {nobody}"));
    // Nothing that waited is sent.
    let sent = receiver.count();
    receiver.answer_with(200);
    let working = house.deliver();
    sell(&house, *ben.as_uuid(), &["a bow"]).await;
    testkit::eventually("that of ben came", PATIENCE, async || receiver.count() > sent).await;
    working.stop().await;
    let last = receiver.received().last().unwrap().2.clone();
    assert_eq!((receiver.count() - sent, last["data"]["user_id"].as_str()), (1, Some(&*ben.to_string())));
}

async fn a_delivery_to_a_user_erased_meanwhile_is_not_made(place: &SqlPlace) {
    let (house, receiver) = open(place, 200).await;
    sell(&house, uuid(1), &["a sword"]).await;
    // As a worker finds it that claimed the delivery before the user was erased.
    house.sql("UPDATE notification_head SET erased_at = 1").await;
    let working = house.deliver();
    let done = [State::Done];
    testkit::eventually("it is dealt with", PATIENCE, async || house.states(WEBHOOK).await == done).await;
    testkit::eventually("it is dealt with", PATIENCE, async || house.states(LOG).await == done).await;
    working.stop().await;
    assert_eq!((receiver.count(), house.letters().await.len()), (0, 0));
    assert_eq!(house.measured("playhouse_notification_withheld_total{why=\"erased\"}"), 2);
}

async fn a_delivery_that_expired_while_it_waited_is_not_made(place: &SqlPlace) {
    let receiver = Receiver::start(200).await;
    let setup = Setup::with(|config| {
        config.webhooks.insert("crm".to_owned(), receiver.config());
        by(config, &["webhook:crm"]);
        config.templates.get_mut("sold").unwrap().expires_after = Some(Duration::from_millis(1));
    });
    let house = House::open(place, setup).await;
    sell(&house, uuid(1), &["fresh fish"]).await;
    let expires_at = house.number("SELECT MAX(expires_at) FROM notification").await;
    let is_over = async || Clock::system().now().as_millis() > expires_at;
    testkit::eventually("it has expired", PATIENCE, is_over).await;
    let working = house.deliver();
    let is_done = async || house.states(WEBHOOK).await == [State::Done];
    testkit::eventually("it is dealt with", PATIENCE, is_done).await;
    working.stop().await;
    assert_eq!(receiver.count(), 0);
    assert_eq!(house.measured("playhouse_notification_withheld_total{why=\"expired\"}"), 1);
}

async fn an_event_that_names_an_unknown_user_makes_no_inbox(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let (bus, unknown) = (memory().await, uuid(77_777));
    bus.publish(&[sold_event(&[unknown, uuid(1)], "a sword"), sold_event(&[unknown], "a bow")]).await;
    let intake = house.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    let taken = intake.tick(&consumer, PATIENCE).await.unwrap();
    assert_eq!((taken.events, taken.notifications, taken.dead), (2, 1, 0));
    assert_eq!(tables_with(&house, &[hex(unknown.as_bytes())]).await, BTreeSet::new());
    assert_eq!(house.titles(uuid(1)).await, ["You bought a sword"]);
    assert_eq!(house.measured("playhouse_notification_unknown_users_total"), 2);
}
