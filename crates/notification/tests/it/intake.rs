//! Intake: each event notifies once, whatever else arrives with it.

use events::{Source, cloud_event, memory, sold, sold_event};
use notification::{IntakeReport, LIVE};
use serde_json::json;
use testkit::Nats;

use super::*;

testkit::on_all_stores!(
    redelivered_event_notifies_each_user_once,
    concurrent_processes_with_the_same_events_notify_once,
    event_is_acknowledged_after_the_commit,
    event_ids_are_kept_longer_than_notifications,
    event_that_cannot_be_interpreted_is_a_dead_letter_and_blocks_nothing,
    event_that_the_store_refuses_is_isolated_from_its_batch,
    event_delivered_too_often_is_a_dead_letter,
    large_batch_is_written_in_several_statements,
    events_with_many_recipients_are_taken_in,
    embedded_bus_is_drained_before_the_process_stops,
);

/// Takes in until this many events have arrived.
async fn take(intake: &Intake, events: usize) -> IntakeReport {
    let consumer = intake.subscribe().await.unwrap();
    let mut all = IntakeReport::default();
    while all.events < events {
        let IntakeReport { events, duplicates, notifications, dead_letters } =
            intake.tick(&consumer, PATIENCE).await.unwrap();
        all.events += events;
        all.duplicates += duplicates;
        all.notifications += notifications;
        all.dead_letters += dead_letters;
    }
    all
}

/// The events of an embedded bus do not survive the process.
async fn embedded_bus_is_drained_before_the_process_stops(database: &TestDatabase) {
    let process = Process::open(database, Setup::with(|config| config.batch = 5)).await;
    let (bus, ann) = (memory().await, uuid(1));
    let events: Vec<_> = (0..23).map(|n| sold_event(&[ann], &format!("sword {n}"))).collect();
    bus.publish(&events).await;
    let drain = runtime::Drain::new();
    drain.request();
    process.intake(&bus).run(drain).await.unwrap();
    assert_eq!(process.titles(ann).await.len(), 23);
}

async fn assert_nothing_is_left(source: &Source, intake: &Intake) {
    let consumer = intake.subscribe().await.unwrap();
    let none = intake.tick(&consumer, Duration::from_millis(50)).await.unwrap();
    assert_eq!(none, IntakeReport::default());
    assert_eq!(source.unacknowledged().await, 0);
}

async fn redelivered_event_notifies_each_user_once(database: &TestDatabase) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let process = Process::open(database, Setup::default()).await;
    let intake = process.intake(&source.bus);
    let [ann, ben] = [uuid(1), uuid(2)];
    let first = sold(uuid(100), &[ann, ben, ann], "a sword");
    for body in [&first, &first, &sold(uuid(101), &[ben], "a bow"), &first] {
        source.put("sold", body.clone()).await;
    }
    let taken = take(&intake, 4).await;
    assert_eq!(taken, IntakeReport { events: 4, duplicates: 2, notifications: 3, dead_letters: 0 });
    source.put("sold", first).await;
    assert_eq!(take(&intake, 1).await, IntakeReport { events: 1, duplicates: 1, ..IntakeReport::default() });
    assert_eq!(process.titles(ann).await, ["You bought a sword"]);
    assert_eq!(process.titles(ben).await, ["You bought a sword", "You bought a bow"]);
    assert_eq!(process.states(LIVE).await, [State::Done; 3]);
    assert_eq!(process.measured("playhouse_notification_made_total"), 3);
    assert_eq!(process.measured("playhouse_notification_events_total{outcome=\"repeated\"}"), 3);
    assert_nothing_is_left(&source, &intake).await;
}

