//! Preparing, opening and ending drops.

use base::Timestamp;
use base::error::Coded;
use drops::model::{DropState, Order};
use drops::{Create, Ending, Error, ListDrops};

use crate::{Process, join, on_all_stages, terms};

on_all_stages!(
    every_change_is_an_event,
    the_seed_is_secret_until_the_opening,
    wrong_changes_have_no_effect,
    due_drops_open_and_close_by_themselves,
    a_stock_begins_with_its_ledger,
    reserved_units_keep_a_drop_open,
    what_players_rely_on_is_fixed,
);

async fn every_change_is_an_event(process: &Process) {
    let drops = &process.drops;
    let id = process.draft(terms(1, 1)).await.id;
    drops.schedule(id, Timestamp::from_millis(i64::MAX / 2), None).await.unwrap();
    drops.open(id).await.unwrap();
    drops.pause(id).await.unwrap();
    drops.resume(id).await.unwrap();
    drops.everyone_waits(id, true).await.unwrap();
    let closed = drops.close(id, Ending::WithoutReservations).await.unwrap();
    assert_eq!((closed.state, closed.version), (DropState::Closed, 7));
    let mut versions = Vec::new();
    for kind in ["scheduled", "opened", "paused", "resumed", "changed", "closed"] {
        let events = process.events(&format!("playhouse.drop.{kind}.v1")).await;
        assert_eq!(events.len(), 1, "{kind}");
        versions.push(events[0]["version"].as_i64().unwrap());
    }
    assert_eq!(versions, [2, 3, 4, 5, 6, 7]);
    let given_up = process.draft(terms(1, 1)).await.id;
    drops.cancel(given_up, Ending::WithoutReservations).await.unwrap();
    assert_eq!(process.events("playhouse.drop.cancelled.v1").await.len(), 1);
    let all = drops.list(ListDrops { state: None, after: None, limit: 10 }).await.unwrap();
    assert_eq!(all.iter().map(|drop| drop.id).collect::<Vec<_>>(), [id, given_up]);
    let open = ListDrops { state: Some(DropState::Open), after: None, limit: 10 };
    assert!(drops.list(open).await.unwrap().is_empty());
}

async fn the_seed_is_secret_until_the_opening(process: &Process) {
    let mut shuffled = terms(1, 1);
    shuffled.order = Order::Shuffle;
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

async fn wrong_changes_have_no_effect(process: &Process) {
    let drops = &process.drops;
    let draft = process.draft(terms(1, 1)).await;
    for wrong in [
        drops.pause(draft.id).await,
        drops.resume(draft.id).await,
        drops.close(draft.id, Ending::Forced).await,
    ] {
        assert!(matches!(wrong, Err(Error::WrongState { state: DropState::Draft, .. })), "{wrong:?}");
    }
    let backwards = Timestamp::from_millis(5);
    let wrong = drops.schedule(draft.id, backwards, Some(backwards)).await;
    assert!(matches!(wrong, Err(Error::Invalid { field: "closes_at", .. })), "{wrong:?}");
    let unknown = drops::DropId::generate();
    assert!(matches!(drops.open(unknown).await, Err(Error::NoSuchDrop(id)) if id == unknown));
    let again = Create {
        name: draft.name.clone(),
        resource: "sword".to_owned(),
        terms: terms(1, 1),
        stock: 1,
        actor: "test".to_owned(),
    };
    assert!(matches!(drops.create(&again).await, Err(Error::NameTaken(_))));
    let wrong = drops.create(&Create { stock: -1, ..again.clone() }).await.unwrap_err();
    assert_eq!(wrong.code(), base::Code::InvalidArgument);
    let wrong = drops.create(&Create { terms: terms(0, 0), ..again }).await.unwrap_err();
    let Error::Terms(mistakes) = &wrong else { panic!("{wrong:?}") };
    assert_eq!(mistakes.0.len(), 2);
    assert_eq!(drops.get(draft.id).await.unwrap().version, 1);
}

async fn due_drops_open_and_close_by_themselves(process: &Process) {
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

async fn a_stock_begins_with_its_ledger(process: &Process) {
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

async fn reserved_units_keep_a_drop_open(process: &Process) {
    let id = process.open_drop(terms(1, 1)).await.id;
    process.execute("UPDATE drop_stock SET available = 8, reserved = 2 WHERE drop_id = ?", id).await;
    let refused = process.drops.close(id, Ending::WithoutReservations).await;
    assert!(matches!(refused, Err(Error::OpenReservations(2))), "{refused:?}");
    assert_eq!(process.drops.get(id).await.unwrap().state, DropState::Open);
    assert_eq!(process.drops.close(id, Ending::Forced).await.unwrap().state, DropState::Closed);
}

async fn what_players_rely_on_is_fixed(process: &Process) {
    let drops = &process.drops;
    let id = process.open_drop(terms(1, 1)).await.id;
    process.room.join(id, join(1)).await.unwrap();
    let mut more = terms(5, 50);
    more.message = Some("soon".to_owned());
    assert_eq!(drops.change_terms(id, &more).await.unwrap().terms, more);
    let mut changed = [more.clone(), more.clone(), more.clone(), more.clone()];
    changed[0].order = Order::Shuffle;
    changed[1].lanes = vec!["gold".to_owned()];
    changed[2].price.amount += 1;
    changed[3].per_player += 1;
    for (terms, wanted) in changed.iter().zip(["order", "lanes", "price", "per_player"]) {
        let refused = drops.change_terms(id, terms).await;
        assert!(matches!(refused, Err(Error::Fixed { field, .. }) if field == wanted), "{refused:?}");
    }
}
