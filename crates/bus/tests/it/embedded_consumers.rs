//! Durable consumers of the embedded bus: exact timing, limits of the log and concurrency.

use base::error::Coded;
use bus::{Delivery, Subscription};

use super::consumers::{AT_ONCE, NEVER, all_numbers, next, number, subscription};
use super::*;

#[tokio::test(start_paused = true)]
async fn redelivery_happens_exactly_after_ack_wait() {
    let bus = Bus::open(&config("memory:")).await.unwrap();
    let consumer = bus.subscribe(&Subscription { ack_wait: NEVER, ..subscription("reader") }).await.unwrap();
    all_ok(bus.publish(&events(1)).await);
    next(&consumer).await;
    let delivered = tokio::time::Instant::now();
    assert!(consumer.fetch(1, NEVER - Duration::from_millis(1)).await.unwrap().is_empty());
    assert_eq!(consumer.fetch(1, NEVER).await.unwrap()[0].attempt, 2);
    assert_eq!(delivered.elapsed(), NEVER);
}

#[tokio::test(start_paused = true)]
async fn full_bus_refuses_events_instead_of_dropping_unacknowledged_ones() {
    let config = Config { memory_events: 10, max_age: Duration::from_secs(3600), ..config("memory:") };
    let bus = Bus::open(&config).await.unwrap();
    let slow = bus.subscribe(&subscription("slow")).await.unwrap();
    let quick = bus.subscribe(&subscription("quick")).await.unwrap();
    let batch: Vec<Event> = (0..15).map(event).collect();
    let results = bus.publish(&batch).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 10);
    for error in results.into_iter().filter_map(Result::err) {
        assert!(
            error.is_transient() && !error.is_permanent() && error.to_string().contains("full"),
            "{error}"
        );
    }
    // Neither one consumer nor a delivery is enough.
    bus::ack_all(&quick.fetch(10, AT_ONCE).await.unwrap()).await;
    let pending = slow.fetch(4, AT_ONCE).await.unwrap();
    assert_eq!(all_numbers(&pending), [0, 1, 2, 3]);
    assert!(bus.publish(&batch).await[10].is_err());
    // An acknowledgement in the middle frees no space. Giving up counts as an acknowledgement.
    pending[1].ack().await.unwrap();
    assert!(bus.publish(&batch).await[10].is_err());
    pending[0].give_up("not needed").await.unwrap();
    let results = bus.publish(&batch).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 12);
    // Both consumers get every event in the end.
    bus::ack_all(&pending[2..]).await;
    let mut found: Vec<usize> = Vec::new();
    while found.len() < 11 {
        bus.publish(&batch).await;
        bus::ack_all(&quick.fetch(10, AT_ONCE).await.unwrap()).await;
        let deliveries = slow.fetch(3, AT_ONCE).await.unwrap();
        found.extend(all_numbers(&deliveries));
        bus::ack_all(&deliveries).await;
    }
    assert_eq!(found, (4..15).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn full_bus_is_reported_until_a_consumer_acknowledges() {
    let bus = Bus::open(&Config { memory_events: 1, ..config("memory:") }).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    all_ok(bus.publish(&[event(0)]).await);
    let refused = event(1);
    for _ in 0..4 {
        bus.publish(std::slice::from_ref(&refused)).await[0].as_ref().unwrap_err();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let error = bus.ping().await.unwrap_err();
    assert!(base::error::chain(&error).contains("reader has not acknowledged"), "{error:?}");
    next(&consumer).await.ack().await.unwrap();
    all_ok(bus.publish(&[refused]).await);
    bus.ping().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn expired_events_are_removed_even_if_unread() {
    let config = Config { memory_events: 10, max_age: Duration::from_secs(3600), ..config("memory:") };
    let bus = Bus::open(&config).await.unwrap();
    let few = Subscription { max_pending: 3, ..subscription("reader") };
    let consumer = bus.subscribe(&few).await.unwrap();
    all_ok(bus.publish(&events(5)).await);
    assert_eq!(all_numbers(&consumer.fetch(10, AT_ONCE).await.unwrap()), [0, 1, 2]);
    tokio::time::advance(Duration::from_secs(3601)).await;
    all_ok(bus.publish(&(5..13).map(event).collect::<Vec<_>>()).await);
    // Events 0 to 4 have expired, including the pending ones.
    let more = consumer.fetch(10, AT_ONCE).await.unwrap();
    assert_eq!((all_numbers(&more), more[0].position), (vec![5, 6, 7], 6));
    bus::ack_all(&more).await;
    all_ok(bus.publish(&(13..16).map(event).collect::<Vec<_>>()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_missed() {
    const COUNT: usize = 20_000;
    let bus = Bus::open(&config("memory:")).await.unwrap();
    all_ok(bus.publish(&events(COUNT)).await);
    // One at a time: each fetch races with the acknowledgement on another thread.
    let one = Subscription { max_pending: 1, ..subscription("reader") };
    let consumer = bus.subscribe(&one).await.unwrap();
    let (to_ack, mut acks) = tokio::sync::mpsc::unbounded_channel::<Delivery>();
    let acker = tokio::spawn(async move {
        while let Some(delivery) = acks.recv().await {
            delivery.ack().await.unwrap();
        }
    });
    let reader = tokio::spawn(async move {
        for n in 0..COUNT {
            let delivery = next(&consumer).await;
            assert_eq!((number(&delivery), delivery.attempt), (n, 1));
            to_ack.send(delivery).unwrap();
        }
    });
    reader.await.unwrap();
    acker.await.unwrap();
}
