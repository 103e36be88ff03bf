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
    // As many as it keeps, the newest; the one that is not published is among those numbers.
    assert_eq!(relay.fill().await.unwrap(), 999);
    relay.tick().await.unwrap();
    let told = again.told().await;
    let found = numbers(&told);
    assert_eq!(found, (1_501..=2_500).collect::<Vec<u64>>());
    assert_eq!(told[0]["id"], events[1_501].id.to_string());
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
