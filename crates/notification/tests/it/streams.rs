//! Live messages to the streams of players.

use futures::StreamExt;
use notification::{Mark, Marked, Watch};
use testkit::Redis;

use super::*;
use crate::deliveries::run_live;

async fn next(stream: &mut Subscription<PlayerMessage>) -> Received<PlayerMessage> {
    tokio::time::timeout(PATIENCE, stream.next()).await.expect("something is received")
}

fn notification(user: Uuid) -> Notification {
    let made = serde_json::json!({
        "notification_id": uuid(7), "user_id": user, "position": 1, "template": "", "texts": {}, "data": {}, "created_at": 0,
        "expires_at": null, "seen_at": null, "read_at": null, "archived_at": null,
    });
    serde_json::from_value(made).unwrap()
}

/// Processes of two versions understand each other while one replaces the other.
#[tokio::test(flavor = "multi_thread")]
async fn channels_and_payloads_stay_as_released() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, ann) = (server.keyspace(), uuid(1));
    let redis = redis_store::Redis::open(keys.url(), PATIENCE).await.unwrap();
    let live = Live::new(&RedisStore::Redis(redis.clone()), keys.prefix());
    let running = run_live(&live);
    let mut stream = follow(&live, ann).await;

    let added = notification(ann);
    let counts = Counts { unread: 3, unseen: 2 };
    let channel = format!("{}live:00000000-0000-0000-0000-000000000001", keys.prefix());
    let released = [
        format!("{{\"notification\":{}}}", serde_json::to_string(&added).unwrap()),
        "{\"counts\":{\"unread\":3,\"unseen\":2}}".to_owned(),
    ];
    let messages = [PlayerMessage::Notification(Arc::new(added.clone())), PlayerMessage::Counts(counts)];
    let mut connection = keys.connect().await;
    for (payload, message) in released.iter().zip(messages) {
        redis::cmd("PUBLISH").arg(&channel).arg(payload).exec_async(&mut connection).await.unwrap();
        assert_eq!(next(&mut stream).await, Received::Message(message));
    }

    let other = redis.subscribe(&[channel], PATIENCE).await.unwrap();
    let mut other = std::pin::pin!(other);
    live.publish::<NotificationAdded>(Player(ann), added).await.unwrap();
    live.publish::<CountsChanged>(Player(ann), counts).await.unwrap();
    for payload in released {
        let published = tokio::time::timeout(PATIENCE, other.next()).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(published.get_payload_bytes()), payload);
    }
    running.stop().await;
}

testkit::on_all_stores!(
    a_stream_that_missed_something_is_told_to_look,
    streams_learn_of_marks_whose_live_message_was_never_published
);

async fn a_stream_that_missed_something_is_told_to_look(place: &SqlPlace) {
    // Live messages of one process do not reach the other: each has its own store in process.
    let house = House::open(place, Setup::default()).await;
    let other = house.another(place, Setup::default()).await;
    let registry = &mut Registry::default();
    let watch = Watch::new(house.live.clone(), house.inbox.clone(), PATIENCE, Metrics::new(registry));
    let [ann, ben] = [uuid(1), uuid(2)];
    let (mut missing, fine) = (follow(&house.live, ann).await, follow(&house.live, ben).await);
    assert_eq!(watch.tick().await.unwrap(), 0);
    events::sell(&other, ann, &["1", "2"]).await;
    events::sell(&other, ben, &["1"]).await;
    fine.set_position(1);
    assert_eq!(watch.tick().await.unwrap(), 1);
    assert_eq!(next(&mut missing).await, Received::Gap);
    missing.set_position(1);
    assert_eq!(watch.tick().await.unwrap(), 1, "it is still behind");
    missing.set_position(2);
    assert_eq!(watch.tick().await.unwrap(), 0);
    // The lowest position of a player's streams counts.
    let second = follow(&house.live, ann).await;
    assert_eq!(watch.tick().await.unwrap(), 1);
    drop(second);
    assert_eq!(watch.tick().await.unwrap(), 0);
}

async fn streams_learn_of_marks_whose_live_message_was_never_published(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let other = house.another(place, Setup::default()).await;
    let registry = &mut Registry::default();
    let watch = Watch::new(house.live.clone(), house.inbox.clone(), PATIENCE, Metrics::new(registry));
    let ann = uuid(1);
    events::sell(&other, ann, &["1", "2"]).await;
    let mut stream = follow(&house.live, ann).await;
    stream.set_position(house.inbox.head(ann).await.unwrap().version());
    assert_eq!(watch.tick().await.unwrap(), 0);

    other.inbox.mark(ann, &Marked::UpTo(1), Mark::Read).await.unwrap();
    assert_eq!(watch.tick().await.unwrap(), 1);
    assert_eq!(next(&mut stream).await, Received::Gap);
    let (counts, marks) = house.inbox.counts_and_marks(ann).await.unwrap();
    assert_eq!((counts.unread, marks), (1, 1));
    stream.set_position(2 + marks);
    assert_eq!(watch.tick().await.unwrap(), 0);
    // Nothing changes, so nothing is read again.
    other.inbox.mark(ann, &Marked::UpTo(1), Mark::Read).await.unwrap();
    assert_eq!(watch.tick().await.unwrap(), 0);
}
