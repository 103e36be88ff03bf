//! Webhook destinations, and what becomes of what they do not take.

use events::{memory, sell, sold_event};
use notification::{Error, WEBHOOK};
use receiver::{HANGS, Receiver};
use tokio::time::Instant;

use super::*;

testkit::on_all_stores!(
    what_fails_always_is_a_letter_and_is_delivered_once_when_replayed,
    a_destination_that_is_gone_is_disabled,
    what_waits_for_a_destination_that_fails_is_put_off_unclaimed,
    letters_are_replayed_at_a_rate,
    a_letter_can_be_discarded,
    letters_expire,
    what_is_claimed_together_is_sent_together,
    a_bad_destination_does_not_delay_a_good_one,
);

/// A house that tells by these destinations.
async fn open(place: &SqlPlace, destinations: &[(&str, webhook::Config)]) -> House {
    let setup = Setup::with(|config| {
        config.webhooks =
            destinations.iter().map(|(name, config)| ((*name).to_owned(), config.clone())).collect();
        let channels: Vec<String> = destinations.iter().map(|(name, _)| format!("webhook:{name}")).collect();
        by(config, &channels.iter().map(String::as_str).collect::<Vec<_>>());
    });
    House::open(place, setup).await
}

async fn letters(house: &House, count: usize) -> Vec<Letter> {
    testkit::eventually("there are letters", PATIENCE, async || {
        let letters = house.letters().await;
        if letters.len() == count { Ok(letters) } else { Err(format!("{letters:?}")) }
    })
    .await
}

async fn received(receiver: &Receiver, count: usize) {
    testkit::eventually("it is sent", PATIENCE, async || receiver.count() == count).await;
}

async fn done(house: &House, count: usize) {
    testkit::eventually("it is written down", PATIENCE, async || {
        house.states(WEBHOOK).await == vec![State::Done; count]
    })
    .await;
}

async fn what_fails_always_is_a_letter_and_is_delivered_once_when_replayed(place: &SqlPlace) {
    let shop = Receiver::start(500).await;
    let house = open(place, &[("shop", shop.config())]).await;
    sell(&house, uuid(1), &["a sword"]).await;
    let working = house.deliver();
    let letter = letters(&house, 1).await.remove(0);
    assert_eq!((shop.count(), letter.attempts), (3, 3));
    assert_eq!((letter.kind.as_str(), letter.destination.as_str()), ("webhook", "webhook:shop"));
    assert!(letter.cause.contains("it answered 500"), "{}", letter.cause);
    let kept = house.all(uuid(1)).await.remove(0);
    assert_eq!((letter.user, letter.notification), (Some(uuid(1)), Some(kept.notification_id)));
    assert_eq!(house.states(WEBHOOK).await, [State::Failed]);
    // Replayed in vain it is a letter again, after as many attempts.
    house.notifications.replay(letter.id, Duration::ZERO).await.unwrap();
    received(&shop, 6).await;
    let again = letters(&house, 1).await.remove(0);
    assert_eq!((again.id, again.attempts), (letter.id, 3));
    shop.answer_with(204);
    // However many replay it: it happens once.
    let replays =
        futures::future::join_all((0..4).map(|_| house.notifications.replay(letter.id, Duration::ZERO)));
    let ok = replays.await.into_iter().filter(|replayed| match replayed {
        Ok(()) => true,
        Err(error) => panic_unless(matches!(error, Error::NoLetter(_)), error),
    });
    assert_eq!(ok.count(), 1);
    done(&house, 1).await;
    assert_eq!((shop.count(), house.letters().await.len()), (7, 0));
    let (_, id, body) = shop.received().pop().unwrap();
    assert_eq!(id, kept.notification_id.to_string());
    assert_eq!((body["type"].as_str(), body["data"]["position"].as_i64()), (Some("notification"), Some(1)));
    assert_eq!(body["data"]["texts"]["en"]["title"], "You bought a sword");
    working.stop().await;
}

fn panic_unless(is_fine: bool, error: &Error) -> bool {
    assert!(is_fine, "{error:?}");
    false
}

