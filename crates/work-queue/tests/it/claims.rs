//! Claims, leases and late workers.

use std::collections::HashSet;

use work_queue::{Filter, State};

use super::*;

testkit::on_all_stores!(
    only_committed_items_can_be_claimed,
    each_item_is_claimed_once,
    expired_lease_is_claimed_again_and_its_first_holder_changes_nothing,
    renewed_lease_lasts,
    failed_attempt_is_retried_after_a_backoff,
    item_not_attempted_uses_no_attempt_and_keeps_its_place,
    postponed_item_waits_and_uses_no_attempt,
    retry_after_can_exceed_the_backoff,
    longest_possible_wait_is_accepted,
    item_fails_when_its_attempts_are_used_up,
    silent_worker_uses_up_attempts_too,
    pushes_and_claims_do_not_wait_for_each_other,
);

async fn only_committed_items_can_be_claimed(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    assert!(!queue.has_due().await.unwrap());
    let mut tx = db.begin().await.unwrap();
    push_in(&mut tx, &queue, "a:1");
    tx.rollback().await.unwrap();
    assert!(claim(&queue).await.is_empty());
    push(&db, &queue, &["a:2"]).await;
    assert!(queue.has_due().await.unwrap());
    let items = claim(&queue).await;
    assert_eq!(texts(&items), ["a:2"]);
    assert_eq!((items[0].attempts, items[0].key.as_str()), (1, "a"));
    assert!(!queue.has_due().await.unwrap() && claim(&queue).await.is_empty());
    let finished = queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap();
    assert_eq!((finished.done, finished.stale), (1, 0));
    assert_eq!(queue.list(Filter::All, 10).await.unwrap()[0].state, State::Done);
}

async fn each_item_is_claimed_once(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 7, ..config() });
    let mut tx = db.begin().await.unwrap();
    for n in 0..500 {
        push_in(&mut tx, &queue, &format!("{n}:x"));
    }
    tx.commit().await.unwrap();
    let claimer = async || {
        let mut got = Vec::new();
        loop {
            let claim = queue.claim(ProcessId::generate()).await.unwrap();
            if claim.items.is_empty() && !claim.has_more && !queue.has_due().await.unwrap() {
                return got;
            }
            got.extend(texts(&claim.items));
        }
    };
    let got = futures::future::join_all((0..10).map(|_| claimer())).await.concat();
    assert_eq!(got.len(), 500);
    assert_eq!(got.into_iter().collect::<HashSet<_>>().len(), 500);
}

async fn expired_lease_is_claimed_again_and_its_first_holder_changes_nothing(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(200), ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    let first = claim(&queue).await;
    assert_eq!(first.len(), 2);
    let second = claim_something(&queue).await;
    assert_eq!(texts(&second), texts(&first));
    assert_eq!(second[0].attempts, 2);
    for outcome in [
        ItemOutcome::Done,
        ItemOutcome::Retry("x".into()),
        ItemOutcome::Failed("x".into()),
        ItemOutcome::NotAttempted("x".into()),
        ItemOutcome::Postponed { after: Duration::ZERO, cause: "x".into() },
        ItemOutcome::RetryAfter { after: Duration::ZERO, cause: "x".into() },
    ] {
        let finished = queue.finish(&all(&first, &outcome)).await.unwrap();
        assert_eq!(finished.stale, 2, "{outcome:?}");
    }
    assert_eq!(queue.renew(&first).await.unwrap().0, 0);
    assert_eq!(queue.metrics().stale(), 12);
    let views = queue.list(Filter::Open, 10).await.unwrap();
    assert!(views.iter().all(|view| view.state == State::InFlight && view.cause.is_none()), "{views:?}");
    assert_eq!(queue.finish(&all(&second, &ItemOutcome::Done)).await.unwrap().done, 2);
    // A done item stays done, even for its last holder.
    assert_eq!(queue.finish(&all(&second, &ItemOutcome::Retry("x".into()))).await.unwrap().stale, 2);
    assert_eq!(queue.list(Filter::Done, 10).await.unwrap().len(), 2);
}

