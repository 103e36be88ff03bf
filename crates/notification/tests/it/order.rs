//! An inbox has the events of a key in their order, whichever processes take them in and whatever happens to those.

use std::sync::atomic::{AtomicUsize, Ordering};

use events::{Source, sold};
use testkit::Nats;
use tokio::task::JoinHandle;

use super::*;

testkit::on_all_stores!(
    a_process_that_stands_still_with_events_is_not_overtaken,
    intakes_that_are_killed_under_load_keep_the_order,
);

/// An event of each key in turn; what is sold is the version of the key's own.
async fn publish(source: &Source, users: &[Uuid], events: std::ops::Range<usize>) {
    for number in events {
        let version = (number / users.len()).to_string();
        let user = users[number % users.len()];
        source.put("sold", sold(uuid(10_000 + number as u128), &[user], &version)).await;
    }
}

/// What the inboxes have once everything is there.
async fn assert_in_order(house: &House, users: &[Uuid], events: usize) {
    testkit::eventually("all are in the inboxes", PATIENCE, async || {
        house.count("notification").await == events as i64
    })
    .await;
    for user in users {
        let expected: Vec<String> =
            (0..events / users.len()).map(|version| format!("You bought {version}")).collect();
        assert_eq!(house.titles(*user).await, expected);
    }
}

async fn run(house: &House, source: &Source) -> JoinHandle<()> {
    let intake = house.intake(&source.bus);
    let consumer = intake.subscribe().await.unwrap();
    tokio::spawn(async move {
        loop {
            // The bus and the store are there.
            intake.tick(&consumer, Duration::from_millis(200)).await.unwrap();
        }
    })
}

async fn a_process_that_stands_still_with_events_is_not_overtaken(place: &SqlPlace) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let house = House::open(place, Setup::with(|config| config.batch = 20)).await;
    let users = [*house.user("ann").await.as_uuid(), *house.user("ben").await.as_uuid()];
    let still = house.intake(&source.bus).subscribe().await.unwrap();
    publish(&source, &users, 0..30).await;
    let first = still.fetch(12, PATIENCE).await.unwrap();
    let second = still.fetch(6, PATIENCE).await.unwrap();
    let others =
        [run(&house, &source).await, run(&house.another(place, house.setup.clone()).await, &source).await];
    publish(&source, &users, 30..120).await;
    assert_in_order(&house, &users, 120).await;
    drop((first, second));
    others.iter().for_each(JoinHandle::abort);
}

async fn intakes_that_are_killed_under_load_keep_the_order(place: &SqlPlace) {
    const EVENTS: usize = 600;
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let house = House::open(place, Setup::with(|config| config.batch = 10)).await;
    let mut users = Vec::new();
    for name in ["ann", "ben", "cat"] {
        users.push(*house.user(name).await.as_uuid());
    }
    let others = [0; 2].map(|_| house.another(place, house.setup.clone()));
    let mut houses = futures::future::join_all(others).await;
    houses.push(house.clone());
    let mut running = Vec::new();
    for house in &houses {
        running.push(run(house, &source).await);
    }
    let published = AtomicUsize::new(0);
    let publishing = async {
        for from in (0..EVENTS).step_by(30) {
            publish(&source, &users, from..from + 30).await;
            published.store(from, Ordering::Relaxed);
        }
    };
    let killing = async {
        for (at, after) in (100..EVENTS).step_by(50).enumerate() {
            let due = || published.load(Ordering::Relaxed) >= after - 50;
            testkit::eventually("more is published", PATIENCE, async || due()).await;
            let victim = at % houses.len();
            running[victim].abort();
            running[victim] = run(&houses[victim], &source).await;
        }
        running
    };
    let ((), running) = tokio::join!(publishing, killing);
    assert_in_order(&house, &users, EVENTS).await;
    running.iter().for_each(JoinHandle::abort);
}
