//! Creating, opening, changing and ending drops.

use std::time::Duration;

use base::Timestamp;
use base::error::Coded;
use drops::model::{DropState, EndReason, EntryState, LineOrder, WhenSoldOut};
use drops::{EndMode, Error, ListDrops, NewDrop, PaceChange};

use crate::{Process, join, on_all_backends, terms, user};

on_all_backends!(
    every_change_is_published,
    seed_is_secret_until_the_drop_opens,
    invalid_changes_have_no_effect,
    due_drops_open_and_close,
    new_stock_has_a_ledger_entry,
    drop_with_reserved_units_closes_only_by_force,
    terms_that_players_rely_on_are_fixed,
    names_with_surrounding_spaces_are_refused,
    open_drop_can_change_its_pace_and_message,
    sold_out_drop_closes,
    unreadable_drop_does_not_delay_the_others,
);

async fn every_change_is_published(process: &Process) {
    let drops = &process.drops;
    let id = process.draft(terms(1, 1)).await.id;
    drops.schedule(id, Timestamp::from_millis(i64::MAX / 2), None).await.unwrap();
    drops.open(id).await.unwrap();
    drops.pause(id).await.unwrap();
    drops.resume(id).await.unwrap();
    drops.everyone_waits(id, true).await.unwrap();
    let closed = drops.close(id, EndMode::UnlessReserved).await.unwrap();
    assert_eq!((closed.state, closed.version), (DropState::Closed, 7));
    let mut versions = Vec::new();
    for kind in ["scheduled", "opened", "paused", "resumed", "changed", "closed"] {
        let events = process.events(&format!("playhouse.drop.{kind}.v1")).await;
        assert_eq!(events.len(), 1, "{kind}");
        versions.push(events[0]["version"].as_i64().unwrap());
    }
    assert_eq!(versions, [2, 3, 4, 5, 6, 7]);
    let cancelled = process.draft(terms(1, 1)).await.id;
    drops.cancel(cancelled, EndMode::UnlessReserved).await.unwrap();
    assert_eq!(process.events("playhouse.drop.cancelled.v1").await.len(), 1);
    let all = drops.list(ListDrops { state: None, after: None, limit: 10 }).await.unwrap();
    assert_eq!(all.iter().map(|drop| drop.id).collect::<Vec<_>>(), [id, cancelled]);
    let open = ListDrops { state: Some(DropState::Open), after: None, limit: 10 };
    assert!(drops.list(open).await.unwrap().is_empty());
}

async fn seed_is_secret_until_the_drop_opens(process: &Process) {
    let mut shuffled = terms(1, 1);
    shuffled.order = LineOrder::Shuffle;
    let draft = process.draft(shuffled).await;
    assert_eq!(draft.published_seed(), None);
    process.drops.schedule(draft.id, Timestamp::from_millis(i64::MAX / 2), None).await.unwrap();
    let opened = process.drops.open(draft.id).await.unwrap();
    assert_eq!(opened.published_seed().unwrap().hash(), draft.seed_hash());
    let before = &process.events("playhouse.drop.scheduled.v1").await[0];
    let after = &process.events("playhouse.drop.opened.v1").await[0];
    assert_eq!((&before["seed"], &before["seed_hash"]), (&serde_json::Value::Null, &after["seed_hash"]));
    assert_eq!(after["seed"], opened.published_seed().unwrap().to_hexadecimal());
    let other = process.draft(terms(1, 1)).await;
    assert_ne!(other.seed_hash(), draft.seed_hash());
}

async fn invalid_changes_have_no_effect(process: &Process) {
    let drops = &process.drops;
    let draft = process.draft(terms(1, 1)).await;
    for wrong in [
        drops.pause(draft.id).await,
        drops.resume(draft.id).await,
        drops.close(draft.id, EndMode::Forced).await,
    ] {
        assert!(matches!(wrong, Err(Error::WrongState { state: DropState::Draft, .. })), "{wrong:?}");
    }
    let backwards = Timestamp::from_millis(5);
    let wrong = drops.schedule(draft.id, backwards, Some(backwards)).await;
    assert!(matches!(wrong, Err(Error::Invalid { field: "closes_at", .. })), "{wrong:?}");
    let unknown = drops::DropId::generate();
    assert!(matches!(drops.open(unknown).await, Err(Error::NoSuchDrop(id)) if id == unknown));
    let again = NewDrop {
        name: draft.name.clone(),
        resource: "sword".to_owned(),
        terms: terms(1, 1),
        stock: 1,
        actor: "test".to_owned(),
    };
    assert!(matches!(drops.create(&again).await, Err(Error::NameTaken(_))));
    let wrong = drops.create(&NewDrop { stock: -1, ..again.clone() }).await.unwrap_err();
    assert_eq!(wrong.code(), base::Code::InvalidArgument);
    let wrong = drops.create(&NewDrop { terms: terms(0, 0), ..again }).await.unwrap_err();
    let Error::Terms(mistakes) = &wrong else { panic!("{wrong:?}") };
    assert_eq!(mistakes.0.len(), 2);
    assert_eq!(drops.get(draft.id).await.unwrap().version, 1);
}

