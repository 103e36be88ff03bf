//! Items that are next in line, and are done by the process that pushed them.

use base::Timestamp;
use runtime::Drain;
use tokio::task::JoinHandle;
use work_queue::{Filter, State};

use super::*;

testkit::on_all_stores!(
    what_is_next_is_done_without_a_claim,
    without_a_worker_here_it_is_pushed_as_any_other,
    behind_one_that_was_not_done_its_key_waits,
    what_is_on_its_way_is_done_before_a_worker_leaves,
    what_was_handed_over_in_vain_is_claimed_after_the_lease,
    what_waited_here_beyond_its_lease_is_left_to_others,
    an_item_done_without_a_claim_is_dated_by_the_clock_of_the_queue,
);

/// Nothing is found by polling, so what is done was handed over.
fn patient() -> Config {
    Config { poll: Duration::from_secs(3600), ..config() }
}

fn run<F>(recorder: &Recorder<F>, queue: &Queue) -> (Drain, JoinHandle<()>)
where
    F: Fn(&str) -> Outcome + Clone + Send + Sync + 'static,
{
    let (drain, worker) = (Drain::new(), recorder.worker(queue));
    let stop = drain.clone();
    (drain, tokio::spawn(async move { worker.run(stop).await.unwrap() }))
}

/// Waits until a worker is there: it has done what was pushed in the usual way.
async fn is_there<F>(db: &Db, queue: &Queue, recorder: &Recorder<F>)
where
    F: Fn(&str) -> Outcome + Clone + Send + Sync + 'static,
{
    push(db, queue, &["there:0"]).await;
    testkit::eventually("the worker is there", PATIENCE, async || {
        let is_done = !recorder.done().is_empty();
        // Also written down, or it would be claimed again by others.
        is_done && queue.list(Filter::Open, 1).await.unwrap().is_empty()
    })
    .await;
}

/// Pushes items as next in line, all in one transaction.
async fn push_next(db: &Db, queue: &Queue, items: &[&'static str]) -> Vec<Uuid> {
    let new = |item: &&'static str| {
        let (key, _) = item.split_once(':').unwrap();
        New { id: Uuid::now_v7(), user: Uuid::nil(), key, payload: item.as_bytes() }
    };
    let items: Vec<New<'_>> = items.iter().map(new).collect();
    let mut tx = db.begin().await.unwrap();
    queue.push_next(&mut tx, &items);
    tx.commit().await.unwrap();
    items.iter().map(|item| item.id).collect()
}

/// Remembers when each item was created.
#[derive(Clone, Default)]
struct Dates(Arc<Mutex<Vec<Timestamp>>>);

impl Handler for Dates {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        self.0.lock().unwrap().extend(items.iter().map(|item| item.created));
        vec![Outcome::Done; items.len()]
    }
}

async fn state(queue: &Queue, id: Uuid) -> (State, u32) {
    let entry = queue.find(id).await.unwrap().unwrap();
    (entry.state, entry.attempts)
}

async fn what_is_next_is_done_without_a_claim(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), patient());
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let (drain, running) = run(&recorder, &queue);
    is_there(&db, &queue, &recorder).await;
    let ids = push_next(&db, &queue, &["a:1", "b:1", "a:2"]).await;
    for id in ids {
        testkit::eventually("it is done", PATIENCE, async || state(&queue, id).await == (State::Done, 1))
            .await;
    }
    // Where every claim counts one more: nobody claimed these.
    assert!(queue.list(Filter::Done, 10).await.unwrap().iter().all(|entry| entry.lease == 1));
    assert_eq!(recorder.done(), ["there:0", "a:1", "b:1", "a:2"]);
    drain.request();
    running.await.unwrap();
}

async fn without_a_worker_here_it_is_pushed_as_any_other(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let ids = push_next(&db, &queue, &["a:1"]).await;
    assert_eq!(state(&queue, ids[0]).await, (State::Pending, 0));
    let items = claim(&queue).await;
    assert_eq!(texts(&items), ["a:1"]);
    queue.finish(&all(&items, &Outcome::Done)).await.unwrap();
    // One that was here and has left counts as none.
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let (drain, running) = run(&recorder, &queue);
    is_there(&db, &queue, &recorder).await;
    drain.request();
    running.await.unwrap();
    let ids = push_next(&db, &queue, &["b:1"]).await;
    assert_eq!(state(&queue, ids[0]).await, (State::Pending, 0));
}

async fn behind_one_that_was_not_done_its_key_waits(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let attempts: Arc<Mutex<u32>> = Arc::default();
    let recorder = Recorder::new(move |item: &str| {
        let mut attempts = attempts.lock().unwrap();
        *attempts += u32::from(item == "a:1");
        if item == "a:1" && *attempts < 3 { Outcome::Again("not yet".into()) } else { Outcome::Done }
    });
    let (drain, running) = run(&recorder, &queue);
    is_there(&db, &queue, &recorder).await;
    let ids = push_next(&db, &queue, &["a:1", "a:2"]).await;
    // Somebody pushes one more, who has seen that there is something unfinished.
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

/// Does nothing before it may.
struct Held {
    may: Arc<tokio::sync::Semaphore>,
    begun: Arc<tokio::sync::Notify>,
}

impl Handler for Held {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        self.begun.notify_one();
        let _turn = self.may.acquire().await.unwrap();
        vec![Outcome::Done; items.len()]
    }
}