async fn a_destination_that_is_gone_is_disabled(place: &SqlPlace) {
    let (gone, shop) = (Receiver::start(410).await, Receiver::start(200).await);
    let house = open(place, &[("gone", gone.config()), ("shop", shop.config())]).await;
    sell(&house, uuid(1), &["1"]).await;
    let working = house.deliver();
    letters(&house, 1).await;
    let shown = house.notifications.deliveries().destinations().await.unwrap();
    assert!(shown[0].name == "gone" && shown[0].disabled.as_ref().unwrap().1.contains("410"), "{shown:?}");
    assert!(shown[1].name == "shop" && shown[1].disabled.is_none());
    // Also in a process that knows nothing of it.
    sell(&house, uuid(1), &["2", "3"]).await;
    let found = letters(&house, 3).await;
    assert!(found[1].cause.contains("is disabled since"), "{}", found[1].cause);
    assert_eq!(gone.count(), 1, "it was asked once");
    received(&shop, 3).await;
    gone.answer_with(200);
    assert!(house.notifications.webhooks().enable("gone").await.unwrap());
    assert!(!house.notifications.webhooks().enable("gone").await.unwrap());
    let which =
        |destination: &str| Letters { destination: Some(destination.to_owned()), ..Letters::default() };
    let none = house.notifications.replay_some(&which("webhook:shop"), 100, 1_000).await.unwrap();
    assert_eq!(none, notification::Replayed::default());
    let some = house.notifications.replay_some(&which("webhook:gone"), 2, 1_000).await.unwrap();
    assert_eq!((some.replayed, some.next), (2, Some(found[1].number)));
    let rest = Letters { after: found[1].number, ..which("webhook:gone") };
    assert_eq!(house.notifications.replay_some(&rest, 2, 1_000).await.unwrap().replayed, 1);
    received(&gone, 4).await;
    done(&house, 6).await;
    working.stop().await;
    assert_eq!(shop.count(), 3);
}

