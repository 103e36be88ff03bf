//! Behaviour that is the same in process and through Redis.

use testkit::Redis;

use super::*;

/// Two processes on one Redis, or one process in both roles.
struct Pair {
    publisher: Live,
    subscriber: Live,
    running: Option<Running>,
}

impl Pair {
    fn in_process() -> Self {
        let live = Live::new(&RedisStore::Memory, "");
        Self { publisher: live.clone(), subscriber: live, running: None }
    }

    async fn through_redis(keys: &testkit::RedisNamespace) -> Self {
        let (publisher, subscriber) =
            (open(keys.url(), keys.prefix()).await, open(keys.url(), keys.prefix()).await);
        let running = Some(run(&subscriber));
        Self { publisher, subscriber, running }
    }

    async fn stop(self) {
        if let Some(running) = self.running {
            running.stop().await;
        }
    }
}

/// Runs each test in process and through Redis.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(super::Pair::in_process()).await;
                }
            )*
        }

        mod through_redis {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    let server = testkit::need!(super::Redis::shared().await);
                    super::$name(super::Pair::through_redis(&server.namespace()).await).await;
                }
            )*
        }
    };
}

on_both!(topics_of_one_key_do_not_mix, topics_of_similar_keys_do_not_mix, message_of_another_topic_is_a_gap,);

async fn topics_of_one_key_do_not_mix(pair: Pair) {
    let ann = player(1);
    let mut subscription = subscribe(&pair.subscriber, ann).await;
    drain(&mut subscription).await;
    let live = &pair.publisher;
    assert_eq!(live.publish::<Silver>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<Gold>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<Moved>(ann, ()).await.unwrap(), 1);
    assert_eq!(live.publish::<Level>(ann, 1).await.unwrap(), 1);
    let expected =
        [PlayerMessage::Silver(1), PlayerMessage::Gold(1), PlayerMessage::Moved, PlayerMessage::Level(1)];
    for expected in expected {
        assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(expected));
    }
    pair.stop().await;
}

async fn topics_of_similar_keys_do_not_mix(pair: Pair) {
    let (ann, guild) = (player(1), Guild(uuid(1)));
    let mut player_subscription = subscribe(&pair.subscriber, ann).await;
    let mut guild_subscription = pair.subscriber.subscribe::<GuildMessage>(guild).await;
    drain(&mut player_subscription).await;
    drain(&mut guild_subscription).await;
    let live = &pair.publisher;
    assert_eq!(live.publish::<Gold>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<GuildGold>(guild, 2).await.unwrap(), 1);
    assert_eq!(live.publish::<Gold>(ann, 3).await.unwrap(), 1);
    for expected in [1, 3] {
        assert_eq!(
            next(&mut player_subscription).await,
            SubscriptionEvent::Message(PlayerMessage::Gold(expected))
        );
    }
    assert_eq!(next(&mut guild_subscription).await, SubscriptionEvent::Message(GuildMessage(2)));
    player_subscription.set_position(4);
    assert_eq!(pair.subscriber.positions(), [(ann, 4)]);
    assert_eq!(pair.subscriber.positions(), [(guild, 0)]);
    // Dropping one subscription does not end the other.
    drop(player_subscription);
    testkit::eventually("the player has no subscriber", PATIENCE, async || {
        live.publish::<Gold>(ann, 5).await.unwrap() == 0
    })
    .await;
    assert_eq!(live.publish::<GuildGold>(guild, 6).await.unwrap(), 1);
    assert_eq!(next(&mut guild_subscription).await, SubscriptionEvent::Message(GuildMessage(6)));
    pair.stop().await;
}

async fn message_of_another_topic_is_a_gap(pair: Pair) {
    let ann = player(1);
    let mut subscription = pair.subscriber.subscribe::<OnlyGold>(ann).await;
    drain(&mut subscription).await;
    let live = &pair.publisher;
    assert_eq!(live.publish::<Silver>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<Gold>(ann, 2).await.unwrap(), 1);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Gap);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(OnlyGold(2)));
    pair.stop().await;
}
