//! Joining, leaving and standing in line.

use base::Timestamp;
use base::error::Coded;
use drops::model::{DropState, EntryState, Order, Phase, Who};
use drops::{Ending, Error, Facts, InLine, Join, JoinedEntry, Standing, verify_order};

use crate::{Process, join, on_all_stages, owning, terms, user};

on_all_stages!(
    joining_again_changes_nothing,
    who_leaves_and_joins_again_is_last,
    concurrent_joins_of_one_player_are_one_place,
    only_those_who_may_join_do,
    lanes_are_first,
    a_shuffle_can_be_verified,
    a_join_needs_a_drop_that_takes_joins,
    positions_are_known_from_the_first_question_on,
    many_first_questions_fill_the_line_once,
    who_joins_after_the_admission_ended_is_last,
    a_player_sees_all_places_at_once,
);

async fn joining_again_changes_nothing(process: &Process) {
    let drop = process.open_drop(terms(10, 10)).await.id;
    let first = process.join(drop, 1).await.unwrap();
    process.join(drop, 2).await.unwrap();
    assert_eq!(process.join(drop, 1).await.unwrap(), first);
    assert_eq!(process.waiting(drop).await, [1, 2]);
    assert_eq!(process.in_line(drop).await, [1, 2]);
    process.cycle(drop).await;
    let inside = process.join(drop, 1).await.unwrap();
    assert_eq!((inside.state, inside.number), (EntryState::Entered, first.number));
}

async fn who_leaves_and_joins_again_is_last(process: &Process) {
    let drop = process.open_drop(terms(10, 10)).await.id;
    for player in 1..=3 {
        process.join(drop, player).await.unwrap();
    }
    process.room.leave(drop, user(1)).await.unwrap();
    assert_eq!(process.room.standing(drop, user(1)).await.unwrap(), Standing::Left);
    let again = process.room.leave(drop, user(1)).await;
    assert!(matches!(again, Err(Error::NotInLine)), "{again:?}");
    let never = process.room.leave(drop, user(9)).await;
    assert!(matches!(never, Err(Error::NotInLine)), "{never:?}");
    process.join(drop, 1).await.unwrap();
    assert_eq!(process.waiting(drop).await, [2, 3, 1]);
    assert_eq!(process.in_line(drop).await, [2, 3, 1]);
}

async fn concurrent_joins_of_one_player_are_one_place(process: &Process) {
    let drop = process.open_drop(terms(10, 10)).await.id;
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            let process = process.clone();
            tokio::spawn(async move { process.join(drop, 1 + n % 4).await.unwrap() })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut players = process.waiting(drop).await;
    players.sort_unstable();
    assert_eq!(players, [1, 2, 3, 4]);
    let numbers = process.join(drop, 99).await.unwrap().number;
    assert_eq!(numbers, 5, "retries use up no numbers");
}

async fn only_those_who_may_join_do(process: &Process) {
    let mut gated = terms(10, 10);
    gated.who = Who::Owns("founder".to_owned());
    let drop = process.open_drop(gated).await.id;
    let refused = process.join(drop, 1).await.unwrap_err();
    assert!(matches!(refused, Error::NotEligible), "{refused:?}");
    assert_eq!(refused.code(), base::Code::PermissionDenied);
    process.room.join(drop, owning(2, &["founder"])).await.unwrap();
    let mut testers = terms(10, 10);
    testers.who = Who::Role("tester".to_owned());
    let drop = process.open_drop(testers).await.id;
    assert!(matches!(process.room.join(drop, owning(1, &["tester"])).await, Err(Error::NotEligible)));
    let facts = Facts { roles: vec!["tester".to_owned()], owns: Vec::new() };
    process.room.join(drop, Join { facts, ..join(2) }).await.unwrap();
    assert_eq!(process.waiting(drop).await, [2]);
}

