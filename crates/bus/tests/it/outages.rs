//! Publishing during outages of NATS.

use std::time::Instant;

use base::error::Coded;
use testkit::{FaultProxy, Nats, eventually, need};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_stored_twice_when_the_server_is_killed_while_publishing() {
    // Large enough for the server to be killed in the middle of one.
    const BATCH: usize = 1_000;
    let mut nats = need!(Nats::private().await);
    let config = config(&nats.url());
    let bus = Bus::open(&config).await.unwrap();
    let (published, mut progress) = tokio::sync::watch::channel(0);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move {
            let (mut batches, mut failed) = (0, 0);
            // Until the last kill: a fast publisher must not be done before.
            while !*stopped.borrow() {
                failed += publish_all(&bus, (0..BATCH).map(|n| event(batches * BATCH + n)).collect()).await;
                batches += 1;
                published.send_replace(batches);
            }
            (batches, failed)
        }
    });
    for kill_at in [3, 12] {
        progress.wait_for(|batches| *batches >= kill_at).await.unwrap();
        nats.kill().await.unwrap();
        nats.start_again().await.unwrap();
    }
    stop.send_replace(true);
    let (batches, failed) = publisher.await.unwrap();
    assert!(failed > 0, "nothing was published while the server was down");
    let mut found = numbers(&bus, &config).await;
    found.sort_unstable();
    assert_eq!(found, (0..batches * BATCH).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_fails_each_event() {
    let mut nats = need!(Nats::private().await);
    let config = config(&nats.url());
    let bus = Bus::open(&config).await.unwrap();
    nats.kill().await.unwrap();
    eventually("the loss is noticed", PATIENCE, async || bus.ping().await.err()).await;
    let results = bus.publish(&events(10)).await;
    assert_eq!(results.len(), 10);
    assert!(results.iter().all(|result| matches!(result, Err(Error::Unreachable(_)))), "{results:?}");
    nats.start_again().await.unwrap();
    publish_all(&bus, events(10)).await;
    // Events that failed without a connection were never sent.
    assert_eq!(numbers(&bus, &config).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_network_fails_a_whole_batch_within_one_timeout() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    // Fewer in flight than events: all rounds of acknowledgements must share one timeout.
    let config = Config { max_in_flight: 10, ..config(&proxy.url(&nats.url())) };
    let bus = Bus::open(&config).await.unwrap();
    all_ok(bus.publish(&events(1)).await);
    proxy.half_open().await;
    let batch: Vec<Event> = (1..101).map(event).collect();
    let started = Instant::now();
    let results = bus.publish(&batch).await;
    assert!(started.elapsed() < config.timeout + Duration::from_millis(500), "{:?}", started.elapsed());
    assert!(results.iter().all(|result| result.as_ref().is_err_and(Coded::is_transient)), "{results:?}");
    proxy.pass().await;
    publish_all(&bus, batch).await;
    let mut found = numbers(&bus, &config).await;
    found.sort_unstable();
    assert_eq!(found, (0..101).collect::<Vec<_>>());
}

/// The events arrive but their acknowledgements are late, so a retry could store them twice.
#[tokio::test(flavor = "multi_thread")]
async fn event_stored_without_a_timely_acknowledgement_is_not_stored_again() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let config = config(&proxy.url(&nats.url()));
    let bus = Bus::open(&config).await.unwrap();
    // One way is shorter than the timeout, the round trip is longer.
    proxy.delay(config.timeout * 4 / 5).await;
    let batch = events(20);
    let results = bus.publish(&batch).await;
    assert!(results.iter().all(|result| matches!(result, Err(Error::Unreachable(_)))), "{results:?}");
    proxy.pass().await;
    eventually("the late events are stored", PATIENCE, async || numbers(&bus, &config).await.len() == 20)
        .await;
    publish_all(&bus, batch).await;
    assert_eq!(numbers(&bus, &config).await, (0..20).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn more_events_than_max_in_flight_are_all_published() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = Config { max_in_flight: 1, timeout: PATIENCE, ..config_on(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    all_ok(bus.publish(&events(50)).await);
    assert_eq!(numbers(&bus, &config).await, (0..50).collect::<Vec<_>>());
}

/// NATS answers 400 here, as for an account at its limit: that code says nothing about the event.
#[tokio::test(flavor = "multi_thread")]
async fn refusing_stream_is_reported_and_loses_nothing() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = Config { timeout: PATIENCE, ..config_on(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    let jetstream = async_nats::jetstream::new(streams.connect().await);
    let original = jetstream.get_stream(&config.stream).await.unwrap().cached_info().config.clone();
    let sealed = async_nats::jetstream::stream::Config { sealed: true, ..original };
    jetstream.update_stream(&sealed).await.unwrap();

    let batch = events(3);
    let stuck = eventually("the bus reports that it stores nothing", PATIENCE, async || {
        for result in bus.publish(&batch).await {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Refusing { .. }), "{error:?}");
            assert!(error.is_transient() && !error.is_permanent(), "{error:?}");
        }
        bus.ping().await.err()
    })
    .await;
    assert!(matches!(stuck, Error::Stuck { .. }), "{stuck:?}");
    assert!(base::error::chain(&stuck).contains("sealed"), "{stuck:?}");

    // An operator fixes it.
    jetstream.delete_stream(&config.stream).await.unwrap();
    publish_all(&bus, batch).await;
    bus.ping().await.unwrap();
    assert_eq!(numbers(&bus, &config).await, [0, 1, 2]);
}
