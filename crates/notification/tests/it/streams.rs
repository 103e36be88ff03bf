//! News between processes, by Redis.

use notification::Watch;
use notification::live::{Ear, Heard, Told};
use testkit::{Proxy, Redis};

use super::*;
use crate::deliveries::listen;

/// The way of one process.
async fn live(url: &str, prefix: &str) -> Live {
    let redis = redis_store::Redis::open(url, Duration::from_secs(2)).await.unwrap();
    Live::new(&RedisStore::Redis(redis), prefix)
}

async fn heard(ear: &mut Ear) -> Heard {
    tokio::time::timeout(PATIENCE, ear.next()).await.expect("something is heard")
}

/// What is heard, apart from being told to look.
async fn news(ear: &mut Ear) -> Told {
    loop {
        if let Heard::News(told) = heard(ear).await {
            return (*told).clone();
        }
    }
}

fn counts(unread: i64) -> Told {
    Told::Counts(Counts { unread, unseen: 0 })
}

fn notification(user: Uuid) -> notification::Notification {
    let made = serde_json::json!({
        "notification_id": uuid(7), "user_id": user, "position": 1, "template": "", "texts": {}, "data": {}, "created_at": 0,
        "expires_at": null, "seen_at": null, "read_at": null, "archived_at": null,
    });
    serde_json::from_value(made).unwrap()
}

/// How many listen to the channel of a user.
async fn subscribers(keys: &testkit::Keyspace, user: Uuid) -> u64 {
    let mut connection = keys.connect().await;
    let channel = format!("{}live:{user}", keys.prefix());
    let (_, count): (String, u64) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query_async(&mut connection).await.unwrap();
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_in_one_process_is_heard_in_another() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.keyspace();
    let (one, two) = (live(keys.url(), keys.prefix()).await, live(keys.url(), keys.prefix()).await);
    let running = [listen(&one), listen(&two)];
    let [ann, ben] = [uuid(1), uuid(2)];
    let (mut here, mut there, mut other) =
        (one.listen(ann).await, two.listen(ann).await, two.listen(ben).await);
    for ear in [&mut here, &mut there, &mut other] {
        // What came before it was subscribed to is for it to look for.
        assert_eq!(heard(ear).await, Heard::Missed);
    }
    assert_eq!(
        one.tell(&[(ann, counts(1)), (uuid(3), counts(2)), (ben, counts(3))]).await.unwrap(),
        [2, 0, 1]
    );
    assert_eq!(news(&mut here).await, counts(1));
    assert_eq!(news(&mut there).await, counts(1));
    assert_eq!(news(&mut other).await, counts(3));
    // A second one of the same player in the same process is told too.
    let mut second = two.listen(ann).await;
    assert_eq!(two.tell(&[(ann, Told::Tickets)]).await.unwrap(), [2]);
    for ear in [&mut here, &mut there, &mut second] {
        assert_eq!(news(ear).await, Told::Tickets);
    }
    assert_eq!(one.tell(&[]).await.unwrap(), [0; 0]);
    // What a newer process tells is not understood, and looked for.
    let mut connection = keys.connect().await;
    let channel = format!("{}live:{ann}", keys.prefix());
    redis::cmd("PUBLISH").arg(channel).arg("{\"novelty\":1}").exec_async(&mut connection).await.unwrap();
    assert_eq!(heard(&mut here).await, Heard::Missed);
    // Nobody who has left is subscribed to.
    drop((there, other));
    assert_eq!(subscribers(&keys, ann).await, 2, "one is still there");
    drop(second);
    for (user, count) in [(ann, 1), (ben, 0)] {
        testkit::eventually("it unsubscribes", PATIENCE, async || subscribers(&keys, user).await == count)
            .await;
    }
    let mut back = two.listen(ann).await;
    assert_eq!(heard(&mut back).await, Heard::Missed);
    assert_eq!(one.tell(&[(ann, counts(9))]).await.unwrap(), [2]);
    assert_eq!(news(&mut back).await, counts(9));
    for running in running {
        running.stop().await;
    }
}

/// Whoever listens hears that something may have been missed, and then what is told.
async fn survives(live: &Live, teller: &Live, ear: &mut Ear, user: Uuid) {
    assert_eq!(heard(ear).await, Heard::Missed);
    testkit::eventually("it is told again", PATIENCE, async || {
        teller.tell(&[(user, counts(7))]).await.is_ok_and(|told| told == [1])
    })
    .await;
    assert_eq!(news(ear).await, counts(7));
    // Also whoever begins to listen now.
    let mut late = live.listen(uuid(99)).await;
    assert_eq!(heard(&mut late).await, Heard::Missed);
    assert_eq!(teller.tell(&[(uuid(99), counts(8))]).await.unwrap(), [1]);
    assert_eq!(news(&mut late).await, counts(8));
}

