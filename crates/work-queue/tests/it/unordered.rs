//! Unordered queues.

use work_queue::{Filter, State};

use super::*;

testkit::on_all_stores!(
    items_of_one_key_are_independent,
    whole_claim_is_handled_in_one_call,
    failed_item_blocks_no_other,
    retrying_one_item_keeps_the_waits_of_others,
);

fn unordered(db: &Db, config: Config) -> WorkQueue {
    queue_on(db.clone(), config).unordered().into()
}

async fn items_of_one_key_are_independent(place: &TestDatabase) {
    let db = open(place).await;
    let queue = unordered(&db, Config { batch: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3"]).await;
    for text in ["a:1", "a:2"] {
        let claimed = queue.claim(ProcessId::generate()).await.unwrap();
        assert_eq!((texts(&claimed.items), claimed.waiting), (vec![text.to_owned()], 0));
        if text == "a:1" {
            queue.finish(&all(&claimed.items, &ItemOutcome::Retry("bad luck".into()))).await.unwrap();
        }
    }
    assert_eq!(texts(&claim(&queue).await), ["a:3"]);
}

/// Records the number of items per call.
struct CallSizes(Arc<Mutex<Vec<usize>>>);

impl Handler for CallSizes {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        self.0.lock().unwrap().push(items.len());
        let outcome = |item: &Item| match text(item).as_str() {
            "a:2" => ItemOutcome::Failed("bad".into()),
            _ => ItemOutcome::Done,
        };
        items.iter().map(outcome).collect()
    }
}

async fn whole_claim_is_handled_in_one_call(place: &TestDatabase) {
    let db = open(place).await;
    let queue = unordered(&db, config());
    push(&db, &queue, &["a:1", "a:2", "b:1", "a:3"]).await;
    let sizes = Arc::default();
    let worker = Worker::new(queue, CallSizes(Arc::clone(&sizes)), ProcessId::generate());
    let finished = worker.tick().await.unwrap().finished;
    assert_eq!((finished.done, finished.failed, finished.not_attempted), (3, 1, 0));
    assert_eq!(*sizes.lock().unwrap(), [4]);
}

async fn failed_item_blocks_no_other(place: &TestDatabase) {
    let db = open(place).await;
    let queue = unordered(&db, config());
    push(&db, &queue, &["a:1"]).await;
    queue.finish(&all(&claim(&queue).await, &ItemOutcome::Failed("bad".into()))).await.unwrap();
    push(&db, &queue, &["a:2"]).await;
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
    assert!(queue.blocked_keys(10).await.unwrap().is_empty());
    assert_eq!(queue.list(Filter::Failed, 10).await.unwrap().len(), 1);
}

/// In an ordered queue the items behind it would be brought forward.
async fn retrying_one_item_keeps_the_waits_of_others(place: &TestDatabase) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
    let queue = unordered(&db, Config { retry, ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3"]).await;
    let items = claim(&queue).await;
    let outcomes = [
        ItemOutcome::Failed("bad".into()),
        ItemOutcome::Retry("bad luck".into()),
        ItemOutcome::Failed("bad".into()),
    ];
    queue.finish(&items.iter().cloned().zip(outcomes).collect::<Vec<_>>()).await.unwrap();
    queue.retry(items[0].number).await.unwrap().unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:1"]);
    queue.skip(items[2].number).await.unwrap().unwrap();
    assert!(claim(&queue).await.is_empty());
    assert_eq!(queue.find(items[1].id).await.unwrap().unwrap().state, State::Pending);
}
