//! Claims, leases, and what becomes of those who come too late.

use std::collections::HashSet;

use work_queue::{Filter, State};

use super::*;

testkit::on_all_stores!(
    only_what_was_committed_is_there,
    each_item_is_claimed_by_one,
    a_lease_that_ended_is_claimed_again_and_its_first_holder_changes_nothing,
    a_renewed_lease_lasts,
    a_failed_attempt_waits_and_comes_again,
    what_was_not_tried_is_not_counted_and_keeps_its_place,
    what_is_for_later_waits_and_is_not_counted,
    a_longer_wait_than_that_of_the_policy_can_be_asked_for,
    whoever_asks_for_ages_waits_for_long,
    attempts_are_used_up,
    a_worker_that_never_reports_uses_up_attempts_too,
    nobody_waits_for_anybody,
);

async fn only_what_was_committed_is_there(place: &SqlPlace) {
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
    let finished = queue.finish(&all(&items, &Outcome::Done)).await.unwrap();
    assert_eq!((finished.done, finished.stale), (1, 0));
    assert_eq!(queue.list(Filter::All, 10).await.unwrap()[0].state, State::Done);
}

async fn each_item_is_claimed_by_one(place: &SqlPlace) {
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
            if claim.items.is_empty() && !claim.more && !queue.has_due().await.unwrap() {
                return got;
            }
            got.extend(texts(&claim.items));
        }
    };
    let got = futures::future::join_all((0..10).map(|_| claimer())).await.concat();
    assert_eq!(got.len(), 500);
    assert_eq!(got.into_iter().collect::<HashSet<_>>().len(), 500);
}

async fn a_lease_that_ended_is_claimed_again_and_its_first_holder_changes_nothing(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(200), ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    let first = claim(&queue).await;
    assert_eq!(first.len(), 2);
    let second = claim_something(&queue).await;
    assert_eq!(texts(&second), texts(&first));
    assert_eq!(second[0].attempts, 2);
    for outcome in [
        Outcome::Done,
        Outcome::Again("x".into()),
        Outcome::Failed("x".into()),
        Outcome::NotTried("x".into()),
        Outcome::Later { after: Duration::ZERO, cause: "x".into() },
        Outcome::AgainAfter { after: Duration::ZERO, cause: "x".into() },
    ] {
        let finished = queue.finish(&all(&first, &outcome)).await.unwrap();
        assert_eq!(finished.stale, 2, "{outcome:?}");
    }
    assert_eq!(queue.renew(&first).await.unwrap().0, 0);
    assert_eq!(queue.metrics().stale(), 12);
    let entries = queue.list(Filter::Open, 10).await.unwrap();
    assert!(
        entries.iter().all(|entry| entry.state == State::InFlight && entry.cause.is_none()),
        "{entries:?}"
    );
    assert_eq!(queue.finish(&all(&second, &Outcome::Done)).await.unwrap().done, 2);
    // What is done stays done, also for those who had it last.
    assert_eq!(queue.finish(&all(&second, &Outcome::Again("x".into()))).await.unwrap().stale, 2);
    assert_eq!(queue.list(Filter::Done, 10).await.unwrap().len(), 2);
}

async fn a_renewed_lease_lasts(place: &SqlPlace) {
    let db = open(place).await;
    let short = queue_on(db.clone(), Config { lease: Duration::from_millis(300), ..config() });
    let long = queue_on(db.clone(), config());
    push(&db, &short, &["a:1", "b:1"]).await;
    let items = claim(&short).await;
    // Of the two, one is renewed for much longer.
    assert_eq!(long.renew(&items[..1]).await.unwrap().0, 1);
    assert_eq!(texts(&claim_something(&short).await), ["b:1"]);
    assert!(claim(&short).await.is_empty());
    assert_eq!(short.finish(&all(&items[..1], &Outcome::Done)).await.unwrap().done, 1);
}

async fn a_failed_attempt_waits_and_comes_again(place: &SqlPlace) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_millis(600), Duration::from_secs(5));
    let queue = queue_on(db.clone(), Config { retry, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    let began = std::time::Instant::now();
    queue.finish(&all(&items, &Outcome::Again("no luck".into()))).await.unwrap();
    let entry = &queue.list(Filter::Open, 10).await.unwrap()[0];
    assert_eq!((entry.state, entry.cause.as_deref(), entry.attempts), (State::Pending, Some("no luck"), 1));
    let again = claim_something(&queue).await;
    // Half of the wait is certain.
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());
    assert_eq!(again[0].attempts, 2);
    assert_eq!(queue.finish(&all(&again, &Outcome::Done)).await.unwrap().done, 1);
    assert_eq!(queue.list(Filter::Done, 10).await.unwrap()[0].cause, None);
}

async fn what_was_not_tried_is_not_counted_and_keeps_its_place(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 1, batch: 1, ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    for _ in 0..3 {
        let items = claim(&queue).await;
        assert_eq!((texts(&items), items[0].attempts), (vec!["a:1".to_owned()], 1));
        let finished =
            queue.finish(&all(&items, &Outcome::NotTried("the bus is away".into()))).await.unwrap();
        assert_eq!(finished.not_tried, 1);
    }
}

