//! Matches that are not recorded yet, and the notification of their players.

use std::time::Duration;

use futures::StreamExt;
use matchmaking::store::{Deleted, Outcome, Part, Push, RECOVERY_LEASE, Seen, Then};
use testkit::{Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, group, id, ids, matches, names};

for_every_store! {
    one_entry_holds_every_match_that_one_call_made_and_no_other,
    nobody_is_notified_before_it_is_said,
    an_entry_that_is_gone_notifies_nobody_again,
    a_young_entry_is_left_to_its_engine,
    entries_that_one_recorder_has_taken_another_does_not_get_before_its_lease_ends,
    removed_entries_are_gone,
    entries_are_taken_in_their_order_and_no_more_than_asked_for,
    entries_are_taken_behind_a_key_and_up_to_a_key,
    no_ticket_is_handed_out_while_too_much_is_unrecorded,
}

async fn one_entry_holds_every_match_that_one_call_made_and_no_other(setup: Setup) {
    let tickets = setup.open().await;
    assert_eq!(tickets.unrecorded().await.unwrap(), (0, 0));
    assert_eq!(tickets.entries().await.len(), 0);
    tickets.create_all(0..5).await;
    tickets.delete(&id(2)).await.unwrap();
    let groups = [group("one", ids([0, 1])), group("not", ids([2])), group("two", ids([3]))];
    let assigned = tickets.store.assign(&groups).await.unwrap();
    assert!(tickets.store.assign(&[group("nor", ids([0]))]).await.unwrap().entries.is_empty());
    tickets.assign(&[group("three", ids([4]))]).await.unwrap();
    assert!(tickets.store.assign(&[]).await.unwrap().entries.is_empty());
    let (count, bytes) = tickets.unrecorded().await.unwrap();
    assert_eq!(count, 2);
    assert!(bytes > 0);
    let entries = tickets.entries().await;
    let made: Vec<_> = entries.iter().map(|entry| matches(&entry.made)).collect();
    let expected = [
        vec![("one".to_owned(), ids([0, 1])), ("two".to_owned(), ids([3]))],
        vec![("three".to_owned(), ids([4]))],
    ];
    assert_eq!(made, expected);
    assert_ne!(entries[0].key, entries[1].key);
    assert_eq!((&assigned.entries[0].key, &assigned.entries[0].made), (&entries[0].key, &entries[0].made));
}

async fn nobody_is_notified_before_it_is_said(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    let mut pushes = tickets.pushes().await.unwrap();
    let assigned = tickets.store.assign(&[group("match", ids([0, 1]))]).await.unwrap();
    assert_eq!(assigned.outcomes, [Outcome::Assigned]);
    // Redis has one server here: who polls between two of an engine's steps may see it.
    if !tickets.is_in_redis() {
        assert_eq!(tickets.look(&ids(0..2)).await.unwrap(), [Seen::Waiting, Seen::Waiting]);
        assert_eq!(tickets.connection_of(&id(0)).await, None);
        // Taking the ticket back would tell, too: that waits.
        let (process, first) = (tickets.clone(), id(0));
        let deleting = tokio::spawn(async move { process.delete(&first).await.unwrap() });
        tokio::task::yield_now().await;
        tickets.notify(&assigned.entries, Then::Keep).await.unwrap();
        assert_eq!(deleting.await.unwrap(), Deleted::Assigned);
    } else {
        tickets.notify(&assigned.entries, Then::Keep).await.unwrap();
    }
    tickets.delete(&id(2)).await.unwrap();
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    let Push::Assigned(made) = push else { panic!("no match: {push:?}") };
    assert_eq!(matches(&made), [("match".to_owned(), ids([0, 1]))]);
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    assert!(matches!(&push, Push::Gone(gone) if *gone == id(2)), "told once: {push:?}");
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("match"));
    assert_eq!(tickets.unrecorded().await.unwrap().0, 1, "it is kept");
}

async fn an_entry_that_is_gone_notifies_nobody_again(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let mut pushes = tickets.pushes().await.unwrap();
    let assigned = tickets.store.assign(&[group("match", ids([0]))]).await.unwrap();
    for _ in 0..3 {
        // As after a lost answer, and by a recorder that was late.
        tickets.notify(&assigned.entries, Then::Remove).await.unwrap();
    }
    tickets.notify(&[], Then::Remove).await.unwrap();
    tickets.delete(&id(1)).await.unwrap();
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    assert!(matches!(push, Push::Assigned(_)), "{push:?}");
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    assert!(matches!(push, Push::Gone(_)), "{push:?}");
    assert_eq!(tickets.unrecorded().await.unwrap(), (0, 0));
}

