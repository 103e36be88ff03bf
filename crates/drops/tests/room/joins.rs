//! Joins, leaves and positions.

use base::Timestamp;
use base::error::Coded;
use drops::model::{Audience, DropState, EntryState, LineOrder, Phase};
use drops::{Eligibility, EndMode, Error, Join, JoinRecord, PlayerStatus, Position, verify_order};

use crate::{Process, join, on_all_backends, owning, terms, user};

on_all_backends!(
    joining_again_changes_nothing,
    leaving_and_joining_again_goes_to_the_end,
    concurrent_joins_of_one_player_get_one_place,
    only_eligible_players_join,
    priority_lanes_come_first,
    shuffle_can_be_verified,
    join_needs_a_joinable_drop,
    first_position_query_fills_the_line,
    concurrent_position_queries_fill_the_line_once,
    joining_after_the_admission_expired_goes_to_the_end,
    player_sees_all_their_drops,
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

async fn leaving_and_joining_again_goes_to_the_end(process: &Process) {
    let drop = process.open_drop(terms(10, 10)).await.id;
    for player in 1..=3 {
        process.join(drop, player).await.unwrap();
    }
    process.room.leave(drop, user(1)).await.unwrap();
    assert_eq!(process.room.status(drop, user(1)).await.unwrap(), PlayerStatus::Left);
    let again = process.room.leave(drop, user(1)).await;
    assert!(matches!(again, Err(Error::NotInLine)), "{again:?}");
    let never = process.room.leave(drop, user(9)).await;
    assert!(matches!(never, Err(Error::NotInLine)), "{never:?}");
    process.join(drop, 1).await.unwrap();
    assert_eq!(process.waiting(drop).await, [2, 3, 1]);
    assert_eq!(process.in_line(drop).await, [2, 3, 1]);
}

async fn concurrent_joins_of_one_player_get_one_place(process: &Process) {
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
    assert_eq!(numbers, 5, "retries do not consume numbers");
}

async fn only_eligible_players_join(process: &Process) {
    let mut gated = terms(10, 10);
    gated.who = Audience::Owns("founder".to_owned());
    let drop = process.open_drop(gated).await.id;
    let refused = process.join(drop, 1).await.unwrap_err();
    assert!(matches!(refused, Error::NotEligible), "{refused:?}");
    assert_eq!(refused.code(), base::Code::PermissionDenied);
    process.room.join(drop, owning(2, &["founder"])).await.unwrap();
    let mut testers = terms(10, 10);
    testers.who = Audience::Role("tester".to_owned());
    let drop = process.open_drop(testers).await.id;
    assert!(matches!(process.room.join(drop, owning(1, &["tester"])).await, Err(Error::NotEligible)));
    let eligibility = Eligibility { roles: vec!["tester".to_owned()], owns: Vec::new() };
    process.room.join(drop, Join { eligibility, ..join(2) }).await.unwrap();
    assert_eq!(process.waiting(drop).await, [2]);
}

async fn priority_lanes_come_first(process: &Process) {
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

async fn shuffle_can_be_verified(process: &Process) {
    let mut shuffled = terms(100, 100);
    shuffled.order = LineOrder::Shuffle;
    let id = process.draft(shuffled).await.id;
    process.drops.schedule(id, Timestamp::from_millis(i64::MAX / 2), None).await.unwrap();
    let mut entries = Vec::new();
    for player in 1..=20 {
        entries.push(process.join(id, player).await.unwrap());
    }
    let before = entries[4].clone();
    process.room.leave(id, user(5)).await.unwrap();
    let again = process.join(id, 5).await.unwrap();
    assert_eq!(again.place, before.place, "leaving and joining again does not change the shuffled place");
    entries[4] = again;
    let drop = process.drops.open(id).await.unwrap();
    for player in 21..=25 {
        entries.push(process.join(id, player).await.unwrap());
    }
    let late: Vec<_> = entries[20..].iter().map(|entry| entry.place.phase()).collect();
    assert_eq!(late, [Phase::Numbered; 5]);
    let order = process.cycle(id).await;
    assert_eq!(order[20..], [21, 22, 23, 24, 25], "late players are behind the shuffled ones");
    assert_ne!(
        order[..20],
        (1..=20).collect::<Vec<_>>(),
        "a shuffle that changes nothing has a chance of 1 in 20!"
    );
    let joined: Vec<JoinRecord> = entries
        .iter()
        .map(|entry| JoinRecord { user: entry.user, number: entry.number, place: entry.place })
        .collect();
    assert_eq!(verify_order(LineOrder::Shuffle, 0, &drop.published_seed().unwrap(), &joined), []);
}

async fn join_needs_a_joinable_drop(process: &Process) {
    let draft = process.draft(terms(1, 1)).await.id;
    assert!(matches!(process.join(draft, 1).await, Err(Error::NotJoinable(_))));
    let open = process.open_drop(terms(1, 1)).await.id;
    process.drops.pause(open).await.unwrap();
    process.join(open, 1).await.unwrap();
    process.drops.close(open, EndMode::UnlessReserved).await.unwrap();
    let late = process.join(open, 2).await.unwrap_err();
    assert_eq!(late.code(), base::Code::FailedPrecondition);
    let unknown = drops::DropId::generate();
    assert!(matches!(process.join(unknown, 1).await, Err(Error::NoSuchDrop(_))));
    assert!(matches!(process.room.status(unknown, user(1)).await, Err(Error::NoSuchDrop(_))));
}

async fn first_position_query_fills_the_line(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=9 {
        process.join(drop, player).await.unwrap();
    }
    let status = async |player| process.room.status(drop, user(player)).await.unwrap();
    assert_eq!(process.line.epoch(drop).await.unwrap(), None, "the line of the new drop is not filled yet");
    let PlayerStatus::Waiting(waiting) = status(5).await else { panic!("does not wait") };
    assert_eq!(waiting.position, Some(Position { ahead: 4, waiting: 9 }));
    assert_eq!(
        process.room.reconcile().await.unwrap(),
        drops::ReconcileReport::default(),
        "nothing has to be repaired"
    );
    assert_eq!(waiting.wait, None, "no cycle has measured a pace");
    assert_eq!(process.cycle(drop).await, [1, 2]);
    assert!(matches!(status(1).await, PlayerStatus::Entered(_)));
    assert_eq!(status(77).await, PlayerStatus::NotJoined);
    // A new room has an empty cache and reads the measured pace.
    let other = crate::Room::new(
        process.drops.clone(),
        process.line.clone(),
        crate::RoomMetrics::new(&mut crate::Registry::default()),
    );
    let PlayerStatus::Waiting(waiting) = other.status(drop, user(5)).await.unwrap() else {
        panic!("does not wait")
    };
    assert_eq!(waiting.position, Some(Position { ahead: 2, waiting: 7 }));
    assert!(waiting.wait.is_some(), "a cycle has measured the pace");
}

async fn concurrent_position_queries_fill_the_line_once(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    let mut registry = crate::Registry::default();
    let room =
        crate::Room::new(process.drops.clone(), process.line.clone(), crate::RoomMetrics::new(&mut registry));
    // Each player joins and then reads their status, as the player's page does.
    let players = (1..=30).map(|player| {
        let room = room.clone();
        tokio::spawn(async move {
            room.join(drop, join(player)).await.unwrap();
            room.status(drop, user(player)).await.unwrap()
        })
    });
    for status in players.collect::<Vec<_>>() {
        let PlayerStatus::Waiting(waiting) = status.await.unwrap() else { panic!("does not wait") };
        assert!(waiting.position.is_some(), "the position is known");
    }
    assert_eq!(process.in_line(drop).await, process.waiting(drop).await);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("\nplayhouse_drops_line_rebuilds_total 1\n"), "{text}");
}

async fn joining_after_the_admission_expired_goes_to_the_end(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    for player in 1..=3 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    assert_eq!(process.cycle(drop).await, [1]);
    let before = process.admission(drop, 1).await;
    process.expire_admissions(drop).await;
    // No cycle has marked it as expired yet.
    assert_eq!(process.room.status(drop, user(1)).await.unwrap(), PlayerStatus::Expired);
    assert!(matches!(process.room.leave(drop, user(1)).await, Err(Error::NotInLine)));
    let again = process.join(drop, 1).await.unwrap();
    assert_eq!((again.state, again.number), (EntryState::Waiting, 4));
    assert_ne!(again.admission, before, "an admission is used once");
    assert_eq!(process.waiting(drop).await, [2, 3, 1]);
    assert_eq!(process.in_line(drop).await, [2, 3, 1]);
    let ended = process.events("playhouse.drop.admission_expired.v1").await;
    assert_eq!(ended.len(), 1, "the expiry is published even though no cycle marked it");
    assert_eq!(ended[0]["admission_id"], before.to_string());
    assert_eq!(process.cycle(drop).await, [2]);
    assert_eq!(
        process.events("playhouse.drop.admission_expired.v1").await.len(),
        1,
        "the expiry is published once"
    );
}

async fn player_sees_all_their_drops(process: &Process) {
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
    process.expire_admissions(drops[3].id).await;
    process.drops.pause(drops[0].id).await.unwrap();
    let mut drops_of_player = process.room.drops_of_player(user(1)).await.unwrap();
    drops_of_player.sort_by_key(|found| found.drop);
    let found: Vec<_> =
        drops_of_player.iter().map(|found| (found.drop, found.drop_name.clone(), found.drop_state)).collect();
    let expected = [(&drops[0], DropState::Paused), (&drops[1], DropState::Open)];
    assert_eq!(found, expected.map(|(drop, state)| (drop.id, drop.name.clone(), state)));
    assert!(
        matches!(drops_of_player[0].status, PlayerStatus::Waiting(waiting) if waiting.position.is_none())
    );
    let PlayerStatus::Entered(admission) = &drops_of_player[1].status else { panic!("{drops_of_player:?}") };
    assert_eq!(admission.id, process.admission(drops[1].id, 1).await);
    assert!(process.room.drops_of_player(user(77)).await.unwrap().is_empty());
}
