//! Positions become visible in order, with any number of writers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use events::{memory, sold_event};

use super::*;

testkit::on_all_stores!(
    reader_that_resumes_from_its_last_position_misses_nothing,
    inbox_can_be_read_in_small_steps,
);

const WRITERS: u128 = 6;
const EVENTS: u128 = 40;
const USERS: u128 = 5;

/// Reads an inbox until `ended`. Returns the positions that it saw.
async fn read_inbox(process: Process, user: Uuid, ended: Arc<AtomicBool>) -> Vec<i64> {
    let (mut seen, mut last) = (Vec::new(), 0);
    loop {
        // In this order: after the writers have ended there is one more read.
        let is_last = ended.load(Ordering::SeqCst);
        let tail = process.inbox.after(user, last, 7).await.unwrap();
        seen.extend(tail.notifications.iter().map(|one| one.position));
        assert!(tail.up_to >= last);
        last = tail.up_to;
        if is_last && !tail.has_more {
            return seen;
        }
        tokio::task::yield_now().await;
    }
}

async fn reader_that_resumes_from_its_last_position_misses_nothing(database: &TestDatabase) {
    let first = Process::open(database, Setup::with(|config| config.batch = 4)).await;
    let second = first.another(database, first.setup.clone()).await;
    let ended = Arc::new(AtomicBool::new(false));
    let users: Vec<Uuid> = (1..=USERS).map(uuid).collect();
    let readers: Vec<_> =
        users.iter().map(|user| tokio::spawn(read_inbox(first.clone(), *user, ended.clone()))).collect();
    let mut expected: BTreeMap<Uuid, i64> = BTreeMap::new();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let mut events = Vec::new();
        for number in 0..EVENTS {
            // Sets that overlap, in different orders.
            let mut some: Vec<Uuid> = users
                .iter()
                .copied()
                .filter(|user| (user.as_u128() * 7 + writer * 3 + number) % 3 != 0)
                .collect();
            some.push(users[0]);
            some.sort_unstable();
            some.dedup();
            some.iter().for_each(|user| *expected.entry(*user).or_default() += 1);
            events.push(sold_event(&some, "a sword"));
        }
        let process = if writer % 2 == 0 { first.clone() } else { second.clone() };
        writers.push(tokio::spawn(async move {
            let bus = memory().await;
            bus.publish(&events).await;
            let intake = process.intake(&bus);
            let consumer = intake.subscribe().await.unwrap();
            let mut taken = 0;
            while taken < events.len() {
                taken += intake.tick(&consumer, PATIENCE).await.unwrap().events;
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    ended.store(true, Ordering::SeqCst);
    for (user, reader) in users.iter().zip(readers) {
        let seen = reader.await.unwrap();
        assert_eq!(seen, (1..=expected[user]).collect::<Vec<_>>(), "{user}");
        assert_eq!(first.inbox.head(*user).await.unwrap().position, expected[user]);
    }
}

async fn inbox_can_be_read_in_small_steps(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let (ann, ben) = (uuid(1), uuid(2));
    events::sell(&process, ann, &["1", "2", "3", "4", "5"]).await;
    events::sell(&process, ben, &["1"]).await;
    let step = |tail: &notification::InboxTail| {
        (tail.notifications.iter().map(|one| one.position).collect::<Vec<_>>(), tail.up_to, tail.has_more)
    };
    let after = async |position, limit| step(&process.inbox.after(ann, position, limit).await.unwrap());
    assert_eq!(after(0, 2).await, (vec![1, 2], 2, true));
    assert_eq!(after(2, 2).await, (vec![3, 4], 4, true));
    assert_eq!(after(4, 2).await, (vec![5], 5, false));
    assert_eq!(after(5, 2).await, (vec![], 5, false));
    // A reader moves past removed notifications.
    process.sql("DELETE FROM notification WHERE position >= 4").await;
    assert_eq!(after(2, 2).await, (vec![3], 5, false));
    assert_eq!(after(9, 2).await, (vec![], 9, false));
    let heads = process.inbox.heads(&[ann, ben, uuid(3)]).await.unwrap();
    let head = |position| Head { position, marks: 0 };
    assert_eq!(heads, [(ann, head(5)), (ben, head(1))].into());
    assert_eq!(process.inbox.heads(&[]).await.unwrap(), [].into());
}