async fn due_drops_open_and_close(process: &Process) {
    let drops = &process.drops;
    let (due, later) = (process.draft(terms(1, 1)).await.id, process.draft(terms(1, 1)).await.id);
    let (past, future) = (Timestamp::from_millis(1), Timestamp::from_millis(i64::MAX / 2));
    drops.schedule(due, past, Some(Timestamp::from_millis(2))).await.unwrap();
    drops.schedule(later, future, None).await.unwrap();
    assert_eq!(drops.open_due().await.unwrap(), 1);
    assert_eq!(drops.open_due().await.unwrap(), 0);
    assert_eq!(drops.get(due).await.unwrap().state, DropState::Open);
    assert_eq!(drops.close_due().await.unwrap(), 1);
    assert_eq!(drops.get(due).await.unwrap().state, DropState::Closed);
    assert_eq!(drops.get(later).await.unwrap().state, DropState::Scheduled);
}

async fn new_stock_has_a_ledger_entry(process: &Process) {
    let drop = process.draft(terms(1, 1)).await;
    let mut connection = process.db.connection().await.unwrap();
    let stock: (i64, i64, i64) = db::on!(connection, raw => {
        sqlx::query_as("SELECT initial, available, version FROM drop_stock WHERE drop_id = ?")
            .bind(&drop.id.as_uuid().as_bytes()[..])
            .fetch_one(raw).await.unwrap()
    });
    let entry: (i64, i64, String) = db::on!(connection, raw => {
        sqlx::query_as("SELECT version, available, actor FROM drop_stock_ledger WHERE drop_id = ?")
            .bind(&drop.id.as_uuid().as_bytes()[..])
            .fetch_one(raw).await.unwrap()
    });
    assert_eq!((stock, entry), ((10, 10, 1), (1, 10, "test".to_owned())));
}

async fn drop_with_reserved_units_closes_only_by_force(process: &Process) {
    let id = process.open_drop(terms(1, 1)).await.id;
    process.execute("UPDATE drop_stock SET available = 8, reserved = 2 WHERE drop_id = ?", id).await;
    let refused = process.drops.close(id, EndMode::UnlessReserved).await;
    assert!(matches!(refused, Err(Error::OpenReservations(2))), "{refused:?}");
    assert_eq!(process.drops.get(id).await.unwrap().state, DropState::Open);
    assert_eq!(process.drops.close(id, EndMode::Forced).await.unwrap().state, DropState::Closed);
}

async fn terms_that_players_rely_on_are_fixed(process: &Process) {
    let drops = &process.drops;
    let id = process.open_drop(terms(1, 1)).await.id;
    process.room.join(id, join(1)).await.unwrap();
    let mut more = terms(5, 50);
    more.message = Some("soon".to_owned());
    assert_eq!(drops.change_terms(id, &more).await.unwrap().terms, more);
    let mut changed = [more.clone(), more.clone(), more.clone(), more.clone()];
    changed[0].order = LineOrder::Shuffle;
    changed[1].lanes = vec!["gold".to_owned()];
    changed[2].price.amount += 1;
    changed[3].per_player += 1;
    for (terms, wanted) in changed.iter().zip(["order", "lanes", "price", "per_player"]) {
        let refused = drops.change_terms(id, terms).await;
        assert!(matches!(refused, Err(Error::Fixed { field, .. }) if field == wanted), "{refused:?}");
    }
}

async fn names_with_surrounding_spaces_are_refused(process: &Process) {
    let create = |name: &str, resource: &str, actor: &str| NewDrop {
        name: name.to_owned(),
        resource: resource.to_owned(),
        terms: terms(1, 1),
        stock: 1,
        actor: actor.to_owned(),
    };
    for (wrong, field) in [
        (create("drop ", "sword", "test"), "name"),
        (create("drop", " sword", "test"), "resource"),
        (create("drop", "sword ", "test"), "resource"),
        (create("drop", "sword", "\ttest"), "actor"),
        (create("drop", "", "test"), "resource"),
    ] {
        let refused = process.drops.create(&wrong).await;
        assert!(matches!(refused, Err(Error::Invalid { field: found, .. }) if found == field), "{refused:?}");
    }
    let mut laned = create("drop", "sword", "test");
    laned.terms.lanes = vec!["gold ".to_owned()];
    let refused = process.drops.create(&laned).await.unwrap_err();
    assert_eq!(refused.to_string(), "the terms are not valid: lanes must not begin or end with a space");
}

