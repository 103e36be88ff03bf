//! Webhook destinations, and the dead letters of deliveries that they refuse.

use events::{memory, sell, sold_event};
use notification::{Error, WEBHOOK};
use receiver::{HANGS, Receiver};
use tokio::time::Instant;

use super::*;

testkit::on_all_stores!(
    failing_delivery_is_a_dead_letter_and_a_replay_delivers_it_once,
    destination_that_answers_gone_is_disabled,
    deliveries_to_a_failing_destination_are_postponed_without_a_claim,
    dead_letters_are_replayed_at_a_rate,
    dead_letter_can_be_discarded,
    dead_letters_expire,
    claimed_deliveries_are_sent_concurrently,
    failing_destination_does_not_delay_a_healthy_one,
);

/// Opens a process whose template delivers to these destinations.
async fn open(database: &TestDatabase, destinations: &[(&str, webhook::Config)]) -> Process {
    let setup = Setup::with(|config| {
        config.webhooks =
            destinations.iter().map(|(name, config)| ((*name).to_owned(), config.clone())).collect();
        let channels: Vec<String> = destinations.iter().map(|(name, _)| format!("webhook:{name}")).collect();
        set_channels(config, &channels.iter().map(String::as_str).collect::<Vec<_>>());
    });
    Process::open(database, setup).await
}

async fn dead_letters(process: &Process, count: usize) -> Vec<DeadLetter> {
    testkit::eventually("there are dead letters", PATIENCE, async || {
        let dead_letters = process.dead_letters().await;
        if dead_letters.len() == count { Ok(dead_letters) } else { Err(format!("{dead_letters:?}")) }
    })
    .await
}

async fn await_received(receiver: &Receiver, count: usize) {
    testkit::eventually("it is sent", PATIENCE, async || receiver.count() == count).await;
}

async fn await_done(process: &Process, count: usize) {
    testkit::eventually("the deliveries are done", PATIENCE, async || {
        process.states(WEBHOOK).await == vec![State::Done; count]
    })
    .await;
}

async fn failing_delivery_is_a_dead_letter_and_a_replay_delivers_it_once(database: &TestDatabase) {
    let shop = Receiver::start(500).await;
    let process = open(database, &[("shop", shop.config())]).await;
    sell(&process, uuid(1), &["a sword"]).await;
    let working = process.deliver();
    let dead_letter = dead_letters(&process, 1).await.remove(0);
    assert_eq!((shop.count(), dead_letter.attempts), (3, 3));
    assert_eq!((dead_letter.kind.as_str(), dead_letter.destination.as_str()), ("webhook", "webhook:shop"));
    assert!(dead_letter.cause.contains("it answered 500"), "{}", dead_letter.cause);
    let stored = process.all(uuid(1)).await.remove(0);
    assert_eq!((dead_letter.user, dead_letter.notification), (Some(uuid(1)), Some(stored.notification_id)));
    assert_eq!(process.states(WEBHOOK).await, [State::Failed]);
    // If the replay fails, it becomes a dead letter again, after as many attempts.
    process.notifications.replay(dead_letter.id, Duration::ZERO).await.unwrap();
    await_received(&shop, 6).await;
    let again = dead_letters(&process, 1).await.remove(0);
    assert_eq!((again.id, again.attempts), (dead_letter.id, 3));
    shop.answer_with(204);
    // Of several concurrent replays, one succeeds.
    let replays = futures::future::join_all(
        (0..4).map(|_| process.notifications.replay(dead_letter.id, Duration::ZERO)),
    );
    let ok = replays.await.into_iter().filter(|replayed| match replayed {
        Ok(()) => true,
        Err(error) => panic_unless(matches!(error, Error::DeadLetterNotFound(_)), error),
    });
    assert_eq!(ok.count(), 1);
    await_done(&process, 1).await;
    assert_eq!((shop.count(), process.dead_letters().await.len()), (7, 0));
    let (_, id, body) = shop.received().pop().unwrap();
    assert_eq!(id, stored.notification_id.to_string());
    assert_eq!((body["type"].as_str(), body["data"]["position"].as_i64()), (Some("notification"), Some(1)));
    assert_eq!(body["data"]["texts"]["en"]["title"], "You bought a sword");
    working.stop().await;
}

