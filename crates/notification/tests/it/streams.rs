//! Live messages to the streams of players.

use futures::StreamExt;
use notification::{Mark, MarkTarget, StreamWatcher};
use testkit::Redis;

use super::*;
use crate::deliveries::run_live;

async fn next(stream: &mut Subscription<PlayerMessage>) -> SubscriptionEvent<PlayerMessage> {
    tokio::time::timeout(PATIENCE, stream.next()).await.expect("something is received")
}

fn notification(user: Uuid) -> Notification {
    let notification = serde_json::json!({
        "notification_id": uuid(7), "user_id": user, "position": 1, "template": "", "texts": {}, "data": {}, "created_at": 0,
        "expires_at": null, "seen_at": null, "read_at": null, "archived_at": null,
    });
    serde_json::from_value(notification).unwrap()
}

/// Processes of two versions run side by side during an upgrade.
#[tokio::test(flavor = "multi_thread")]
async fn channels_and_payloads_stay_as_released() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, ann) = (server.namespace(), uuid(1));
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
        assert_eq!(next(&mut stream).await, SubscriptionEvent::Message(message));
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

testkit::on_all_stores!(stream_behind_its_inbox_receives_a_gap, stream_behind_the_marks_receives_a_gap);

async fn stream_behind_its_inbox_receives_a_gap(database: &TestDatabase) {
    // Live messages of one process do not reach the other: each has its own store in process.
    let process = Process::open(database, Setup::default()).await;
    let other = process.another(database, Setup::default()).await;
    let registry = &mut Registry::default();
    let watcher =
        StreamWatcher::new(process.live.clone(), process.inbox.clone(), PATIENCE, Metrics::new(registry));
    let [ann, ben] = [uuid(1), uuid(2)];
    let (mut behind, current) = (follow(&process.live, ann).await, follow(&process.live, ben).await);
    assert_eq!(watcher.tick().await.unwrap(), 0);
    events::sell(&other, ann, &["1", "2"]).await;
    events::sell(&other, ben, &["1"]).await;
    current.set_position(1);
    assert_eq!(watcher.tick().await.unwrap(), 1);
    assert_eq!(next(&mut behind).await, SubscriptionEvent::Gap);
    behind.set_position(1);
    assert_eq!(watcher.tick().await.unwrap(), 1, "the stream is still behind");
    behind.set_position(2);
    assert_eq!(watcher.tick().await.unwrap(), 0);
    // The lowest position of a player's streams counts.
    let second = follow(&process.live, ann).await;
    assert_eq!(watcher.tick().await.unwrap(), 1);
    drop(second);
    assert_eq!(watcher.tick().await.unwrap(), 0);
}

async fn stream_behind_the_marks_receives_a_gap(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let other = process.another(database, Setup::default()).await;
    let registry = &mut Registry::default();
    let watcher =
        StreamWatcher::new(process.live.clone(), process.inbox.clone(), PATIENCE, Metrics::new(registry));
    let ann = uuid(1);
    events::sell(&other, ann, &["1", "2"]).await;
    let mut stream = follow(&process.live, ann).await;
    stream.set_position(process.inbox.head(ann).await.unwrap().version());
    assert_eq!(watcher.tick().await.unwrap(), 0);

    other.inbox.mark(ann, &MarkTarget::UpTo(1), Mark::Read).await.unwrap();
    assert_eq!(watcher.tick().await.unwrap(), 1);
    assert_eq!(next(&mut stream).await, SubscriptionEvent::Gap);
    let (counts, marks) = process.inbox.counts_and_marks(ann).await.unwrap();
    assert_eq!((counts.unread, marks), (1, 1));
    stream.set_position(2 + marks);
    assert_eq!(watcher.tick().await.unwrap(), 0);
    // A mark that changes nothing signals no gap.
    other.inbox.mark(ann, &MarkTarget::UpTo(1), Mark::Read).await.unwrap();
    assert_eq!(watcher.tick().await.unwrap(), 0);
}
