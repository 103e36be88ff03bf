//! Decisions on single items and on whole keys.

use work_queue::{DecisionError, Filter, State};

use super::*;

testkit::on_all_stores!(
    only_the_given_key_is_postponed,
    postponing_a_key_locks_no_other_key,
    failed_item_is_retried_in_the_callers_transaction,
    only_failed_items_are_retried,
    key_continues_behind_an_item_retried_later,
    remove_in_removes_only_failed_items,
    removing_a_failed_item_unblocks_its_key,
    items_are_removed_in_any_state,
);

const LONG: Duration = Duration::from_secs(1_000);

async fn due_after(db: &Db, queue: &WorkQueue, id: Uuid, wait: Duration) -> bool {
    queue.find(id).await.unwrap().unwrap().due > db.now().await.unwrap().after(wait)
}

async fn only_the_given_key_is_postponed(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    push(&db, &queue, &["a:done", "a:held", "a:later", "a:failed"]).await;
    let items = claim(&queue).await;
    let later = ItemOutcome::Postponed { after: LONG * 10, cause: "x".into() };
    let outcomes = [(0, ItemOutcome::Done), (2, later), (3, ItemOutcome::Failed("x".into()))];
    let outcomes: Vec<_> = outcomes.map(|(at, outcome)| (items[at].clone(), outcome)).into();
    queue.finish(&outcomes).await.unwrap();
    push(&db, &queue, &["a:1", "b:1", "a:2"]).await;
    let before = queue.list(Filter::All, 10).await.unwrap();
    assert_eq!(queue.postpone_key("a", LONG).await.unwrap(), 2);
    for view in before {
        let now = queue.find(view.id).await.unwrap().unwrap();
        let text = String::from_utf8(view.payload).unwrap();
        assert_eq!((now.state, now.lease, now.attempts), (view.state, view.lease, view.attempts));
        if text == "a:1" || text == "a:2" {
            assert!(due_after(&db, &queue, view.id, LONG / 2).await, "{text}");
            assert!(!due_after(&db, &queue, view.id, LONG * 2).await, "{text}");
        } else {
            assert_eq!(now.due, view.due, "{text}");
        }
    }
    assert_eq!(texts(&claim(&queue).await), ["b:1"]);
    assert_eq!(queue.postpone_key("a", LONG / 2).await.unwrap(), 0);
    assert_eq!(queue.postpone_key("unused", LONG).await.unwrap(), 0);
}

/// Without the index it would wait for the locked row of another key.
async fn postponing_a_key_locks_no_other_key(place: &TestDatabase) {
    let TestDatabase::Server(database) = place else { return };
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    push(&db, &queue, &["a:1", "b:1"]).await;
    // Another transaction holds a row of another key.
    let mut other = <sqlx::MySqlConnection as sqlx::Connection>::connect(database.url()).await.unwrap();
    for text in ["START TRANSACTION", "SELECT id FROM chores WHERE item_key = 'b' AND id = 2 FOR UPDATE"] {
        sqlx::Executor::execute(&mut other, text).await.unwrap();
    }
    assert_eq!(queue.postpone_key("a", LONG).await.unwrap(), 1);
}

async fn fail(db: &Db, queue: &WorkQueue, item: &str) -> Item {
    push(db, queue, &[item]).await;
    let items = claim(queue).await;
    queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap();
    items.into_iter().next().unwrap()
}

async fn failed_item_is_retried_in_the_callers_transaction(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    let item = fail(&db, &queue, "a:1").await;
    let mut tx = db.begin().await.unwrap();
    queue.retry_in(&mut tx, item.id, Duration::ZERO).await.unwrap().unwrap();
    tx.rollback().await.unwrap();
    assert!(claim(&queue).await.is_empty());
    let mut tx = db.begin().await.unwrap();
    queue.retry_in(&mut tx, item.id, LONG).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    let view = queue.find(item.id).await.unwrap().unwrap();
    assert_eq!((view.state, view.attempts), (State::Pending, 0));
    assert!(due_after(&db, &queue, item.id, LONG / 2).await, "{view:?}");
    // The old holder has lost the item.
    assert_eq!(queue.finish(&all(&[item], &ItemOutcome::Done)).await.unwrap().stale, 1);

    let item = fail(&db, &queue, "b:1").await;
    let mut tx = db.begin().await.unwrap();
    queue.retry_in(&mut tx, item.id, Duration::ZERO).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(claim(&queue).await[0].attempts, 1);
}

