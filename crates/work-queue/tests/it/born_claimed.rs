//! Items that their pusher has claimed from the start.

use work_queue::{Filter, Finished, State, Unordered};

use super::*;

testkit::on_all_stores!(
    what_is_born_claimed_is_its_pushers,
    what_its_pusher_never_did_is_claimed_by_others,
    what_its_pusher_could_not_try_is_anybodys_at_once,
    every_outcome_is_written_for_what_is_born_claimed,
    a_pusher_that_comes_too_late_changes_nothing,
    more_than_fit_into_a_statement_are_finished_together,
);

async fn start(place: &SqlPlace, config: Config) -> (Db, Unordered) {
    let db = open(place).await;
    (db.clone(), queue_on(db, config).unordered())
}

/// Pushes some items as claimed, and says who they are.
async fn push_claimed(db: &Db, queue: &Unordered, holder: ProcessId, count: usize) -> Vec<Uuid> {
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    let new = |id: &Uuid| New { id: *id, user: Uuid::nil(), key: "k", payload: b"k:x" };
    let mut tx = db.begin().await.unwrap();
    queue.push_claimed(&mut tx, holder, &ids.iter().map(new).collect::<Vec<_>>());
    tx.commit().await.unwrap();
    ids
}

async fn what_is_born_claimed_is_its_pushers(place: &SqlPlace) {
    let (db, queue) = start(place, config()).await;
    let holder = ProcessId::generate();
    let ids = push_claimed(&db, &queue, holder, 2).await;
    let entry = queue.find(ids[0]).await.unwrap().unwrap();
    assert_eq!((entry.state, entry.holder), (State::InFlight, Some(*holder.as_uuid())));
    assert_eq!((entry.attempts, entry.lease), (1, 1));
    // The lease ends in a minute.
    let (soon, late) = (Duration::from_secs(30), Duration::from_secs(90));
    let now = db.now().await.unwrap();
    assert!(entry.due > now.after(soon) && entry.due < now.after(late), "{entry:?}");
    assert!(claim(&queue).await.is_empty());
    let finished = queue.finish_claimed(&ids, &Outcome::Done).await.unwrap();
    assert_eq!(finished, Finished { done: 2, ..Finished::default() });
    assert_eq!(queue.list(Filter::Done, 10).await.unwrap().len(), 2);
    assert_eq!(queue.finish_claimed(&[], &Outcome::Done).await.unwrap(), Finished::default());
}

async fn what_its_pusher_never_did_is_claimed_by_others(place: &SqlPlace) {
    let (db, queue) = start(place, Config { lease: Duration::from_millis(100), ..config() }).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1).await;
    let items = claim_something(&queue).await;
    assert_eq!((items[0].id, items[0].attempts), (ids[0], 2));
    assert_eq!(queue.finish(&all(&items, &Outcome::Done)).await.unwrap().done, 1);
}

async fn what_its_pusher_could_not_try_is_anybodys_at_once(place: &SqlPlace) {
    // It would be found by polling in an hour.
    let (db, queue) = start(place, Config { poll: Duration::from_secs(3600), ..config() }).await;
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let drain = runtime::Drain::new();
    let running = tokio::spawn({
        let (worker, drain) = (recorder.worker(&queue), drain.clone());
        async move { worker.run(drain).await.unwrap() }
    });
    // It has looked, and waits.
    push(&db, &queue, &["first:1"]).await;
    testkit::eventually("the worker is there", PATIENCE, async || !recorder.done().is_empty()).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1).await;
    let finished = queue.finish_claimed(&ids, &Outcome::NotTried("not here".into())).await.unwrap();
    assert_eq!(finished.not_tried, 1);
    let done = testkit::eventually("it is done", PATIENCE, async || {
        let entry = queue.find(ids[0]).await.unwrap().unwrap();
        if entry.state == State::Done { Ok(entry) } else { Err(format!("{entry:?}")) }
    })
    .await;
    assert_eq!(done.attempts, 1);
    drain.request();
    running.await.unwrap();
}

async fn every_outcome_is_written_for_what_is_born_claimed(place: &SqlPlace) {
    let (db, queue) = start(place, config()).await;
    let (once, holder) =
        (queue_on(db.clone(), Config { max_attempts: 1, ..config() }), ProcessId::generate());
    let again = Outcome::Again("x".into());
    for (queue, outcome, state, attempts) in [
        (&queue, Outcome::Done, State::Done, 1),
        (&queue, again.clone(), State::Pending, 1),
        (&once.unordered(), again, State::Failed, 1),
        (&queue, Outcome::Failed("x".into()), State::Failed, 1),
        (&queue, Outcome::NotTried("x".into()), State::Pending, 0),
        (&queue, Outcome::Later { after: Duration::ZERO, cause: "x".into() }, State::Pending, 0),
        (&queue, Outcome::AgainAfter { after: Duration::ZERO, cause: "x".into() }, State::Pending, 1),
    ] {
        let ids = push_claimed(&db, queue, holder, 1).await;
        assert_eq!(queue.finish_claimed(&ids, &outcome).await.unwrap().stale, 0);
        let entry = queue.find(ids[0]).await.unwrap().unwrap();
        assert_eq!((entry.state, entry.attempts, entry.holder), (state, attempts, None), "{outcome:?}");
        let cause = if outcome == Outcome::Done { None } else { Some("x") };
        assert_eq!(entry.cause.as_deref(), cause);
    }
}

async fn a_pusher_that_comes_too_late_changes_nothing(place: &SqlPlace) {
    let (db, queue) = start(place, Config { lease: Duration::from_millis(100), ..config() }).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1).await;
    let items = claim_something(&queue).await;
    for outcome in [Outcome::Done, Outcome::Failed("x".into()), Outcome::NotTried("x".into())] {
        assert_eq!(queue.finish_claimed(&ids, &outcome).await.unwrap().stale, 1, "{outcome:?}");
    }
    assert_eq!(queue.finish(&all(&items, &Outcome::Done)).await.unwrap().done, 1);
    assert_eq!(queue.finish_claimed(&ids, &Outcome::Failed("x".into())).await.unwrap().stale, 1);
}

async fn more_than_fit_into_a_statement_are_finished_together(place: &SqlPlace) {
    let (db, queue) = start(place, config()).await;
    let ids = push_claimed(&db, &queue, ProcessId::generate(), 1_201).await;
    assert_eq!(queue.finish_claimed(&ids, &Outcome::Done).await.unwrap().done, 1_201);
}
