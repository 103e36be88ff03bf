//! Items that their pusher claims with the push.

use work_queue::{Filter, OutcomeCounts, State, Unordered};

use super::*;

testkit::on_all_stores!(
    item_claimed_at_its_push_belongs_to_the_pusher,
    item_the_pusher_never_handled_is_claimed_by_others,
    item_the_pusher_could_not_attempt_is_claimable_at_once,
    pusher_can_record_every_outcome,
    late_pusher_changes_nothing,
    more_items_than_fit_into_a_statement_are_finished_together,
);

async fn start(place: &TestDatabase, config: Config) -> (Db, Unordered) {
    let db = open(place).await;
    (db.clone(), queue_on(db, config).unordered())
}

/// Pushes `count` claimed items and returns their ids.
async fn push_claimed(db: &Db, queue: &Unordered, holder: ProcessId, count: usize) -> Vec<Uuid> {
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    let new = |id: &Uuid| NewItem { id: *id, user: Uuid::nil(), key: "k", payload: b"k:x" };
    let mut tx = db.begin().await.unwrap();
    queue.push_claimed(&mut tx, holder, &ids.iter().map(new).collect::<Vec<_>>());
    tx.commit().await.unwrap();
    ids
}

async fn item_claimed_at_its_push_belongs_to_the_pusher(place: &TestDatabase) {
    let (db, queue) = start(place, config()).await;
    let holder = ProcessId::generate();
    let ids = push_claimed(&db, &queue, holder, 2).await;
    let view = queue.find(ids[0]).await.unwrap().unwrap();
    assert_eq!((view.state, view.holder), (State::InFlight, Some(*holder.as_uuid())));
    assert_eq!((view.attempts, view.lease), (1, 1));
    // The lease ends in a minute.
    let (soon, late) = (Duration::from_secs(30), Duration::from_secs(90));
    let now = db.now().await.unwrap();
    assert!(view.due > now.after(soon) && view.due < now.after(late), "{view:?}");
    assert!(claim(&queue).await.is_empty());
    let finished = queue.finish_claimed(&ids, &ItemOutcome::Done).await.unwrap();
    assert_eq!(finished, OutcomeCounts { done: 2, ..OutcomeCounts::default() });
    assert_eq!(queue.list(Filter::Done, 10).await.unwrap().len(), 2);
    assert_eq!(queue.finish_claimed(&[], &ItemOutcome::Done).await.unwrap(), OutcomeCounts::default());
}

async fn item_the_pusher_never_handled_is_claimed_by_others(place: &TestDatabase) {
    let (db, queue) = start(place, Config { lease: Duration::from_millis(100), ..config() }).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1).await;
    let items = claim_something(&queue).await;
    assert_eq!((items[0].id, items[0].attempts), (ids[0], 2));
    assert_eq!(queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap().done, 1);
}

async fn item_the_pusher_could_not_attempt_is_claimable_at_once(place: &TestDatabase) {
    // Polling would find it in an hour.
    let (db, queue) = start(place, Config { poll: Duration::from_secs(3600), ..config() }).await;
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let drain = runtime::Drain::new();
    let running = tokio::spawn({
        let (worker, drain) = (recorder.worker(&queue), drain.clone());
        async move { worker.run(drain).await.unwrap() }
    });
    // The worker has polled once and waits.
    push(&db, &queue, &["first:1"]).await;
    testkit::eventually("the worker runs", PATIENCE, async || !recorder.done().is_empty()).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1).await;
    let finished = queue.finish_claimed(&ids, &ItemOutcome::NotAttempted("not here".into())).await.unwrap();
    assert_eq!(finished.not_attempted, 1);
    let done = testkit::eventually("it is done", PATIENCE, async || {
        let view = queue.find(ids[0]).await.unwrap().unwrap();
        if view.state == State::Done { Ok(view) } else { Err(format!("{view:?}")) }
    })
    .await;
    assert_eq!(done.attempts, 1);
    drain.request();
    running.await.unwrap();
}

async fn pusher_can_record_every_outcome(place: &TestDatabase) {
    let (db, queue) = start(place, config()).await;
    let (once, holder) =
        (queue_on(db.clone(), Config { max_attempts: 1, ..config() }), ProcessId::generate());
    let retry = ItemOutcome::Retry("x".into());
    for (queue, outcome, state, attempts) in [
        (&queue, ItemOutcome::Done, State::Done, 1),
        (&queue, retry.clone(), State::Pending, 1),
        (&once.unordered(), retry, State::Failed, 1),
        (&queue, ItemOutcome::Failed("x".into()), State::Failed, 1),
        (&queue, ItemOutcome::NotAttempted("x".into()), State::Pending, 0),
        (&queue, ItemOutcome::Postponed { after: Duration::ZERO, cause: "x".into() }, State::Pending, 0),
        (&queue, ItemOutcome::RetryAfter { after: Duration::ZERO, cause: "x".into() }, State::Pending, 1),
    ] {
        let ids = push_claimed(&db, queue, holder, 1).await;
        assert_eq!(queue.finish_claimed(&ids, &outcome).await.unwrap().stale, 0);
        let view = queue.find(ids[0]).await.unwrap().unwrap();
        assert_eq!((view.state, view.attempts, view.holder), (state, attempts, None), "{outcome:?}");
        let cause = if outcome == ItemOutcome::Done { None } else { Some("x") };
        assert_eq!(view.cause.as_deref(), cause);
    }
}

async fn late_pusher_changes_nothing(place: &TestDatabase) {
    let (db, queue) = start(place, Config { lease: Duration::from_millis(100), ..config() }).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1).await;
    let items = claim_something(&queue).await;
    for outcome in [ItemOutcome::Done, ItemOutcome::Failed("x".into()), ItemOutcome::NotAttempted("x".into())]
    {
        assert_eq!(queue.finish_claimed(&ids, &outcome).await.unwrap().stale, 1, "{outcome:?}");
    }
    assert_eq!(queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap().done, 1);
    assert_eq!(queue.finish_claimed(&ids, &ItemOutcome::Failed("x".into())).await.unwrap().stale, 1);
}

async fn more_items_than_fit_into_a_statement_are_finished_together(place: &TestDatabase) {
    let (db, queue) = start(place, config()).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1_201).await;
    assert_eq!(queue.finish_claimed(&ids, &ItemOutcome::Done).await.unwrap().done, 1_201);
}
