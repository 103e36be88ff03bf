//! Subscriptions of one process, where the Redis store is embedded.

use super::*;

fn in_process() -> Live {
    Live::new(&RedisStore::Memory, "")
}

#[tokio::test]
async fn messages_reach_the_subscribers_of_their_key_and_no_others() {
    let live = in_process();
    let [ann, ben] = [1, 2].map(player);
    let (mut one, mut two, mut other) =
        (follow(&live, ann).await, follow(&live, ann).await, follow(&live, ben).await);
    assert_eq!(live.publish_all::<Moved>(vec![(ann, ()), (player(3), ())]).await.unwrap(), [1, 0]);
    for subscription in [&mut one, &mut two] {
        assert_eq!(next(subscription).await, Received::Message(Everything::Moved));
    }
    live.gap(&ben);
    assert_eq!(next(&mut other).await, Received::Gap);
}

#[tokio::test]
async fn a_slow_subscriber_receives_a_gap_and_costs_no_more_memory() {
    let (live, ann) = (in_process(), player(1));
    let mut subscription = follow(&live, ann).await;
    for _ in 0..10_000 {
        live.publish::<Moved>(ann, ()).await.unwrap();
    }
    assert_eq!(next(&mut subscription).await, Received::Gap);
    live.publish::<Gold>(ann, 5).await.unwrap();
    assert_eq!(next(&mut subscription).await, Received::Message(Everything::Gold(5)));
}

#[tokio::test]
async fn messages_from_before_a_gap_are_not_received_after_it() {
    let (live, ann) = (in_process(), player(1));
    let mut subscription = follow(&live, ann).await;
    live.publish::<Gold>(ann, 1).await.unwrap();
    live.gap(&ann);
    live.publish::<Gold>(ann, 2).await.unwrap();
    assert_eq!(next(&mut subscription).await, Received::Gap);
    live.publish::<Gold>(ann, 3).await.unwrap();
    assert_eq!(next(&mut subscription).await, Received::Message(Everything::Gold(3)));
}

#[tokio::test]
async fn a_dropped_subscription_receives_nothing_and_has_no_position() {
    let (live, ann) = (in_process(), player(1));
    let (one, two) = (follow(&live, ann).await, follow(&live, ann).await);
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

/// A gateway has a subscription per stream: its size is part of the memory of an idle stream.
#[test]
fn a_subscription_is_a_key_and_two_pointers() {
    let pointers = 2 * size_of::<usize>();
    assert_eq!(size_of::<Subscription<Everything>>(), size_of::<Uuid>() + pointers);
}
