//! Deliveries: told at once by whoever made the notification, or else by any worker.

use events::{memory, sell, sold_event};
use notification::{LIVE, LOG};
use testkit::{Proxy, Redis};

use super::*;

testkit::on_all_stores!(
    the_player_hears_of_it_right_after_the_commit,
    what_a_dead_process_did_not_tell_another_one_tells,
    while_redis_is_away_it_is_given_back_and_told_later,
    what_is_for_the_log_is_logged,
    a_failure_and_its_letter_are_one_transaction,
    one_whose_last_worker_died_is_a_letter_as_well,
    channels_that_are_named_twice_are_one,
);

/// Redis through a proxy, so that it can be away.
async fn redis(proxy: &Proxy, redis: &Redis) -> RedisStore {
    let url = proxy.url(&redis.url());
    RedisStore::Redis(redis_store::Redis::open(&url, Duration::from_millis(500)).await.unwrap())
}

/// Puts something into a stream, and takes it in until it is dropped.
async fn take_in(house: &House, user: Uuid) -> tokio::task::JoinHandle<()> {
    let bus = memory().await;
    bus.publish(&[sold_event(&[user], "a sword")]).await;
    let intake = house.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    tokio::spawn(async move { drop(intake.tick(&consumer, PATIENCE).await) })
}

fn position(received: &Received<PlayerMessage>) -> Option<i64> {
    match received {
        Received::Message(PlayerMessage::Notification(notification)) => Some(notification.position),
        _ => None,
    }
}

async fn the_player_hears_of_it_right_after_the_commit(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let ann = uuid(1);
    let mut stream = follow(&house.live, ann).await;
    // No worker runs.
    sell(&house, ann, &["a sword", "a bow"]).await;
    let received = stream.next().await;
    let kept = house.all(ann).await;
    let added = PlayerMessage::Notification(Arc::new(kept[0].clone()));
    assert_eq!(received, Received::Message(added));
    assert_eq!(position(&stream.next().await), Some(2));
    for entry in house.queue(LIVE).list(work_queue::Filter::All, 10).await.unwrap() {
        assert_eq!((entry.state, entry.attempts, entry.holder), (State::Done, 1, None));
        assert_eq!((entry.user, entry.key.as_str()), (ann, "live"));
    }
}

async fn what_a_dead_process_did_not_tell_another_one_tells(place: &SqlPlace) {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.keyspace(), Proxy::to(server.addr()).await);
    let mut setup = Setup::with(|config| config.delivery.lease = Duration::from_secs(1));
    setup.prefix = keys.prefix().to_owned();
    setup.redis_store = RedisStore::Redis(redis_store::Redis::open(keys.url(), PATIENCE).await.unwrap());
    let other = House::open(place, setup.clone()).await;
    setup.redis_store =
        RedisStore::Redis(redis_store::Redis::open(&proxy.url(keys.url()), PATIENCE).await.unwrap());
    let dying = other.another(place, setup).await;
    let ann = uuid(1);
    // It cannot tell, and dies before it knows.
    proxy.half_open().await;
    let taking = take_in(&dying, ann).await;
    testkit::eventually("it is committed", PATIENCE, async || !other.all(ann).await.is_empty()).await;
    taking.abort();
    let _ = taking.await;
    let entry = other.queue(LIVE).list(work_queue::Filter::All, 1).await.unwrap().remove(0);
    assert_eq!((entry.state, entry.holder), (State::InFlight, Some(*dying.id.as_uuid())));
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
    testkit::eventually("it is written down", PATIENCE, async || other.states(LIVE).await == [State::Done])
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

async fn while_redis_is_away_it_is_given_back_and_told_later(place: &SqlPlace) {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.keyspace(), Proxy::to(server.addr()).await);
    let mut setup = Setup { prefix: keys.prefix().to_owned(), ..Setup::default() };
    setup.redis_store = redis(&proxy, server).await;
    let (house, ann) = (House::open(place, setup).await, uuid(1));
    proxy.cut().await;
    sell(&house, ann, &["a sword"]).await;
    let queue = house.queue(LIVE);
    let entry = queue.list(work_queue::Filter::All, 1).await.unwrap().remove(0);
    assert_eq!((entry.state, entry.attempts, entry.holder), (State::Pending, 0, None), "{entry:?}");
    let working = house.deliver();
    // However often it is tried, that is not its fault: each claim raises the lease number, and none counts as an attempt.
    let tried = testkit::eventually("it is tried often", PATIENCE, async || {
        let entry = queue.list(work_queue::Filter::All, 1).await.unwrap().remove(0);
        if entry.lease > 4 { Ok(entry) } else { Err(format!("{entry:?}")) }
    })
    .await;
    assert_ne!(tried.state, State::Failed);
    assert!(tried.attempts <= 1, "{tried:?}");
    proxy.pass().await;
    testkit::eventually("it is told", PATIENCE, async || house.states(LIVE).await == [State::Done]).await;
    assert_eq!(house.letters().await, []);
    working.stop().await;
}

