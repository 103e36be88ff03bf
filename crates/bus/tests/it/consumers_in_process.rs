//! What a durable consumer in process does to the instant, at the bounds of the log, and on many threads.

use bus::{Delivery, Subscription};

use super::consumers::{AT_ONCE, NEVER, all_numbers, next, number, subscription};
use super::*;

#[tokio::test(start_paused = true)]
async fn an_event_comes_again_to_the_instant() {
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
async fn a_reader_that_lags_goes_on_with_the_oldest_that_is_kept() {
    let config = Config { memory_events: 10, max_age: Duration::from_secs(3600), ..config("memory:") };
    let bus = Bus::open(&config).await.unwrap();
    let few = Subscription { max_pending: 3, ..subscription("reader") };
    let consumer = bus.subscribe(&few).await.unwrap();
    all_ok(bus.publish(&events(5)).await);
    assert_eq!(all_numbers(&consumer.fetch(10, AT_ONCE).await.unwrap()), [0, 1, 2]);
    all_ok(bus.publish(&(5..13).map(event).collect::<Vec<_>>()).await);
    // 0 to 2 are gone, and with them what was pending.
    let more = consumer.fetch(10, AT_ONCE).await.unwrap();
    assert_eq!(all_numbers(&more), [3, 4, 5]);
    tokio::time::advance(Duration::from_secs(3601)).await;
    all_ok(bus.publish(&[event(13)]).await);
    let more = consumer.fetch(10, AT_ONCE).await.unwrap();
    assert_eq!((all_numbers(&more), more[0].position), (vec![13], 14));
    more[0].ack().await.unwrap();
    assert!(consumer.fetch(10, NEVER).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_missed() {
    const COUNT: usize = 20_000;
    let bus = Bus::open(&config("memory:")).await.unwrap();
    all_ok(bus.publish(&events(COUNT)).await);
    // One at a time: each fetch waits for an acknowledgement on another thread, and both happen at the same moment.
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
