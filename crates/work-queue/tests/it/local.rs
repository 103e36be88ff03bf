//! Local hand-off: items handled by the process that pushed them.

use base::Timestamp;
use runtime::Drain;
use tokio::task::JoinHandle;
use work_queue::{Filter, State};

use super::*;

testkit::on_all_stores!(
    local_items_are_handled_without_a_claim,
    local_push_without_a_worker_is_an_ordinary_push,
    key_waits_behind_a_local_item_that_is_retried,
    worker_handles_received_local_items_before_it_stops,
    lost_local_item_is_claimed_after_its_lease,
    local_item_beyond_its_lease_is_left_to_other_workers,
    local_item_is_dated_by_the_clock_of_the_queue,
);

/// Never polls, so items are handled only if they were handed off.
fn no_polling() -> Config {
    Config { poll: Duration::from_secs(3600), ..config() }
}

fn run<F>(recorder: &Recorder<F>, queue: &WorkQueue) -> (Drain, JoinHandle<()>)
where
    F: Fn(&str) -> ItemOutcome + Clone + Send + Sync + 'static,
{
    let (drain, worker) = (Drain::new(), recorder.worker(queue));
    let stop = drain.clone();
    (drain, tokio::spawn(async move { worker.run(stop).await.unwrap() }))
}

/// Waits until the worker runs: it has handled an ordinary push.
async fn wait_for_worker<F>(db: &Db, queue: &WorkQueue, recorder: &Recorder<F>)
where
    F: Fn(&str) -> ItemOutcome + Clone + Send + Sync + 'static,
{
    push(db, queue, &["ready:0"]).await;
    testkit::eventually("the worker runs", PATIENCE, async || {
        let is_done = !recorder.done().is_empty();
        // The outcome is also recorded, or other workers would claim the item again.
        is_done && queue.list(Filter::Open, 1).await.unwrap().is_empty()
    })
    .await;
}

/// Pushes items for the local worker, all in one transaction.
async fn push_local(db: &Db, queue: &WorkQueue, items: &[&'static str]) -> Vec<Uuid> {
    let new = |item: &&'static str| {
        let (key, _) = item.split_once(':').unwrap();
        NewItem { id: Uuid::now_v7(), user: Uuid::nil(), key, payload: item.as_bytes() }
    };
    let items: Vec<NewItem<'_>> = items.iter().map(new).collect();
    let mut tx = db.begin().await.unwrap();
    queue.push_local(&mut tx, &items);
    tx.commit().await.unwrap();
    items.iter().map(|item| item.id).collect()
}

/// Records the creation time of each item.
#[derive(Clone, Default)]
struct Dates(Arc<Mutex<Vec<Timestamp>>>);

impl Handler for Dates {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        self.0.lock().unwrap().extend(items.iter().map(|item| item.created));
        vec![ItemOutcome::Done; items.len()]
    }
}

async fn state(queue: &WorkQueue, id: Uuid) -> (State, u32) {
    let view = queue.find(id).await.unwrap().unwrap();
    (view.state, view.attempts)
}

async fn local_items_are_handled_without_a_claim(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), no_polling());
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let (drain, running) = run(&recorder, &queue);
    wait_for_worker(&db, &queue, &recorder).await;
    let ids = push_local(&db, &queue, &["a:1", "b:1", "a:2"]).await;
    for id in ids {
        testkit::eventually("it is done", PATIENCE, async || state(&queue, id).await == (State::Done, 1))
            .await;
    }
    // Every claim raises the lease number: these were never claimed.
    assert!(queue.list(Filter::Done, 10).await.unwrap().iter().all(|view| view.lease == 1));
    assert_eq!(recorder.done(), ["ready:0", "a:1", "b:1", "a:2"]);
    drain.request();
    running.await.unwrap();
}

async fn local_push_without_a_worker_is_an_ordinary_push(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let ids = push_local(&db, &queue, &["a:1"]).await;
    assert_eq!(state(&queue, ids[0]).await, (State::Pending, 0));
    let items = claim(&queue).await;
    assert_eq!(texts(&items), ["a:1"]);
    queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap();
    // A worker that has stopped does not count.
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let (drain, running) = run(&recorder, &queue);
    wait_for_worker(&db, &queue, &recorder).await;
    drain.request();
    running.await.unwrap();
    let ids = push_local(&db, &queue, &["b:1"]).await;
    assert_eq!(state(&queue, ids[0]).await, (State::Pending, 0));
}

async fn key_waits_behind_a_local_item_that_is_retried(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let attempts: Arc<Mutex<u32>> = Arc::default();
    let recorder = Recorder::new(move |item: &str| {
        let mut attempts = attempts.lock().unwrap();
        *attempts += u32::from(item == "a:1");
        if item == "a:1" && *attempts < 3 { ItemOutcome::Retry("not yet".into()) } else { ItemOutcome::Done }
    });
    let (drain, running) = run(&recorder, &queue);
    wait_for_worker(&db, &queue, &recorder).await;
    let ids = push_local(&db, &queue, &["a:1", "a:2"]).await;
    // An ordinary push of a caller that has seen unfinished items of the key.
    push(&db, &queue, &["a:3"]).await;
    testkit::eventually("the last is done", PATIENCE, async || {
        recorder.done().last().is_some_and(|last| last == "a:3")
    })
    .await;
    let done: Vec<String> = recorder.done().into_iter().filter(|item| item.starts_with('a')).collect();
    assert_eq!(done, ["a:1", "a:2", "a:3"]);
    // The handler returns before its outcomes are written.
    for id in &ids {
        testkit::eventually("the outcome is written", PATIENCE, async || {
            state(&queue, *id).await.0 == State::Done
        })
        .await;
    }
    assert_eq!(state(&queue, ids[0]).await, (State::Done, 3));
    drain.request();
    running.await.unwrap();
}

