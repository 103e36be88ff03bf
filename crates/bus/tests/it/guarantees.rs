//! The guarantees of publishing, embedded and on NATS.

use base::error::Coded;

use super::*;

on_both!(
    published_events_are_stored_in_order,
    the_same_id_is_stored_once,
    large_batch_is_stored_completely_and_in_order,
    invalid_events_do_not_block_the_others,
    concurrent_batches_are_all_stored,
);

async fn published_events_are_stored_in_order(bus: &Bus, config: &Config) {
    all_ok(bus.publish(&[]).await);
    let traced = Event {
        key: Some("duel".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ..event(0)
    };
    all_ok(bus.publish(&[traced.clone(), event(1)]).await);
    all_ok(bus.publish(&[event(2)]).await);
    assert_eq!(numbers(bus, config).await, [0, 1, 2]);
    let (subject, body) = &stored(bus, config).await[0];
    assert_eq!(*subject, format!("{}.test.0", config.subjects));
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    let expected = json!({
        "specversion": "1.0",
        "id": traced.id.to_string(),
        "source": "/playhouse/test",
        "type": "playhouse.test.happened.v1",
        "time": "2026-03-01T12:00:00.000Z",
        "partitionkey": "duel",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "datacontenttype": "application/json",
        "data": {"n": 0},
    });
    assert_eq!(body, expected);
}

async fn the_same_id_is_stored_once(bus: &Bus, config: &Config) {
    let (first, second) = (event(1), event(2));
    all_ok(bus.publish(&[first.clone(), first.clone()]).await);
    all_ok(bus.publish(&[first, second]).await);
    assert_eq!(numbers(bus, config).await, [1, 2]);
}

async fn large_batch_is_stored_completely_and_in_order(bus: &Bus, config: &Config) {
    all_ok(bus.publish(&events(5_000)).await);
    assert_eq!(numbers(bus, config).await, (0..5_000).collect::<Vec<_>>());
}

async fn invalid_events_do_not_block_the_others(bus: &Bus, config: &Config) {
    let large = Event { data: Json::from_value(&"x".repeat(1 << 20)).unwrap(), ..event(1) };
    let bad_subject = Event { subject: "test.*".to_owned(), ..event(2) };
    let results = bus.publish(&[event(0), large, bad_subject, event(3)]).await;
    assert!(results[0].is_ok() && results[3].is_ok(), "{results:?}");
    let (large, bad_subject) = (results[1].clone().unwrap_err(), results[2].clone().unwrap_err());
    assert!(matches!(large, Error::TooLarge(_)) && !large.is_transient(), "{large:?}");
    assert!(matches!(bad_subject, Error::Event(_)) && !bad_subject.is_transient(), "{bad_subject:?}");
    assert_eq!(numbers(bus, config).await, [0, 3]);
}

async fn concurrent_batches_are_all_stored(bus: &Bus, config: &Config) {
    let batches: Vec<Vec<Event>> = (0..8).map(|_| events(500)).collect();
    for results in futures::future::join_all(batches.iter().map(|batch| bus.publish(batch))).await {
        all_ok(results);
    }
    let mut found = numbers(bus, config).await;
    found.sort_unstable();
    assert_eq!(found, (0..4_000).map(|n| n / 8).collect::<Vec<_>>());
}

#[tokio::test]
async fn embedded_log_is_read_from_a_position() {
    let bus = Bus::open(&config("memory:")).await.unwrap();
    let memory = memory(&bus);
    assert_eq!((memory.last_position(), memory.read_after(0, 10).len()), (0, 0));
    all_ok(bus.publish(&events(5)).await);
    let positions = |after, max| memory.read_after(after, max).iter().map(|e| e.position).collect::<Vec<_>>();
    assert_eq!(positions(0, 2), [1, 2]);
    assert_eq!(positions(2, 10), [3, 4, 5]);
    assert_eq!(positions(5, 10), [0_u64; 0]);
    assert_eq!(memory.last_position(), 5);
}

#[tokio::test]
async fn embedded_reader_is_woken_by_a_new_event() {
    let bus = Bus::open(&config("memory:")).await.unwrap();
    all_ok(bus.publish(&events(1)).await);
    // Returns at once if there is an event already.
    memory(&bus).changed(0).await;
    let reader = tokio::spawn({
        let memory = memory(&bus).clone();
        async move {
            memory.changed(1).await;
            memory.read_after(1, 10).len()
        }
    });
    tokio::task::yield_now().await;
    assert!(!reader.is_finished());
    all_ok(bus.publish(&events(1)).await);
    assert_eq!(tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn embedded_log_is_limited_by_number_and_age() {
    let config = Config { memory_events: 3, max_age: Duration::from_secs(3600), ..config("memory:") };
    let bus = Bus::open(&config).await.unwrap();
    all_ok(bus.publish(&events(5)).await);
    assert_eq!(numbers(&bus, &config).await, [2, 3, 4]);
    tokio::time::advance(Duration::from_secs(3000)).await;
    all_ok(bus.publish(&[event(5)]).await);
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(numbers(&bus, &config).await, [5]);
}

#[tokio::test(start_paused = true)]
async fn embedded_bus_dedupes_while_the_event_is_stored() {
    let config = config("memory:");
    let bus = Bus::open(&config).await.unwrap();
    let first = event(0);
    all_ok(bus.publish(std::slice::from_ref(&first)).await);
    tokio::time::advance(bus::DUPLICATE_WINDOW * 2).await;
    all_ok(bus.publish(&[first]).await);
    assert_eq!(numbers(&bus, &config).await, [0]);
}

#[tokio::test(start_paused = true)]
async fn embedded_bus_dedupes_within_the_window_after_the_event_is_discarded() {
    let config = Config { memory_events: 1, ..config("memory:") };
    let bus = Bus::open(&config).await.unwrap();
    let first = event(0);
    all_ok(bus.publish(&[first.clone(), event(1)]).await);
    tokio::time::advance(bus::DUPLICATE_WINDOW - Duration::from_secs(1)).await;
    all_ok(bus.publish(std::slice::from_ref(&first)).await);
    assert_eq!(numbers(&bus, &config).await, [1]);
    tokio::time::advance(Duration::from_secs(1)).await;
    all_ok(bus.publish(&[first]).await);
    assert_eq!(numbers(&bus, &config).await, [0]);
}