async fn only_failed_items_are_retried(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items[..1], &ItemOutcome::Done)).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let retry = async |tx: &mut db::Tx, id| queue.retry_in(tx, id, Duration::ZERO).await.unwrap();
    assert_eq!(retry(&mut tx, items[0].id).await, Err(DecisionError::Finished));
    assert_eq!(retry(&mut tx, items[1].id).await, Err(DecisionError::NotFailed));
    assert_eq!(retry(&mut tx, Uuid::now_v7()).await, Err(DecisionError::Unknown));
    tx.commit().await.unwrap();
    assert_eq!(queue.finish(&all(&items[1..], &ItemOutcome::Done)).await.unwrap().done, 1);
}

async fn key_continues_behind_an_item_retried_later(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let item = fail(&db, &queue, "a:1").await;
    push(&db, &queue, &["a:2"]).await;
    // Deferred for a minute.
    assert!(claim(&queue).await.is_empty());
    let mut tx = db.begin().await.unwrap();
    queue.retry_in(&mut tx, item.id, Duration::from_millis(300)).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let worker = recorder.worker(&queue);
    testkit::eventually("both are done", PATIENCE, async || {
        worker.tick().await.unwrap();
        recorder.done().len() == 2
    })
    .await;
    assert_eq!(recorder.done(), ["a:1", "a:2"]);
}

async fn remove_in_removes_only_failed_items(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    let failed = fail(&db, &queue, "f:1").await;
    push(&db, &queue, &["d:1", "s:1", "h:1", "p:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items[..1], &ItemOutcome::Done)).await.unwrap();
    queue.skip(items[1].number).await.unwrap().unwrap();
    queue.finish(&all(&items[3..], &ItemOutcome::NotAttempted("x".into()))).await.unwrap();
    let remove = async |id| {
        let mut tx = db.begin().await.unwrap();
        let removed = queue.remove_in(&mut tx, id).await.unwrap();
        tx.commit().await.unwrap();
        removed
    };
    for item in &items {
        assert!(!remove(item.id).await, "{item:?}");
    }
    assert!(!remove(Uuid::now_v7()).await);
    let mut tx = db.begin().await.unwrap();
    assert!(queue.remove_in(&mut tx, failed.id).await.unwrap());
    tx.rollback().await.unwrap();
    assert!(remove(failed.id).await);
    assert!(!remove(failed.id).await);
    assert_eq!(queue.list(Filter::All, 10).await.unwrap().len(), 4);
}

async fn removing_a_failed_item_unblocks_its_key(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let item = fail(&db, &queue, "a:1").await;
    push(&db, &queue, &["a:2"]).await;
    // Deferred for a minute.
    assert!(claim(&queue).await.is_empty());
    let mut tx = db.begin().await.unwrap();
    assert!(queue.remove_in(&mut tx, item.id).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
}

async fn items_are_removed_in_any_state(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    let failed = fail(&db, &queue, "f:1").await;
    push(&db, &queue, &["d:1", "h:1", "p:1", "kept:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items[..1], &ItemOutcome::Done)).await.unwrap();
    queue.finish(&all(&items[2..], &ItemOutcome::NotAttempted("x".into()))).await.unwrap();
    let mut ids: Vec<Uuid> = items[..3].iter().map(|item| item.id).collect();
    // More than fit into one statement, most of them unknown.
    ids.extend((0..1_000).map(|_| Uuid::now_v7()));
    ids.push(failed.id);
    let mut tx = db.begin().await.unwrap();
    assert_eq!(queue.remove_items_in(&mut tx, &ids).await.unwrap(), 4);
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(queue.remove_items_in(&mut tx, &ids).await.unwrap(), 4);
    assert_eq!(queue.remove_items_in(&mut tx, &[]).await.unwrap(), 0);
    tx.commit().await.unwrap();
    assert_eq!(queue.list(Filter::All, 10).await.unwrap()[0].key, "kept");
    // The outcome of the holder is stale.
    assert_eq!(queue.finish(&all(&items[1..2], &ItemOutcome::Done)).await.unwrap().stale, 1);
}
