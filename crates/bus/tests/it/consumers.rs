//! The guarantees of durable consumers, embedded and on NATS.

use std::time::Instant;

use base::error::Coded;
use bus::{Consumer, Delivery, Subscription, ack_all};
use futures::future::join_all;

use super::*;

on_both!(
    events_are_delivered_in_order,
    available_events_are_fetched_without_a_wait,
    event_goes_to_one_of_several_readers,
    only_unacknowledged_events_are_redelivered,
    redelivery_waits_for_the_requested_time,
    given_up_event_is_not_redelivered,
    event_in_progress_is_not_redelivered_yet,
    consumers_of_different_names_are_independent,
    progress_is_stored_by_name,
    only_matching_subjects_are_delivered,
    fetch_waits_only_for_the_first_event,
    redelivery_ends_the_wait,
    max_pending_limits_deliveries,
    acknowledgement_below_max_pending_ends_the_wait,
    event_is_delivered_as_it_was_published,
    unreadable_event_is_reported_and_can_be_given_up,
    responses_may_be_repeated,
    existing_consumer_gets_new_settings_but_keeps_its_subjects,
    invalid_subscription_is_refused,
);

/// Longer than any test, so that a redelivery has another reason.
pub(super) const NEVER: Duration = Duration::from_secs(600);
/// Short enough to wait for, long enough for a busy machine to respond.
const SOON: Duration = Duration::from_millis(700);
pub(super) const AT_ONCE: Duration = Duration::ZERO;
/// The time of events that have none.
const RECEIVED: Timestamp = Timestamp::from_millis(1_772_366_500_000);

pub(super) fn subscription(name: &str) -> Subscription {
    Subscription { name: name.to_owned(), subjects: None, ack_wait: NEVER, max_pending: 10_000 }
}

pub(super) fn number(delivery: &Delivery) -> usize {
    let event = delivery.event(RECEIVED).unwrap();
    let data: serde_json::Value = serde_json::from_slice(event.data.as_bytes()).unwrap();
    data["n"].as_u64().unwrap().try_into().unwrap()
}

pub(super) fn all_numbers(deliveries: &[Delivery]) -> Vec<usize> {
    deliveries.iter().map(number).collect()
}

/// Waits for the next event.
pub(super) async fn next(consumer: &Consumer) -> Delivery {
    let started = tokio::time::Instant::now();
    let mut one = consumer.fetch(1, PATIENCE).await.unwrap();
    assert_eq!(one.len(), 1, "no event was delivered");
    assert!(started.elapsed() < PATIENCE, "the event was noticed only at the end of the wait");
    one.remove(0)
}

/// Fetches exactly `count` events, with as many requests as needed.
async fn fetch_all(consumer: &Consumer, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        let some = consumer.fetch(count - all.len(), PATIENCE).await.unwrap();
        assert!(!some.is_empty(), "{} of {count} were delivered", all.len());
        all.extend(some);
    }
    all
}

async fn events_are_delivered_in_order(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(1_000)).await);
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    all_ok(bus.publish(&(1_000..2_500).map(event).collect::<Vec<_>>()).await);
    let mut numbers = Vec::new();
    while numbers.len() < 2_500 {
        let some = consumer.fetch(400, PATIENCE).await.unwrap();
        assert!(!some.is_empty() && some.len() <= 400, "{}", some.len());
        assert!(some.iter().all(|delivery| delivery.attempt == 1));
        numbers.extend(all_numbers(&some));
        all_ok(ack_all(&some).await);
    }
    assert_eq!(numbers, (0..2_500).collect::<Vec<_>>());
    assert!(consumer.fetch(10, AT_ONCE).await.unwrap().is_empty());
    assert!(consumer.fetch(0, PATIENCE).await.unwrap().is_empty());
    assert!(ack_all(&[]).await.is_empty());
}

/// Even on a busy machine: an empty result means that there is no event.
async fn available_events_are_fetched_without_a_wait(bus: &Bus, _: &Config) {
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    all_ok(bus.publish(&events(300)).await);
    for n in 0..300 {
        let wait = if n % 2 == 0 { AT_ONCE } else { Duration::from_millis(1) };
        assert_eq!(all_numbers(&consumer.fetch(1, wait).await.unwrap()), [n]);
    }
    assert!(consumer.fetch(1, AT_ONCE).await.unwrap().is_empty());
}

