//! Workers: woken, polling, resting, and keeping their leases.

use std::sync::atomic::{AtomicUsize, Ordering};

use runtime::Drain;
use work_queue::Filter;

use super::*;

testkit::on_all_stores!(
    a_commit_wakes_a_worker_of_this_process,
    what_another_process_pushed_is_found_by_polling,
    long_work_keeps_its_lease,
    a_worker_rests_while_nothing_can_be_tried,
    a_worker_outlives_a_store_that_is_away,
    a_worker_that_cannot_go_on_lets_the_others_finish_what_they_have,
);

fn run<H: Handler>(worker: Worker<H>, drain: &Drain) -> tokio::task::JoinHandle<()> {
    let drain = drain.clone();
    tokio::spawn(async move { worker.run(drain).await.unwrap() })
}

async fn done(queue: &Queue, count: usize) {
    testkit::eventually("the items are done", PATIENCE, async || {
        let done = queue.list(Filter::Done, 10_000).await.unwrap().len();
        if done == count { Ok(()) } else { Err(format!("{done} are done")) }
    })
    .await;
}

async fn a_commit_wakes_a_worker_of_this_process(place: &SqlPlace) {
    let db = open(place).await;
    // It would be found by polling in an hour.
    let queue = queue_on(db.clone(), Config { poll: Duration::from_secs(3600), workers: 3, ..config() });
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let drain = Drain::new();
    let running = run(recorder.worker(&queue), &drain);
    for n in 0..20 {
        push(&db, &queue, &[&format!("{n}:x")]).await;
        done(&queue, n + 1).await;
    }
    drain.request();
    running.await.unwrap();
}

async fn what_another_process_pushed_is_found_by_polling(place: &SqlPlace) {
    let db = open(place).await;
    let (here, there) = (queue_on(db.clone(), config()), queue_on(db.clone(), config()));
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let drain = Drain::new();
    let running = run(recorder.worker(&here), &drain);
    push(&db, &there, &["a:1"]).await;
    done(&there, 1).await;
    drain.request();
    running.await.unwrap();
}

struct Slow(Duration);

impl Handler for Slow {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        tokio::time::sleep(self.0).await;
        vec![Outcome::Done; items.len()]
    }
}

async fn long_work_keeps_its_lease(place: &SqlPlace) {
    let db = open(place).await;
    let lease = Duration::from_secs(1);
    let queue = queue_on(db.clone(), Config { lease, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let worker = Worker::new(queue.clone(), Slow(lease * 3), ProcessId::generate());
    let working = tokio::spawn(async move { worker.tick().await.unwrap() });
    testkit::eventually("it is claimed", PATIENCE, async || {
        queue.list(Filter::Open, 1).await.unwrap().iter().any(|entry| entry.holder.is_some())
    })
    .await;
    while !working.is_finished() {
        assert!(claim(&queue).await.is_empty(), "the lease was lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = working.await.unwrap();
    assert_eq!((report.finished.done, report.finished.stale), (1, 0));
}

async fn a_worker_rests_while_nothing_can_be_tried(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let recorder = Recorder::new({
        let tries = tries.clone();
        move |_: &str| {
            // Two items a time.
            if tries.fetch_add(1, Ordering::SeqCst) < 12 {
                Outcome::NotTried("away".into())
            } else {
                Outcome::Done
            }
        }
    });
    let drain = Drain::new();
    let began = std::time::Instant::now();
    let running = run(recorder.worker(&queue), &drain);
    done(&queue, 2).await;
    // Half of 20, 40, 80, 160, 320 and 640 ms.
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert_eq!(queue.list(Filter::Done, 1).await.unwrap()[0].attempts, 1);
    drain.request();
    running.await.unwrap();
}

/// What was done while the store was away is written down when it is back, and not done again.
async fn a_worker_outlives_a_store_that_is_away(place: &SqlPlace) {
    if !place.is_server() {
        return;
    }
    let mut server = SqlServer::private().await.unwrap();
    let database = server.database().await;
    let db = open_url(database.url()).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1"]).await;
    let (begun, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let worker = Worker::new(
        queue.clone(),
        Gate { begun: begun.clone(), go_on: go_on.clone() },
        ProcessId::generate(),
    );
    let working = tokio::spawn(async move { worker.tick().await.unwrap() });
    begun.notified().await;
    server.kill().await.unwrap();
    go_on.notify_one();
    server.start_again().await.unwrap();
    let report = working.await.unwrap();
    assert_eq!((report.finished.done, report.finished.stale), (1, 0));
}

struct Gate {
    begun: Arc<tokio::sync::Notify>,
    go_on: Arc<tokio::sync::Notify>,
}

impl Handler for Gate {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        self.begun.notify_one();
        self.go_on.notified().await;
        vec![Outcome::Done; items.len()]
    }
}

/// Else what they have is done and not written down, and waits for the lease to end.
async fn a_worker_that_cannot_go_on_lets_the_others_finish_what_they_have(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { workers: 2, poll: Duration::from_secs(3600), ..config() });
    let (begun, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let gate = Gate { begun: begun.clone(), go_on: go_on.clone() };
    let worker = Worker::new(queue.clone(), gate, ProcessId::generate());
    let mut running = tokio::spawn(async move { worker.run(Drain::new()).await });
    push(&db, &queue, &["a:1"]).await;
    begun.notified().await;
    // The other one's next claim fails.
    rename(&db, "ALTER TABLE chores RENAME TO elsewhere").await;
    queue.wake();
    let ended = tokio::time::timeout(Duration::from_secs(1), &mut running).await;
    assert!(ended.is_err(), "it left a:1 as it was");
    rename(&db, "ALTER TABLE elsewhere RENAME TO chores").await;
    go_on.notify_one();
    assert!(running.await.unwrap().is_err(), "and the one that failed was not heard of");
    done(&queue, 1).await;
}

async fn rename(db: &Db, text: &'static str) {
    let mut tx = db.begin().await.unwrap();
    db::on!(tx, raw => { sqlx::query(text).execute(raw).await.unwrap(); });
    tx.commit().await.unwrap();
}
