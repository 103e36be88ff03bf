//! Deliveries: the process that created a notification publishes it at once; workers deliver the rest.

use events::{memory, sell, sold_event};
use notification::{LIVE, LOG};
use testkit::{FaultProxy, Redis};

use super::*;

testkit::on_all_stores!(
    notification_is_published_right_after_the_commit,
    another_process_publishes_after_a_crash,
    delivery_waits_while_redis_is_unreachable_and_uses_no_attempt,
    log_channel_is_delivered_by_a_worker,
    failure_and_its_dead_letter_are_one_transaction,
    delivery_whose_last_worker_died_is_a_dead_letter,
    channel_listed_twice_is_delivered_once,
);

/// Opens Redis through a proxy, so that it can be cut off.
async fn redis(proxy: &FaultProxy, redis: &Redis) -> RedisStore {
    let url = proxy.url(&redis.url());
    RedisStore::Redis(redis_store::Redis::open(&url, Duration::from_millis(500)).await.unwrap())
}

/// Publishes an event, and takes it in in the background.
async fn take_in(process: &Process, user: Uuid) -> tokio::task::JoinHandle<()> {
    let bus = memory().await;
    bus.publish(&[sold_event(&[user], "a sword")]).await;
    let intake = process.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    tokio::spawn(async move { drop(intake.tick(&consumer, PATIENCE).await) })
}

fn position(received: &SubscriptionEvent<PlayerMessage>) -> Option<i64> {
    match received {
        SubscriptionEvent::Message(PlayerMessage::Notification(notification)) => Some(notification.position),
        _ => None,
    }
}

async fn notification_is_published_right_after_the_commit(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let ann = uuid(1);
    let mut stream = follow(&process.live, ann).await;
    // No worker runs.
    sell(&process, ann, &["a sword", "a bow"]).await;
    let received = stream.next().await;
    let stored = process.all(ann).await;
    let added = PlayerMessage::Notification(Arc::new(stored[0].clone()));
    assert_eq!(received, SubscriptionEvent::Message(added));
    assert_eq!(position(&stream.next().await), Some(2));
    for item in process.queue(LIVE).list(work_queue::Filter::All, 10).await.unwrap() {
        assert_eq!((item.state, item.attempts, item.holder), (State::Done, 1, None));
        assert_eq!((item.user, item.key.as_str()), (ann, "live"));
    }
}

async fn another_process_publishes_after_a_crash(database: &TestDatabase) {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.namespace(), FaultProxy::to(server.addr()).await);
    let mut setup = Setup::with(|config| config.delivery.lease = Duration::from_secs(1));
    setup.prefix = keys.prefix().to_owned();
    setup.redis_store = RedisStore::Redis(redis_store::Redis::open(keys.url(), PATIENCE).await.unwrap());
    let other = Process::open(database, setup.clone()).await;
    setup.redis_store =
        RedisStore::Redis(redis_store::Redis::open(&proxy.url(keys.url()), PATIENCE).await.unwrap());
    let dying = other.another(database, setup).await;
    let ann = uuid(1);
    // Publishing hangs, and the process dies before it times out.
    proxy.half_open().await;
    let taking = take_in(&dying, ann).await;
    testkit::eventually("it is committed", PATIENCE, async || !other.all(ann).await.is_empty()).await;
    taking.abort();
    let _ = taking.await;
    let item = other.queue(LIVE).list(work_queue::Filter::All, 1).await.unwrap().remove(0);
    assert_eq!((item.state, item.holder), (State::InFlight, Some(*dying.id.as_uuid())));
    let running = run_live(&other.live);
    let mut stream = follow(&other.live, ann).await;
    let working = other.deliver();
    let receiving = async {
        loop {
            if let Some(position) = position(&stream.next().await) {
                return position;
            }
        }
    };
    let received = tokio::time::timeout(PATIENCE, receiving).await.expect("it is published");
    assert_eq!(received, 1);
    testkit::eventually("the delivery is done", PATIENCE, async || other.states(LIVE).await == [State::Done])
        .await;
    working.stop().await;
    running.stop().await;
}

/// Runs the loop of live messages. Restarts it when it fails, as supervision does.
pub(crate) fn run_live(live: &Live) -> Running {
    let (live, drain) = (live.clone(), runtime::Drain::new());
    let until = drain.clone();
    let task = tokio::spawn(async move {
        while !until.is_requested() {
            if live.run(until.clone()).await.is_err() {
                until.sleep(Duration::from_millis(20)).await;
            }
        }
    });
    Running { drain, task }
}

