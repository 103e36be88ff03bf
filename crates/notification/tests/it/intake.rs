//! From the bus into the inboxes: each event once, whatever else comes with it.

use events::{Source, cloud_event, memory, sold, sold_event};
use notification::{LIVE, Taken};
use serde_json::json;
use testkit::Nats;

use super::*;

testkit::on_all_stores!(
    an_event_makes_one_notification_per_user_however_often_it_comes,
    two_processes_with_the_same_events_at_the_same_time_tell_them_once,
    it_is_acknowledged_after_the_commit,
    an_event_is_remembered_for_longer_than_what_was_made_of_it,
    what_cannot_be_told_is_a_dead_letter_and_holds_up_nobody,
    what_the_store_refuses_is_found_one_by_one,
    what_was_delivered_too_often_is_buried,
    large_batches_are_written_in_pieces,
    an_event_can_concern_many,
    an_embedded_bus_is_emptied_before_the_process_stops,
);

/// Takes in until so many events came.
async fn take(intake: &Intake, events: usize) -> Taken {
    let consumer = intake.subscribe().await.unwrap();
    let mut all = Taken::default();
    while all.events < events {
        let Taken { events, repeated, notifications, dead } = intake.tick(&consumer, PATIENCE).await.unwrap();
        all.events += events;
        all.repeated += repeated;
        all.notifications += notifications;
        all.dead += dead;
    }
    all
}

/// It ends with the process.
async fn an_embedded_bus_is_emptied_before_the_process_stops(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| config.batch = 5)).await;
    let (bus, ann) = (memory().await, uuid(1));
    let events: Vec<_> = (0..23).map(|n| sold_event(&[ann], &format!("sword {n}"))).collect();
    bus.publish(&events).await;
    let drain = runtime::Drain::new();
    drain.request();
    house.intake(&bus).run(drain).await.unwrap();
    assert_eq!(house.titles(ann).await.len(), 23);
}

async fn nothing_is_left(source: &Source, intake: &Intake) {
    let consumer = intake.subscribe().await.unwrap();
    let none = intake.tick(&consumer, Duration::from_millis(50)).await.unwrap();
    assert_eq!(none, Taken::default());
    assert_eq!(source.unacknowledged().await, 0);
}

async fn an_event_makes_one_notification_per_user_however_often_it_comes(place: &SqlPlace) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let house = House::open(place, Setup::default()).await;
    let intake = house.intake(&source.bus);
    let [ann, ben] = [uuid(1), uuid(2)];
    let first = sold(uuid(100), &[ann, ben, ann], "a sword");
    for body in [&first, &first, &sold(uuid(101), &[ben], "a bow"), &first] {
        source.put("sold", body.clone()).await;
    }
    let taken = take(&intake, 4).await;
    assert_eq!(taken, Taken { events: 4, repeated: 2, notifications: 3, dead: 0 });
    source.put("sold", first).await;
    assert_eq!(take(&intake, 1).await, Taken { events: 1, repeated: 1, ..Taken::default() });
    assert_eq!(house.titles(ann).await, ["You bought a sword"]);
    assert_eq!(house.titles(ben).await, ["You bought a sword", "You bought a bow"]);
    assert_eq!(house.states(LIVE).await, [State::Done; 3]);
    assert_eq!(house.measured("playhouse_notification_made_total"), 3);
    assert_eq!(house.measured("playhouse_notification_events_total{outcome=\"repeated\"}"), 3);
    nothing_is_left(&source, &intake).await;
}

async fn two_processes_with_the_same_events_at_the_same_time_tell_them_once(place: &SqlPlace) {
    let nats = testkit::need!(Nats::shared().await);
    // A stream each, so that each gets all.
    let sources = [Source::open(nats).await, Source::open(nats).await];
    let house = House::open(place, Setup::with(|config| config.batch = 20)).await;
    let houses = [house.clone(), house.another(place, house.setup.clone()).await];
    let users: Vec<Uuid> = (1..=7).map(uuid).collect();
    let bodies: Vec<Vec<u8>> = (0..60)
        .map(|number| sold(uuid(1_000 + (number * 37) % 60), &users[..=(number % 7) as usize], "a sword"))
        .collect();
    for (at, source) in sources.iter().enumerate() {
        // In another order.
        let mut bodies = bodies.clone();
        bodies.rotate_left(at * 17);
        futures::future::join_all(bodies.into_iter().map(|body| source.put("sold", body))).await;
    }
    let intakes = [houses[0].intake(&sources[0].bus), houses[1].intake(&sources[1].bus)];
    let (one, two) = tokio::join!(take(&intakes[0], 60), take(&intakes[1], 60));
    assert_eq!((one.repeated + two.repeated, one.dead + two.dead), (60, 0), "{one:?} {two:?}");
    let expected: usize = (0..60).map(|number| number % 7 + 1).sum();
    assert_eq!(one.notifications + two.notifications, expected);
    assert_eq!(house.count("notification").await, expected as i64);
    assert_eq!(house.count("notification_event").await, 60);
    for user in users {
        let positions: Vec<i64> = house.all(user).await.iter().map(|one| one.position).collect();
        assert_eq!(positions, (1..=positions.len() as i64).collect::<Vec<_>>());
    }
}

