//! Reading the stream by position, in process and on NATS alike.

use super::consumers::{AT_ONCE, subscription};
use super::*;

on_both!(events_are_read_by_position_whoever_has_them, the_floor_is_what_everybody_has_acknowledged);

async fn events_are_read_by_position_whoever_has_them(bus: &Bus, _: &Config) {
    all_ok(bus.publish(&events(6)).await);
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let delivered = consumer.fetch(4, PATIENCE).await.unwrap();
    let kept = bus.read_between(1, 5, 100).await.unwrap();
    let positions: Vec<u64> = kept.iter().map(|kept| kept.position).collect();
    assert_eq!(positions, [2, 3, 4]);
    for (kept, delivery) in kept.iter().zip(&delivered[1..]) {
        assert_eq!((&kept.subject, &kept.body), (&delivery.subject, &delivery.body));
    }
    assert_eq!(bus.read_between(1, 5, 2).await.unwrap().len(), 2);
    assert_eq!(bus.read_between(4, 5, 100).await.unwrap(), []);
    // Behind the end there is nothing, and nothing is waited for.
    assert_eq!(bus.read_between(5, 100, 100).await.unwrap().len(), 1);
    assert_eq!(bus.read_between(6, 100, 100).await.unwrap(), []);
}

async fn the_floor_is_what_everybody_has_acknowledged(bus: &Bus, _: &Config) {
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    assert_eq!(consumer.floor().await.unwrap(), 0);
    all_ok(bus.publish(&events(3)).await);
    let delivered = consumer.fetch(3, PATIENCE).await.unwrap();
    delivered[0].ack().await.unwrap();
    delivered[2].ack().await.unwrap();
    assert_eq!(consumer.floor().await.unwrap(), 1);
    delivered[1].ack().await.unwrap();
    assert_eq!(consumer.floor().await.unwrap(), 3);
    assert!(consumer.fetch(3, AT_ONCE).await.unwrap().is_empty());
}
