//! Reading during outages of NATS, and while others change its streams.

use std::collections::BTreeSet;
use std::time::Instant;

use async_nats::jetstream::consumer::push;
use async_nats::jetstream::{self, Context};
use base::error::Coded;
use bus::{Consumer, Delivery, Subscription, ack_all};
use testkit::{FaultProxy, Nats, eventually, need};

use super::consumers::{all_numbers, number, subscription};
use super::*;

/// Short enough to wait for, long enough for a busy machine to respond.
const SOON: Duration = Duration::from_secs(1);
/// Bounds each request: if a redelivery coincides with the end of a request, old servers retry it only after another `ack_wait`.
const A_WHILE: Duration = Duration::from_secs(5);

async fn jetstream(url: &str) -> Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

/// Fetches `count` events, once the bus responds.
async fn fetched(consumer: &Consumer, count: usize) -> Vec<Delivery> {
    let all = tokio::sync::Mutex::new(Vec::new());
    eventually("the events are fetched", PATIENCE, async || {
        let mut all = all.lock().await;
        let left = count - all.len();
        all.extend(consumer.fetch(left, A_WHILE).await.map_err(|error| base::error::chain(&error))?);
        if all.len() == count { Ok(()) } else { Err(format!("{} of {count}", all.len())) }
    })
    .await;
    all.into_inner()
}