async fn what_is_for_later_waits_and_is_not_counted(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 1, ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let later = |millis| Outcome::Later { after: Duration::from_millis(millis), cause: "closed".into() };
    let began = std::time::Instant::now();
    let outcomes: Vec<_> = items.iter().cloned().zip([later(300), later(60_000)]).collect();
    let finished = queue.finish(&outcomes).await.unwrap();
    assert_eq!((finished.later, finished.not_tried, finished.failed), (2, 0, 0));
    let entry = queue.find(items[1].id).await.unwrap().unwrap();
    assert_eq!((entry.state, entry.attempts, entry.cause.as_deref()), (State::Pending, 0, Some("closed")));
    let again = claim_something(&queue).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!((texts(&again), again[0].attempts), (vec!["a:1".to_owned()], 1));
}

async fn a_longer_wait_than_that_of_the_policy_can_be_asked_for(place: &SqlPlace) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
    let queue = queue_on(db.clone(), Config { max_attempts: 2, retry, ..config() });
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let after = |seconds| Outcome::AgainAfter { after: Duration::from_secs(seconds), cause: "busy".into() };
    let outcomes: Vec<_> = items.iter().cloned().zip([after(1), after(1_000)]).collect();
    assert_eq!(queue.finish(&outcomes).await.unwrap().again, 2);
    let now = db.now().await.unwrap();
    // The policy's own wait is half a minute at least, and a minute at most.
    for (item, least, most) in [(&items[0], 20, 61), (&items[1], 900, 1_001)] {
        let entry = queue.find(item.id).await.unwrap().unwrap();
        let (least, most) = (now.after(Duration::from_secs(least)), now.after(Duration::from_secs(most)));
        assert!(entry.due > least && entry.due < most, "{entry:?}");
        assert_eq!((entry.attempts, entry.cause.as_deref()), (1, Some("busy")));
    }
    // The attempt counts: here it is the last.
    let hasty = queue_on(db.clone(), Config { max_attempts: 1, ..config() });
    push(&db, &hasty, &["c:1"]).await;
    assert_eq!(hasty.finish(&all(&claim(&hasty).await, &after(1))).await.unwrap().failed, 1);
}

/// What somebody far away asks for may be any number.
async fn whoever_asks_for_ages_waits_for_long(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let outcomes = [
        Outcome::Later { after: Duration::MAX, cause: "x".into() },
        Outcome::AgainAfter { after: Duration::MAX, cause: "x".into() },
    ];
    let outcomes: Vec<_> = items.iter().cloned().zip(outcomes).collect();
    let finished = queue.finish(&outcomes).await.unwrap();
    assert_eq!((finished.later, finished.again), (1, 1));
    assert!(claim(&queue).await.is_empty());
}

async fn attempts_are_used_up(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 3, ..config() });
    push(&db, &queue, &["a:1"]).await;
    for attempt in 1..=3 {
        let items = claim_something(&queue).await;
        assert_eq!(items[0].attempts, attempt);
        let finished =
            queue.finish(&all(&items, &Outcome::Again(format!("attempt {attempt}")))).await.unwrap();
        assert_eq!((finished.again, finished.failed), if attempt < 3 { (1, 0) } else { (0, 1) });
    }
    let entry = &queue.list(Filter::Failed, 10).await.unwrap()[0];
    assert_eq!((entry.state, entry.cause.as_deref()), (State::Failed, Some("attempt 3")));
    assert!(!queue.has_due().await.unwrap());
}

async fn a_worker_that_never_reports_uses_up_attempts_too(place: &SqlPlace) {
    let db = open(place).await;
    let config = Config { lease: Duration::from_millis(30), max_attempts: 2, ..config() };
    let queue = queue_on(db.clone(), config);
    push(&db, &queue, &["a:1"]).await;
    testkit::eventually("it is given up", PATIENCE, async || {
        let attempts = claim(&queue).await.first().map(|item| item.attempts);
        assert!(attempts <= Some(2), "{attempts:?}");
        let failed = queue.list(Filter::Failed, 10).await.unwrap();
        if failed.is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    let entry = &queue.list(Filter::Failed, 10).await.unwrap()[0];
    assert_eq!(entry.attempts, 2);
    assert!(entry.cause.as_deref().unwrap().contains("did not say"), "{entry:?}");
}

/// Neither do those who push wait for a claim that is not committed, nor does a claim wait for them.
async fn nobody_waits_for_anybody(place: &SqlPlace) {
    let SqlPlace::Server(database) = place else { return };
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    // Somebody else's claim, half done; and a push that is not committed.
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
    assert_eq!(texts(&free.await.expect("somebody waited")), ["b:1", "d:1"]);
    pushing.commit().await.unwrap();
    sqlx::Executor::execute(&mut other, "ROLLBACK").await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:1", "c:1"]);
}
