//! Admission cycles: order, limits, expiry, arrivals.

use std::time::Duration;

use drops::model::EntryState;
use drops::{AdmissionId, EndMode, Error, PlayerStatus};

use crate::{Process, on_all_backends, terms, user};

on_all_backends!(
    players_are_admitted_in_order_and_notified,
    batch_and_capacity_limit_admissions,
    admission_expires,
    arrival_extends_the_admission,
    no_player_is_admitted_while_everyone_waits,
    cycle_compensates_for_no_shows,
    admissions_expire_after_the_drop_ended,
    large_cycle_is_one_transaction,
    late_cycle_does_not_delay_the_next,
    clock_that_was_set_back_does_not_stop_admissions,
);

async fn players_are_admitted_in_order_and_notified(process: &Process) {
    let drop = process.open_drop(terms(3, 100)).await.id;
    for player in 1..=5 {
        process.join(drop, player).await.unwrap();
    }
    process.end_period(drop).await;
    let report = process.room.tick().await.unwrap();
    assert_eq!((report.cycles, report.admitted), (1, 3));
    assert_eq!(process.room.tick().await.unwrap().cycles, 0, "the period is not over");
    assert_eq!(process.in_state(drop, EntryState::Entered).await, [1, 2, 3]);
    assert_eq!(process.in_line(drop).await, [4, 5]);
    let events = process.events("playhouse.drop.admitted.v1").await;
    let notified: Vec<_> = events.iter().map(|event| event["user_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(notified, [1, 2, 3].map(|player| user(player).to_string()));
    let admission = process.admission(drop, 2).await;
    assert_eq!(events[1]["admission_id"], admission.to_string());
}

async fn batch_and_capacity_limit_admissions(process: &Process) {
    let drop = process.open_drop(terms(4, 6)).await.id;
    for player in 1..=10 {
        process.join(drop, player).await.unwrap();
    }
    assert_eq!(process.cycle(drop).await, [1, 2, 3, 4], "a full batch");
    assert_eq!(process.cycle(drop).await, [5, 6], "up to the capacity");
    assert_eq!(process.cycle(drop).await, [0_u128; 0]);
    process.room.leave(drop, user(2)).await.unwrap();
    assert_eq!(process.cycle(drop).await, [7], "a player who leaves makes room");
}

async fn admission_expires(process: &Process) {
    let drop = process.open_drop(terms(2, 2)).await.id;
    for player in 1..=3 {
        process.join(drop, player).await.unwrap();
    }
    process.cycle(drop).await;
    let admission = process.admission(drop, 1).await;
    let unused = process.admission(drop, 2).await;
    process.room.arrive(drop, user(1), admission).await.unwrap();
    process.expire_admissions(drop).await;
    let late = process.room.arrive(drop, user(2), unused).await;
    assert!(matches!(late, Err(Error::NotAdmitted)), "{late:?}");
    assert_eq!(process.cycle(drop).await, [3], "there is room again");
    assert_eq!(process.room.status(drop, user(1)).await.unwrap(), PlayerStatus::Expired);
    let events = process.events("playhouse.drop.admission_expired.v1").await;
    let arrived: Vec<_> = events.iter().map(|event| event["arrived"].as_bool().unwrap()).collect();
    assert_eq!(arrived, [true, false]);
    let again = process.join(drop, 1).await.unwrap();
    assert_eq!((again.number, again.arrived_at), (4, None), "joining again puts the player at the end");
    assert_ne!(again.admission, admission, "an admission is used once");
}

async fn arrival_extends_the_admission(process: &Process) {
    let drop = process.open_drop(terms(2, 2)).await.id;
    process.join(drop, 1).await.unwrap();
    process.cycle(drop).await;
    let PlayerStatus::Entered(before) = process.room.status(drop, user(1)).await.unwrap() else {
        panic!("not inside")
    };
    assert_eq!(before.arrived_at, None);
    let wrong = process.room.arrive(drop, user(1), AdmissionId::generate()).await;
    assert!(matches!(wrong, Err(Error::NotAdmitted)), "not the player's admission: {wrong:?}");
    let after = process.room.arrive(drop, user(1), before.id).await.unwrap();
    assert_eq!(after.expires_at.distance(before.expires_at), Duration::from_secs(540));
    assert_eq!(
        process.room.arrive(drop, user(1), before.id).await.unwrap(),
        after,
        "a repeated arrival changes nothing"
    );
}

async fn no_player_is_admitted_while_everyone_waits(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    for player in 1..=3 {
        process.join(drop, player).await.unwrap();
    }
    process.cycle(drop).await;
    process.drops.everyone_waits(drop, true).await.unwrap();
    assert_eq!(process.cycle(drop).await, [0_u128; 0]);
    assert!(matches!(process.room.status(drop, user(1)).await.unwrap(), PlayerStatus::Entered(_)));
    process.drops.everyone_waits(drop, false).await.unwrap();
    process.drops.pause(drop).await.unwrap();
    assert_eq!(process.cycle(drop).await, [0_u128; 0]);
    process.drops.resume(drop).await.unwrap();
    assert_eq!(process.cycle(drop).await, [2]);
}

async fn cycle_compensates_for_no_shows(process: &Process) {
    let drop = process.open_drop(terms(10, 1_000)).await.id;
    for player in 1..=60 {
        process.join(drop, player).await.unwrap();
    }
    let admitted = process.cycle(drop).await;
    for player in &admitted[..5] {
        process.room.arrive(drop, user(*player), process.admission(drop, *player).await).await.unwrap();
    }
    // The time to arrive is over, and the controller has not learned of it yet: half of the players arrived.
    process.execute("UPDATE drop_entries SET entered_at = 1 WHERE state = 1 AND drop_id = ?", drop).await;
    process
        .execute(
            r#"UPDATE drop_heads SET controller =
                '{"version":"1","controller":{"arrived":0,"missed":0,"carry":0},"known_until":0}' WHERE drop_id = ?"#,
            drop,
        )
        .await;
    assert_eq!(process.cycle(drop).await.len(), 20, "twice as many are admitted so that ten arrive");
}

async fn admissions_expire_after_the_drop_ended(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    for player in 1..=2 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    process.cycle(drop).await;
    process.drops.close(drop, EndMode::UnlessReserved).await.unwrap();
    process.expire_admissions(drop).await;
    process.end_period(drop).await;
    let report = process.room.tick().await.unwrap();
    assert_eq!((report.admitted, report.expired), (0, 1));
    assert_eq!(process.room.tick().await.unwrap().cycles, 0);
    process.room.reconcile().await.unwrap();
    assert_eq!(process.line.len(drop).await.unwrap(), 0, "the line of an ended drop is removed");
    process.room.end_waiting().await.unwrap();
    assert_eq!(process.in_state(drop, EntryState::Left).await, [2], "the rows stay");
}

async fn large_cycle_is_one_transaction(process: &Process) {
    let drop = process.open_drop(terms(1_200, 5_000)).await.id;
    let joins: Vec<_> = (1..=1_500)
        .map(|player| {
            let process = process.clone();
            tokio::spawn(async move { process.join(drop, player).await.unwrap().number })
        })
        .collect();
    for join in joins {
        join.await.unwrap();
    }
    let order = process.waiting(drop).await;
    assert_eq!(process.cycle(drop).await, order[..1_200]);
    assert_eq!(process.events("playhouse.drop.admitted.v1").await.len(), 1_200);
    assert_eq!(process.in_line(drop).await, order[1_200..]);
}

async fn late_cycle_does_not_delay_the_next(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    process.cycle(drop).await;
    // The cycle is 2 s late: the next one is due 1 s after it.
    let now = process.db.now().await.unwrap().as_millis();
    process.set_cycled_at(drop, now - 5_000).await;
    process.room.cycle(drop).await.unwrap().unwrap();
    let due = process.cycled_at(drop).await + 3_000 - now;
    assert!((900..=1_100).contains(&due), "{due}");
    // Missed cycles are skipped.
    process.set_cycled_at(drop, now - 60_000).await;
    process.room.cycle(drop).await.unwrap().unwrap();
    assert_eq!(process.room.cycle(drop).await.unwrap(), None);
    assert!(process.cycled_at(drop).await >= now);
}

async fn clock_that_was_set_back_does_not_stop_admissions(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    process.join(drop, 1).await.unwrap();
    let now = process.db.now().await.unwrap().as_millis();
    process.set_cycled_at(drop, now + 3_600_000).await;
    assert_eq!(process.room.tick().await.unwrap().admitted, 1);
    assert_eq!(process.room.tick().await.unwrap().cycles, 0, "by the new clock the period is not over");
}