async fn concurrent_processes_with_the_same_events_notify_once(database: &TestDatabase) {
    let nats = testkit::need!(Nats::shared().await);
    // One stream per process, so that each gets all events.
    let sources = [Source::open(nats).await, Source::open(nats).await];
    let process = Process::open(database, Setup::with(|config| config.batch = 20)).await;
    let processes = [process.clone(), process.another(database, process.setup.clone()).await];
    let users: Vec<Uuid> = (1..=7).map(uuid).collect();
    let bodies: Vec<Vec<u8>> = (0..60)
        .map(|number| sold(uuid(1_000 + (number * 37) % 60), &users[..=(number % 7) as usize], "a sword"))
        .collect();
    for (at, source) in sources.iter().enumerate() {
        // Each in a different order.
        let mut bodies = bodies.clone();
        bodies.rotate_left(at * 17);
        futures::future::join_all(bodies.into_iter().map(|body| source.put("sold", body))).await;
    }
    let intakes = [processes[0].intake(&sources[0].bus), processes[1].intake(&sources[1].bus)];
    let (one, two) = tokio::join!(take(&intakes[0], 60), take(&intakes[1], 60));
    assert_eq!(
        (one.duplicates + two.duplicates, one.dead_letters + two.dead_letters),
        (60, 0),
        "{one:?} {two:?}"
    );
    let expected: usize = (0..60).map(|number| number % 7 + 1).sum();
    assert_eq!(one.notifications + two.notifications, expected);
    assert_eq!(process.count("notification").await, expected as i64);
    assert_eq!(process.count("notification_event").await, 60);
    for user in users {
        let positions: Vec<i64> = process.all(user).await.iter().map(|one| one.position).collect();
        assert_eq!(positions, (1..=positions.len() as i64).collect::<Vec<_>>());
    }
}

async fn event_is_acknowledged_after_the_commit(database: &TestDatabase) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let process = Process::open(database, Setup::default()).await;
    let intake = process.intake(&source.bus);
    let consumer = intake.subscribe().await.unwrap();
    source.put("sold", sold(uuid(100), &[uuid(1)], "a bow")).await;
    source.put("gossip", cloud_event(uuid(101), "shop.gossip.v1", &json!({ "user_id": uuid(1) }))).await;
    // Locks the inbox, so that the intake waits.
    let mut tx = process.db.begin().await.unwrap();
    db::on!(tx, connection => {
        let text = "INSERT INTO notification_head (user_id, position) VALUES (?, 0)";
        sqlx::query(text).bind(&uuid(1).as_bytes()[..]).execute(connection).await.unwrap();
    });
    let ticking = tokio::spawn({
        let (intake, consumer) = (intake.clone(), consumer.clone());
        async move { intake.tick(&consumer, PATIENCE).await.unwrap() }
    });
    testkit::eventually("the event is delivered", PATIENCE, async || source.unacknowledged().await == 2)
        .await;
    // Enough time for a premature acknowledgement.
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(source.unacknowledged().await, 2);
    assert!(!ticking.is_finished());
    tx.rollback().await.unwrap();
    assert_eq!(
        ticking.await.unwrap(),
        IntakeReport { events: 2, notifications: 1, ..IntakeReport::default() }
    );
    assert_nothing_is_left(&source, &intake).await;
    // The event without a template is not recorded.
    assert_eq!((process.count("notification_event").await, process.count("notification_dlq").await), (1, 0));
}

async fn event_ids_are_kept_longer_than_notifications(database: &TestDatabase) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let process = Process::open(database, Setup::default()).await;
    let intake = process.intake(&source.bus);
    let event = sold(uuid(100), &[uuid(1)], "a sword");
    source.put("sold", event.clone()).await;
    assert_eq!(take(&intake, 1).await.notifications, 1);
    // A month later.
    process.sql("UPDATE notification SET remove_at = 1").await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 1);
    assert_eq!((process.count("notification").await, process.count("notification_event").await), (0, 1));
    source.put("sold", event.clone()).await;
    assert_eq!(take(&intake, 1).await, IntakeReport { events: 1, duplicates: 1, ..IntakeReport::default() });
    assert_eq!(process.count("notification").await, 0);
    // The id is removed after dedupe_retention, and not earlier.
    let age = process.setup.config.dedupe_retention.as_millis() - 60_000;
    process.sql(&format!("UPDATE notification_event SET received_at = received_at - {age}")).await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 0);
    process.sql("UPDATE notification_event SET received_at = received_at - 120000").await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 1);
    assert_eq!(process.count("notification_event").await, 0);
}