async fn event_goes_to_one_of_several_readers(bus: &Bus, _: &Config) {
    const COUNT: usize = 2_000;
    let seen = tokio::sync::Mutex::new(Vec::new());
    let done = tokio::sync::Notify::new();
    let read = async || {
        let consumer = bus.subscribe(&subscription("readers")).await.unwrap();
        loop {
            let some = consumer.fetch(7, PATIENCE).await.unwrap();
            all_ok(ack_all(&some).await);
            let mut seen = seen.lock().await;
            seen.extend(some.iter().map(|delivery| (number(delivery), delivery.attempt)));
            if seen.len() >= COUNT {
                done.notify_waiters();
                return;
            }
        }
    };
    // Ends readers that still wait when all events have been read.
    let reader = async || tokio::select! { () = read() => {}, () = done.notified() => {} };
    let publish = async {
        for batch in 0..20 {
            all_ok(
                bus.publish(&(0..COUNT / 20).map(|n| event(batch * COUNT / 20 + n)).collect::<Vec<_>>())
                    .await,
            );
        }
    };
    tokio::join!(join_all((0..5).map(|_| reader())), publish);
    let mut seen = seen.into_inner();
    seen.sort_unstable();
    assert_eq!(seen, (0..COUNT).map(|n| (n, 1)).collect::<Vec<_>>());
}

async fn only_unacknowledged_events_are_redelivered(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(4)).await);
    let soon = Subscription { ack_wait: SOON, ..subscription("reader") };
    let consumer = bus.subscribe(&soon).await.unwrap();
    let delivered = Instant::now();
    let first = fetch_all(&consumer, 4).await;
    first[0].ack().await.unwrap();
    first[2].ack().await.unwrap();
    // All waited equally long, so acknowledged events would be redelivered now as well.
    let again = fetch_all(&consumer, 2).await;
    assert!(delivered.elapsed() >= SOON, "{:?}", delivered.elapsed());
    assert_eq!(all_numbers(&again), [1, 3]);
    assert!(again.iter().all(|delivery| delivery.attempt == 2), "{again:?}");
    assert_eq!(again[0].position, first[1].position);
    let third = fetch_all(&consumer, 2).await;
    assert!(third.iter().all(|delivery| delivery.attempt == 3), "{third:?}");
    assert_eq!(all_numbers(&third), [1, 3]);
}

async fn redelivery_waits_for_the_requested_time(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(3)).await);
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let first = fetch_all(&consumer, 3).await;
    let refused = Instant::now();
    first[0].redeliver_after(SOON).await.unwrap();
    first[1].redeliver_after(AT_ONCE).await.unwrap();
    let at_once = next(&consumer).await;
    assert_eq!((number(&at_once), at_once.attempt), (1, 2));
    let later = next(&consumer).await;
    assert_eq!((number(&later), later.attempt), (0, 2));
    assert!(refused.elapsed() >= SOON, "{:?}", refused.elapsed());
}

async fn given_up_event_is_not_redelivered(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(2)).await);
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    let first = fetch_all(&consumer, 2).await;
    first[0].give_up("no longer needed").await.unwrap();
    let again = next(&consumer).await;
    assert_eq!((number(&again), again.attempt), (1, 2));
    // Another consumer is not affected.
    let other = bus.subscribe(&subscription("other")).await.unwrap();
    assert_eq!(number(&next(&other).await), 0);
}

async fn event_in_progress_is_not_redelivered_yet(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(2)).await);
    let consumer =
        bus.subscribe(&Subscription { ack_wait: 2 * SOON, ..subscription("reader") }).await.unwrap();
    let first = fetch_all(&consumer, 2).await;
    // Until the other event, delivered at the same time, is redelivered.
    let again = testkit::eventually("the other event is redelivered", PATIENCE, async || {
        first[0].in_progress().await.unwrap();
        consumer.fetch(2, SOON / 4).await.unwrap().pop()
    })
    .await;
    assert_eq!(number(&again), 1);
    first[1].ack().await.unwrap();
    assert_eq!(number(&next(&consumer).await), 0);
}

async fn consumers_of_different_names_are_independent(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(50)).await);
    let (first, second) = (subscription("first"), subscription("second"));
    let (first, second) = (bus.subscribe(&first).await.unwrap(), bus.subscribe(&second).await.unwrap());
    for consumer in [first, second] {
        let all = fetch_all(&consumer, 50).await;
        assert_eq!(all_numbers(&all), (0..50).collect::<Vec<_>>());
        all_ok(ack_all(&all).await);
    }
}

async fn progress_is_stored_by_name(bus: &Bus, config: &Config) {
    let subscription = subscription("reader");
    all_ok(bus.publish(&events(10)).await);
    let consumer = bus.subscribe(&subscription).await.unwrap();
    all_ok(ack_all(&fetch_all(&consumer, 4).await).await);
    drop(consumer);
    let consumer = bus.subscribe(&subscription).await.unwrap();
    let more = fetch_all(&consumer, 3).await;
    assert_eq!(all_numbers(&more), [4, 5, 6]);
    all_ok(ack_all(&more).await);
    // The embedded bus keeps progress only in the process.
    let reopened = match bus {
        Bus::Memory(_) => bus.clone(),
        Bus::Nats(_) => {
            bus.close().await;
            Bus::open(config).await.unwrap()
        }
    };
    let consumer = reopened.subscribe(&subscription).await.unwrap();
    assert_eq!(all_numbers(&fetch_all(&consumer, 3).await), [7, 8, 9]);
}