async fn what_is_on_its_way_is_done_before_a_worker_leaves(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), patient());
    let (may, begun, drain) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default(), Drain::new());
    let held = Held { may: may.clone(), begun: Arc::clone(&begun) };
    let worker = Worker::new(queue.clone(), held, ProcessId::generate());
    let stop = drain.clone();
    let running = tokio::spawn(async move { worker.run(stop).await.unwrap() });
    // The worker is there, and busy with the first, wherever that came from; the others wait to be done when it is told to stop.
    let first = push_next(&db, &queue, &["a:1"]).await;
    begun.notified().await;
    let mut others = push_next(&db, &queue, &["b:1"]).await;
    others.extend(push_next(&db, &queue, &["c:1"]).await);
    drain.request();
    may.add_permits(1);
    running.await.unwrap();
    assert_eq!(state(&queue, first[0]).await, (State::Done, 1));
    for id in others {
        assert_eq!(state(&queue, id).await, (State::Done, 1));
    }
}

async fn what_was_handed_over_in_vain_is_claimed_after_the_lease(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(300), ..config() });
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let (_, running) = run(&recorder, &queue);
    is_there(&db, &queue, &recorder).await;
    let mut tx = db.begin().await.unwrap();
    let id = Uuid::now_v7();
    queue.push_next(&mut tx, &[New { id, user: Uuid::nil(), key: "a", payload: b"a:1" }]);
    // The process dies between the push and the commit's word.
    running.abort();
    let _ = running.await;
    tx.commit().await.unwrap();
    assert_eq!(state(&queue, id).await, (State::InFlight, 1));
    let items = claim_something(&queue).await;
    assert_eq!((texts(&items), items[0].attempts), (vec!["a:1".to_owned()], 2));
}

/// Does nothing before the gate is open.
struct Gated<F> {
    recorder: Recorder<F>,
    gate: tokio::sync::watch::Receiver<bool>,
    entered: tokio::sync::mpsc::UnboundedSender<String>,
}

impl<F: Fn(&str) -> Outcome + Clone + Send + Sync + 'static> Handler for Gated<F> {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        self.entered.send(text(&items[0])).unwrap();
        let _ = self.gate.clone().wait_for(|is_open| *is_open).await;
        self.recorder.handle(items).await
    }
}

/// As when the bus stores nothing for a while: the process that pushed them does not do again what others have done meanwhile.
async fn what_waited_here_beyond_its_lease_is_left_to_others(place: &SqlPlace) {
    let db = open(place).await;
    let hasty = Config { lease: Duration::from_millis(300), ..patient() };
    let (queue, others) = (queue_on(db.clone(), hasty), queue_on(db.clone(), config()));
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let (gate, opened) = tokio::sync::watch::channel(true);
    let (entered, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let gated = Gated { recorder: recorder.clone(), gate: opened, entered };
    let worker = Worker::new(queue.clone(), gated, ProcessId::generate());
    let drain = Drain::new();
    let stop = drain.clone();
    let running = tokio::spawn(async move { worker.run(stop).await.unwrap() });
    is_there(&db, &queue, &recorder).await;
    gate.send_replace(false);
    push_next(&db, &queue, &["a:1"]).await;
    while begun.recv().await.unwrap() != "a:1" {}
    push_next(&db, &queue, &["b:1"]).await;
    let elsewhere = Recorder::new(|_: &str| Outcome::Done);
    let other = elsewhere.worker(&others);
    testkit::eventually("others have done them", PATIENCE, async || {
        other.tick().await.unwrap();
        elsewhere.done().len() == 2
    })
    .await;
    gate.send_replace(true);
    testkit::eventually("it goes on here", PATIENCE, async || {
        push_next(&db, &queue, &["c:1"]).await;
        recorder.done().contains(&"c:1".to_owned())
    })
    .await;
    assert!(!recorder.done().contains(&"b:1".to_owned()), "{:?}", recorder.done());
    drain.request();
    running.await.unwrap();
}

async fn an_item_done_without_a_claim_is_dated_by_the_clock_of_the_queue(place: &SqlPlace) {
    let db = open(place).await;
    let now = Timestamp::from_millis(1_234);
    let queue = queue_by(Clock::manual(now), db.clone(), patient());
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
    push(&db, &queue, &["there:0"]).await;
    assert_ne!(dates(1).await[0], now, "a claimed item has the date of the store");
    push_next(&db, &queue, &["a:1"]).await;
    assert_eq!(dates(2).await[1], now);
    drain.request();
    running.await.unwrap();
}
