//! Unrecorded matches, and the notification of their players.

use std::time::Duration;

use futures::StreamExt;
use matchmaking::store::{
    AfterNotify, AssignOutcome, BatchRange, DeleteOutcome, RECOVERY_LEASE, TicketEvent, WatchState,
};
use testkit::{Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, group, id, ids, matches, names};

for_every_store! {
    batch_holds_exactly_the_matches_of_one_call,
    players_are_not_notified_before_notify,
    removed_batch_notifies_no_player_again,
    young_batch_is_left_to_its_engine,
    claimed_batches_are_withheld_from_others_until_the_lease_ends,
    removed_batches_are_gone,
    batches_are_claimed_in_order_up_to_the_limit,
    batches_are_claimed_within_a_key_range,
    fetch_returns_nothing_while_too_much_is_unrecorded,
}

async fn batch_holds_exactly_the_matches_of_one_call(setup: Setup) {
    let tickets = setup.open().await;
    assert_eq!(tickets.unrecorded_size().await.unwrap(), (0, 0));
    assert_eq!(tickets.entries().await.len(), 0);
    tickets.create_all(0..5).await;
    tickets.delete(&id(2)).await.unwrap();
    let groups = [group("one", ids([0, 1])), group("not", ids([2])), group("two", ids([3]))];
    let assigned = tickets.store.assign(&groups).await.unwrap();
    assert!(tickets.store.assign(&[group("nor", ids([0]))]).await.unwrap().batches.is_empty());
    tickets.assign(&[group("three", ids([4]))]).await.unwrap();
    assert!(tickets.store.assign(&[]).await.unwrap().batches.is_empty());
    let (count, bytes) = tickets.unrecorded_size().await.unwrap();
    assert_eq!(count, 2);
    assert!(bytes > 0);
    let entries = tickets.entries().await;
    let made: Vec<_> = entries.iter().map(|entry| matches(&entry.matches)).collect();
    let expected = [
        vec![("one".to_owned(), ids([0, 1])), ("two".to_owned(), ids([3]))],
        vec![("three".to_owned(), ids([4]))],
    ];
    assert_eq!(made, expected);
    assert_ne!(entries[0].key, entries[1].key);
    assert_eq!(
        (&assigned.batches[0].key, &assigned.batches[0].matches),
        (&entries[0].key, &entries[0].matches)
    );
}

async fn players_are_not_notified_before_notify(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    let mut pushes = tickets.ticket_events().await.unwrap();
    let assigned = tickets.store.assign(&[group("match", ids([0, 1]))]).await.unwrap();
    assert_eq!(assigned.outcomes, [AssignOutcome::Assigned]);
    // Redis has one server here: a client that polls between two steps of an engine may see the assignment.
    if !tickets.is_in_redis() {
        assert_eq!(
            tickets.watch_states(&ids(0..2)).await.unwrap(),
            [WatchState::Waiting, WatchState::Waiting]
        );
        assert_eq!(tickets.connection_of(&id(0)).await, None);
        // Cancelling the ticket would reveal it too, so the cancellation waits.
        let (process, first) = (tickets.clone(), id(0));
        let deleting = tokio::spawn(async move { process.delete(&first).await.unwrap() });
        tokio::task::yield_now().await;
        tickets.notify(&assigned.batches, AfterNotify::Keep).await.unwrap();
        assert_eq!(deleting.await.unwrap(), DeleteOutcome::AlreadyAssigned);
    } else {
        tickets.notify(&assigned.batches, AfterNotify::Keep).await.unwrap();
    }
    tickets.delete(&id(2)).await.unwrap();
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    let TicketEvent::Assigned(made) = push else { panic!("no match: {push:?}") };
    assert_eq!(matches(&made), [("match".to_owned(), ids([0, 1]))]);
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    assert!(matches!(&push, TicketEvent::Gone(gone) if *gone == id(2)), "published once: {push:?}");
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("match"));
    assert_eq!(tickets.unrecorded_size().await.unwrap().0, 1, "it is kept");
}

