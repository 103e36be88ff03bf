//! An embedded bus begins where the last one ended.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_bus_has_after_a_restart_what_it_had_before() {
    let pair = Pair::embedded().await;
    let outbox = pair.outbox();
    let events: Vec<Event> = (0..2_500).map(|n| event(&format!("key-{}", n % 7), n)).collect();
    for some in events.chunks(500) {
        pair.append(&outbox, some).await;
    }
    let relay = pair.relay(&outbox);
    while relay.tick().await.unwrap().claimed > 0 {}
    // Behind it are some that are not published yet.
    pair.append(&outbox, &[event("late", 2_500)]).await;

    // A new process: the bus is empty.
    let bus = Bus::open(&pair.bus_config).await.unwrap();
    let again = Pair { bus, ..pair };
    let relay = again.relay(&again.outbox());
    assert!(again.told().await.is_empty());
    // As many as it keeps, the newest.
    assert_eq!(relay.fill().await.unwrap(), 1_000);
    let told = again.told().await;
    assert_eq!(numbers(&told), (1_500..2_500).collect::<Vec<u64>>());
    assert_eq!(told[0]["id"], events[1_500].id.to_string());
    relay.tick().await.unwrap();
    assert_eq!(numbers(&again.told().await).last(), Some(&2_500));
}

/// More than the bus keeps wait in the outbox, behind what was published and not read.
#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_bus_that_is_full_loses_nothing_over_a_restart() {
    const KEPT: usize = 1_000;
    let pair = Pair::embedded().await;
    let outbox = pair.outbox();
    let reader = bus::Subscription {
        name: "reader".to_owned(),
        subjects: None,
        ack_wait: Duration::from_secs(60),
        max_pending: 10_000,
    };
    pair.bus.subscribe(&reader).await.unwrap();
    let events: Vec<Event> = (0..3 * KEPT).map(|n| event(&format!("key-{}", n % 7), n)).collect();
    for some in events.chunks(500) {
        pair.append(&outbox, some).await;
    }
    let relay = pair.relay(&outbox);
    testkit::eventually("the bus is full", PATIENCE, async || {
        relay.tick().await.unwrap();
        pair.told().await.len() == KEPT
    })
    .await;
    for _ in 0..5 {
        assert_eq!(relay.tick().await.unwrap().finished.failed, 0);
    }
    let entries = outbox.queue().list(Filter::Open, 10_000).await.unwrap();
    assert_eq!(entries.len(), 2 * KEPT);
    assert!(entries.iter().all(|entry| entry.attempts == 0), "no attempt is used up");

    // A new process. Its consumer is there before the bus is filled.
    let bus = Bus::open(&pair.bus_config).await.unwrap();
    let again = Pair { bus, ..pair };
    let consumer = again.bus.subscribe(&reader).await.unwrap();
    let relay = again.relay(&outbox);
    assert_eq!(relay.fill().await.unwrap(), KEPT);
    let mut found: Vec<usize> = Vec::new();
    while found.len() < 3 * KEPT {
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
    assert_eq!(found, (0..3 * KEPT).collect::<Vec<_>>());
}

/// It keeps a number of events, and rows hold several. The oldest row that is needed is taken as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_bus_is_filled_with_as_many_events_as_it_keeps() {
    let pair = Pair::embedded().await;
    let outbox = pair.outbox();
    let events: Vec<Event> = (0..2_400).map(|n| event(&format!("key-{n}"), n)).collect();
    for some in events.chunks(300) {
        let mut tx = pair.db.begin().await.unwrap();
        outbox.append_batch(&mut tx, Uuid::now_v7(), some);
        tx.commit().await.unwrap();
    }
    let relay = pair.relay(&outbox);
    while relay.tick().await.unwrap().claimed > 0 {}
    let bus = Bus::open(&pair.bus_config).await.unwrap();
    let again = Pair { bus, ..pair };
    assert_eq!(again.relay(&again.outbox()).fill().await.unwrap(), 1_200);
    assert_eq!(numbers(&again.told().await), (1_200..2_400).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_is_a_server_is_not_filled() {
    let pair = testkit::need!(Pair::on_servers().await);
    let outbox = pair.outbox();
    pair.append(&outbox, &[event("a", 1)]).await;
    let relay = pair.relay(&outbox);
    relay.tick().await.unwrap();
    assert_eq!(relay.fill().await.unwrap(), 0);
    assert_eq!(numbers(&pair.told().await), [1]);
}
