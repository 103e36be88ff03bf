//! Reading while NATS fails, and while others change what is on it.

use std::collections::BTreeSet;
use std::time::Instant;

use async_nats::jetstream::consumer::push;
use async_nats::jetstream::{self, Context};
use base::error::Coded;
use bus::{Consumer, Delivery, Subscription, ack_all};
use testkit::{Nats, Proxy, eventually, need};

use super::consumers::{all_numbers, number, subscription};
use super::*;

/// Short enough to wait for, long enough for a busy machine to answer within it.
const SOON: Duration = Duration::from_secs(1);
/// Not as long as `ack_wait`: of an event that comes again at the moment in which a request ends, old servers think only when
/// `ack_wait` has passed once more.
const A_WHILE: Duration = Duration::from_secs(5);

async fn jetstream(url: &str) -> Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

/// What there is, once the bus answers.
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

/// Waits until each of these has come, and returns all that came.
async fn come(consumer: &Consumer, expected: impl Iterator<Item = usize>) -> BTreeSet<usize> {
    let expected: BTreeSet<usize> = expected.collect();
    let came = tokio::sync::Mutex::new(BTreeSet::new());
    eventually("they all come", PATIENCE, async || {
        let some = consumer.fetch(10_000, A_WHILE).await.map_err(|error| base::error::chain(&error))?;
        let mut came = came.lock().await;
        came.extend(all_numbers(&some));
        let left = expected.difference(&came).count();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    came.into_inner()
}

/// A fetch that would wait for long. The test does not.
async fn fetch_for_an_hour(consumer: &Consumer) -> Result<Vec<Delivery>, Error> {
    let fetch = consumer.fetch(10, Duration::from_secs(3600));
    tokio::time::timeout(PATIENCE, fetch).await.expect("the fetch ends before the test does")
}

async fn acked(delivery: &Delivery) {
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
                    assert!(error.is_passing(), "{error:?}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            for (delivery, result) in some.iter().zip(ack_all(&some).await) {
                match result {
                    Ok(()) => _ = done.insert(number(delivery)),
                    Err(error) => assert!(error.is_passing(), "{error:?}"),
                }
            }
            progress.send_replace(done.len());
        }
        consumer
    });
    for kill_at in [COUNT / 5, COUNT / 2, COUNT * 3 / 4] {
        watched.wait_for(|done| *done >= kill_at).await.unwrap();
        nats.kill().await.unwrap();
        assert!(*watched.borrow() < COUNT, "all was read before the server was killed");
        nats.start_again().await.unwrap();
    }
    let consumer = tokio::time::timeout(4 * PATIENCE, reader).await.unwrap().unwrap();
    // What was confirmed and forgotten by the killed server comes again, until all of it has been said again.
    eventually("nothing is left", PATIENCE, async || {
        let some = consumer.fetch(200, 2 * SOON).await.map_err(|error| base::error::chain(&error))?;
        ack_all(&some).await;
        if some.is_empty() { Ok(()) } else { Err(format!("{} more", some.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_fetched_before_the_server_was_killed_is_acknowledged_or_comes_again() {
    let mut nats = need!(Nats::private().await);
    let bus = Bus::open(&config(&nats.url())).await.unwrap();
    publish_all(&bus, events(100)).await;
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    let (first, unread) = (fetched(&consumer, 90).await, 90..100);
    nats.kill().await.unwrap();
    let results = ack_all(&first[..40]).await;
    assert!(results.iter().all(|result| result.as_ref().is_err_and(Coded::is_passing)), "{results:?}");
    nats.start_again().await.unwrap();
    for delivery in &first[..40] {
        acked(delivery).await;
    }
    come(&consumer, (40..90).chain(unread)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_fetched_before_an_outage_is_acknowledged_after_it() {
    let nats = need!(Nats::private().await);
    let proxy = Proxy::to(nats.addr()).await;
    let bus = Bus::open(&config(&proxy.url(&nats.url()))).await.unwrap();
    publish_all(&bus, events(2)).await;
    // Long enough for the outage to be over before the other one comes again.
    let consumer =
        bus.subscribe(&Subscription { ack_wait: 3 * SOON, ..subscription("reader") }).await.unwrap();
    let first = fetched(&consumer, 2).await;
    proxy.cut().await;
    let error = first[0].ack().await.unwrap_err();
    assert!(error.is_passing(), "{error:?}");
    // Once the loss is known nothing is asked any more: the events would arrive when nobody waits for them.
    eventually("the loss is noticed", PATIENCE, async || {
        let error = fetch_for_an_hour(&consumer).await.unwrap_err();
        assert!(error.is_passing(), "{error:?}");
        base::error::chain(&error).contains("not connected")
    })
    .await;
    proxy.pass().await;
    acked(&first[0]).await;
    assert_eq!(all_numbers(&fetched(&consumer, 1).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_ends_a_fetch_in_time_whatever_it_waits_for() {
    let nats = need!(Nats::private().await);
    let proxy = Proxy::to(nats.addr()).await;
    let config = config(&proxy.url(&nats.url()));
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(300), Duration::from_secs(3600)] {
        proxy.half_open().await;
        let started = Instant::now();
        let fetch = tokio::time::timeout(PATIENCE, consumer.fetch(10, wait));
        let error = fetch.await.expect("the fetch ends before the test does").unwrap_err();
        assert!(error.is_passing(), "{error:?}");
        // The wait, or the time between two signs of life; the timeout; what a busy machine takes.
        let bound = wait.min(Duration::from_millis(250)) + config.timeout + Duration::from_millis(750);
        assert!(started.elapsed() < bound, "{wait:?}: {:?}", started.elapsed());
        proxy.pass().await;
        publish_all(&bus, vec![event(0)]).await;
        acked(&fetched(&consumer, 1).await[0]).await;
    }
}

/// The network falls silent when the request is under way already.
#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_waits_notices_a_silence_that_begins() {
    let nats = need!(Nats::private().await);
    let proxy = Proxy::to(nats.addr()).await;
    let config = config(&proxy.url(&nats.url()));
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let silence = async {
        waits_on(&nats.url(), &config, 1).await;
        // The server is there: a wait that is longer than the timeout is no silence.
        tokio::time::sleep(2 * config.timeout).await;
        proxy.half_open().await;
        Instant::now()
    };
    let (fetched_then, silent_since) = tokio::join!(fetch_for_an_hour(&consumer), silence);
    let error = fetched_then.unwrap_err();
    assert!(error.is_passing(), "{error:?}");
    assert!(
        silent_since.elapsed() < 2 * config.timeout + Duration::from_millis(750),
        "{:?}",
        silent_since.elapsed()
    );
    proxy.pass().await;
    publish_all(&bus, vec![event(0)]).await;
    assert_eq!(all_numbers(&fetched(&consumer, 1).await), [0]);
}

/// Waits until so many requests for events wait at the server.
async fn waits_on(url: &str, config: &Config, count: usize) {
    let jetstream = jetstream(url).await;
    eventually("a fetch waits", PATIENCE, async || {
        let found = jetstream.get_consumer_from_stream::<pull::Config, _, _>("reader", &config.stream).await;
        found.is_ok_and(|found| found.cached_info().num_waiting == count)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_not_taken_for_a_silent_one() {
    let nats = need!(Nats::private().await);
    let proxy = Proxy::to(nats.addr()).await;
    let config = Config { timeout: Duration::from_secs(2), ..config(&proxy.url(&nats.url())) };
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    publish_all(&bus, events(2)).await;
    // There and back in less than the timeout, and in more than the time between two signs of life.
    proxy.delay(config.timeout / 3).await;
    for (n, wait) in [Duration::ZERO, Duration::from_secs(5)].into_iter().enumerate() {
        assert_eq!(all_numbers(&consumer.fetch(1, wait).await.unwrap()), [n]);
    }
    assert!(consumer.fetch(1, Duration::ZERO).await.unwrap().is_empty());
    // Though each step of what there is to do now would be in time, all of them are not.
    jetstream(&nats.url()).await.delete_consumer_from_stream("reader", &config.stream).await.unwrap();
    let started = Instant::now();
    assert!(consumer.fetch(1, Duration::ZERO).await.unwrap_err().is_passing());
    assert!(started.elapsed() < config.timeout + Duration::from_millis(750), "{:?}", started.elapsed());
    proxy.pass().await;
    assert_eq!(all_numbers(&fetched(&consumer, 2).await), [0, 1]);
}

/// The server does not answer a request without a wait when nothing more may be delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_deliver_no_more_is_not_taken_for_a_silent_one() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let bus = Bus::open(&of(&streams)).await.unwrap();
    publish_all(&bus, events(2)).await;
    let consumer = bus.subscribe(&Subscription { max_pending: 1, ..subscription("reader") }).await.unwrap();
    let first = fetched(&consumer, 1).await;
    assert!(consumer.fetch(1, Duration::ZERO).await.unwrap().is_empty());
    acked(&first[0]).await;
    assert_eq!(all_numbers(&fetched(&consumer, 1).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_arrived_when_the_time_is_over_is_returned() {
    const COUNT: usize = 2_000;
    let nats = need!(Nats::private().await);
    let proxy = Proxy::to(nats.addr()).await;
    // Enough for a part of it to arrive, on a busy machine too; all of it would take several times as long.
    let config = Config { timeout: Duration::from_secs(2), ..config(&proxy.url(&nats.url())) };
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&Subscription { ack_wait: SOON, ..subscription("reader") }).await.unwrap();
    publish_all(&bus, events(COUNT)).await;
    proxy.bandwidth(100_000).await;
    let first = consumer.fetch(COUNT, Duration::ZERO).await.unwrap();
    assert!(!first.is_empty() && first.len() < COUNT, "{}", first.len());
    proxy.pass().await;
    for delivery in &first {
        acked(delivery).await;
    }
    // The rest was delivered to nobody, and comes again.
    let got: BTreeSet<usize> = first.iter().map(number).collect();
    come(&consumer, (0..COUNT).filter(|n| !got.contains(n))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_fails_all_answers_within_one_timeout() {
    const COUNT: usize = 2_000;
    let nats = need!(Nats::private().await);
    let proxy = Proxy::to(nats.addr()).await;
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
    assert!(results.iter().all(|result| result.as_ref().is_err_and(Coded::is_passing)), "{results:?}");
    let started = Instant::now();
    for result in [deliveries[0].again(SOON).await, deliveries[0].in_progress().await] {
        assert!(matches!(result, Err(Error::Unreachable(_))), "{result:?}");
    }
    assert!(started.elapsed() < 2 * bound, "{:?}", started.elapsed());
    proxy.pass().await;
    // Nothing was acknowledged, or it was acknowledged too late to be known. Now it is.
    eventually("all is confirmed", PATIENCE, async || ack_all(&deliveries).await.iter().all(Result::is_ok))
        .await;
    assert!(consumer.fetch(1, 2 * SOON).await.is_ok_and(|more| more.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_waits_outlives_a_restart_of_the_server() {
    let mut nats = need!(Nats::private().await);
    let config = config(&nats.url());
    let bus = Bus::open(&config).await.unwrap();
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    let url = nats.url();
    let started_again = async {
        waits_on(&url, &config, 1).await;
        nats.kill().await.unwrap();
        nats.start_again().await.unwrap();
        publish_all(&bus, vec![event(0)]).await;
    };
    // The server that knew of the request is gone, and the next one is asked anew.
    let (waited, ()) = tokio::join!(fetch_for_an_hour(&consumer), started_again);
    assert_eq!(all_numbers(&waited.unwrap()), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reader_leaves_behind_goes_to_another() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = Config { timeout: PATIENCE, ..of(&streams) };
    let (one, other) = (Bus::open(&config).await.unwrap(), Bus::open(&config).await.unwrap());
    all_ok(one.publish(&events(4)).await);
    let subscription = Subscription { ack_wait: SOON, ..subscription("reader") };
    let first = fetched(&one.subscribe(&subscription).await.unwrap(), 3).await;
    acked(&first[1]).await;
    one.close().await;
    let came = come(&other.subscribe(&subscription).await.unwrap(), [0, 2, 3].into_iter()).await;
    assert!(!came.contains(&1), "{came:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_or_a_consumer_that_vanished_is_made_again() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = Config { timeout: PATIENCE, ..of(&streams) };
    let bus = Bus::open(&config).await.unwrap();
    let context = jetstream(streams.url()).await;
    let consumer = bus.subscribe(&subscription("reader")).await.unwrap();
    all_ok(bus.publish(&events(2)).await);
    let delivered = fetched(&consumer, 2).await;
    acked(&delivered[0]).await;

    context.delete_consumer_from_stream("reader", &config.stream).await.unwrap();
    // There is nobody to confirm it.
    assert!(delivered[1].ack().await.unwrap_err().is_passing());
    // Not even the caller of a fetch notices. The progress is lost, the events are not.
    let again = consumer.fetch(10, PATIENCE).await.unwrap();
    assert_eq!(all_numbers(&again), [0, 1]);
    all_ok(ack_all(&again).await);

    context.delete_stream(&config.stream).await.unwrap();
    let (fetched_then, ()) = tokio::join!(consumer.fetch(10, PATIENCE), async {
        waits_on(streams.url(), &config, 1).await;
        all_ok(bus.publish(&[event(2)]).await);
    });
    assert_eq!(all_numbers(&fetched_then.unwrap()), [2]);

    // It vanishes under one that waits.
    let (fetched_then, ()) = tokio::join!(consumer.fetch(10, PATIENCE), async {
        waits_on(streams.url(), &config, 1).await;
        context.delete_consumer_from_stream("reader", &config.stream).await.unwrap();
    });
    assert_eq!(all_numbers(&fetched_then.unwrap()), [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_of_another_kind_is_refused_with_what_to_do() {
    let nats = need!(Nats::shared().await);
    let streams = nats.streams();
    let config = of(&streams);
    let bus = Bus::open(&config).await.unwrap();
    let stream = jetstream(streams.url()).await.get_stream(&config.stream).await.unwrap();
    let pushes = push::Config {
        durable_name: Some("pushes".to_owned()),
        deliver_subject: streams.subject("inbox").replace('.', "_"),
        ..push::Config::default()
    };
    stream.create_consumer(pushes).await.unwrap();
    let forgets = pull::Config {
        durable_name: Some("forgets".to_owned()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    stream.create_consumer(forgets).await.unwrap();
    for (name, said) in [("pushes", "it pushes events"), ("forgets", "have each event acknowledged")] {
        let error = bus.subscribe(&subscription(name)).await.unwrap_err();
        assert!(matches!(error, Error::Consumer { .. }) && !error.is_passing(), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
    }
}
