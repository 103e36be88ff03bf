//! Reading the stream by position, embedded and on NATS.

use super::consumers::{AT_ONCE, subscription};
use super::*;

on_both!(events_are_read_by_position_independently_of_consumers, ack_floor_is_the_last_position_without_gaps);

async fn events_are_read_by_position_independently_of_consumers(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(6)).await);
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let delivered = consumer.fetch(4, PATIENCE).await.unwrap();
    let events = bus.read_between(1, 5, 100).await.unwrap();
    let positions: Vec<u64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, [2, 3, 4]);
    for (event, delivery) in events.iter().zip(&delivered[1..]) {
        assert_eq!((&event.subject, &event.body), (&delivery.subject, &delivery.body));
    }
    assert_eq!(bus.read_between(1, 5, 2).await.unwrap().len(), 2);
    assert_eq!(bus.read_between(4, 5, 100).await.unwrap(), []);
    // Past the end it returns at once without events.
    assert_eq!(bus.read_between(5, 100, 100).await.unwrap().len(), 1);
    assert_eq!(bus.read_between(6, 100, 100).await.unwrap(), []);
}

async fn ack_floor_is_the_last_position_without_gaps(bus: &Bus, _: &Config) {
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    assert_eq!(consumer.ack_floor().await.unwrap(), 0);
    all_ok(bus.publish(&events(3)).await);
    let delivered = consumer.fetch(3, PATIENCE).await.unwrap();
    delivered[0].ack().await.unwrap();
    delivered[2].ack().await.unwrap();
    assert_eq!(consumer.ack_floor().await.unwrap(), 1);
    delivered[1].ack().await.unwrap();
    assert_eq!(consumer.ack_floor().await.unwrap(), 3);
    assert!(consumer.fetch(3, AT_ONCE).await.unwrap().is_empty());
}