async fn a_young_entry_is_left_to_its_engine(setup: Setup) {
    const OLD: Duration = Duration::from_millis(300);
    let tickets = setup.open().await;
    tickets.create_all(0..1).await;
    tickets.assign(&[group("match", ids([0]))]).await.unwrap();
    let before = tickets.clock.now();
    assert!(
        tickets
            .take_unrecorded("recorder", 10, Duration::from_secs(60), Part::default())
            .await
            .unwrap()
            .is_empty()
    );
    let taken = eventually("it is old enough", PATIENCE, async || {
        tickets.pass(Duration::from_millis(20));
        let taken = tickets.take_unrecorded("recorder", 10, OLD, Part::default()).await.unwrap();
        Some(taken).filter(|taken| !taken.is_empty())
    });
    assert_eq!(names(&taken.await), ["match"]);
    // Redis has a clock of its own.
    let waited = tickets.clock.now().distance(before);
    assert!(waited >= OLD - Duration::from_millis(20), "{waited:?}");
}

async fn entries_that_one_recorder_has_taken_another_does_not_get_before_its_lease_ends(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..2).await;
    tickets.assign(&[group("one", ids([0]))]).await.unwrap();
    let now = Duration::ZERO;
    let before = tickets.clock.now();
    let taken = tickets.take_unrecorded("first", 10, now, Part::default()).await.unwrap();
    assert_eq!(names(&taken), ["one"]);
    assert_eq!(other.take_unrecorded("second", 10, now, Part::default()).await.unwrap().len(), 0);
    // The one who has it tries again at once.
    assert_eq!(names(&other.take_unrecorded("first", 10, now, Part::default()).await.unwrap()), ["one"]);
    tickets.assign(&[group("two", ids([1]))]).await.unwrap();
    // The first one is gone.
    let again = eventually("another recorder takes over", PATIENCE, async || {
        tickets.pass(Duration::from_millis(100));
        let taken = other.take_unrecorded("third", 10, now, Part::default()).await.unwrap();
        Some(taken).filter(|taken| !taken.is_empty())
    })
    .await;
    let waited = tickets.clock.now().distance(before);
    assert!(waited >= RECOVERY_LEASE, "{waited:?}");
    assert_eq!(names(&again), ["one", "two"]);
    // When there is nothing left, the next one need not wait.
    other.notify(&again, Then::Remove).await.unwrap();
    assert!(other.take_unrecorded("third", 10, now, Part::default()).await.unwrap().is_empty());
    tickets.create_all(2..3).await;
    tickets.assign(&[group("three", ids([2]))]).await.unwrap();
    assert_eq!(names(&tickets.take_unrecorded("second", 10, now, Part::default()).await.unwrap()), ["three"]);
}

async fn removed_entries_are_gone(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    for number in 0..3 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    let taken = tickets.entries().await;
    assert_eq!(tickets.notify(&taken, Then::Keep).await.unwrap().len(), 0);
    assert_eq!(tickets.unrecorded().await.unwrap().0, 3);
    for _ in 0..2 {
        // The second time as after a lost answer.
        let gone = tickets.notify(&taken[..2], Then::Remove).await.unwrap();
        assert_eq!(gone.iter().map(|entry| &entry.key).collect::<Vec<_>>(), [&taken[0].key, &taken[1].key]);
        assert_eq!(tickets.unrecorded().await.unwrap().0, 1);
    }
    assert_eq!(tickets.notify(&[], Then::Remove).await.unwrap().len(), 0);
    let left = tickets.entries().await;
    assert_eq!(names(&left), ["2"]);
    tickets.notify(&left, Then::Remove).await.unwrap();
    assert_eq!(tickets.unrecorded().await.unwrap(), (0, 0));
    assert_eq!(tickets.entries().await.len(), 0);
}