async fn lanes_are_first(process: &Process) {
    let mut laned = terms(10, 10);
    laned.lanes = vec!["gold".to_owned(), "silver".to_owned()];
    let drop = process.open_drop(laned).await.id;
    for (player, owns) in [(1, &[][..]), (2, &["silver"]), (3, &["gold"]), (4, &["gold", "silver"]), (5, &[])]
    {
        process.room.join(drop, owning(player, owns)).await.unwrap();
    }
    assert_eq!(process.in_line(drop).await, [3, 4, 2, 1, 5]);
    assert_eq!(process.cycle(drop).await, [3, 4, 2, 1, 5]);
}

async fn a_shuffle_can_be_verified(process: &Process) {
    let mut shuffled = terms(100, 100);
    shuffled.order = Order::Shuffle;
    let id = process.draft(shuffled).await.id;
    process.drops.schedule(id, Timestamp::from_millis(i64::MAX / 2), None).await.unwrap();
    let mut entries = Vec::new();
    for player in 1..=20 {
        entries.push(process.join(id, player).await.unwrap());
    }
    let before = entries[4].clone();
    process.room.leave(id, user(5)).await.unwrap();
    let again = process.join(id, 5).await.unwrap();
    assert_eq!(again.place, before.place, "leaving and joining again does not roll again");
    entries[4] = again;
    let drop = process.drops.open(id).await.unwrap();
    for player in 21..=25 {
        entries.push(process.join(id, player).await.unwrap());
    }
    let late: Vec<_> = entries[20..].iter().map(|entry| entry.place.phase()).collect();
    assert_eq!(late, [Phase::Numbered; 5]);
    let order = process.cycle(id).await;
    assert_eq!(order[20..], [21, 22, 23, 24, 25], "who comes late is behind the shuffle");
    assert_ne!(
        order[..20],
        (1..=20).collect::<Vec<_>>(),
        "a shuffle that changes nothing has odds of 1 to 20!"
    );
    let joined: Vec<JoinedEntry> = entries
        .iter()
        .map(|entry| JoinedEntry { user: entry.user, number: entry.number, place: entry.place })
        .collect();
    assert_eq!(verify_order(Order::Shuffle, 0, &drop.published_seed().unwrap(), &joined), []);
}

async fn a_join_needs_a_drop_that_takes_joins(process: &Process) {
    let draft = process.draft(terms(1, 1)).await.id;
    assert!(matches!(process.join(draft, 1).await, Err(Error::NotJoinable(_))));
    let open = process.open_drop(terms(1, 1)).await.id;
    process.drops.pause(open).await.unwrap();
    process.join(open, 1).await.unwrap();
    process.drops.close(open, Ending::WithoutReservations).await.unwrap();
    let late = process.join(open, 2).await.unwrap_err();
    assert_eq!(late.code(), base::Code::FailedPrecondition);
    let unknown = drops::DropId::generate();
    assert!(matches!(process.join(unknown, 1).await, Err(Error::NoSuchDrop(_))));
    assert!(matches!(process.room.standing(unknown, user(1)).await, Err(Error::NoSuchDrop(_))));
}

async fn positions_are_known_from_the_first_question_on(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=9 {
        process.join(drop, player).await.unwrap();
    }
    let standing = async |player| process.room.standing(drop, user(player)).await.unwrap();
    assert_eq!(process.line.epoch(drop).await.unwrap(), None, "nobody has filled the line of the new drop");
    let Standing::Waiting(waiting) = standing(5).await else { panic!("does not wait") };
    assert_eq!(waiting.position, Some(InLine { ahead: 4, waiting: 9 }));
    assert_eq!(process.room.reconcile().await.unwrap(), drops::Reconciled::default(), "it is right");
    assert_eq!(waiting.wait, None, "no cycle has measured a pace");
    assert_eq!(process.cycle(drop).await, [1, 2]);
    assert!(matches!(standing(1).await, Standing::Entered(_)));
    assert_eq!(standing(77).await, Standing::NotJoined);
    // Another process has not remembered the pace of before.
    let other = crate::Room::new(
        process.drops.clone(),
        process.line.clone(),
        crate::RoomMetrics::new(&mut crate::Registry::default()),
    );
    let Standing::Waiting(waiting) = other.standing(drop, user(5)).await.unwrap() else {
        panic!("does not wait")
    };
    assert_eq!(waiting.position, Some(InLine { ahead: 2, waiting: 7 }));
    assert!(waiting.wait.is_some(), "a cycle has measured the pace");
}

