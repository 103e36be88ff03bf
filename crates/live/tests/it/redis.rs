//! Messages between processes, through Redis.

use redis_store::HashTags;
use testkit::{FaultProxy, Redis};

use super::*;

fn gold(amount: i64) -> PlayerMessage {
    PlayerMessage::Gold(amount)
}

/// Returns how many processes subscribe to the channel of a player.
async fn subscribers(keys: &testkit::RedisNamespace, player: Player) -> u64 {
    let mut connection = keys.connect().await;
    let channel = format!("{}live:{player}", keys.prefix());
    let (_, count): (String, u64) =
        ::redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query_async(&mut connection).await.unwrap();
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_one_process_are_received_in_another() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (one, two) = (open(keys.url(), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
    let running = [run(&one), run(&two)];
    let [ann, ben] = [player(1), player(2)];
    let (mut here, mut there, mut other) =
        (subscribe(&one, ann).await, subscribe(&two, ann).await, subscribe(&two, ben).await);
    assert_eq!(one.publish_all::<Gold>(vec![(ann, 1), (player(3), 2), (ben, 3)]).await.unwrap(), [2, 0, 1]);
    // Redis confirmed each channel before `subscribe` returned, so nothing is missing.
    assert_eq!(next(&mut here).await, SubscriptionEvent::Message(gold(1)));
    assert_eq!(next(&mut there).await, SubscriptionEvent::Message(gold(1)));
    assert_eq!(next(&mut other).await, SubscriptionEvent::Message(gold(3)));
    // A second subscription to the same key in the same process receives them too.
    let mut second = subscribe(&two, ann).await;
    assert_eq!(two.publish::<Moved>(ann, ()).await.unwrap(), 2);
    for subscription in [&mut here, &mut there, &mut second] {
        assert_eq!(next(subscription).await, SubscriptionEvent::Message(PlayerMessage::Moved));
    }
    assert_eq!(one.publish_all::<Gold>(Vec::new()).await.unwrap(), [0; 0]);
    // A process unsubscribes from a channel when its last subscription to it is dropped.
    drop((there, other));
    assert_eq!(subscribers(&keys, ann).await, 2, "one subscription is left");
    drop(second);
    for (player, count) in [(ann, 1), (ben, 0)] {
        testkit::eventually("the process unsubscribes", PATIENCE, async || {
            subscribers(&keys, player).await == count
        })
        .await;
    }
    let mut back = subscribe(&two, ann).await;
    assert_eq!(one.publish::<Gold>(ann, 9).await.unwrap(), 2);
    assert_eq!(next(&mut back).await, SubscriptionEvent::Message(gold(9)));
    for running in running {
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_are_named_by_the_key_space_of_the_connection() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, ann) = (server.namespace(), player(1));
    let prefix = keys.prefix();
    for (tags, channel) in [
        (HashTags::Off, format!("{prefix}live:{ann}")),
        (HashTags::On, format!("{{live:{prefix}}}live:{ann}")),
    ] {
        let redis = redis_store::Redis::open(keys.url(), PATIENCE).await.unwrap().with_hash_tags(tags);
        let live = Live::new(&RedisStore::Redis(redis), prefix);
        let running = run(&live);
        let mut subscription = subscribe(&live, ann).await;
        let mut connection = keys.connect().await;
        let publish = ::redis::cmd("PUBLISH").arg(&channel).arg(br#"{"gold":1}"#).to_owned();
        assert_eq!(publish.query_async::<u64>(&mut connection).await.unwrap(), 1, "{channel}");
        assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(gold(1)));
        assert_eq!(live.publish::<Gold>(ann, 2).await.unwrap(), 1);
        assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(gold(2)));
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_message_is_a_gap() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, ann) = (server.namespace(), player(1));
    let live = open(keys.url(), keys.prefix()).await;
    let running = run(&live);
    let mut subscription = subscribe(&live, ann).await;
    drain(&mut subscription).await;
    let mut connection = keys.connect().await;
    let channel = format!("{}live:{ann}", keys.prefix());
    let payloads: [&[u8]; 5] = [br#"{"novelty":1}"#, br#""novelty""#, br#"{"gold":"much"}"#, b"", b"\xff{"];
    for payload in payloads {
        ::redis::cmd("PUBLISH").arg(&channel).arg(payload).exec_async(&mut connection).await.unwrap();
        assert_eq!(
            next(&mut subscription).await,
            SubscriptionEvent::Gap,
            "{}",
            String::from_utf8_lossy(payload)
        );
    }
    live.publish::<Gold>(ann, 1).await.unwrap();
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(gold(1)));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_subscribers_receive_no_gap() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.namespace();
    let (here, publisher) = (open(keys.url(), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
    let running = run(&here);
    for ann in (1..=20).map(player) {
        // All but the first subscribe before Redis has confirmed the channel, and request it again.
        let mut subscriptions = futures::future::join_all((0..8).map(|_| subscribe(&here, ann))).await;
        let later = subscribe(&here, ann).await;
        assert_eq!(publisher.publish::<Gold>(ann, 1).await.unwrap(), 1);
        for subscription in subscriptions.iter_mut().chain([&mut { later }]) {
            assert_eq!(next(subscription).await, SubscriptionEvent::Message(gold(1)));
        }
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_subscriber_receives_a_gap() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, ann) = (server.namespace(), player(1));
    let (here, publisher) = (open(keys.url(), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
    // The loop does not run yet, so the channel is not confirmed.
    let mut subscription = subscribe(&here, ann).await;
    assert_eq!(publisher.publish::<Gold>(ann, 1).await.unwrap(), 0, "the message is missed");
    let running = run(&here);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Gap);
    assert_eq!(publisher.publish::<Gold>(ann, 2).await.unwrap(), 1);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(gold(2)));
    running.stop().await;
}

/// Asserts that the subscription receives a gap and then messages again.
async fn assert_recovers(
    live: &Live,
    publisher: &Live,
    subscription: &mut Subscription<PlayerMessage>,
    key: Player,
) {
    assert_eq!(next(subscription).await, SubscriptionEvent::Gap);
    testkit::eventually("a message arrives again", PATIENCE, async || {
        publisher.publish::<Gold>(key, 7).await.is_ok_and(|processes| processes == 1)
    })
    .await;
    assert_eq!(message(subscription).await, gold(7));
    // A new subscription works too.
    let late_player = player(99);
    let mut late = subscribe(live, late_player).await;
    assert_eq!(publisher.publish::<Gold>(late_player, 8).await.unwrap(), 1);
    assert_eq!(next(&mut late).await, SubscriptionEvent::Message(gold(8)));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connection_is_replaced() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.namespace(), FaultProxy::to(server.addr()).await);
    let (here, publisher) =
        (open(&proxy.url(keys.url()), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
    let (running, ann) = (run(&here), player(1));
    let mut subscription = subscribe(&here, ann).await;
    for _ in 0..2 {
        drain(&mut subscription).await;
        proxy.cut().await;
        testkit::eventually("no message arrives", PATIENCE, async || {
            publisher.publish::<Gold>(ann, 1).await.unwrap() == 0
        })
        .await;
        drain(&mut subscription).await;
        proxy.pass().await;
        assert_recovers(&here, &publisher, &mut subscription, ann).await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_survive_a_killed_redis() {
    let mut server = testkit::need!(Redis::private().await);
    let (here, publisher) = (open(&server.url(), "p:").await, open(&server.url(), "p:").await);
    let (running, [ann, ben]) = (run(&here), [player(1), player(2)]);
    let mut subscription = subscribe(&here, ann).await;
    drain(&mut subscription).await;
    server.kill().await.unwrap();
    assert!(publisher.publish::<Gold>(ann, 1).await.is_err());
    // A repeatable message reaches the subscribers of the publishing process without Redis.
    assert!(here.publish::<Level>(ann, 2).await.is_err());
    assert_eq!(message(&mut subscription).await, PlayerMessage::Level(2));
    // A subscriber during the outage does not wait for long.
    let started = std::time::Instant::now();
    let mut meanwhile = subscribe(&here, ben).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    server.start_again().await.unwrap();
    assert_recovers(&here, &publisher, &mut subscription, ann).await;
    assert_eq!(next(&mut meanwhile).await, SubscriptionEvent::Gap);
    assert_eq!(publisher.publish::<Gold>(ben, 3).await.unwrap(), 1);
    assert_eq!(message(&mut meanwhile).await, gold(3));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_without_subscribers_opens_no_connection_for_them() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.namespace(), FaultProxy::to(server.addr()).await);
    let (here, ann) = (open(&proxy.url(keys.url()), keys.prefix()).await, player(1));
    let running = run(&here);
    for amount in 0..50 {
        assert_eq!(here.publish::<Gold>(ann, amount).await.unwrap(), 0);
    }
    assert_eq!(proxy.connections(), 1, "one for publishing");
    let mut subscription = subscribe(&here, ann).await;
    assert_eq!(here.publish::<Gold>(ann, 50).await.unwrap(), 1);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(gold(50)));
    assert_eq!(proxy.connections(), 2);
    running.stop().await;
    // The loop also stops without a subscriber.
    drop(subscription);
    run(&here).stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_subscriptions_share_one_connection() {
    const PLAYERS: u128 = 3_000;
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.namespace(), FaultProxy::to(server.addr()).await);
    let (here, publisher) =
        (open(&proxy.url(keys.url()), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
    let running = run(&here);
    // All at once, as when a gateway restarts.
    let opening = (1..=PLAYERS).map(|number| subscribe(&here, player(number)));
    let mut subscriptions = futures::future::join_all(opening).await;
    testkit::eventually("all channels are subscribed to", PATIENCE, async || {
        subscribers(&keys, player(PLAYERS)).await == 1
    })
    .await;
    assert_eq!(proxy.connections(), 2, "one for publishing, one for subscriptions");
    let all: Vec<(Player, i64)> = (1..=PLAYERS).map(|number| (player(number), number as i64)).collect();
    assert_eq!(publisher.publish_all::<Gold>(all.clone()).await.unwrap(), vec![1; PLAYERS as usize]);
    for (subscription, (_, amount)) in subscriptions.iter_mut().zip(all) {
        assert_eq!(message(subscription).await, gold(amount));
    }
    drop(subscriptions);
    testkit::eventually("no channel is subscribed to", PATIENCE, async || {
        subscribers(&keys, player(1)).await + subscribers(&keys, player(PLAYERS)).await == 0
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quickly_changing_subscriptions_are_subscribed_at_the_end() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, ann) = (server.namespace(), player(1));
    let (here, publisher) = (open(keys.url(), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
    let running = run(&here);
    let tasks = (0..8).map(|_| {
        let here = here.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                drop(subscribe(&here, ann).await);
            }
            subscribe(&here, ann).await
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut subscriptions = Vec::new();
    for task in tasks {
        subscriptions.push(task.await.unwrap());
    }
    for subscription in &mut subscriptions {
        drain(subscription).await;
    }
    assert_eq!(publisher.publish::<Moved>(ann, ()).await.unwrap(), 1);
    for subscription in &mut subscriptions {
        assert_eq!(message(subscription).await, PlayerMessage::Moved);
    }
    running.stop().await;
}
