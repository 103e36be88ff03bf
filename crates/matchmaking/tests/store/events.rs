//! Matches on their way to the bus.

use std::time::Duration;

use testkit::eventually;

use crate::setup::{PATIENCE, Setup, group, id, ids, matches, names};

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);

for_every_store! {
    one_entry_holds_every_match_that_one_call_made_and_no_other,
    what_one_relay_has_taken_another_does_not_get_before_its_time,
    what_is_done_with_is_forgotten,
    entries_are_taken_in_their_order_and_no_more_than_asked_for,
}

async fn one_entry_holds_every_match_that_one_call_made_and_no_other(setup: Setup) {
    let tickets = setup.open().await;
    assert_eq!(tickets.events_waiting().await.unwrap(), 0);
    assert_eq!(tickets.take_events("relay", 10, LONG).await.unwrap().len(), 0);
    tickets.create_all(0..6).await;
    tickets.delete(&id(5)).await.unwrap();
    let groups = [group("one", ids([0, 1])), group("not", ids([2, 5])), group("two", ids([3]))];
    tickets.assign(&groups).await.unwrap();
    tickets.assign(&[group("nor", ids([0]))]).await.unwrap();
    tickets.assign(&[group("three", ids([4]))]).await.unwrap();
    tickets.assign(&[]).await.unwrap();
    assert_eq!(tickets.events_waiting().await.unwrap(), 2);
    let entries = tickets.take_events("relay", 10, LONG).await.unwrap();
    let made: Vec<_> = entries.iter().map(|entry| matches(&entry.made)).collect();
    let expected = [
        vec![("one".to_owned(), ids([0, 1])), ("two".to_owned(), ids([3]))],
        vec![("three".to_owned(), ids([4]))],
    ];
    assert_eq!(made, expected);
    assert_ne!(entries[0].key, entries[1].key);
}

async fn what_one_relay_has_taken_another_does_not_get_before_its_time(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..2).await;
    tickets.assign(&[group("one", ids([0]))]).await.unwrap();
    let before = tickets.clock.now();
    let taken = tickets.take_events("first", 10, LONG).await.unwrap();
    assert_eq!(names(&taken), ["one"]);
    assert_eq!(other.take_events("second", 10, LONG).await.unwrap().len(), 0);
    // The one who has it tries again at once.
    assert_eq!(names(&other.take_events("first", 10, LONG).await.unwrap()), ["one"]);
    tickets.assign(&[group("two", ids([1]))]).await.unwrap();
    assert_eq!(names(&other.take_events("second", 10, LONG).await.unwrap()), ["two"]);
    // The first relay is gone.
    let again = eventually("another relay takes over", PATIENCE, async || {
        tickets.pass(Duration::from_millis(20));
        let taken = other.take_events("third", 1, SHORT).await.unwrap();
        Some(taken).filter(|taken| !taken.is_empty())
    })
    .await;
    let waited = tickets.clock.now().distance(before);
    assert!(waited >= SHORT, "{waited:?}");
    assert_eq!((&again[0].key, &again[0].made), (&taken[0].key, &taken[0].made));
    assert_eq!(tickets.events_waiting().await.unwrap(), 2);
}

async fn what_is_done_with_is_forgotten(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    for number in 0..3 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    let taken = tickets.take_events("relay", 10, LONG).await.unwrap();
    tickets.events_done(&taken[..2]).await.unwrap();
    assert_eq!(tickets.events_waiting().await.unwrap(), 1);
    // As after a lost answer.
    tickets.events_done(&taken[..2]).await.unwrap();
    tickets.events_done(&[]).await.unwrap();
    let left = tickets.take_events("other", 10, Duration::ZERO).await.unwrap();
    assert_eq!(names(&left), ["2"]);
    tickets.events_done(&left).await.unwrap();
    assert_eq!(tickets.events_waiting().await.unwrap(), 0);
    assert_eq!(tickets.take_events("other", 10, Duration::ZERO).await.unwrap().len(), 0);
}

async fn entries_are_taken_in_their_order_and_no_more_than_asked_for(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..7).await;
    for number in 0..7 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    for (relay, expected) in [("a", &["0", "1", "2"][..]), ("b", &["3", "4", "5"]), ("c", &["6"]), ("d", &[])]
    {
        assert_eq!(names(&tickets.take_events(relay, 3, LONG).await.unwrap()), expected);
    }
}
