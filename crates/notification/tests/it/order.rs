//! An inbox has the events of a key in order, even if processes that take them in stall or die.

use std::sync::atomic::{AtomicUsize, Ordering};

use events::{Source, sold};
use testkit::Nats;
use tokio::task::JoinHandle;

use super::*;

testkit::on_all_stores!(stalled_process_does_not_break_the_order, killed_intakes_keep_the_order_under_load,);

/// Publishes events to the users in turn. The thing sold is the user's event count.
async fn publish(source: &Source, users: &[Uuid], events: std::ops::Range<usize>) {
    for number in events {
        let version = (number / users.len()).to_string();
        let user = users[number % users.len()];
        source.put("sold", sold(uuid(10_000 + number as u128), &[user], &version)).await;
    }
}

/// Waits until all events are in the inboxes, and checks their order.
async fn assert_in_order(process: &Process, users: &[Uuid], events: usize) {
    testkit::eventually("all are in the inboxes", PATIENCE, async || {
        process.count("notification").await == events as i64
    })
    .await;
    for user in users {
        let expected: Vec<String> =
            (0..events / users.len()).map(|version| format!("You bought {version}")).collect();
        assert_eq!(process.titles(*user).await, expected);
    }
}

async fn run(process: &Process, source: &Source) -> JoinHandle<()> {
    let intake = process.intake(&source.bus);
    let consumer = intake.subscribe().await.unwrap();
    tokio::spawn(async move {
        loop {
            intake.tick(&consumer, Duration::from_millis(200)).await.unwrap();
        }
    })
}

async fn stalled_process_does_not_break_the_order(database: &TestDatabase) {
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let process = Process::open(database, Setup::with(|config| config.batch = 20)).await;
    let users = [*process.user("ann").await.as_uuid(), *process.user("ben").await.as_uuid()];
    let stalled = process.intake(&source.bus).subscribe().await.unwrap();
    publish(&source, &users, 0..30).await;
    let first = stalled.fetch(12, PATIENCE).await.unwrap();
    let second = stalled.fetch(6, PATIENCE).await.unwrap();
    let others = [
        run(&process, &source).await,
        run(&process.another(database, process.setup.clone()).await, &source).await,
    ];
    publish(&source, &users, 30..120).await;
    assert_in_order(&process, &users, 120).await;
    drop((first, second));
    others.iter().for_each(JoinHandle::abort);
}

async fn killed_intakes_keep_the_order_under_load(database: &TestDatabase) {
    const EVENTS: usize = 600;
    let source = Source::open(testkit::need!(Nats::shared().await)).await;
    let process = Process::open(database, Setup::with(|config| config.batch = 10)).await;
    let mut users = Vec::new();
    for name in ["ann", "ben", "cat"] {
        users.push(*process.user(name).await.as_uuid());
    }
    let others = [0; 2].map(|_| process.another(database, process.setup.clone()));
    let mut processes = futures::future::join_all(others).await;
    processes.push(process.clone());
    let mut running = Vec::new();
    for process in &processes {
        running.push(run(process, &source).await);
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
            let victim = at % processes.len();
            running[victim].abort();
            running[victim] = run(&processes[victim], &source).await;
        }
        running
    };
    let ((), running) = tokio::join!(publishing, killing);
    assert_in_order(&process, &users, EVENTS).await;
    running.iter().for_each(JoinHandle::abort);
}