async fn only_matching_subjects_are_delivered(bus: &Bus, _: &Config) {
    let subjects = ["a", "a.b", "a.c", "b.b", "a.b.c", "ab.b"];
    let subjects = subjects.iter().enumerate();
    let published = subjects.map(|(n, subject)| Event { subject: (*subject).to_owned(), ..event(n) });
    all_ok(bus.publish(&published.collect::<Vec<_>>()).await);
    let patterns: [(&str, &[usize]); 6] = [
        ("a.>", &[1, 2, 4]),
        ("*.b", &[1, 3, 5]),
        ("a", &[0]),
        (">", &[0, 1, 2, 3, 4, 5]),
        ("a.b", &[1]),
        ("c", &[]),
    ];
    for (at, (pattern, expected)) in patterns.into_iter().enumerate() {
        let subscription =
            Subscription { subjects: Some(pattern.to_owned()), ..subscription(&format!("reader-{at}")) };
        let consumer = bus.subscribe(&subscription).await.unwrap();
        let found = fetch_all(&consumer, expected.len()).await;
        assert_eq!(all_numbers(&found), expected, "{pattern}");
        assert!(consumer.fetch(10, AT_ONCE).await.unwrap().is_empty(), "{pattern}");
        if pattern == "a.>" {
            assert_eq!(found[2].subject, "a.b.c");
        }
    }
}

async fn fetch_waits_only_for_the_first_event(bus: &Bus, _: &Config) {
    let filtered = Subscription { subjects: Some("test.1".to_owned()), ..subscription("reader") };
    let consumer = bus.subscribe(&filtered).await.unwrap();
    let started = Instant::now();
    let wait = Duration::from_millis(300);
    assert!(consumer.fetch(10, wait).await.unwrap().is_empty());
    assert!(started.elapsed() >= wait, "{:?}", started.elapsed());
    // The fetch is polled first, so it waits when the events are published. Only the second event matches.
    let started = Instant::now();
    let (fetched, ()) = tokio::join!(consumer.fetch(10, PATIENCE), async {
        all_ok(bus.publish(&[event(0)]).await);
        all_ok(bus.publish(&[event(1)]).await);
    });
    assert_eq!(all_numbers(&fetched.unwrap()), [1]);
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
}

async fn redelivery_ends_the_wait(bus: &Bus, _: &Config) {
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    all_ok(bus.publish(&events(1)).await);
    let first = next(&consumer).await;
    let started = Instant::now();
    let (fetched, responded) = tokio::join!(consumer.fetch(10, PATIENCE), first.redeliver_after(AT_ONCE));
    responded.unwrap();
    assert_eq!(fetched.unwrap().len(), 1);
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
}

async fn max_pending_limits_deliveries(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(10)).await);
    let few = Subscription { max_pending: 3, ..subscription("reader") };
    let (one, other) = (bus.subscribe(&few).await.unwrap(), bus.subscribe(&few).await.unwrap());
    let started = Instant::now();
    let first = one.fetch(2, PATIENCE).await.unwrap();
    // It gets the one remaining event and does not wait for more.
    let second = other.fetch(10, PATIENCE).await.unwrap();
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    assert_eq!((all_numbers(&first), all_numbers(&second)), (vec![0, 1], vec![2]));
    let wait = Duration::from_millis(300);
    let started = Instant::now();
    assert!(other.fetch(10, wait).await.unwrap().is_empty());
    assert!(started.elapsed() >= wait, "{:?}", started.elapsed());
    assert!(other.fetch(10, AT_ONCE).await.unwrap().is_empty());
    first[1].ack().await.unwrap();
    assert_eq!(all_numbers(&other.fetch(10, PATIENCE).await.unwrap()), [3]);
    second[0].give_up("no longer needed").await.unwrap();
    assert_eq!(all_numbers(&one.fetch(10, PATIENCE).await.unwrap()), [4]);
    // A redelivery does not count against the limit again.
    first[0].redeliver_after(AT_ONCE).await.unwrap();
    assert_eq!(all_numbers(&one.fetch(10, PATIENCE).await.unwrap()), [0]);
}

