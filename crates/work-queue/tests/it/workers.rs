//! Workers: waking, polling, backing off and renewing leases.

use std::sync::atomic::{AtomicUsize, Ordering};

use runtime::Drain;
use work_queue::Filter;

use super::*;

testkit::on_all_stores!(
    commit_wakes_a_worker_of_this_process,
    polling_finds_items_of_other_processes,
    long_work_keeps_its_lease,
    worker_backs_off_while_nothing_can_be_attempted,
    worker_survives_a_store_outage,
    failed_worker_lets_the_others_finish_their_claims,
);

fn run<H: Handler>(worker: Worker<H>, drain: &Drain) -> tokio::task::JoinHandle<()> {
    let drain = drain.clone();
    tokio::spawn(async move { worker.run(drain).await.unwrap() })
}

async fn wait_for_done(queue: &WorkQueue, count: usize) {
    testkit::eventually("the items are done", PATIENCE, async || {
        let done = queue.list(Filter::Done, 10_000).await.unwrap().len();
        if done == count { Ok(()) } else { Err(format!("{done} are done")) }
    })
    .await;
}

async fn commit_wakes_a_worker_of_this_process(place: &TestDatabase) {
    let db = open(place).await;
    // Polling would find it in an hour.
    let queue = queue_on(db.clone(), Config { poll: Duration::from_secs(3600), workers: 3, ..config() });
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let drain = Drain::new();
    let running = run(recorder.worker(&queue), &drain);
    for n in 0..20 {
        push(&db, &queue, &[&format!("{n}:x")]).await;
        wait_for_done(&queue, n + 1).await;
    }
    drain.request();
    running.await.unwrap();
}

async fn polling_finds_items_of_other_processes(place: &TestDatabase) {
    let db = open(place).await;
    let (here, there) = (queue_on(db.clone(), config()), queue_on(db.clone(), config()));
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let drain = Drain::new();
    let running = run(recorder.worker(&here), &drain);
    push(&db, &there, &["a:1"]).await;
    wait_for_done(&there, 1).await;
    drain.request();
    running.await.unwrap();
}

struct Slow(Duration);

impl Handler for Slow {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        tokio::time::sleep(self.0).await;
        vec![ItemOutcome::Done; items.len()]
    }
}

async fn long_work_keeps_its_lease(place: &TestDatabase) {
    let db = open(place).await;
    let lease = Duration::from_secs(1);
    let queue = queue_on(db.clone(), Config { lease, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let worker = Worker::new(queue.clone(), Slow(lease * 3), ProcessId::generate());
    let working = tokio::spawn(async move { worker.tick().await.unwrap() });
    testkit::eventually("it is claimed", PATIENCE, async || {
        queue.list(Filter::Open, 1).await.unwrap().iter().any(|view| view.holder.is_some())
    })
    .await;
    while !working.is_finished() {
        assert!(claim(&queue).await.is_empty(), "the lease was lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = working.await.unwrap();
    assert_eq!((report.finished.done, report.finished.stale), (1, 0));
}

async fn worker_backs_off_while_nothing_can_be_attempted(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let recorder = Recorder::new({
        let tries = tries.clone();
        move |_: &str| {
            // Two items per attempt.
            if tries.fetch_add(1, Ordering::SeqCst) < 12 {
                ItemOutcome::NotAttempted("unreachable".into())
            } else {
                ItemOutcome::Done
            }
        }
    });
    let drain = Drain::new();
    let began = std::time::Instant::now();
    let running = run(recorder.worker(&queue), &drain);
    wait_for_done(&queue, 2).await;
    // Half of 20, 40, 80, 160, 320 and 640 ms.
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert_eq!(queue.list(Filter::Done, 1).await.unwrap()[0].attempts, 1);
    drain.request();
    running.await.unwrap();
}

/// Outcomes from during an outage are recorded when the store is back, and the items are not handled again.
async fn worker_survives_a_store_outage(place: &TestDatabase) {
    if !place.is_server() {
        return;
    }
    let mut server = SqlServer::private().await.unwrap();
    let database = server.database().await;
    let db = open_url(database.url()).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1"]).await;
    let (begun, resume) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let worker = Worker::new(
        queue.clone(),
        Gate { begun: begun.clone(), resume: resume.clone() },
        ProcessId::generate(),
    );
    let working = tokio::spawn(async move { worker.tick().await.unwrap() });
    begun.notified().await;
    server.kill().await.unwrap();
    resume.notify_one();
    server.start_again().await.unwrap();
    let report = working.await.unwrap();
    assert_eq!((report.finished.done, report.finished.stale), (1, 0));
}

struct Gate {
    begun: Arc<tokio::sync::Notify>,
    resume: Arc<tokio::sync::Notify>,
}

impl Handler for Gate {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        self.begun.notify_one();
        self.resume.notified().await;
        vec![ItemOutcome::Done; items.len()]
    }
}

/// Otherwise their outcomes would be lost, and their items would wait for the lease to expire.
async fn failed_worker_lets_the_others_finish_their_claims(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { workers: 2, poll: Duration::from_secs(3600), ..config() });
    let (begun, resume) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let gate = Gate { begun: begun.clone(), resume: resume.clone() };
    let worker = Worker::new(queue.clone(), gate, ProcessId::generate());
    let mut running = tokio::spawn(async move { worker.run(Drain::new()).await });
    push(&db, &queue, &["a:1"]).await;
    begun.notified().await;
    // The next claim of the other loop fails.
    rename(&db, "ALTER TABLE chores RENAME TO elsewhere").await;
    queue.wake();
    let ended = tokio::time::timeout(Duration::from_secs(1), &mut running).await;
    assert!(ended.is_err(), "the run ended before a:1 was finished");
    rename(&db, "ALTER TABLE elsewhere RENAME TO chores").await;
    resume.notify_one();
    assert!(running.await.unwrap().is_err(), "the failure was not returned");
    wait_for_done(&queue, 1).await;
}

async fn rename(db: &Db, text: &'static str) {
    let mut tx = db.begin().await.unwrap();
    db::on!(tx, raw => { sqlx::query(text).execute(raw).await.unwrap(); });
    tx.commit().await.unwrap();
}