async fn many_first_questions_fill_the_line_once(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    let mut registry = crate::Registry::default();
    let room =
        crate::Room::new(process.drops.clone(), process.line.clone(), crate::RoomMetrics::new(&mut registry));
    // Each as the player's page does it: join, then look.
    let players = (1..=30).map(|player| {
        let room = room.clone();
        tokio::spawn(async move {
            room.join(drop, join(player)).await.unwrap();
            room.standing(drop, user(player)).await.unwrap()
        })
    });
    for standing in players.collect::<Vec<_>>() {
        let Standing::Waiting(waiting) = standing.await.unwrap() else { panic!("does not wait") };
        assert!(waiting.position.is_some(), "a position is unknown");
    }
    assert_eq!(process.in_line(drop).await, process.waiting(drop).await);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("\ndrops_line_rebuilds_total 1\n"), "{text}");
}

async fn who_joins_after_the_admission_ended_is_last(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    for player in 1..=3 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    assert_eq!(process.cycle(drop).await, [1]);
    let before = process.admission(drop, 1).await;
    process.pass_admissions(drop).await;
    // No cycle has marked the end yet.
    assert_eq!(process.room.standing(drop, user(1)).await.unwrap(), Standing::Expired);
    assert!(matches!(process.room.leave(drop, user(1)).await, Err(Error::NotInLine)));
    let again = process.join(drop, 1).await.unwrap();
    assert_eq!((again.state, again.number), (EntryState::Waiting, 4));
    assert_ne!(again.admission, before, "an admission is used once");
    assert_eq!(process.waiting(drop).await, [2, 3, 1]);
    assert_eq!(process.in_line(drop).await, [2, 3, 1]);
    let ended = process.events("playhouse.drop.admission_expired.v1").await;
    assert_eq!(ended.len(), 1, "the end of the admission is an event all the same");
    assert_eq!(ended[0]["admission_id"], before.to_string());
    assert_eq!(process.cycle(drop).await, [2]);
    assert_eq!(process.events("playhouse.drop.admission_expired.v1").await.len(), 1, "once");
}

async fn a_player_sees_all_places_at_once(process: &Process) {
    let mut drops = Vec::new();
    for _ in 0..4 {
        drops.push(process.open_drop(terms(1, 10)).await);
    }
    for drop in &drops {
        process.join(drop.id, 1).await.unwrap();
        process.join(drop.id, 2).await.unwrap();
    }
    process.cycle(drops[1].id).await;
    process.room.leave(drops[2].id, user(1)).await.unwrap();
    process.cycle(drops[3].id).await;
    process.pass_admissions(drops[3].id).await;
    process.drops.pause(drops[0].id).await.unwrap();
    let mut places = process.room.of_player(user(1)).await.unwrap();
    places.sort_by_key(|place| place.drop);
    let found: Vec<_> =
        places.iter().map(|place| (place.drop, place.drop_name.clone(), place.drop_state)).collect();
    let expected = [(&drops[0], DropState::Paused), (&drops[1], DropState::Open)];
    assert_eq!(found, expected.map(|(drop, state)| (drop.id, drop.name.clone(), state)));
    assert!(matches!(places[0].standing, Standing::Waiting(waiting) if waiting.position.is_none()));
    let Standing::Entered(admission) = &places[1].standing else { panic!("{places:?}") };
    assert_eq!(admission.id, process.admission(drops[1].id, 1).await);
    assert!(process.room.of_player(user(77)).await.unwrap().is_empty());
}