async fn renewed_lease_lasts(place: &TestDatabase) {
    let db = open(place).await;
    let short = queue_on(db.clone(), Config { lease: Duration::from_millis(300), ..config() });
    let long = queue_on(db.clone(), config());
    push(&db, &short, &["a:1", "b:1"]).await;
    let items = claim(&short).await;
    // Renew one of the two for much longer.
    assert_eq!(long.renew(&items[..1]).await.unwrap().0, 1);
    assert_eq!(texts(&claim_something(&short).await), ["b:1"]);
    assert!(claim(&short).await.is_empty());
    assert_eq!(short.finish(&all(&items[..1], &ItemOutcome::Done)).await.unwrap().done, 1);
}

async fn failed_attempt_is_retried_after_a_backoff(place: &TestDatabase) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_millis(600), Duration::from_secs(5));
    let queue = queue_on(db.clone(), Config { retry, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    let began = std::time::Instant::now();
    queue.finish(&all(&items, &ItemOutcome::Retry("no luck".into()))).await.unwrap();
    let view = &queue.list(Filter::Open, 10).await.unwrap()[0];
    assert_eq!((view.state, view.cause.as_deref(), view.attempts), (State::Pending, Some("no luck"), 1));
    let again = claim_something(&queue).await;
    // The jitter takes at most half of the wait.
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());
    assert_eq!(again[0].attempts, 2);
    assert_eq!(queue.finish(&all(&again, &ItemOutcome::Done)).await.unwrap().done, 1);
    assert_eq!(queue.list(Filter::Done, 10).await.unwrap()[0].cause, None);
}

async fn item_not_attempted_uses_no_attempt_and_keeps_its_place(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 1, batch: 1, ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    for _ in 0..3 {
        let items = claim(&queue).await;
        assert_eq!((texts(&items), items[0].attempts), (vec!["a:1".to_owned()], 1));
        let finished = queue
            .finish(&all(&items, &ItemOutcome::NotAttempted("the bus is unreachable".into())))
            .await
            .unwrap();
        assert_eq!(finished.not_attempted, 1);
    }
}

async fn postponed_item_waits_and_uses_no_attempt(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 1, ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let later =
        |millis| ItemOutcome::Postponed { after: Duration::from_millis(millis), cause: "closed".into() };
    let began = std::time::Instant::now();
    let outcomes: Vec<_> = items.iter().cloned().zip([later(300), later(60_000)]).collect();
    let finished = queue.finish(&outcomes).await.unwrap();
    assert_eq!((finished.postponed, finished.not_attempted, finished.failed), (2, 0, 0));
    let view = queue.find(items[1].id).await.unwrap().unwrap();
    assert_eq!((view.state, view.attempts, view.cause.as_deref()), (State::Pending, 0, Some("closed")));
    let again = claim_something(&queue).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!((texts(&again), again[0].attempts), (vec!["a:1".to_owned()], 1));
}