async fn what_is_for_the_log_is_logged(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| by(config, &["log"]))).await;
    let mut stream = follow(&house.live, uuid(1)).await;
    sell(&house, uuid(1), &["a sword"]).await;
    assert_eq!(house.states(LOG).await, [State::Pending]);
    assert_eq!(house.states(LIVE).await, []);
    let working = house.deliver();
    testkit::eventually("it is logged", PATIENCE, async || house.states(LOG).await == [State::Done]).await;
    working.stop().await;
    let silent = tokio::time::timeout(Duration::from_millis(20), stream.next()).await;
    assert!(silent.is_err(), "{silent:?}");
}

/// Spoils what is to be delivered.
async fn spoil(house: &House, table: &str) {
    house.sql(&format!("UPDATE {table} SET payload = X'7b'")).await;
}

async fn a_failure_and_its_letter_are_one_transaction(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| by(config, &["log"]))).await;
    sell(&house, uuid(1), &["a sword"]).await;
    spoil(&house, LOG).await;
    // No letter can be written.
    house.sql("ALTER TABLE notification_dlq RENAME TO elsewhere").await;
    // The other channels go on for ever, and do not keep it from being started again.
    let run = house.notifications.deliveries().run(house.id, runtime::Drain::new());
    let ended = tokio::time::timeout(PATIENCE, run).await.unwrap();
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(house.states(LOG).await, [State::InFlight]);
    house.sql("ALTER TABLE elsewhere RENAME TO notification_dlq").await;
    house.sql(&format!("UPDATE {LOG} SET due_at = 0")).await;
    let working = house.deliver();
    testkit::eventually("it has failed", PATIENCE, async || house.states(LOG).await == [State::Failed]).await;
    working.stop().await;
    let letters = house.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.kind.as_str(), letter.destination.as_str()), ("log", "log"));
    assert_eq!((letter.user, letter.attempts, &letter.payload[..]), (Some(uuid(1)), 2, &b"{"[..]));
    assert_eq!(house.notifications.count_letters().await.unwrap()[2], ("log", 1));
}

async fn one_whose_last_worker_died_is_a_letter_as_well(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| by(config, &["log"]))).await;
    sell(&house, uuid(1), &["a sword"]).await;
    house
        .sql(&format!(
            "UPDATE {LOG} SET attempts = 3, due_at = 0, holder = X'00000000000000000000000000000001'"
        ))
        .await;
    house.sql("ALTER TABLE notification_dlq RENAME TO elsewhere").await;
    let run = house.notifications.deliveries().run(house.id, runtime::Drain::new());
    assert!(tokio::time::timeout(PATIENCE, run).await.unwrap().is_err());
    assert_eq!(house.states(LOG).await, [State::InFlight]);
    house.sql("ALTER TABLE elsewhere RENAME TO notification_dlq").await;
    let working = house.deliver();
    testkit::eventually("it has failed", PATIENCE, async || house.states(LOG).await == [State::Failed]).await;
    let letter = house.letters().await.remove(0);
    assert!(letter.cause.contains("the last worker did not say"), "{}", letter.cause);
    assert_eq!(letter.notification, Some(house.all(uuid(1)).await[0].notification_id));
    // Replayed it has all its attempts again.
    house.notifications.replay(letter.id, Duration::ZERO).await.unwrap();
    testkit::eventually("it is done", PATIENCE, async || house.states(LOG).await == [State::Done]).await;
    working.stop().await;
    assert_eq!(house.letters().await, []);
}

async fn channels_that_are_named_twice_are_one(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| by(config, &["live", "log", "live"]))).await;
    sell(&house, uuid(1), &["a sword"]).await;
    assert_eq!(house.letters().await, []);
    assert_eq!((house.count(LIVE).await, house.count(LOG).await), (1, 1));
}