async fn removed_batch_notifies_no_player_again(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let mut pushes = tickets.ticket_events().await.unwrap();
    let assigned = tickets.store.assign(&[group("match", ids([0]))]).await.unwrap();
    for _ in 0..3 {
        // As after a lost reply, and from a late recorder.
        tickets.notify(&assigned.batches, AfterNotify::Remove).await.unwrap();
    }
    tickets.notify(&[], AfterNotify::Remove).await.unwrap();
    tickets.delete(&id(1)).await.unwrap();
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    assert!(matches!(push, TicketEvent::Assigned(_)), "{push:?}");
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap().unwrap();
    assert!(matches!(push, TicketEvent::Gone(_)), "{push:?}");
    assert_eq!(tickets.unrecorded_size().await.unwrap(), (0, 0));
}

async fn young_batch_is_left_to_its_engine(setup: Setup) {
    const OLD: Duration = Duration::from_millis(300);
    let tickets = setup.open().await;
    tickets.create_all(0..1).await;
    tickets.assign(&[group("match", ids([0]))]).await.unwrap();
    let before = tickets.clock.now();
    assert!(
        tickets
            .claim_unrecorded("recorder", 10, Duration::from_secs(60), BatchRange::default())
            .await
            .unwrap()
            .is_empty()
    );
    let taken = eventually("it is old enough", PATIENCE, async || {
        tickets.pass(Duration::from_millis(20));
        let taken = tickets.claim_unrecorded("recorder", 10, OLD, BatchRange::default()).await.unwrap();
        Some(taken).filter(|taken| !taken.is_empty())
    });
    assert_eq!(names(&taken.await), ["match"]);
    // Redis has its own clock.
    let waited = tickets.clock.now().distance(before);
    assert!(waited >= OLD - Duration::from_millis(20), "{waited:?}");
}

async fn claimed_batches_are_withheld_from_others_until_the_lease_ends(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..2).await;
    tickets.assign(&[group("one", ids([0]))]).await.unwrap();
    let now = Duration::ZERO;
    let before = tickets.clock.now();
    let taken = tickets.claim_unrecorded("first", 10, now, BatchRange::default()).await.unwrap();
    assert_eq!(names(&taken), ["one"]);
    assert_eq!(other.claim_unrecorded("second", 10, now, BatchRange::default()).await.unwrap().len(), 0);
    // The holder can claim it again at once.
    assert_eq!(
        names(&other.claim_unrecorded("first", 10, now, BatchRange::default()).await.unwrap()),
        ["one"]
    );
    tickets.assign(&[group("two", ids([1]))]).await.unwrap();
    // The first consumer is gone.
    let again = eventually("another recorder takes over", PATIENCE, async || {
        tickets.pass(Duration::from_millis(100));
        let taken = other.claim_unrecorded("third", 10, now, BatchRange::default()).await.unwrap();
        Some(taken).filter(|taken| !taken.is_empty())
    })
    .await;
    let waited = tickets.clock.now().distance(before);
    assert!(waited >= RECOVERY_LEASE, "{waited:?}");
    assert_eq!(names(&again), ["one", "two"]);
    // When nothing is left, the next consumer need not wait.
    other.notify(&again, AfterNotify::Remove).await.unwrap();
    assert!(other.claim_unrecorded("third", 10, now, BatchRange::default()).await.unwrap().is_empty());
    tickets.create_all(2..3).await;
    tickets.assign(&[group("three", ids([2]))]).await.unwrap();
    assert_eq!(
        names(&tickets.claim_unrecorded("second", 10, now, BatchRange::default()).await.unwrap()),
        ["three"]
    );
}

async fn removed_batches_are_gone(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    for number in 0..3 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    let taken = tickets.entries().await;
    assert_eq!(tickets.notify(&taken, AfterNotify::Keep).await.unwrap().len(), 0);
    assert_eq!(tickets.unrecorded_size().await.unwrap().0, 3);
    for _ in 0..2 {
        // The second time as after a lost reply.
        let gone = tickets.notify(&taken[..2], AfterNotify::Remove).await.unwrap();
        assert_eq!(gone.iter().map(|entry| &entry.key).collect::<Vec<_>>(), [&taken[0].key, &taken[1].key]);
        assert_eq!(tickets.unrecorded_size().await.unwrap().0, 1);
    }
    assert_eq!(tickets.notify(&[], AfterNotify::Remove).await.unwrap().len(), 0);
    let left = tickets.entries().await;
    assert_eq!(names(&left), ["2"]);
    tickets.notify(&left, AfterNotify::Remove).await.unwrap();
    assert_eq!(tickets.unrecorded_size().await.unwrap(), (0, 0));
    assert_eq!(tickets.entries().await.len(), 0);
}