async fn delivery_waits_while_redis_is_unreachable_and_uses_no_attempt(database: &TestDatabase) {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.namespace(), FaultProxy::to(server.addr()).await);
    let mut setup = Setup { prefix: keys.prefix().to_owned(), ..Setup::default() };
    setup.redis_store = redis(&proxy, server).await;
    let (process, ann) = (Process::open(database, setup).await, uuid(1));
    proxy.cut().await;
    sell(&process, ann, &["a sword"]).await;
    let queue = process.queue(LIVE);
    let item = queue.list(work_queue::Filter::All, 1).await.unwrap().remove(0);
    assert_eq!((item.state, item.attempts, item.holder), (State::Pending, 0, None), "{item:?}");
    let working = process.deliver();
    // Each claim raises the lease number, and none counts as an attempt.
    let tried = testkit::eventually("it is claimed several times", PATIENCE, async || {
        let item = queue.list(work_queue::Filter::All, 1).await.unwrap().remove(0);
        if item.lease > 4 { Ok(item) } else { Err(format!("{item:?}")) }
    })
    .await;
    assert_ne!(tried.state, State::Failed);
    assert!(tried.attempts <= 1, "{tried:?}");
    proxy.pass().await;
    testkit::eventually("it is published", PATIENCE, async || process.states(LIVE).await == [State::Done])
        .await;
    assert_eq!(process.dead_letters().await, []);
    working.stop().await;
}

async fn log_channel_is_delivered_by_a_worker(database: &TestDatabase) {
    let process = Process::open(database, Setup::with(|config| set_channels(config, &["log"]))).await;
    let mut stream = follow(&process.live, uuid(1)).await;
    sell(&process, uuid(1), &["a sword"]).await;
    assert_eq!(process.states(LOG).await, [State::Pending]);
    assert_eq!(process.states(LIVE).await, []);
    let working = process.deliver();
    testkit::eventually("it is logged", PATIENCE, async || process.states(LOG).await == [State::Done]).await;
    working.stop().await;
    let silent = tokio::time::timeout(Duration::from_millis(20), stream.next()).await;
    assert!(silent.is_err(), "{silent:?}");
}

/// Corrupts the payloads of a queue.
async fn corrupt(process: &Process, table: &str) {
    process.sql(&format!("UPDATE {table} SET payload = X'7b'")).await;
}

async fn failure_and_its_dead_letter_are_one_transaction(database: &TestDatabase) {
    let process = Process::open(database, Setup::with(|config| set_channels(config, &["log"]))).await;
    sell(&process, uuid(1), &["a sword"]).await;
    corrupt(&process, LOG).await;
    // No dead letter can be written.
    process.sql("ALTER TABLE notification_dlq RENAME TO elsewhere").await;
    // The workers of the other channels stop as well, so that supervision can restart all of them.
    let run = process.notifications.deliveries().run(process.id, runtime::Drain::new());
    let ended = tokio::time::timeout(PATIENCE, run).await.unwrap();
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(process.states(LOG).await, [State::InFlight]);
    process.sql("ALTER TABLE elsewhere RENAME TO notification_dlq").await;
    process.sql(&format!("UPDATE {LOG} SET due_at = 0")).await;
    let working = process.deliver();
    testkit::eventually("it has failed", PATIENCE, async || process.states(LOG).await == [State::Failed])
        .await;
    working.stop().await;
    let dead_letters = process.dead_letters().await;
    assert_eq!(dead_letters.len(), 1);
    let dead_letter = &dead_letters[0];
    assert_eq!((dead_letter.kind.as_str(), dead_letter.destination.as_str()), ("log", "log"));
    assert_eq!(
        (dead_letter.user, dead_letter.attempts, &dead_letter.payload[..]),
        (Some(uuid(1)), 2, &b"{"[..])
    );
    assert_eq!(process.notifications.count_dead_letters().await.unwrap()[2], ("log", 1));
}

async fn delivery_whose_last_worker_died_is_a_dead_letter(database: &TestDatabase) {
    let process = Process::open(database, Setup::with(|config| set_channels(config, &["log"]))).await;
    sell(&process, uuid(1), &["a sword"]).await;
    process
        .sql(&format!(
            "UPDATE {LOG} SET attempts = 3, due_at = 0, holder = X'00000000000000000000000000000001'"
        ))
        .await;
    process.sql("ALTER TABLE notification_dlq RENAME TO elsewhere").await;
    let run = process.notifications.deliveries().run(process.id, runtime::Drain::new());
    assert!(tokio::time::timeout(PATIENCE, run).await.unwrap().is_err());
    assert_eq!(process.states(LOG).await, [State::InFlight]);
    process.sql("ALTER TABLE elsewhere RENAME TO notification_dlq").await;
    let working = process.deliver();
    testkit::eventually("it has failed", PATIENCE, async || process.states(LOG).await == [State::Failed])
        .await;
    let dead_letter = process.dead_letters().await.remove(0);
    assert!(dead_letter.cause.contains("the last worker reported no outcome"), "{}", dead_letter.cause);
    assert_eq!(dead_letter.notification, Some(process.all(uuid(1)).await[0].notification_id));
    // After a replay it has all its attempts again.
    process.notifications.replay(dead_letter.id, Duration::ZERO).await.unwrap();
    testkit::eventually("it is done", PATIENCE, async || process.states(LOG).await == [State::Done]).await;
    working.stop().await;
    assert_eq!(process.dead_letters().await, []);
}

async fn channel_listed_twice_is_delivered_once(database: &TestDatabase) {
    let process =
        Process::open(database, Setup::with(|config| set_channels(config, &["live", "log", "live"]))).await;
    sell(&process, uuid(1), &["a sword"]).await;
    assert_eq!(process.dead_letters().await, []);
    assert_eq!((process.count(LIVE).await, process.count(LOG).await), (1, 1));
}