async fn it_is_acknowledged_after_the_commit(place: &SqlPlace) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let house = House::open(place, Setup::default()).await;
    let intake = house.intake(&source.bus);
    let consumer = intake.subscribe().await.unwrap();
    source.put("sold", sold(uuid(100), &[uuid(1)], "a bow")).await;
    source.put("gossip", cloud_event(uuid(101), "shop.gossip.v1", &json!({ "user_id": uuid(1) }))).await;
    // Whoever writes to this inbox waits.
    let mut tx = house.db.begin().await.unwrap();
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
    // Time enough to do the wrong thing.
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(source.unacknowledged().await, 2);
    assert!(!ticking.is_finished());
    tx.rollback().await.unwrap();
    assert_eq!(ticking.await.unwrap(), Taken { events: 2, notifications: 1, ..Taken::default() });
    nothing_is_left(&source, &intake).await;
    // Of the one that concerns nobody there is nothing.
    assert_eq!((house.count("notification_event").await, house.count("notification_dlq").await), (1, 0));
}

async fn an_event_is_remembered_for_longer_than_what_was_made_of_it(place: &SqlPlace) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let house = House::open(place, Setup::default()).await;
    let intake = house.intake(&source.bus);
    let event = sold(uuid(100), &[uuid(1)], "a sword");
    source.put("sold", event.clone()).await;
    assert_eq!(take(&intake, 1).await.notifications, 1);
    // A month later.
    house.sql("UPDATE notification SET remove_at = 1").await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 1);
    assert_eq!((house.count("notification").await, house.count("notification_event").await), (0, 1));
    source.put("sold", event.clone()).await;
    assert_eq!(take(&intake, 1).await, Taken { events: 1, repeated: 1, ..Taken::default() });
    assert_eq!(house.count("notification").await, 0);
    // When it is forgotten at last it would be new.
    let age = house.setup.config.dedupe_retention.as_millis() - 60_000;
    house.sql(&format!("UPDATE notification_event SET received_at = received_at - {age}")).await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 0);
    house.sql("UPDATE notification_event SET received_at = received_at - 120000").await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 1);
    assert_eq!(house.count("notification_event").await, 0);
}

async fn what_cannot_be_told_is_a_dead_letter_and_holds_up_nobody(place: &SqlPlace) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let house = House::open(place, Setup::default()).await;
    let intake = house.intake(&source.bus);
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
            "the field \"thing\" is not in its data",
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
    assert_eq!(taken, Taken { events: 17, repeated: 0, notifications: 2, dead: 15 });
    assert_eq!(house.titles(ann).await, ["You bought a sword", "You bought a bow"]);
    let letters = house.letters().await;
    assert_eq!(letters.len(), poison.len(), "{letters:?}");
    for (at, (letter, (subject, body, cause))) in letters.iter().zip(&poison).enumerate() {
        assert_eq!((letter.kind.as_str(), letter.destination.as_str()), ("event", *subject));
        assert_eq!(letter.payload, *body);
        assert_eq!(letter.stream_position, Some(at as i64 + 2));
        assert_eq!((letter.attempts, letter.user, letter.notification), (1, None, None));
        assert!(letter.cause.contains(cause), "{}", letter.cause);
        // It cannot be told now either, and stays.
        let error = house.notifications.replay(letter.id, Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("still cannot be told"), "{error}");
    }
    assert_eq!(house.letters().await, letters);
    nothing_is_left(&source, &intake).await;
    // With a template that can do without, it can be told: once.
    let mended = Setup::with(|config| {
        config.templates.insert("sold".to_owned(), template(Some(SOLD), &["thing"], "You bought {thing|it}"));
    });
    let mended = house.another(place, mended).await;
    mended.notifications.replay(letters[3].id, Duration::ZERO).await.unwrap();
    let again = mended.notifications.replay(letters[3].id, Duration::ZERO).await.unwrap_err();
    assert!(matches!(again, notification::Error::NoLetter(_)), "{again:?}");
    assert_eq!(house.titles(ann).await.last().unwrap(), "You bought it");
    assert_eq!(house.states(LIVE).await, [State::Done; 3]);
    let replayed = mended.notifications.replay_some(&Letters::default(), 100, 1_000).await.unwrap();
    assert_eq!((replayed.replayed, replayed.failed.len(), replayed.next), (1, 3, None));
    assert_eq!(house.letters().await.len(), 3);
}