async fn batches_are_claimed_in_order_up_to_the_limit(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..7).await;
    for number in 0..7 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    for expected in [&["0", "1", "2"][..], &["3", "4", "5"], &["6"], &[]] {
        let taken =
            tickets.claim_unrecorded("recorder", 3, Duration::ZERO, BatchRange::default()).await.unwrap();
        assert_eq!(names(&taken), expected);
        tickets.notify(&taken, AfterNotify::Remove).await.unwrap();
    }
}

async fn batches_are_claimed_within_a_key_range(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..7).await;
    for number in 0..7 {
        tickets.assign(&[group(&format!("{number}"), ids([number]))]).await.unwrap();
    }
    let all = tickets.entries().await;
    let key = |number: usize| Some(all[number].key.as_str());
    let parts = [
        (BatchRange { after: key(1), up_to: None }, &["2", "3", "4"][..]),
        (BatchRange { after: key(4), up_to: None }, &["5", "6"]),
        (BatchRange { after: key(6), up_to: None }, &[]),
        (BatchRange { after: None, up_to: key(1) }, &["0", "1"]),
        (BatchRange { after: key(1), up_to: key(2) }, &["2"]),
        (BatchRange { after: key(2), up_to: key(2) }, &[]),
        (BatchRange { after: key(3), up_to: key(1) }, &[]),
    ];
    for (part, expected) in parts {
        let taken = tickets.claim_unrecorded("test", 3, Duration::ZERO, part).await.unwrap();
        assert_eq!(names(&taken), expected, "{part:?}");
        // An empty range does not mean that nothing is left: the lease stays.
        let other =
            tickets.claim_unrecorded("other", 3, Duration::ZERO, BatchRange::default()).await.unwrap();
        assert_eq!(names(&other), [""; 0], "{part:?}");
    }
    let young = BatchRange { after: key(1), up_to: key(2) };
    let taken = tickets.claim_unrecorded("test", 3, Duration::from_secs(60), young).await.unwrap();
    assert_eq!(names(&taken), [""; 0], "age counts in a part, too");
}

async fn fetch_returns_nothing_while_too_much_is_unrecorded(setup: Setup) {
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
    let (_, bytes) = tickets.unrecorded_size().await.unwrap();
    assert!((10_000..20_000).contains(&bytes), "{bytes}");
    let held_back = tickets.fetch(&"engine".into(), 100).await.unwrap();
    assert!(held_back.is_held_back);
    assert_eq!(held_back.waiting, 1000 - made as u64);
    // Nothing is lost: waiting tickets are fetched once there is room.
    let entries = tickets.entries().await;
    tickets.notify(&entries, AfterNotify::Remove).await.unwrap();
    assert_eq!(tickets.take(1000).await, ids(made..1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_group_of_an_earlier_version_is_removed_after_its_batches() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let (mut raw, events) = (tickets.raw().await, tickets.key("matchEvents"));
    // As left by an earlier version that died with a claimed entry.
    raw.ask::<()>(&["XGROUP", "CREATE", &events, "relay", "0", "MKSTREAM"]).await;
    tickets.create_all(0..1).await;
    tickets.assign(&[group("match", ids([0]))]).await.unwrap();
    let read = ["XREADGROUP", "GROUP", "relay", "gone", "COUNT", "1", "STREAMS", &events, ">"];
    raw.ask::<redis::Value>(&read).await;
    let pending = ["XPENDING", &events, "relay", "-", "+", "10"];
    assert_eq!(raw.ask::<Vec<redis::Value>>(&pending).await.len(), 1);

    let take = async || {
        tickets.claim_unrecorded("recorder", 10, Duration::ZERO, BatchRange::default()).await.unwrap()
    };
    let left = take().await;
    assert_eq!(names(&left), ["match"], "what it had in hand is recorded");
    tickets.notify(&left, AfterNotify::Remove).await.unwrap();
    assert!(take().await.is_empty());
    assert!(
        raw.ask::<Vec<redis::Value>>(&["XINFO", "GROUPS", &events]).await.is_empty(),
        "the group is gone"
    );
    assert!(take().await.is_empty(), "and is not missed");
}