async fn open_drop_can_change_its_pace_and_message(process: &Process) {
    let drop = process.open_drop(terms(1, 10)).await.id;
    for player in 1..=9 {
        process.join(drop, player).await.unwrap();
    }
    assert_eq!(process.cycle(drop).await, [1]);
    let faster = PaceChange { batch: Some(3), ..PaceChange::default() };
    let changed = process.drops.change_pace(drop, faster).await.unwrap();
    assert_eq!((changed.terms.admission.batch, changed.terms.admission.capacity), (3, 10));
    assert_eq!(process.cycle(drop).await, [2, 3, 4], "the next cycle applies it");
    let smaller = PaceChange { capacity: Some(2), period: Some(Duration::from_secs(7)), batch: None };
    process.drops.change_pace(drop, smaller).await.unwrap();
    assert_eq!(process.cycle(drop).await, [0_u128; 0], "more players are inside than the new capacity");
    for player in 1..=3 {
        process.room.leave(drop, user(player)).await.unwrap();
    }
    assert_eq!(process.cycle(drop).await, [5], "up to the capacity");
    let wrong = process.drops.change_pace(drop, PaceChange { batch: Some(0), ..PaceChange::default() }).await;
    assert!(matches!(wrong, Err(Error::Terms(_))), "{wrong:?}");
    let changed = process.drops.set_message(drop, Some("Back at noon")).await.unwrap();
    assert_eq!(changed.terms.message.as_deref(), Some("Back at noon"));
    assert_eq!(changed.terms.admission.period, Duration::from_secs(7), "the pace is unchanged");
    let wrong = process.drops.set_message(drop, Some(&"x".repeat(1_001))).await;
    assert!(matches!(wrong, Err(Error::Terms(_))), "{wrong:?}");
    assert_eq!(process.drops.set_message(drop, None).await.unwrap().terms.message, None);
    assert_eq!(process.events("playhouse.drop.changed.v1").await.len(), 4);
    process.drops.close(drop, EndMode::UnlessReserved).await.unwrap();
    let late = process.drops.set_message(drop, Some("late")).await;
    assert!(matches!(late, Err(Error::WrongState { state: DropState::Closed, .. })), "{late:?}");
}

async fn sold_out_drop_closes(process: &Process) {
    let sold = process.open_drop(terms(1, 1)).await.id;
    let mut patient = terms(1, 1);
    patient.when_sold_out = WhenSoldOut::StayOpen;
    let patient = process.open_drop(patient).await.id;
    let reserved = process.open_drop(terms(1, 1)).await.id;
    assert_eq!(process.drops.close_due().await.unwrap(), 0);
    const SOLD: &str = "UPDATE drop_stock SET available = 0, sold = 10 WHERE drop_id = ?";
    process.execute(SOLD, sold).await;
    process.execute(SOLD, patient).await;
    process
        .execute("UPDATE drop_stock SET available = 0, reserved = 1, sold = 9 WHERE drop_id = ?", reserved)
        .await;
    assert_eq!(process.drops.close_due().await.unwrap(), 1);
    let closed = process.drops.get(sold).await.unwrap();
    assert_eq!((closed.state, closed.end_reason), (DropState::Closed, Some(EndReason::SoldOut)));
    assert_eq!(process.events("playhouse.drop.closed.v1").await[0]["end_reason"], "SOLD_OUT");
    for open in [patient, reserved] {
        assert_eq!(process.drops.get(open).await.unwrap().state, DropState::Open);
    }
}

async fn unreadable_drop_does_not_delay_the_others(process: &Process) {
    let (past, end) = (Timestamp::from_millis(1), Timestamp::from_millis(2));
    let mut drops = Vec::new();
    for _ in 0..3 {
        let id = process.draft(terms(2, 10)).await.id;
        process.drops.schedule(id, past, Some(end)).await.unwrap();
        process.join(id, 1).await.unwrap();
        drops.push(id);
    }
    process.corrupt(drops[0]).await;
    assert_eq!(process.drops.open_due().await.unwrap_err().code(), base::Code::Internal);
    for id in &drops[1..] {
        assert_eq!(process.drops.get(*id).await.unwrap().state, DropState::Open);
    }
    // The unreadable drop comes first in every list of open drops, too.
    process.execute("UPDATE drops SET state = 2 WHERE drop_id = ?", drops[0]).await;
    process.execute("UPDATE drop_entries SET place = -1 WHERE drop_id = ?", drops[0]).await;
    assert!(process.room.reconcile().await.is_err());
    for id in &drops[1..] {
        assert!(process.line.epoch(*id).await.unwrap().is_some(), "the line of the others was rebuilt");
    }
    assert!(process.room.tick().await.is_err());
    for id in &drops[1..] {
        assert_eq!(process.in_state(*id, EntryState::Entered).await, [1]);
    }
    assert!(process.drops.close_due().await.is_err());
    for id in &drops[1..] {
        assert_eq!(process.drops.get(*id).await.unwrap().state, DropState::Closed);
    }
}
