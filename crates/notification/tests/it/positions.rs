//! Positions become visible in their order, whoever writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use events::{memory, sold_event};

use super::*;

testkit::on_all_stores!(
    a_reader_who_goes_on_behind_the_last_position_misses_nothing,
    what_there_is_can_be_read_in_small_steps,
);

const WRITERS: u128 = 6;
const EVENTS: u128 = 40;
const USERS: u128 = 5;

/// What a reader saw of one inbox.
async fn follow(house: House, user: Uuid, ended: Arc<AtomicBool>) -> Vec<i64> {
    let (mut seen, mut last) = (Vec::new(), 0);
    loop {
        // In this order: what is there when all have ended is read after it.
        let is_last = ended.load(Ordering::SeqCst);
        let rest = house.inbox.after(user, last, 7).await.unwrap();
        seen.extend(rest.notifications.iter().map(|one| one.position));
        assert!(rest.up_to >= last);
        last = rest.up_to;
        if is_last && !rest.more {
            return seen;
        }
        tokio::task::yield_now().await;
    }
}

async fn a_reader_who_goes_on_behind_the_last_position_misses_nothing(place: &SqlPlace) {
    let first = House::open(place, Setup::with(|config| config.batch = 4)).await;
    let second = first.another(place, first.setup.clone()).await;
    let ended = Arc::new(AtomicBool::new(false));
    let users: Vec<Uuid> = (1..=USERS).map(uuid).collect();
    let readers: Vec<_> =
        users.iter().map(|user| tokio::spawn(follow(first.clone(), *user, ended.clone()))).collect();
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
        let house = if writer % 2 == 0 { first.clone() } else { second.clone() };
        writers.push(tokio::spawn(async move {
            let bus = memory().await;
            bus.publish(&events).await;
            let intake = house.intake(&bus);
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

async fn what_there_is_can_be_read_in_small_steps(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let (ann, ben) = (uuid(1), uuid(2));
    events::sell(&house, ann, &["1", "2", "3", "4", "5"]).await;
    events::sell(&house, ben, &["1"]).await;
    let step = |rest: &notification::Rest| {
        (rest.notifications.iter().map(|one| one.position).collect::<Vec<_>>(), rest.up_to, rest.more)
    };
    let after = async |position, limit| step(&house.inbox.after(ann, position, limit).await.unwrap());
    assert_eq!(after(0, 2).await, (vec![1, 2], 2, true));
    assert_eq!(after(2, 2).await, (vec![3, 4], 4, true));
    assert_eq!(after(4, 2).await, (vec![5], 5, false));
    assert_eq!(after(5, 2).await, (vec![], 5, false));
    // What is gone is not waited for.
    house.sql("DELETE FROM notification WHERE position >= 4").await;
    assert_eq!(after(2, 2).await, (vec![3], 5, false));
    assert_eq!(after(9, 2).await, (vec![], 9, false));
    let heads = house.inbox.heads(&[ann, ben, uuid(3)]).await.unwrap();
    let head = |position| Head { position, marks: 0 };
    assert_eq!(heads, [(ann, head(5)), (ben, head(1))].into());
    assert_eq!(house.inbox.heads(&[]).await.unwrap(), [].into());
}