async fn retry_after_can_exceed_the_backoff(place: &TestDatabase) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
    let queue = queue_on(db.clone(), Config { max_attempts: 2, retry, ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let after =
        |seconds| ItemOutcome::RetryAfter { after: Duration::from_secs(seconds), cause: "busy".into() };
    let outcomes: Vec<_> = items.iter().cloned().zip([after(1), after(1_000)]).collect();
    assert_eq!(queue.finish(&outcomes).await.unwrap().retry, 2);
    let now = db.now().await.unwrap();
    // The backoff is between half a minute and a minute.
    for (item, least, most) in [(&items[0], 20, 61), (&items[1], 900, 1_001)] {
        let view = queue.find(item.id).await.unwrap().unwrap();
        let (least, most) = (now.after(Duration::from_secs(least)), now.after(Duration::from_secs(most)));
        assert!(view.due > least && view.due < most, "{view:?}");
        assert_eq!((view.attempts, view.cause.as_deref()), (1, Some("busy")));
    }
    // The attempt counts: here it is the last one.
    let hasty = queue_on(db.clone(), Config { max_attempts: 1, ..config() });
    push(&db, &hasty, &["c:1"]).await;
    assert_eq!(hasty.finish(&all(&claim(&hasty).await, &after(1))).await.unwrap().failed, 1);
}

/// A remote destination may request any wait.
async fn longest_possible_wait_is_accepted(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let outcomes = [
        ItemOutcome::Postponed { after: Duration::MAX, cause: "x".into() },
        ItemOutcome::RetryAfter { after: Duration::MAX, cause: "x".into() },
    ];
    let outcomes: Vec<_> = items.iter().cloned().zip(outcomes).collect();
    let finished = queue.finish(&outcomes).await.unwrap();
    assert_eq!((finished.postponed, finished.retry), (1, 1));
    assert!(claim(&queue).await.is_empty());
}

async fn item_fails_when_its_attempts_are_used_up(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 3, ..config() });
    push(&db, &queue, &["a:1"]).await;
    for attempt in 1..=3 {
        let items = claim_something(&queue).await;
        assert_eq!(items[0].attempts, attempt);
        let finished =
            queue.finish(&all(&items, &ItemOutcome::Retry(format!("attempt {attempt}")))).await.unwrap();
        assert_eq!((finished.retry, finished.failed), if attempt < 3 { (1, 0) } else { (0, 1) });
    }
    let view = &queue.list(Filter::Failed, 10).await.unwrap()[0];
    assert_eq!((view.state, view.cause.as_deref()), (State::Failed, Some("attempt 3")));
    assert!(!queue.has_due().await.unwrap());
}

async fn silent_worker_uses_up_attempts_too(place: &TestDatabase) {
    let db = open(place).await;
    let config = Config { lease: Duration::from_millis(30), max_attempts: 2, ..config() };
    let queue = queue_on(db.clone(), config);
    push(&db, &queue, &["a:1"]).await;
    testkit::eventually("the item fails", PATIENCE, async || {
        let attempts = claim(&queue).await.first().map(|item| item.attempts);
        assert!(attempts <= Some(2), "{attempts:?}");
        let failed = queue.list(Filter::Failed, 10).await.unwrap();
        if failed.is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    let view = &queue.list(Filter::Failed, 10).await.unwrap()[0];
    assert_eq!(view.attempts, 2);
    assert!(view.cause.as_deref().unwrap().contains("reported no outcome"), "{view:?}");
}

/// A push does not wait for an uncommitted claim, and a claim does not wait for an uncommitted push.
async fn pushes_and_claims_do_not_wait_for_each_other(place: &TestDatabase) {
    let TestDatabase::Server(database) = place else { return };
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    // Another worker's uncommitted claim, and an uncommitted push.
    let mut other = <sqlx::MySqlConnection as sqlx::Connection>::connect(database.url()).await.unwrap();
    for text in [
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "START TRANSACTION",
        "SELECT id FROM chores WHERE state = 0 AND due_at <= 9999999999999 ORDER BY due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED",
    ] {
        sqlx::Executor::execute(&mut other, text).await.unwrap();
    }
    let mut pushing = db.begin().await.unwrap();
    push_in(&mut pushing, &queue, "c:1");
    let free = tokio::time::timeout(Duration::from_secs(5), async {
        push(&db, &queue, &["d:1"]).await;
        claim(&queue).await
    });
    assert_eq!(texts(&free.await.expect("a push or a claim waited")), ["b:1", "d:1"]);
    pushing.commit().await.unwrap();
    sqlx::Executor::execute(&mut other, "ROLLBACK").await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:1", "c:1"]);
}