async fn event_that_cannot_be_interpreted_is_a_dead_letter_and_blocks_nothing(database: &TestDatabase) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let process = Process::open(database, Setup::default()).await;
    let intake = process.intake(&source.bus);
    let ann = uuid(1);
    let not_json = [0xff, 0x00, b'{', 0xfe];
    let poison = [
        ("odd", not_json.to_vec(), ""),
        ("nobody", cloud_event(uuid(100), SOLD, &json!({ "thing": "x" })), "neither user_id nor user_ids"),
        (
            "who",
            cloud_event(uuid(101), SOLD, &json!({ "user_id": "ann", "thing": "x" })),
            "\"ann\" is not the id",
        ),
        (
            "what",
            cloud_event(uuid(102), SOLD, &json!({ "user_id": ann })),
            "the field \"thing\" is not in the data",
        ),
        (
            "null",
            cloud_event(uuid(103), SOLD, &json!({ "user_id": ann, "thing": null })),
            "the field \"thing\"",
        ),
    ];
    source.put("sold", sold(uuid(200), &[ann], "a sword")).await;
    for _ in 0..3 {
        for (subject, body, _) in &poison {
            source.put(subject, body.clone()).await;
        }
    }
    source.put("sold", sold(uuid(201), &[ann], "a bow")).await;
    let taken = take(&intake, 17).await;
    assert_eq!(taken, IntakeReport { events: 17, duplicates: 0, notifications: 2, dead_letters: 15 });
    assert_eq!(process.titles(ann).await, ["You bought a sword", "You bought a bow"]);
    let dead_letters = process.dead_letters().await;
    assert_eq!(dead_letters.len(), poison.len(), "{dead_letters:?}");
    for (at, (dead_letter, (subject, body, cause))) in dead_letters.iter().zip(&poison).enumerate() {
        assert_eq!((dead_letter.kind.as_str(), dead_letter.destination.as_str()), ("event", *subject));
        assert_eq!(dead_letter.payload, *body);
        assert_eq!(dead_letter.stream_position, Some(at as i64 + 2));
        assert_eq!((dead_letter.attempts, dead_letter.user, dead_letter.notification), (1, None, None));
        assert!(dead_letter.cause.contains(cause), "{}", dead_letter.cause);
        // A replay fails for the same reason, and the dead letter stays.
        let error = process.notifications.replay(dead_letter.id, Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("still cannot be interpreted"), "{error}");
    }
    assert_eq!(process.dead_letters().await, dead_letters);
    assert_nothing_is_left(&source, &intake).await;
    // With a template that has a fallback, a replay notifies, once.
    let fixed = Setup::with(|config| {
        config.templates.insert("sold".to_owned(), template(Some(SOLD), &["thing"], "You bought {thing|it}"));
    });
    let fixed = process.another(database, fixed).await;
    fixed.notifications.replay(dead_letters[3].id, Duration::ZERO).await.unwrap();
    let again = fixed.notifications.replay(dead_letters[3].id, Duration::ZERO).await.unwrap_err();
    assert!(matches!(again, notification::Error::DeadLetterNotFound(_)), "{again:?}");
    assert_eq!(process.titles(ann).await.last().unwrap(), "You bought it");
    assert_eq!(process.states(LIVE).await, [State::Done; 3]);
    let report = fixed.notifications.replay_some(&DeadLetterFilter::default(), 100, 1_000).await.unwrap();
    assert_eq!((report.replayed, report.failed.len(), report.next), (1, 3, None));
    assert_eq!(process.dead_letters().await.len(), 3);
}

async fn event_that_the_store_refuses_is_isolated_from_its_batch(database: &TestDatabase) {
    let bus = memory().await;
    let process = Process::open(database, Setup::default()).await;
    let intake = process.intake(&bus);
    let refuse = if database.is_server() {
        "CREATE TRIGGER picky BEFORE INSERT ON notification FOR EACH ROW \
         IF NEW.data LIKE '%poison%' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poisoned row'; END IF"
    } else {
        "CREATE TRIGGER picky BEFORE INSERT ON notification WHEN NEW.data LIKE '%poison%' \
         BEGIN SELECT RAISE(ABORT, 'poisoned row'); END"
    };
    process.sql(refuse).await;
    let events: Vec<_> =
        ["bread", "poison", "milk"].iter().map(|thing| sold_event(&[uuid(1)], thing)).collect();
    bus.publish(&events).await;
    assert_eq!(
        take(&intake, 3).await,
        IntakeReport { events: 3, duplicates: 0, notifications: 2, dead_letters: 1 }
    );
    assert_eq!(process.titles(uuid(1)).await, ["You bought bread", "You bought milk"]);
    assert_eq!(process.states(LIVE).await, [State::Done; 2]);
    let dead_letters = process.dead_letters().await;
    assert_eq!(dead_letters.len(), 1);
    assert!(dead_letters[0].cause.contains("poisoned row"), "{}", dead_letters[0].cause);
    assert_eq!(dead_letters[0].stream_position, Some(2));
    // Its id was not recorded, so it can be replayed.
    process.sql("DROP TRIGGER picky").await;
    process.notifications.replay(dead_letters[0].id, Duration::ZERO).await.unwrap();
    assert_eq!(process.titles(uuid(1)).await.len(), 3);
    assert_eq!(process.dead_letters().await, []);
}

