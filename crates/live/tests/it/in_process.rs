//! Subscriptions of one process, where the Redis store is embedded.

use super::*;

fn in_process() -> Live {
    Live::new(&RedisStore::Memory, "")
}

#[tokio::test]
async fn messages_reach_only_the_subscribers_of_their_key() {
    let live = in_process();
    let [ann, ben] = [1, 2].map(player);
    let (mut one, mut two, mut other) =
        (subscribe(&live, ann).await, subscribe(&live, ann).await, subscribe(&live, ben).await);
    assert_eq!(live.publish_all::<Moved>(vec![(ann, ()), (player(3), ())]).await.unwrap(), [1, 0]);
    for subscription in [&mut one, &mut two] {
        assert_eq!(next(subscription).await, SubscriptionEvent::Message(PlayerMessage::Moved));
    }
    live.gap(&ben);
    assert_eq!(next(&mut other).await, SubscriptionEvent::Gap);
}

#[tokio::test]
async fn slow_subscriber_receives_a_gap() {
    let (live, ann) = (in_process(), player(1));
    let mut subscription = subscribe(&live, ann).await;
    for _ in 0..10_000 {
        live.publish::<Moved>(ann, ()).await.unwrap();
    }
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Gap);
    live.publish::<Gold>(ann, 5).await.unwrap();
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(PlayerMessage::Gold(5)));
}

#[tokio::test]
async fn messages_before_a_gap_are_dropped() {
    let (live, ann) = (in_process(), player(1));
    let mut subscription = subscribe(&live, ann).await;
    live.publish::<Gold>(ann, 1).await.unwrap();
    live.gap(&ann);
    live.publish::<Gold>(ann, 2).await.unwrap();
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Gap);
    live.publish::<Gold>(ann, 3).await.unwrap();
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Message(PlayerMessage::Gold(3)));
}

#[tokio::test]
async fn dropped_subscription_receives_nothing_and_has_no_position() {
    let (live, ann) = (in_process(), player(1));
    let (one, two) = (subscribe(&live, ann).await, subscribe(&live, ann).await);
    one.set_position(5);
    two.set_position(3);
    assert_eq!(live.positions::<Player>(), [(ann, 3)]);
    assert_eq!(live.positions::<Guild>(), []);
    drop(two);
    assert_eq!(live.positions::<Player>(), [(ann, 5)]);
    drop(one);
    assert_eq!(live.positions::<Player>(), []);
    assert_eq!(live.publish::<Moved>(ann, ()).await.unwrap(), 0);
}

/// A gateway has a subscription per stream, so its size counts towards the memory of an idle stream.
#[test]
fn subscription_is_a_key_and_two_pointers() {
    let pointers = 2 * size_of::<usize>();
    assert_eq!(size_of::<Subscription<PlayerMessage>>(), size_of::<Uuid>() + pointers);
}
