//! Restoring an embedded bus from the outbox after a restart.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn embedded_bus_is_restored_after_a_restart() {
    let pair = Pair::embedded().await;
    let outbox = pair.outbox();
    let events: Vec<Event> = (0..2_500).map(|n| event(&format!("key-{}", n % 7), n)).collect();
    for batch in events.chunks(500) {
        pair.append(&outbox, batch).await;
    }
    let relay = pair.relay(&outbox);
    while relay.tick().await.unwrap().claimed > 0 {}
    // One event is not published yet.
    pair.append(&outbox, &[event("late", 2_500)]).await;

    // A new process: the bus is empty.
    let bus = Bus::open(&pair.bus_config).await.unwrap();
    let restarted = Pair { bus, ..pair };
    let relay = restarted.relay(&restarted.outbox());
    assert!(restarted.published().await.is_empty());
    // The newest events, as many as the bus holds.
    assert_eq!(relay.restore_bus().await.unwrap(), 1_000);
    let published = restarted.published().await;
    assert_eq!(numbers(&published), (1_500..2_500).collect::<Vec<u64>>());
    assert_eq!(published[0]["id"], events[1_500].id.to_string());
    relay.tick().await.unwrap();
    assert_eq!(numbers(&restarted.published().await).last(), Some(&2_500));
}

/// More events than the bus holds wait in the outbox, behind published events that were not read.
#[tokio::test(flavor = "multi_thread")]
async fn full_embedded_bus_loses_nothing_over_a_restart() {
    const CAPACITY: usize = 1_000;
    let pair = Pair::embedded().await;
    let outbox = pair.outbox();
    let reader = bus::Subscription {
        name: "reader".to_owned(),
        subjects: None,
        ack_wait: Duration::from_secs(60),
        max_pending: 10_000,
    };
    pair.bus.subscribe(&reader).await.unwrap();
    let events: Vec<Event> = (0..3 * CAPACITY).map(|n| event(&format!("key-{}", n % 7), n)).collect();
    for batch in events.chunks(500) {
        pair.append(&outbox, batch).await;
    }
    let relay = pair.relay(&outbox);
    testkit::eventually("the bus is full", PATIENCE, async || {
        relay.tick().await.unwrap();
        pair.published().await.len() == CAPACITY
    })
    .await;
    for _ in 0..5 {
        assert_eq!(relay.tick().await.unwrap().finished.failed, 0);
    }
    let rows = outbox.queue().list(Filter::Open, 10_000).await.unwrap();
    assert_eq!(rows.len(), 2 * CAPACITY);
    assert!(rows.iter().all(|row| row.attempts == 0), "no attempt is used up");

    // A new process. Its consumer subscribes before the bus is restored.
    let bus = Bus::open(&pair.bus_config).await.unwrap();
    let restarted = Pair { bus, ..pair };
    let consumer = restarted.bus.subscribe(&reader).await.unwrap();
    let relay = restarted.relay(&outbox);
    assert_eq!(relay.restore_bus().await.unwrap(), CAPACITY);
    let mut found: Vec<usize> = Vec::new();
    while found.len() < 3 * CAPACITY {
        relay.tick().await.unwrap();
        let deliveries = consumer.fetch(100, Duration::from_millis(100)).await.unwrap();
        let number = |delivery: &bus::Delivery| {
            let event: Value = serde_json::from_slice(&delivery.body).unwrap();
            event["data"]["n"].as_u64().unwrap() as usize
        };
        found.extend(deliveries.iter().map(number));
        bus::ack_all(&deliveries).await;
    }
    for key in 0..7 {
        let of_key: Vec<usize> = found.iter().copied().filter(|n| n % 7 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    found.sort_unstable();
    assert_eq!(found, (0..3 * CAPACITY).collect::<Vec<_>>());
}

/// The capacity counts events, and rows hold several. The oldest row that is needed is restored as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn embedded_bus_is_restored_up_to_its_capacity() {
    let pair = Pair::embedded().await;
    let outbox = pair.outbox();
    let events: Vec<Event> = (0..2_400).map(|n| event(&format!("key-{n}"), n)).collect();
    for batch in events.chunks(300) {
        let mut tx = pair.db.begin().await.unwrap();
        outbox.append_batch(&mut tx, Uuid::now_v7(), batch);
        tx.commit().await.unwrap();
    }
    let relay = pair.relay(&outbox);
    while relay.tick().await.unwrap().claimed > 0 {}
    let bus = Bus::open(&pair.bus_config).await.unwrap();
    let restarted = Pair { bus, ..pair };
    assert_eq!(restarted.relay(&restarted.outbox()).restore_bus().await.unwrap(), 1_200);
    assert_eq!(numbers(&restarted.published().await), (1_200..2_400).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_is_not_restored() {
    let pair = testkit::need!(Pair::on_servers().await);
    let outbox = pair.outbox();
    pair.append(&outbox, &[event("a", 1)]).await;
    let relay = pair.relay(&outbox);
    relay.tick().await.unwrap();
    assert_eq!(relay.restore_bus().await.unwrap(), 0);
    assert_eq!(numbers(&pair.published().await), [1]);
}