fn panic_unless(is_fine: bool, error: &Error) -> bool {
    assert!(is_fine, "{error:?}");
    false
}

async fn destination_that_answers_gone_is_disabled(database: &TestDatabase) {
    let (gone, shop) = (Receiver::start(410).await, Receiver::start(200).await);
    let process = open(database, &[("gone", gone.config()), ("shop", shop.config())]).await;
    sell(&process, uuid(1), &["1"]).await;
    let working = process.deliver();
    dead_letters(&process, 1).await;
    let views = process.notifications.deliveries().destinations().await.unwrap();
    assert!(views[0].name == "gone" && views[0].disabled.as_ref().unwrap().1.contains("410"), "{views:?}");
    assert!(views[1].name == "shop" && views[1].disabled.is_none());
    // Later deliveries fail without a request.
    sell(&process, uuid(1), &["2", "3"]).await;
    let found = dead_letters(&process, 3).await;
    assert!(found[1].cause.contains("has been disabled since"), "{}", found[1].cause);
    assert_eq!(gone.count(), 1, "it got one request");
    await_received(&shop, 3).await;
    gone.answer_with(200);
    assert!(process.notifications.webhooks().enable("gone").await.unwrap());
    assert!(!process.notifications.webhooks().enable("gone").await.unwrap());
    let filter = |destination: &str| DeadLetterFilter {
        destination: Some(destination.to_owned()),
        ..DeadLetterFilter::default()
    };
    let none = process.notifications.replay_some(&filter("webhook:shop"), 100, 1_000).await.unwrap();
    assert_eq!(none, notification::ReplayReport::default());
    let some = process.notifications.replay_some(&filter("webhook:gone"), 2, 1_000).await.unwrap();
    assert_eq!((some.replayed, some.next), (2, Some(found[1].number)));
    let rest = DeadLetterFilter { after: found[1].number, ..filter("webhook:gone") };
    assert_eq!(process.notifications.replay_some(&rest, 2, 1_000).await.unwrap().replayed, 1);
    await_received(&gone, 4).await;
    await_done(&process, 6).await;
    working.stop().await;
    assert_eq!(shop.count(), 3);
}