async fn what_waits_for_a_destination_that_fails_is_put_off_unclaimed(place: &SqlPlace) {
    let (shop, minute) = (Receiver::start(500).await, Duration::from_secs(60));
    let setup = Setup::with(|config| {
        config.webhook_delivery.workers = 1;
        config.webhook_delivery.batch = 1;
        let rest = Backoff::new(2 * minute, 2 * minute);
        config.webhooks.insert("shop".to_owned(), webhook::Config { rest, ..shop.config() });
        by(config, &["webhook:shop"]);
    });
    let house = House::open(place, setup).await;
    let things: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    sell(&house, uuid(1), &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let working = house.deliver();
    let queue = house.queue(WEBHOOK);
    let later = house.db.now().await.unwrap().after(minute / 2);
    let waiting = testkit::eventually("all are put off", PATIENCE, async || {
        let open = queue.list(work_queue::Filter::Open, 100).await.unwrap();
        if open.iter().all(|entry| entry.due > later && entry.holder.is_none()) {
            Ok(open)
        } else {
            Err("not all")
        }
    })
    .await;
    working.stop().await;
    // One was tried; of the others nobody has claimed any.
    assert_eq!((waiting.len(), shop.count()), (30, 1));
    assert_eq!(waiting.iter().filter(|entry| entry.lease == 0).count(), 29);
    assert_eq!(waiting.iter().map(|entry| entry.attempts).sum::<u32>(), 1);
}

async fn letters_are_replayed_at_a_rate(place: &SqlPlace) {
    let shop = Receiver::start(410).await;
    let house = open(place, &[("shop", shop.config())]).await;
    let things: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    sell(&house, uuid(1), &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let working = house.deliver();
    letters(&house, 20).await;
    working.stop().await;
    let stay = house.notifications.replay_some(&Letters::default(), 100, 1000).await.unwrap();
    assert_eq!(
        (stay.replayed, stay.failed.len()),
        (0, 20),
        "the destination is disabled: each would die again"
    );
    assert!(stay.failed[0].1.contains("`playhouse webhooks enable shop`"), "{:?}", stay.failed[0]);
    assert!(house.notifications.webhooks().enable("shop").await.unwrap());
    let before = house.db.now().await.unwrap().as_millis();
    assert_eq!(house.notifications.replay_some(&Letters::default(), 100, 2).await.unwrap().replayed, 20);
    let after = house.db.now().await.unwrap().as_millis();
    let mut due: Vec<i64> = Vec::new();
    for entry in house.queue(WEBHOOK).list(work_queue::Filter::Open, 100).await.unwrap() {
        assert_eq!(entry.attempts, 0);
        due.push(entry.due.as_millis());
    }
    due.sort_unstable();
    for (at, due) in due.iter().enumerate() {
        let wait = at as i64 * 500;
        assert!((before + wait..=after + wait).contains(due), "{at}: {due} {before} {after}");
    }
    assert_eq!(due.len(), 20);
}

async fn a_letter_can_be_discarded(place: &SqlPlace) {
    let shop = Receiver::start(410).await;
    let house = open(place, &[("shop", shop.config())]).await;
    sell(&house, uuid(1), &["1"]).await;
    sell(&house, uuid(2), &["2"]).await;
    let working = house.deliver();
    let found = letters(&house, 2).await;
    working.stop().await;
    let of_two = Letters { user: Some(uuid(2)), kind: Some("webhook".to_owned()), ..Letters::default() };
    let of_two = house.notifications.letters(&of_two, 10).await.unwrap();
    assert_eq!(of_two.len(), 1);
    house.notifications.discard(of_two[0].id).await.unwrap();
    assert!(matches!(house.notifications.discard(of_two[0].id).await, Err(Error::NoLetter(_))));
    assert!(matches!(house.notifications.letter(of_two[0].id).await, Err(Error::NoLetter(_))));
    assert_eq!(house.count(WEBHOOK).await, 1);
    let other = found.iter().find(|letter| letter.id != of_two[0].id).unwrap();
    assert_eq!(house.notifications.letter(other.id).await.unwrap(), *other);
    assert_eq!(house.all(uuid(2)).await.len(), 1, "the inbox keeps it");
}

async fn letters_expire(place: &SqlPlace) {
    let shop = Receiver::start(410).await;
    let house = open(place, &[("shop", shop.config())]).await;
    let things: Vec<String> = (0..102).map(|number| number.to_string()).collect();
    sell(&house, uuid(1), &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let working = house.deliver();
    letters(&house, 102).await;
    working.stop().await;
    let month = house.setup.config.dead_retention.as_millis();
    house.sql(&format!("UPDATE notification_dlq SET died_at = died_at - {month} + 60000")).await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 0);
    house.sql("UPDATE notification_dlq SET died_at = died_at - 120000 WHERE id <= 101").await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 100);
    assert_eq!(house.notifications.remove_old().await.unwrap(), 1);
    assert_eq!(house.notifications.remove_old().await.unwrap(), 0);
    assert_eq!((house.count("notification_dlq").await, house.count(WEBHOOK).await), (1, 1));
}

async fn what_is_claimed_together_is_sent_together(place: &SqlPlace) {
    let (bad, shop) = (Receiver::start(HANGS).await, Receiver::start(200).await);
    let setup = Setup::with(|config| {
        config.webhook_delivery.workers = 1;
        config.webhook_delivery.batch = 8;
        let hangs = webhook::Config { timeout: PATIENCE, ..bad.config() };
        config.webhooks = BTreeMap::from([("bad".to_owned(), hangs), ("shop".to_owned(), shop.config())]);
        by(config, &["webhook:bad", "webhook:shop"]);
    });
    let house = House::open(place, setup).await;
    sell(&house, uuid(1), &["1", "2", "3", "4"]).await;
    let working = house.deliver();
    testkit::eventually("the good one is not kept waiting", PATIENCE / 2, async || shop.count() == 4).await;
    received(&bad, 4).await;
    working.task.abort();
}

/// How long each of some messages took to the good destination, one after the other, with so many waiting for the bad one.
async fn latencies(place: &SqlPlace, bad: Option<u16>) -> Vec<Duration> {
    let (shop, other) = (Receiver::start(200).await, Receiver::start(bad.unwrap_or(200)).await);
    let mut config = other.config();
    config.rest = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
    let setup = Setup::with(|settings| {
        settings.webhook_delivery.workers = 16;
        settings.webhook_delivery.batch = 8;
        settings.webhooks = BTreeMap::from([("shop".to_owned(), shop.config()), ("bad".to_owned(), config)]);
        by(settings, &["webhook:shop"]);
        let mut other = settings.templates["sold"].clone();
        other.event = Some("shop.gossip.v1".to_owned());
        other.channels = vec![Channel::Webhook("bad".to_owned())];
        settings.templates.insert("gossip".to_owned(), other);
    });
    let house = House::open(place, setup).await;
    if bad.is_some() {
        let bus = memory().await;
        let gossip = |_| bus::Event { kind: "shop.gossip.v1".to_owned(), ..sold_event(&[uuid(2)], "gossip") };
        bus.publish(&(0..200).map(gossip).collect::<Vec<_>>()).await;
        let intake = house.intake(&bus);
        let consumer = intake.subscribe().await.unwrap();
        assert_eq!(intake.tick(&consumer, PATIENCE).await.unwrap().notifications, 200);
    }
    let working = house.deliver();
    if bad.is_some() {
        testkit::eventually("the bad one is asked", PATIENCE, async || other.count() > 0).await;
    }
    let mut latencies = Vec::new();
    for number in 1..=20 {
        let began = Instant::now();
        sell(&house, uuid(1), &["a sword"]).await;
        received(&shop, number).await;
        latencies.push(shop.received()[number - 1].0.saturating_duration_since(began));
    }
    working.drain.request();
    working.task.abort();
    latencies.sort_unstable();
    latencies
}

async fn a_bad_destination_does_not_delay_a_good_one(place: &SqlPlace) {
    let alone = latencies(place, None).await;
    for (what, status) in [("failing", 500), ("hanging", HANGS)] {
        let place = another(place).await;
        let beside = latencies(&place, Some(status)).await;
        let enough = alone[10] * 5 + Duration::from_millis(100);
        assert!(beside[10] < enough, "{what}: {beside:?}, and without {alone:?}");
        assert!(beside[19] < Duration::from_secs(1), "{what}: {beside:?}");
    }
}

/// A fresh place of the same kind.
async fn another(place: &SqlPlace) -> SqlPlace {
    match place {
        SqlPlace::Sqlite(_) => SqlPlace::sqlite().unwrap(),
        SqlPlace::Server(_) => SqlPlace::servers().await.unwrap().remove(0),
    }
}