/// Waits for a permit before it handles items.
struct Held {
    permits: Arc<tokio::sync::Semaphore>,
    begun: Arc<tokio::sync::Notify>,
}

impl Handler for Held {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        self.begun.notify_one();
        let _permit = self.permits.acquire().await.unwrap();
        vec![ItemOutcome::Done; items.len()]
    }
}

async fn worker_handles_received_local_items_before_it_stops(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), no_polling());
    let (permits, begun, drain) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default(), Drain::new());
    let held = Held { permits: permits.clone(), begun: Arc::clone(&begun) };
    let worker = Worker::new(queue.clone(), held, ProcessId::generate());
    let stop = drain.clone();
    let running = tokio::spawn(async move { worker.run(stop).await.unwrap() });
    // The worker is busy with the first item. The others wait when the drain is requested.
    let first = push_local(&db, &queue, &["a:1"]).await;
    begun.notified().await;
    let mut others = push_local(&db, &queue, &["b:1"]).await;
    others.extend(push_local(&db, &queue, &["c:1"]).await);
    drain.request();
    permits.add_permits(1);
    running.await.unwrap();
    assert_eq!(state(&queue, first[0]).await, (State::Done, 1));
    for id in others {
        assert_eq!(state(&queue, id).await, (State::Done, 1));
    }
}

async fn lost_local_item_is_claimed_after_its_lease(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(300), ..config() });
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let (_, running) = run(&recorder, &queue);
    wait_for_worker(&db, &queue, &recorder).await;
    let mut tx = db.begin().await.unwrap();
    let id = Uuid::now_v7();
    queue.push_local(&mut tx, &[NewItem { id, user: Uuid::nil(), key: "a", payload: b"a:1" }]);
    // The process dies between the push and the hand-off after the commit.
    running.abort();
    let _ = running.await;
    tx.commit().await.unwrap();
    assert_eq!(state(&queue, id).await, (State::InFlight, 1));
    let items = claim_something(&queue).await;
    assert_eq!((texts(&items), items[0].attempts), (vec!["a:1".to_owned()], 2));
}

/// Waits until the gate is open before it handles items.
struct Gated<F> {
    recorder: Recorder<F>,
    gate: tokio::sync::watch::Receiver<bool>,
    entered: tokio::sync::mpsc::UnboundedSender<String>,
}

impl<F: Fn(&str) -> ItemOutcome + Clone + Send + Sync + 'static> Handler for Gated<F> {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        self.entered.send(text(&items[0])).unwrap();
        let _ = self.gate.clone().wait_for(|is_open| *is_open).await;
        self.recorder.handle(items).await
    }
}

/// As during an outage of the bus: the process does not repeat items that other workers have handled meanwhile.
async fn local_item_beyond_its_lease_is_left_to_other_workers(place: &TestDatabase) {
    let db = open(place).await;
    let short_lease = Config { lease: Duration::from_millis(300), ..no_polling() };
    let (queue, others) = (queue_on(db.clone(), short_lease), queue_on(db.clone(), config()));
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let (gate, opened) = tokio::sync::watch::channel(true);
    let (entered, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let gated = Gated { recorder: recorder.clone(), gate: opened, entered };
    let worker = Worker::new(queue.clone(), gated, ProcessId::generate());
    let drain = Drain::new();
    let stop = drain.clone();
    let running = tokio::spawn(async move { worker.run(stop).await.unwrap() });
    wait_for_worker(&db, &queue, &recorder).await;
    gate.send_replace(false);
    push_local(&db, &queue, &["a:1"]).await;
    while begun.recv().await.unwrap() != "a:1" {}
    push_local(&db, &queue, &["b:1"]).await;
    let elsewhere = Recorder::new(|_: &str| ItemOutcome::Done);
    let other = elsewhere.worker(&others);
    testkit::eventually("other workers have handled them", PATIENCE, async || {
        other.tick().await.unwrap();
        elsewhere.done().len() == 2
    })
    .await;
    gate.send_replace(true);
    testkit::eventually("the local worker continues", PATIENCE, async || {
        push_local(&db, &queue, &["c:1"]).await;
        recorder.done().contains(&"c:1".to_owned())
    })
    .await;
    assert!(!recorder.done().contains(&"b:1".to_owned()), "{:?}", recorder.done());
    drain.request();
    running.await.unwrap();
}

async fn local_item_is_dated_by_the_clock_of_the_queue(place: &TestDatabase) {
    let db = open(place).await;
    let now = Timestamp::from_millis(1_234);
    let queue = queue_by(Clock::manual(now), db.clone(), no_polling());
    let (dates, drain) = (Dates::default(), Drain::new());
    let (worker, stop) = (Worker::new(queue.clone(), dates.clone(), ProcessId::generate()), drain.clone());
    let running = tokio::spawn(async move { worker.run(stop).await.unwrap() });
    let dates = async |count: usize| {
        testkit::eventually("the items are done", PATIENCE, async || {
            let is_written = queue.list(Filter::Open, 1).await.unwrap().is_empty();
            let dates = dates.0.lock().unwrap().clone();
            if is_written && dates.len() == count { Ok(dates) } else { Err(format!("{dates:?}")) }
        })
        .await
    };
    push(&db, &queue, &["ready:0"]).await;
    assert_ne!(dates(1).await[0], now, "a claimed item is dated by the store");
    push_local(&db, &queue, &["a:1"]).await;
    assert_eq!(dates(2).await[1], now);
    drain.request();
    running.await.unwrap();
}