async fn event_delivered_too_often_is_a_dead_letter(database: &TestDatabase) {
    let bus = memory().await;
    let process = Process::open(database, Setup::with(|config| config.max_attempts = 2)).await;
    let intake = process.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    // Two deliveries are allowed.
    bus.publish(&[sold_event(&[uuid(2)], "a shield")]).await;
    consumer.fetch(1, PATIENCE).await.unwrap()[0].redeliver_after(Duration::ZERO).await.unwrap();
    assert_eq!(
        take(&intake, 1).await,
        IntakeReport { events: 1, notifications: 1, ..IntakeReport::default() }
    );
    bus.publish(&[sold_event(&[uuid(1)], "a bomb"), sold_event(&[uuid(1)], "a bow")]).await;
    // Two processes fail to take in the first one, so the bus delivers it a third time.
    for _ in 0..2 {
        let deliveries = consumer.fetch(1, PATIENCE).await.unwrap();
        assert!(deliveries[0].subject == "sold");
        deliveries[0].redeliver_after(Duration::ZERO).await.unwrap();
    }
    assert_eq!(
        take(&intake, 2).await,
        IntakeReport { events: 2, duplicates: 0, notifications: 1, dead_letters: 1 }
    );
    let dead_letters = process.dead_letters().await;
    assert_eq!(dead_letters[0].attempts, 3);
    assert!(dead_letters[0].cause.contains("delivered 3 times"), "{}", dead_letters[0].cause);
    assert_eq!(process.titles(uuid(1)).await, ["You bought a bow"]);
    // A replay ignores the number of deliveries.
    process.notifications.replay(dead_letters[0].id, Duration::ZERO).await.unwrap();
    assert_eq!(process.titles(uuid(1)).await, ["You bought a bow", "You bought a bomb"]);
}

async fn large_batch_is_written_in_several_statements(database: &TestDatabase) {
    let bus = memory().await;
    let process = Process::open(database, Setup::with(|config| set_channels(config, &["live", "log"]))).await;
    let intake = process.intake(&bus);
    // Far more than a server accepts in one message.
    let thing = "x".repeat(20_000);
    let events: Vec<_> = (0..200_u128).map(|number| sold_event(&[uuid(number % 3)], &thing)).collect();
    bus.publish(&events).await;
    let taken = take(&intake, 200).await;
    assert_eq!(taken, IntakeReport { events: 200, duplicates: 0, notifications: 200, dead_letters: 0 });
    assert_eq!(process.count(LIVE).await, 200);
    assert_eq!(process.count(notification::LOG).await, 200);
    let first = &process.all(uuid(0)).await[0];
    assert_eq!(first.data["thing"].as_str().unwrap().len(), 20_000);
}

async fn events_with_many_recipients_are_taken_in(database: &TestDatabase) {
    let bus = memory().await;
    let process = Process::open(database, Setup::default()).await;
    let intake = process.intake(&bus);
    process.add_users((SEEDED..3_000).map(uuid)).await;
    // Together they are more than one transaction may write.
    let events: Vec<_> = (0..30_u128)
        .map(|number| {
            let users: Vec<Uuid> = (0..100).map(|user| uuid(number * 100 + user)).collect();
            sold_event(&users, "a kingdom")
        })
        .collect();
    bus.publish(&events).await;
    assert_eq!(
        take(&intake, 30).await,
        IntakeReport { events: 30, duplicates: 0, notifications: 3_000, dead_letters: 0 }
    );
    assert_eq!(process.count("notification_head").await, 3_000);
    let transactions = process.count("(SELECT DISTINCT batch FROM notification_event) AS batches").await;
    assert!((4..30).contains(&transactions), "{transactions}");
    let too_many: Vec<Uuid> = (0..1_001).map(uuid).collect();
    bus.publish(&[sold_event(&too_many, "a kingdom")]).await;
    assert_eq!(
        take(&intake, 1).await,
        IntakeReport { events: 1, dead_letters: 1, ..IntakeReport::default() }
    );
    assert!(process.dead_letters().await[0].cause.contains("1001 users"));
}
