//! Decisions on items: by operators in a transaction of their own, and on whole keys.

use work_queue::{Filter, State, Unfit};

use super::*;

testkit::on_all_stores!(
    a_key_is_put_off_and_no_other,
    a_key_is_put_off_by_its_index,
    a_failed_item_is_tried_again_with_the_callers_transaction,
    only_what_has_failed_is_tried_again,
    a_key_goes_on_behind_an_item_that_is_tried_again_later,
    only_what_has_failed_is_removed_by_itself,
    a_key_goes_on_when_what_has_failed_is_removed,
    items_are_removed_whatever_they_are,
);

const LONG: Duration = Duration::from_secs(1_000);

async fn due_after(db: &Db, queue: &Queue, id: Uuid, wait: Duration) -> bool {
    queue.find(id).await.unwrap().unwrap().due > db.now().await.unwrap().after(wait)
}

async fn a_key_is_put_off_and_no_other(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    push(&db, &queue, &["a:done", "a:held", "a:later", "a:failed"]).await;
    let items = claim(&queue).await;
    let later = Outcome::Later { after: LONG * 10, cause: "x".into() };
    let outcomes = [(0, Outcome::Done), (2, later), (3, Outcome::Failed("x".into()))];
    let outcomes: Vec<_> = outcomes.map(|(at, outcome)| (items[at].clone(), outcome)).into();
    queue.finish(&outcomes).await.unwrap();
    push(&db, &queue, &["a:1", "b:1", "a:2"]).await;
    let before = queue.list(Filter::All, 10).await.unwrap();
    assert_eq!(queue.put_off("a", LONG).await.unwrap(), 2);
    for entry in before {
        let now = queue.find(entry.id).await.unwrap().unwrap();
        let text = String::from_utf8(entry.payload).unwrap();
        assert_eq!((now.state, now.lease, now.attempts), (entry.state, entry.lease, entry.attempts));
        if text == "a:1" || text == "a:2" {
            assert!(due_after(&db, &queue, entry.id, LONG / 2).await, "{text}");
            assert!(!due_after(&db, &queue, entry.id, LONG * 2).await, "{text}");
        } else {
            assert_eq!(now.due, entry.due, "{text}");
        }
    }
    assert_eq!(texts(&claim(&queue).await), ["b:1"]);
    assert_eq!(queue.put_off("a", LONG / 2).await.unwrap(), 0);
    assert_eq!(queue.put_off("nobody", LONG).await.unwrap(), 0);
}

/// However many items of other keys there are.
async fn a_key_is_put_off_by_its_index(place: &SqlPlace) {
    let SqlPlace::Server(database) = place else { return };
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    push(&db, &queue, &["a:1", "b:1"]).await;
    // Somebody is at work on another key, and holds its rows.
    let mut other = <sqlx::MySqlConnection as sqlx::Connection>::connect(database.url()).await.unwrap();
    for text in ["START TRANSACTION", "SELECT id FROM chores WHERE item_key = 'b' AND id = 2 FOR UPDATE"] {
        sqlx::Executor::execute(&mut other, text).await.unwrap();
    }
    assert_eq!(queue.put_off("a", LONG).await.unwrap(), 1);
}

async fn fail(db: &Db, queue: &Queue, item: &str) -> Item {
    push(db, queue, &[item]).await;
    let items = claim(queue).await;
    queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await.unwrap();
    items.into_iter().next().unwrap()
}

async fn a_failed_item_is_tried_again_with_the_callers_transaction(place: &SqlPlace) {
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
    let entry = queue.find(item.id).await.unwrap().unwrap();
    assert_eq!((entry.state, entry.attempts), (State::Pending, 0));
    assert!(due_after(&db, &queue, item.id, LONG / 2).await, "{entry:?}");
    // Whoever had it has lost it.
    assert_eq!(queue.finish(&all(&[item], &Outcome::Done)).await.unwrap().stale, 1);

    let item = fail(&db, &queue, "b:1").await;
    let mut tx = db.begin().await.unwrap();
    queue.retry_in(&mut tx, item.id, Duration::ZERO).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(claim(&queue).await[0].attempts, 1);
}

async fn only_what_has_failed_is_tried_again(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items[..1], &Outcome::Done)).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let retry = async |tx: &mut db::Tx, id| queue.retry_in(tx, id, Duration::ZERO).await.unwrap();
    assert_eq!(retry(&mut tx, items[0].id).await, Err(Unfit::Finished));
    assert_eq!(retry(&mut tx, items[1].id).await, Err(Unfit::NotFailed));
    assert_eq!(retry(&mut tx, Uuid::now_v7()).await, Err(Unfit::Unknown));
    tx.commit().await.unwrap();
    assert_eq!(queue.finish(&all(&items[1..], &Outcome::Done)).await.unwrap().done, 1);
}

async fn a_key_goes_on_behind_an_item_that_is_tried_again_later(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let item = fail(&db, &queue, "a:1").await;
    push(&db, &queue, &["a:2"]).await;
    // Put off for a minute.
    assert!(claim(&queue).await.is_empty());
    let mut tx = db.begin().await.unwrap();
    queue.retry_in(&mut tx, item.id, Duration::from_millis(300)).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(&queue);
    testkit::eventually("both are done", PATIENCE, async || {
        worker.tick().await.unwrap();
        recorder.done().len() == 2
    })
    .await;
    assert_eq!(recorder.done(), ["a:1", "a:2"]);
}

async fn only_what_has_failed_is_removed_by_itself(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    let failed = fail(&db, &queue, "f:1").await;
    push(&db, &queue, &["d:1", "s:1", "h:1", "p:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items[..1], &Outcome::Done)).await.unwrap();
    queue.skip(items[1].number).await.unwrap().unwrap();
    queue.finish(&all(&items[3..], &Outcome::NotTried("x".into()))).await.unwrap();
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

async fn a_key_goes_on_when_what_has_failed_is_removed(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let item = fail(&db, &queue, "a:1").await;
    push(&db, &queue, &["a:2"]).await;
    // Put off for a minute.
    assert!(claim(&queue).await.is_empty());
    let mut tx = db.begin().await.unwrap();
    assert!(queue.remove_in(&mut tx, item.id).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
}

async fn items_are_removed_whatever_they_are(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config()).unordered();
    let failed = fail(&db, &queue, "f:1").await;
    push(&db, &queue, &["d:1", "h:1", "p:1", "kept:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items[..1], &Outcome::Done)).await.unwrap();
    queue.finish(&all(&items[2..], &Outcome::NotTried("x".into()))).await.unwrap();
    let mut ids: Vec<Uuid> = items[..3].iter().map(|item| item.id).collect();
    // More than fit into one statement, and most of them nobody's.
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
    // Whoever had it is told so.
    assert_eq!(queue.finish(&all(&items[1..2], &Outcome::Done)).await.unwrap().stale, 1);
}