async fn deliveries_to_a_failing_destination_are_postponed_without_a_claim(database: &TestDatabase) {
    let (shop, minute) = (Receiver::start(500).await, Duration::from_secs(60));
    let setup = Setup::with(|config| {
        config.webhook_delivery.workers = 1;
        config.webhook_delivery.batch = 1;
        let backoff = Backoff::new(2 * minute, 2 * minute);
        config.webhooks.insert("shop".to_owned(), webhook::Config { backoff, ..shop.config() });
        set_channels(config, &["webhook:shop"]);
    });
    let process = Process::open(database, setup).await;
    let things: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    sell(&process, uuid(1), &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let working = process.deliver();
    let queue = process.queue(WEBHOOK);
    let later = process.db.now().await.unwrap().after(minute / 2);
    let waiting = testkit::eventually("all are postponed", PATIENCE, async || {
        let open = queue.list(work_queue::Filter::Open, 100).await.unwrap();
        if open.iter().all(|item| item.due > later && item.holder.is_none()) {
            Ok(open)
        } else {
            Err("not all")
        }
    })
    .await;
    working.stop().await;
    // One was sent; no worker claimed the others.
    assert_eq!((waiting.len(), shop.count()), (30, 1));
    assert_eq!(waiting.iter().filter(|item| item.lease == 0).count(), 29);
    assert_eq!(waiting.iter().map(|item| item.attempts).sum::<u32>(), 1);
}

async fn dead_letters_are_replayed_at_a_rate(database: &TestDatabase) {
    let shop = Receiver::start(410).await;
    let process = open(database, &[("shop", shop.config())]).await;
    let things: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    sell(&process, uuid(1), &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let working = process.deliver();
    dead_letters(&process, 20).await;
    working.stop().await;
    let report = process.notifications.replay_some(&DeadLetterFilter::default(), 100, 1000).await.unwrap();
    assert_eq!(
        (report.replayed, report.failed.len()),
        (0, 20),
        "the destination is disabled, so each would fail again"
    );
    assert!(report.failed[0].1.contains("`playhouse webhooks enable shop`"), "{:?}", report.failed[0]);
    assert!(process.notifications.webhooks().enable("shop").await.unwrap());
    let before = process.db.now().await.unwrap().as_millis();
    assert_eq!(
        process.notifications.replay_some(&DeadLetterFilter::default(), 100, 2).await.unwrap().replayed,
        20
    );
    let after = process.db.now().await.unwrap().as_millis();
    let mut due: Vec<i64> = Vec::new();
    for item in process.queue(WEBHOOK).list(work_queue::Filter::Open, 100).await.unwrap() {
        assert_eq!(item.attempts, 0);
        due.push(item.due.as_millis());
    }
    due.sort_unstable();
    for (at, due) in due.iter().enumerate() {
        let wait = at as i64 * 500;
        assert!((before + wait..=after + wait).contains(due), "{at}: {due} {before} {after}");
    }
    assert_eq!(due.len(), 20);
}

async fn dead_letter_can_be_discarded(database: &TestDatabase) {
    let shop = Receiver::start(410).await;
    let process = open(database, &[("shop", shop.config())]).await;
    sell(&process, uuid(1), &["1"]).await;
    sell(&process, uuid(2), &["2"]).await;
    let working = process.deliver();
    let found = dead_letters(&process, 2).await;
    working.stop().await;
    let filter = DeadLetterFilter {
        user: Some(uuid(2)),
        kind: Some("webhook".to_owned()),
        ..DeadLetterFilter::default()
    };
    let of_two = process.notifications.dead_letters(&filter, 10).await.unwrap().dead_letters;
    assert_eq!(of_two.len(), 1);
    process.notifications.discard(of_two[0].id).await.unwrap();
    assert!(matches!(process.notifications.discard(of_two[0].id).await, Err(Error::DeadLetterNotFound(_))));
    assert!(matches!(
        process.notifications.dead_letter(of_two[0].id).await,
        Err(Error::DeadLetterNotFound(_))
    ));
    assert_eq!(process.count(WEBHOOK).await, 1);
    let other = found.iter().find(|dead_letter| dead_letter.id != of_two[0].id).unwrap();
    assert_eq!(process.notifications.dead_letter(other.id).await.unwrap(), *other);
    assert_eq!(process.all(uuid(2)).await.len(), 1, "the inbox keeps it");
}

async fn dead_letters_expire(database: &TestDatabase) {
    let shop = Receiver::start(410).await;
    let process = open(database, &[("shop", shop.config())]).await;
    let things: Vec<String> = (0..102).map(|number| number.to_string()).collect();
    sell(&process, uuid(1), &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let working = process.deliver();
    dead_letters(&process, 102).await;
    working.stop().await;
    let month = process.setup.config.dead_retention.as_millis();
    process.sql(&format!("UPDATE notification_dlq SET died_at = died_at - {month} + 60000")).await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 0);
    process.sql("UPDATE notification_dlq SET died_at = died_at - 120000 WHERE id <= 101").await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 100);
    assert_eq!(process.notifications.remove_old().await.unwrap(), 1);
    assert_eq!(process.notifications.remove_old().await.unwrap(), 0);
    assert_eq!((process.count("notification_dlq").await, process.count(WEBHOOK).await), (1, 1));
}

async fn claimed_deliveries_are_sent_concurrently(database: &TestDatabase) {
    let (bad, shop) = (Receiver::start(HANGS).await, Receiver::start(200).await);
    let setup = Setup::with(|config| {
        config.webhook_delivery.workers = 1;
        config.webhook_delivery.batch = 8;
        let hangs = webhook::Config { timeout: PATIENCE, ..bad.config() };
        config.webhooks = BTreeMap::from([("bad".to_owned(), hangs), ("shop".to_owned(), shop.config())]);
        set_channels(config, &["webhook:bad", "webhook:shop"]);
    });
    let process = Process::open(database, setup).await;
    sell(&process, uuid(1), &["1", "2", "3", "4"]).await;
    let working = process.deliver();
    testkit::eventually("the healthy destination gets all", PATIENCE / 2, async || shop.count() == 4).await;
    await_received(&bad, 4).await;
    working.task.abort();
}

/// Returns the sorted latencies of messages to a healthy destination, sent one by one. With `bad`, deliveries to a destination that
/// answers with this status wait at the same time.
async fn latencies(database: &TestDatabase, bad: Option<u16>) -> Vec<Duration> {
    let (shop, other) = (Receiver::start(200).await, Receiver::start(bad.unwrap_or(200)).await);
    let mut config = other.config();
    config.backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
    let setup = Setup::with(|settings| {
        settings.webhook_delivery.workers = 16;
        settings.webhook_delivery.batch = 8;
        settings.webhooks = BTreeMap::from([("shop".to_owned(), shop.config()), ("bad".to_owned(), config)]);
        set_channels(settings, &["webhook:shop"]);
        let mut other = settings.templates["sold"].clone();
        other.event = Some("shop.gossip.v1".to_owned());
        other.channels = vec![Channel::Webhook("bad".to_owned())];
        settings.templates.insert("gossip".to_owned(), other);
    });
    let process = Process::open(database, setup).await;
    if bad.is_some() {
        let bus = memory().await;
        let gossip = |_| bus::Event { kind: "shop.gossip.v1".to_owned(), ..sold_event(&[uuid(2)], "gossip") };
        bus.publish(&(0..200).map(gossip).collect::<Vec<_>>()).await;
        let intake = process.intake(&bus);
        let consumer = intake.subscribe().await.unwrap();
        assert_eq!(intake.tick(&consumer, PATIENCE).await.unwrap().notifications, 200);
    }
    let working = process.deliver();
    if bad.is_some() {
        testkit::eventually("the failing destination gets a request", PATIENCE, async || other.count() > 0)
            .await;
    }
    let mut latencies = Vec::new();
    for number in 1..=20 {
        let began = Instant::now();
        sell(&process, uuid(1), &["a sword"]).await;
        await_received(&shop, number).await;
        latencies.push(shop.received()[number - 1].0.saturating_duration_since(began));
    }
    working.drain.request();
    working.task.abort();
    latencies.sort_unstable();
    latencies
}

async fn failing_destination_does_not_delay_a_healthy_one(database: &TestDatabase) {
    let alone = latencies(database, None).await;
    for (what, status) in [("failing", 500), ("hanging", HANGS)] {
        let database = another(database).await;
        let with_bad = latencies(&database, Some(status)).await;
        let limit = alone[10] * 5 + Duration::from_millis(100);
        assert!(with_bad[10] < limit, "{what}: {with_bad:?}, without it {alone:?}");
        assert!(with_bad[19] < Duration::from_secs(1), "{what}: {with_bad:?}");
    }
}

/// Creates another database of the same kind.
async fn another(database: &TestDatabase) -> TestDatabase {
    match database {
        TestDatabase::Sqlite(_) => TestDatabase::sqlite().unwrap(),
        TestDatabase::Server(_) => TestDatabase::servers().await.unwrap().remove(0),
    }
}