async fn what_the_store_refuses_is_found_one_by_one(place: &SqlPlace) {
    let bus = memory().await;
    let house = House::open(place, Setup::default()).await;
    let intake = house.intake(&bus);
    let refuse = if place.is_server() {
        "CREATE TRIGGER picky BEFORE INSERT ON notification FOR EACH ROW \
         IF NEW.data LIKE '%poison%' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it is bad for you'; END IF"
    } else {
        "CREATE TRIGGER picky BEFORE INSERT ON notification WHEN NEW.data LIKE '%poison%' \
         BEGIN SELECT RAISE(ABORT, 'it is bad for you'); END"
    };
    house.sql(refuse).await;
    let events: Vec<_> =
        ["bread", "poison", "milk"].iter().map(|thing| sold_event(&[uuid(1)], thing)).collect();
    bus.publish(&events).await;
    assert_eq!(take(&intake, 3).await, Taken { events: 3, repeated: 0, notifications: 2, dead: 1 });
    assert_eq!(house.titles(uuid(1)).await, ["You bought bread", "You bought milk"]);
    assert_eq!(house.states(LIVE).await, [State::Done; 2]);
    let letters = house.letters().await;
    assert_eq!(letters.len(), 1);
    assert!(letters[0].cause.contains("it is bad for you"), "{}", letters[0].cause);
    assert_eq!(letters[0].stream_position, Some(2));
    // It was not taken in, so it can be replayed.
    house.sql("DROP TRIGGER picky").await;
    house.notifications.replay(letters[0].id, Duration::ZERO).await.unwrap();
    assert_eq!(house.titles(uuid(1)).await.len(), 3);
    assert_eq!(house.letters().await, []);
}

async fn what_was_delivered_too_often_is_buried(place: &SqlPlace) {
    let bus = memory().await;
    let house = House::open(place, Setup::with(|config| config.max_attempts = 2)).await;
    let intake = house.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    // Twice is not too often.
    bus.publish(&[sold_event(&[uuid(2)], "a shield")]).await;
    consumer.fetch(1, PATIENCE).await.unwrap()[0].again(Duration::ZERO).await.unwrap();
    assert_eq!(take(&intake, 1).await, Taken { events: 1, notifications: 1, ..Taken::default() });
    bus.publish(&[sold_event(&[uuid(1)], "a bomb"), sold_event(&[uuid(1)], "a bow")]).await;
    // Whoever takes the first one dies of it, twice: it comes for the third time.
    for _ in 0..2 {
        let deliveries = consumer.fetch(1, PATIENCE).await.unwrap();
        assert!(deliveries[0].subject == "sold");
        deliveries[0].again(Duration::ZERO).await.unwrap();
    }
    assert_eq!(take(&intake, 2).await, Taken { events: 2, repeated: 0, notifications: 1, dead: 1 });
    let letters = house.letters().await;
    assert_eq!(letters[0].attempts, 3);
    assert!(letters[0].cause.contains("delivered 3 times"), "{}", letters[0].cause);
    assert_eq!(house.titles(uuid(1)).await, ["You bought a bow"]);
    // That is no reason not to try when an operator asks for it.
    house.notifications.replay(letters[0].id, Duration::ZERO).await.unwrap();
    assert_eq!(house.titles(uuid(1)).await, ["You bought a bow", "You bought a bomb"]);
}

async fn large_batches_are_written_in_pieces(place: &SqlPlace) {
    let bus = memory().await;
    let house = House::open(place, Setup::with(|config| by(config, &["live", "log"]))).await;
    let intake = house.intake(&bus);
    // Far more than a server takes in one message.
    let thing = "x".repeat(20_000);
    let events: Vec<_> = (0..200_u128).map(|number| sold_event(&[uuid(number % 3)], &thing)).collect();
    bus.publish(&events).await;
    let taken = take(&intake, 200).await;
    assert_eq!(taken, Taken { events: 200, repeated: 0, notifications: 200, dead: 0 });
    assert_eq!(house.count(LIVE).await, 200);
    assert_eq!(house.count(notification::LOG).await, 200);
    let first = &house.all(uuid(0)).await[0];
    assert_eq!(first.data["thing"].as_str().unwrap().len(), 20_000);
}

async fn an_event_can_concern_many(place: &SqlPlace) {
    let bus = memory().await;
    let house = House::open(place, Setup::default()).await;
    let intake = house.intake(&bus);
    house.add_users((SEEDED..3_000).map(uuid)).await;
    // Together they are more than the store can take at once.
    let events: Vec<_> = (0..30_u128)
        .map(|number| {
            let users: Vec<Uuid> = (0..100).map(|user| uuid(number * 100 + user)).collect();
            sold_event(&users, "a kingdom")
        })
        .collect();
    bus.publish(&events).await;
    assert_eq!(take(&intake, 30).await, Taken { events: 30, repeated: 0, notifications: 3_000, dead: 0 });
    assert_eq!(house.count("notification_head").await, 3_000);
    let transactions = house.count("(SELECT DISTINCT batch FROM notification_event) AS batches").await;
    assert!((4..30).contains(&transactions), "{transactions}");
    let too_many: Vec<Uuid> = (0..1_001).map(uuid).collect();
    bus.publish(&[sold_event(&too_many, "a kingdom")]).await;
    assert_eq!(take(&intake, 1).await, Taken { events: 1, dead: 1, ..Taken::default() });
    assert!(house.letters().await[0].cause.contains("1001 users"));
}