/// Waits until each expected event is delivered, and returns all delivered ones.
async fn wait_for_delivery(consumer: &Consumer, expected: impl Iterator<Item = usize>) -> BTreeSet<usize> {
    let expected: BTreeSet<usize> = expected.collect();
    let delivered = tokio::sync::Mutex::new(BTreeSet::new());
    eventually("all are delivered", PATIENCE, async || {
        let some = consumer.fetch(10_000, A_WHILE).await.map_err(|error| base::error::chain(&error))?;
        let mut delivered = delivered.lock().await;
        delivered.extend(all_numbers(&some));
        let left = expected.difference(&delivered).count();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    delivered.into_inner()
}

/// Starts a fetch with a very long wait, which must end before the test does.
async fn fetch_for_an_hour(consumer: &Consumer) -> Result<Vec<Delivery>, Error> {
    let fetch = consumer.fetch(10, Duration::from_secs(3600));
    tokio::time::timeout(PATIENCE, fetch).await.expect("the fetch ends before the test does")
}

async fn ack_until_confirmed(delivery: &Delivery) {
    let ack = async || delivery.ack().await.map_err(|error| base::error::chain(&error));
    eventually("the acknowledgement is confirmed", PATIENCE, ack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_server_is_killed_while_reading() {
    const COUNT: usize = 20_000;
    let mut nats = need!(Nats::private().await);
    let bus = Bus::open(&config(&nats.url())).await.unwrap();
    publish_all(&bus, events(COUNT)).await;
    let subscription = Subscription { ack_wait: SOON, max_pending: 500, ..subscription("reader") };
    let consumer = bus.subscribe(&subscription).await.unwrap();
    let (progress, mut watched) = tokio::sync::watch::channel(0);
    let reader = tokio::spawn(async move {
        let mut done = BTreeSet::new();
        while done.len() < COUNT {
            let some = match consumer.fetch(200, Duration::from_millis(100)).await {
                Ok(some) => some,
                Err(error) => {
                    assert!(error.is_transient(), "{error:?}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            for (delivery, result) in some.iter().zip(ack_all(&some).await) {
                match result {
                    Ok(()) => _ = done.insert(number(delivery)),
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                }
            }
            progress.send_replace(done.len());
        }
        consumer
    });
    for kill_at in [COUNT / 5, COUNT / 2, COUNT * 3 / 4] {
        watched.wait_for(|done| *done >= kill_at).await.unwrap();
        nats.kill().await.unwrap();
        assert!(*watched.borrow() < COUNT, "everything was read before the server was killed");
        nats.start_again().await.unwrap();
    }
    let consumer = tokio::time::timeout(4 * PATIENCE, reader).await.unwrap().unwrap();
    // Acknowledgements that the killed server confirmed but lost are repeated, until nothing is left.
    eventually("nothing is left", PATIENCE, async || {
        let some = consumer.fetch(200, 2 * SOON).await.map_err(|error| base::error::chain(&error))?;
        ack_all(&some).await;
        if some.is_empty() { Ok(()) } else { Err(format!("{} more", some.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_fetched_before_a_crash_are_acknowledged_or_redelivered() {
    let mut nats = need!(Nats::private().await);
    let bus = Bus::open(&config(&nats.url())).await.unwrap();
    publish_all(&bus, events(100)).await;
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    let (first, unread) = (fetched(&consumer, 90).await, 90..100);
    nats.kill().await.unwrap();
    let results = ack_all(&first[..40]).await;
    assert!(results.iter().all(|result| result.as_ref().is_err_and(Coded::is_transient)), "{results:?}");
    nats.start_again().await.unwrap();
    for delivery in &first[..40] {
        ack_until_confirmed(delivery).await;
    }
    wait_for_delivery(&consumer, (40..90).chain(unread)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_fetched_before_an_outage_can_be_acknowledged_after_it() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let bus = Bus::open(&config(&proxy.url(&nats.url()))).await.unwrap();
    publish_all(&bus, events(2)).await;
    // Long enough for the outage to end before the other event is redelivered.
    let consumer =
        bus.subscribe(&Subscription { ack_wait: 3 * SOON, ..subscription("reader") }).await.unwrap();
    let first = fetched(&consumer, 2).await;
    proxy.cut().await;
    let error = first[0].ack().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    // Once the client knows about the loss it sends no request: the events would arrive after the fetch has ended.
    eventually("the loss is noticed", PATIENCE, async || {
        let error = fetch_for_an_hour(&consumer).await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        base::error::chain(&error).contains("not connected")
    })
    .await;
    proxy.pass().await;
    ack_until_confirmed(&first[0]).await;
    assert_eq!(all_numbers(&fetched(&consumer, 1).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_network_ends_a_fetch_in_time_whatever_its_wait() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let config = config(&proxy.url(&nats.url()));
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(300), Duration::from_secs(3600)] {
        proxy.half_open().await;
        let started = Instant::now();
        let fetch = tokio::time::timeout(PATIENCE, consumer.fetch(10, wait));
        let error = fetch.await.expect("the fetch ends before the test does").unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        // The wait or the heartbeat interval, plus the timeout, plus an allowance for a busy machine.
        let bound = wait.min(Duration::from_millis(250)) + config.timeout + Duration::from_millis(750);
        assert!(started.elapsed() < bound, "{wait:?}: {:?}", started.elapsed());
        proxy.pass().await;
        publish_all(&bus, vec![event(0)]).await;
        ack_until_confirmed(&fetched(&consumer, 1).await[0]).await;
    }
}

/// The network falls silent while the request is in flight.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_fetch_detects_a_silence_that_begins() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let config = config(&proxy.url(&nats.url()));
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let silence = async {
        wait_for_pulls(&nats.url(), &config, 1).await;
        // The server is up: waiting longer than the timeout is not a silence.
        tokio::time::sleep(2 * config.timeout).await;
        proxy.half_open().await;
        Instant::now()
    };
    let (fetched_then, silent_since) = tokio::join!(fetch_for_an_hour(&consumer), silence);
    let error = fetched_then.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(
        silent_since.elapsed() < 2 * config.timeout + Duration::from_millis(750),
        "{:?}",
        silent_since.elapsed()
    );
    proxy.pass().await;
    publish_all(&bus, vec![event(0)]).await;
    assert_eq!(all_numbers(&fetched(&consumer, 1).await), [0]);
}

/// Waits until `count` pull requests wait at the server.
async fn wait_for_pulls(url: &str, config: &Config, count: usize) {
    let jetstream = jetstream(url).await;
    eventually("a fetch waits", PATIENCE, async || {
        let found = jetstream.get_consumer_from_stream::<pull::Config, _, _>("reader", &config.stream).await;
        found.is_ok_and(|found| found.cached_info().num_waiting == count)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_network_does_not_count_as_silent() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let config = Config { timeout: Duration::from_secs(2), ..config(&proxy.url(&nats.url())) };
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    publish_all(&bus, events(2)).await;
    // A round trip shorter than the timeout, but longer than the heartbeat interval.
    proxy.delay(config.timeout / 3).await;
    for (n, wait) in [Duration::ZERO, Duration::from_secs(5)].into_iter().enumerate() {
        assert_eq!(all_numbers(&consumer.fetch(1, wait).await.unwrap()), [n]);
    }
    assert!(consumer.fetch(1, Duration::ZERO).await.unwrap().is_empty());
    // Each step alone is in time, but together they exceed the timeout.
    jetstream(&nats.url()).await.delete_consumer_from_stream("reader", &config.stream).await.unwrap();
    let started = Instant::now();
    assert!(consumer.fetch(1, Duration::ZERO).await.unwrap_err().is_transient());
    assert!(started.elapsed() < config.timeout + Duration::from_millis(750), "{:?}", started.elapsed());
    proxy.pass().await;
    assert_eq!(all_numbers(&fetched(&consumer, 2).await), [0, 1]);
}

/// The server does not respond to a request without a wait when `max_pending` is reached.
#[tokio::test(flavor = "multi_thread")]
async fn server_at_max_pending_does_not_count_as_silent() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let bus = Bus::open(&config_on(&streams)).await.unwrap();
    publish_all(&bus, events(2)).await;
    let consumer = bus.subscribe(&Subscription { max_pending: 1, ..subscription("reader") }).await.unwrap();
    let first = fetched(&consumer, 1).await;
    assert!(consumer.fetch(1, Duration::ZERO).await.unwrap().is_empty());
    ack_until_confirmed(&first[0]).await;
    assert_eq!(all_numbers(&fetched(&consumer, 1).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_returns_events_received_before_the_timeout() {
    const COUNT: usize = 2_000;
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    // Enough for some events, even on a busy machine; all of them would take several times as long.
    let config = Config { timeout: Duration::from_secs(2), ..config(&proxy.url(&nats.url())) };
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    publish_all(&bus, events(COUNT)).await;
    proxy.bandwidth(100_000).await;
    let first = consumer.fetch(COUNT, Duration::ZERO).await.unwrap();
    assert!(!first.is_empty() && first.len() < COUNT, "{}", first.len());
    proxy.pass().await;
    for delivery in &first {
        ack_until_confirmed(delivery).await;
    }
    // The rest did not arrive, and is redelivered.
    let got: BTreeSet<usize> = first.iter().map(number).collect();
    wait_for_delivery(&consumer, (0..COUNT).filter(|n| !got.contains(n))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_network_fails_all_responses_within_one_timeout() {
    const COUNT: usize = 2_000;
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let config = config(&proxy.url(&nats.url()));
    let bus = Bus::open(&config).await.unwrap();
    publish_all(&bus, events(COUNT)).await;
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    let deliveries = fetched(&consumer, COUNT).await;
    proxy.half_open().await;
    let bound = config.timeout + Duration::from_millis(750);
    let started = Instant::now();
    let results = ack_all(&deliveries).await;
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
    assert_eq!(results.len(), COUNT);
    assert!(results.iter().all(|result| result.as_ref().is_err_and(Coded::is_transient)), "{results:?}");
    let started = Instant::now();
    for result in [deliveries[0].redeliver_after(SOON).await, deliveries[0].in_progress().await] {
        assert!(matches!(result, Err(Error::Unreachable(_))), "{result:?}");
    }
    assert!(started.elapsed() < 2 * bound, "{:?}", started.elapsed());
    proxy.pass().await;
    // No acknowledgement was confirmed in time. Repeat them.
    eventually("all acknowledgements are confirmed", PATIENCE, async || {
        ack_all(&deliveries).await.iter().all(Result::is_ok)
    })
    .await;
    assert!(consumer.fetch(1, 2 * SOON).await.is_ok_and(|more| more.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_fetch_survives_a_server_restart() {
    let mut nats = need!(Nats::private().await);
    let config = config(&nats.url());
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let url = nats.url();
    let restart = async {
        wait_for_pulls(&url, &config, 1).await;
        nats.kill().await.unwrap();
        nats.start_again().await.unwrap();
        publish_all(&bus, vec![event(0)]).await;
    };
    // The restarted server does not know the request, so the client repeats it.
    let (waited, ()) = tokio::join!(fetch_for_an_hour(&consumer), restart);
    assert_eq!(all_numbers(&waited.unwrap()), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_events_of_a_closed_reader_go_to_another() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = Config { timeout: PATIENCE, ..config_on(&streams) };
    let (one, other) = (Bus::open(&config).await.unwrap(), Bus::open(&config).await.unwrap());
    all_ok(one.publish(&events(4)).await);
    let subscription = Subscription { ack_wait: SOON, ..subscription("reader") };
    let first = fetched(&one.subscribe(&subscription).await.unwrap(), 3).await;
    ack_until_confirmed(&first[1]).await;
    one.close().await;
    let delivered =
        wait_for_delivery(&other.subscribe(&subscription).await.unwrap(), [0, 2, 3].into_iter()).await;
    assert!(!delivered.contains(&1), "{delivered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_stream_or_consumer_is_created_again() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = Config { timeout: PATIENCE, ..config_on(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    let context = jetstream(streams.url()).await;
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    all_ok(bus.publish(&events(2)).await);
    let delivered = fetched(&consumer, 2).await;
    ack_until_confirmed(&delivered[0]).await;

    context.delete_consumer_from_stream("reader", &config.stream).await.unwrap();
    // No consumer confirms it.
    assert!(delivered[1].ack().await.unwrap_err().is_transient());
    // The caller of `fetch` does not notice. The progress is lost, but not the events.
    let again = consumer.fetch(10, PATIENCE).await.unwrap();
    assert_eq!(all_numbers(&again), [0, 1]);
    all_ok(ack_all(&again).await);

    context.delete_stream(&config.stream).await.unwrap();
    let (fetched_then, ()) = tokio::join!(consumer.fetch(10, PATIENCE), async {
        wait_for_pulls(streams.url(), &config, 1).await;
        all_ok(bus.publish(&[event(2)]).await);
    });
    assert_eq!(all_numbers(&fetched_then.unwrap()), [2]);

    // The consumer vanishes while a fetch waits.
    let (fetched_then, ()) = tokio::join!(consumer.fetch(10, PATIENCE), async {
        wait_for_pulls(streams.url(), &config, 1).await;
        context.delete_consumer_from_stream("reader", &config.stream).await.unwrap();
    });
    assert_eq!(all_numbers(&fetched_then.unwrap()), [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsuitable_consumer_is_refused_with_advice() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = config_on(&streams);
    let bus = Bus::open(&config).await.unwrap();
    let stream = jetstream(streams.url()).await.get_stream(&config.stream).await.unwrap();
    let pushes = push::Config {
        durable_name: Some("pushes".to_owned()),
        deliver_subject: streams.subject("inbox").replace('.', "_"),
        ..push::Config::default()
    };
    stream.create_consumer(pushes).await.unwrap();
    let no_acks = pull::Config {
        durable_name: Some("no-acks".to_owned()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    stream.create_consumer(no_acks).await.unwrap();
    for (name, said) in [("pushes", "it pushes events"), ("no-acks", "require each event to be acknowledged")]
    {
        let error = bus.subscribe(&subscription(name)).await.unwrap_err();
        assert!(matches!(error, Error::Consumer { .. }) && !error.is_transient(), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
    }
}