async fn acknowledgement_below_max_pending_ends_the_wait(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(7)).await);
    let consumer = bus.subscribe(&Subscription { max_pending: 5, ..subscription("reader") }).await.unwrap();
    let first = fetch_all(&consumer, 5).await;
    let started = Instant::now();
    // Two fetches wait for the two remaining events, and one gets the first.
    let wait = async || {
        tokio::select! {
            fetched = consumer.fetch(10, PATIENCE) => fetched,
            fetched = consumer.fetch(10, PATIENCE) => fetched,
        }
    };
    let (fetched, acked) = tokio::join!(wait(), first[4].ack());
    acked.unwrap();
    assert_eq!(all_numbers(&fetched.unwrap()), [5]);
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
}

async fn event_is_delivered_as_it_was_published(bus: &Bus, config: &Config) {
    let published = Event {
        key: Some("duel".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        time: Timestamp::from_millis(1_772_366_400_123),
        data: Json::from_text(r#"{"price": 1.10, "stock": 123456789012345678901234567890}"#).unwrap(),
        ..event(0)
    };
    let batch = [published, event(1)];
    all_ok(bus.publish(&batch).await);
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let delivered = fetch_all(&consumer, 2).await;
    let read: Vec<Event> = delivered.iter().map(|delivery| delivery.event(RECEIVED).unwrap()).collect();
    assert_eq!(read, batch);
    assert_eq!((delivered[0].position, delivered[1].position), (1, 2));
    assert_eq!(delivered[0].subject, "test.0");
    assert_eq!(delivered[0].body, stored(bus, config).await[0].1);
}

async fn unreadable_event_is_reported_and_can_be_given_up(bus: &Bus, config: &Config) {
    // Other programs can publish only on NATS.
    let Some(url) = config.url.server() else { return };
    let other_program = async_nats::connect(url.as_str()).await.unwrap();
    other_program.publish(format!("{}.a", config.subjects), "no event".into()).await.unwrap();
    other_program.flush().await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let delivery = next(&consumer).await;
    let error = delivery.event(RECEIVED).unwrap_err();
    assert!(matches!(error, Error::Unreadable(_)) && !error.is_transient(), "{error:?}");
    delivery.give_up(error).await.unwrap();
}

async fn responses_may_be_repeated(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(2)).await);
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    let first = fetch_all(&consumer, 2).await;
    let again = fetch_all(&consumer, 2).await;
    // Too late for the delivery, but not for the event.
    first[0].ack().await.unwrap();
    again[0].ack().await.unwrap();
    // An acknowledged event stays acknowledged.
    again[0].redeliver_after(AT_ONCE).await.unwrap();
    again[0].in_progress().await.unwrap();
    again[0].give_up("no longer needed").await.unwrap();
    let third = next(&consumer).await;
    assert_eq!((number(&third), third.attempt), (1, 3));
}

async fn existing_consumer_gets_new_settings_but_keeps_its_subjects(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(4)).await);
    let narrow = Subscription { max_pending: 1, ..subscription("reader") };
    let consumer = bus.subscribe(&narrow).await.unwrap();
    assert_eq!(consumer.fetch(10, PATIENCE).await.unwrap().len(), 1);
    let wide = Subscription { max_pending: 3, ack_wait: SOON, ..narrow.clone() };
    let consumer = bus.subscribe(&wide).await.unwrap();
    assert_eq!(all_numbers(&consumer.fetch(10, PATIENCE).await.unwrap()), [1, 2]);
    assert_eq!(next(&consumer).await.attempt, 2);
    let other = Subscription { subjects: Some("test.>".to_owned()), ..wide.clone() };
    let error = bus.subscribe(&other).await.unwrap_err();
    assert!(matches!(error, Error::Consumer { .. }) && !error.is_transient(), "{error:?}");
    assert!(error.to_string().contains("it reads the subjects"), "{error}");
    bus.subscribe(&wide).await.unwrap();
}

async fn invalid_subscription_is_refused(bus: &Bus, _: &Config) {
    let wrong = [
        subscription("no.name"),
        subscription(""),
        Subscription { subjects: Some("a..b".to_owned()), ..subscription("reader") },
        Subscription { max_pending: 0, ..subscription("reader") },
        Subscription { ack_wait: Duration::ZERO, ..subscription("reader") },
    ];
    for wrong in wrong {
        let error = bus.subscribe(&wrong).await.unwrap_err();
        assert!(matches!(error, Error::Consumer { .. }) && !error.is_transient(), "{error:?}");
    }
    // NATS accepts our longest values too.
    let longest = Subscription {
        ack_wait: Duration::from_secs(365 * 86_400),
        max_pending: i32::MAX.try_into().unwrap(),
        ..subscription(&"n".repeat(128))
    };
    let consumer = bus.subscribe(&longest).await.unwrap();
    all_ok(bus.publish(&events(1)).await);
    let delivery = consumer.fetch(usize::MAX, Duration::MAX).await.unwrap().remove(0);
    delivery.redeliver_after(Duration::MAX).await.unwrap();
    assert!(consumer.fetch(1, AT_ONCE).await.unwrap().is_empty());
}
