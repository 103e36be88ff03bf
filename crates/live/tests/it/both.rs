//! What holds in process and through Redis alike.

use testkit::Redis;

use super::*;

/// Two processes at one Redis, or one process in both places.
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

    async fn through_redis(keys: &testkit::Keyspace) -> Self {
        let (publisher, subscriber) =
            (at(keys.url(), keys.prefix()).await, at(keys.url(), keys.prefix()).await);
        let running = Some(run(&subscriber));
        Self { publisher, subscriber, running }
    }

    async fn stop(self) {
        if let Some(running) = self.running {
            running.stop().await;
        }
    }
}

/// Makes a test for each form.
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
                    super::$name(super::Pair::through_redis(&server.keyspace()).await).await;
                }
            )*
        }
    };
}

on_both!(
    topics_of_one_key_do_not_mix,
    topics_of_keys_that_look_equal_do_not_mix,
    a_message_of_a_topic_that_was_not_named_is_a_gap,
);

async fn topics_of_one_key_do_not_mix(pair: Pair) {
    let ann = player(1);
    let mut subscription = follow(&pair.subscriber, ann).await;
    drain(&mut subscription).await;
    let live = &pair.publisher;
    assert_eq!(live.publish::<Silver>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<Gold>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<Moved>(ann, ()).await.unwrap(), 1);
    assert_eq!(live.publish::<Level>(ann, 1).await.unwrap(), 1);
    let expected = [Everything::Silver(1), Everything::Gold(1), Everything::Moved, Everything::Level(1)];
    for expected in expected {
        assert_eq!(next(&mut subscription).await, Received::Message(expected));
    }
    pair.stop().await;
}

async fn topics_of_keys_that_look_equal_do_not_mix(pair: Pair) {
    let (ann, guild) = (player(1), Guild(uuid(1)));
    let mut of_player = follow(&pair.subscriber, ann).await;
    let mut of_guild = pair.subscriber.subscribe::<OfGuild>(guild).await;
    drain(&mut of_player).await;
    drain(&mut of_guild).await;
    let live = &pair.publisher;
    assert_eq!(live.publish::<Gold>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<GuildGold>(guild, 2).await.unwrap(), 1);
    assert_eq!(live.publish::<Gold>(ann, 3).await.unwrap(), 1);
    for expected in [1, 3] {
        assert_eq!(next(&mut of_player).await, Received::Message(Everything::Gold(expected)));
    }
    assert_eq!(next(&mut of_guild).await, Received::Message(OfGuild(2)));
    of_player.set_position(4);
    assert_eq!(pair.subscriber.positions(), [(ann, 4)]);
    assert_eq!(pair.subscriber.positions(), [(guild, 0)]);
    // The end of one subscription is not the end of the other.
    drop(of_player);
    testkit::eventually("the player has no subscriber", PATIENCE, async || {
        live.publish::<Gold>(ann, 5).await.unwrap() == 0
    })
    .await;
    assert_eq!(live.publish::<GuildGold>(guild, 6).await.unwrap(), 1);
    assert_eq!(next(&mut of_guild).await, Received::Message(OfGuild(6)));
    pair.stop().await;
}

async fn a_message_of_a_topic_that_was_not_named_is_a_gap(pair: Pair) {
    let ann = player(1);
    let mut subscription = pair.subscriber.subscribe::<OnlyGold>(ann).await;
    drain(&mut subscription).await;
    let live = &pair.publisher;
    assert_eq!(live.publish::<Silver>(ann, 1).await.unwrap(), 1);
    assert_eq!(live.publish::<Gold>(ann, 2).await.unwrap(), 1);
    assert_eq!(next(&mut subscription).await, Received::Gap);
    assert_eq!(next(&mut subscription).await, Received::Message(OnlyGold(2)));
    pair.stop().await;
}