async fn entries_are_taken_in_their_order_and_no_more_than_asked_for(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..7).await;
    for number in 0..7 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    for expected in [&["0", "1", "2"][..], &["3", "4", "5"], &["6"], &[]] {
        let taken = tickets.take_unrecorded("recorder", 3, Duration::ZERO, Part::default()).await.unwrap();
        assert_eq!(names(&taken), expected);
        tickets.notify(&taken, Then::Remove).await.unwrap();
    }
}

async fn entries_are_taken_behind_a_key_and_up_to_a_key(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..7).await;
    for number in 0..7 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    let all = tickets.entries().await;
    let key = |number: usize| Some(all[number].key.as_str());
    let parts = [
        (Part { after: key(1), up_to: None }, &["2", "3", "4"][..]),
        (Part { after: key(4), up_to: None }, &["5", "6"]),
        (Part { after: key(6), up_to: None }, &[]),
        (Part { after: None, up_to: key(1) }, &["0", "1"]),
        (Part { after: key(1), up_to: key(2) }, &["2"]),
        (Part { after: key(2), up_to: key(2) }, &[]),
        (Part { after: key(3), up_to: key(1) }, &[]),
    ];
    for (part, expected) in parts {
        let taken = tickets.take_unrecorded("test", 3, Duration::ZERO, part).await.unwrap();
        assert_eq!(names(&taken), expected, "{part:?}");
        // Nothing there does not mean that nothing is left: the lease stays.
        let other = tickets.take_unrecorded("other", 3, Duration::ZERO, Part::default()).await.unwrap();
        assert_eq!(names(&other), [""; 0], "{part:?}");
    }
    let young = Part { after: key(1), up_to: key(2) };
    let taken = tickets.take_unrecorded("test", 3, Duration::from_secs(60), young).await.unwrap();
    assert_eq!(names(&taken), [""; 0], "age counts in a part, too");
}

async fn no_ticket_is_handed_out_while_too_much_is_unrecorded(setup: Setup) {
    let tickets = setup.with(|rules| rules.max_unrecorded = 10_000).open().await;
    tickets.create_all(0..1000).await;
    let mut made = 0;
    while made < 900 {
        let fetched = tickets.fetch(&"engine".into(), 1).await.unwrap();
        if fetched.is_held_back {
            assert!(fetched.ids.is_empty());
            break;
        }
        tickets.assign(&[group(&format!("match {made}"), fetched.ids)]).await.unwrap();
        made += 1;
    }
    assert!((20..900).contains(&made), "{made}");
    let (_, bytes) = tickets.unrecorded().await.unwrap();
    assert!((10_000..20_000).contains(&bytes), "{bytes}");
    let held_back = tickets.fetch(&"engine".into(), 100).await.unwrap();
    assert!(held_back.is_held_back);
    assert_eq!(held_back.waiting, 1000 - made as u64);
    // Nothing is lost: who waits is handed out when there is room.
    let entries = tickets.entries().await;
    tickets.notify(&entries, Then::Remove).await.unwrap();
    assert_eq!(tickets.take(1000).await, ids(made..1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_group_of_relays_that_are_gone_goes_after_what_they_left() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let (mut raw, events) = (tickets.raw().await, tickets.key("matchEvents"));
    // As a relay of an earlier version left it that died with an entry in hand.
    raw.ask::<()>(&["XGROUP", "CREATE", &events, "relay", "0", "MKSTREAM"]).await;
    tickets.create_all(0..1).await;
    tickets.assign(&[group("match", ids([0]))]).await.unwrap();
    let read = ["XREADGROUP", "GROUP", "relay", "gone", "COUNT", "1", "STREAMS", &events, ">"];
    raw.ask::<redis::Value>(&read).await;
    let pending = ["XPENDING", &events, "relay", "-", "+", "10"];
    assert_eq!(raw.ask::<Vec<redis::Value>>(&pending).await.len(), 1);

    let take =
        async || tickets.take_unrecorded("recorder", 10, Duration::ZERO, Part::default()).await.unwrap();
    let left = take().await;
    assert_eq!(names(&left), ["match"], "what it had in hand is recorded");
    tickets.notify(&left, Then::Remove).await.unwrap();
    assert!(take().await.is_empty());
    assert!(
        raw.ask::<Vec<redis::Value>>(&["XINFO", "GROUPS", &events]).await.is_empty(),
        "the group is gone"
    );
    assert!(take().await.is_empty(), "and is not missed");
}