/// Hears everything there is to hear.
async fn quiet(ear: &mut Ear) {
    while tokio::time::timeout(Duration::from_millis(50), ear.next()).await.is_ok() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_lost_is_made_good() {
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.keyspace(), Proxy::to(server.addr()).await);
    let (here, teller) =
        (live(&proxy.url(keys.url()), keys.prefix()).await, live(keys.url(), keys.prefix()).await);
    let running = listen(&here);
    let mut ear = here.listen(uuid(1)).await;
    for _ in 0..2 {
        quiet(&mut ear).await;
        proxy.cut().await;
        testkit::eventually("nobody hears", PATIENCE, async || {
            teller.tell(&[(uuid(1), counts(1))]).await.unwrap() == [0]
        })
        .await;
        quiet(&mut ear).await;
        proxy.pass().await;
        survives(&here, &teller, &mut ear, uuid(1)).await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_killed_is_made_good() {
    let mut server = testkit::need!(Redis::private().await);
    let (here, teller) = (live(&server.url(), "p:").await, live(&server.url(), "p:").await);
    let running = listen(&here);
    let mut ear = here.listen(uuid(1)).await;
    quiet(&mut ear).await;
    server.kill().await.unwrap();
    assert!(teller.tell(&[(uuid(1), counts(1))]).await.is_err());
    // What concerns a stream of the same process gets there without Redis.
    let told = Told::Notification(Box::new(notification(uuid(1))));
    assert!(here.tell(&[(uuid(1), told.clone())]).await.is_err());
    assert_eq!(news(&mut ear).await, told);
    // Whoever begins to listen meanwhile is not kept waiting for long.
    let began = std::time::Instant::now();
    let mut meanwhile = here.listen(uuid(2)).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    server.start_again().await.unwrap();
    survives(&here, &teller, &mut ear, uuid(1)).await;
    assert_eq!(heard(&mut meanwhile).await, Heard::Missed);
    assert_eq!(teller.tell(&[(uuid(2), counts(3))]).await.unwrap(), [1]);
    assert_eq!(news(&mut meanwhile).await, counts(3));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_listen_on_one_connection() {
    const EARS: u128 = 3_000;
    let server = testkit::need!(Redis::shared().await);
    let (keys, proxy) = (server.keyspace(), Proxy::to(server.addr()).await);
    let (here, teller) =
        (live(&proxy.url(keys.url()), keys.prefix()).await, live(keys.url(), keys.prefix()).await);
    let running = listen(&here);
    // All at once, as when a gateway starts again.
    let mut ears = futures::future::join_all((1..=EARS).map(|user| here.listen(uuid(user)))).await;
    testkit::eventually("all are subscribed to", PATIENCE, async || {
        subscribers(&keys, uuid(EARS)).await == 1
    })
    .await;
    for ear in &mut ears {
        assert_eq!(heard(ear).await, Heard::Missed);
    }
    assert_eq!(proxy.connections(), 2, "one to tell, one to listen");
    let all: Vec<(Uuid, Told)> = (1..=EARS).map(|user| (uuid(user), counts(user as i64))).collect();
    assert_eq!(teller.tell(&all).await.unwrap(), vec![1; EARS as usize]);
    for (ear, (_, told)) in ears.iter_mut().zip(&all) {
        assert_eq!(news(ear).await, *told);
    }
    drop(ears);
    testkit::eventually("nobody is subscribed to", PATIENCE, async || {
        subscribers(&keys, uuid(1)).await + subscribers(&keys, uuid(EARS)).await == 0
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_come_and_go_quickly_are_subscribed_to_in_the_end() {
    let server = testkit::need!(Redis::shared().await);
    let keys = server.keyspace();
    let (here, teller) = (live(keys.url(), keys.prefix()).await, live(keys.url(), keys.prefix()).await);
    let running = listen(&here);
    let comings = (0..8).map(|_| {
        let here = here.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                drop(here.listen(uuid(1)).await);
            }
            here.listen(uuid(1)).await
        })
    });
    let comings: Vec<_> = comings.collect();
    let mut ears = Vec::new();
    for coming in comings {
        ears.push(coming.await.unwrap());
    }
    for ear in &mut ears {
        quiet(ear).await;
    }
    assert_eq!(teller.tell(&[(uuid(1), Told::Tickets)]).await.unwrap(), [1]);
    for ear in &mut ears {
        assert_eq!(news(ear).await, Told::Tickets);
    }
    running.stop().await;
}

testkit::on_all_stores!(a_stream_that_missed_something_is_told_to_look);

async fn a_stream_that_missed_something_is_told_to_look(place: &SqlPlace) {
    // What one process tells does not get to the other: each has its own ears.
    let house = House::open(place, Setup::default()).await;
    let other = house.another(place, Setup::default()).await;
    let registry = &mut Registry::default();
    let watch = Watch::new(house.live.clone(), house.inbox.clone(), PATIENCE, Metrics::new(registry));
    let [ann, ben] = [uuid(1), uuid(2)];
    let (mut missing, fine) = (house.live.listen(ann).await, house.live.listen(ben).await);
    assert_eq!(watch.tick().await.unwrap(), 0);
    events::sell(&other, ann, &["1", "2"]).await;
    events::sell(&other, ben, &["1"]).await;
    fine.at(1);
    assert_eq!(watch.tick().await.unwrap(), 1);
    assert_eq!(heard(&mut missing).await, Heard::Missed);
    missing.at(1);
    assert_eq!(watch.tick().await.unwrap(), 1, "it is still behind");
    missing.at(2);
    assert_eq!(watch.tick().await.unwrap(), 0);
    // The least advanced of a player's streams counts.
    let second = house.live.listen(ann).await;
    assert_eq!(watch.tick().await.unwrap(), 1);
    drop(second);
    assert_eq!(watch.tick().await.unwrap(), 0);
}
