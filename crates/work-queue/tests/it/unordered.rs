//! Queues without order.

use work_queue::{Filter, State};

use super::*;

testkit::on_all_stores!(
    items_of_one_key_wait_for_nobody,
    all_that_is_claimed_is_handled_at_once,
    a_failed_item_holds_up_nobody,
    to_try_one_again_leaves_the_waits_of_others,
);

fn unordered(db: &Db, config: Config) -> Queue {
    queue_on(db.clone(), config).unordered().into()
}

async fn items_of_one_key_wait_for_nobody(place: &SqlPlace) {
    let db = open(place).await;
    let queue = unordered(&db, Config { batch: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3"]).await;
    for text in ["a:1", "a:2"] {
        let claimed = queue.claim(ProcessId::generate()).await.unwrap();
        assert_eq!((texts(&claimed.items), claimed.behind), (vec![text.to_owned()], 0));
        if text == "a:1" {
            queue.finish(&all(&claimed.items, &Outcome::Again("bad luck".into()))).await.unwrap();
        }
    }
    assert_eq!(texts(&claim(&queue).await), ["a:3"]);
}

/// Says how many it was given at once.
struct Counter(Arc<Mutex<Vec<usize>>>);

impl Handler for Counter {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        self.0.lock().unwrap().push(items.len());
        let outcome = |item: &Item| match text(item).as_str() {
            "a:2" => Outcome::Failed("bad".into()),
            _ => Outcome::Done,
        };
        items.iter().map(outcome).collect()
    }
}

async fn all_that_is_claimed_is_handled_at_once(place: &SqlPlace) {
    let db = open(place).await;
    let queue = unordered(&db, config());
    push(&db, &queue, &["a:1", "a:2", "b:1", "a:3"]).await;
    let given = Arc::default();
    let worker = Worker::new(queue, Counter(Arc::clone(&given)), ProcessId::generate());
    let finished = worker.tick().await.unwrap().finished;
    assert_eq!((finished.done, finished.failed, finished.not_tried), (3, 1, 0));
    assert_eq!(*given.lock().unwrap(), [4]);
}

async fn a_failed_item_holds_up_nobody(place: &SqlPlace) {
    let db = open(place).await;
    let queue = unordered(&db, config());
    push(&db, &queue, &["a:1"]).await;
    queue.finish(&all(&claim(&queue).await, &Outcome::Failed("bad".into()))).await.unwrap();
    push(&db, &queue, &["a:2"]).await;
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
    assert!(queue.blocked_keys(10).await.unwrap().is_empty());
    assert_eq!(queue.list(Filter::Failed, 10).await.unwrap().len(), 1);
}

/// In a queue with order those behind it would be brought forward.
async fn to_try_one_again_leaves_the_waits_of_others(place: &SqlPlace) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
    let queue = unordered(&db, Config { retry, ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3"]).await;
    let items = claim(&queue).await;
    let outcomes =
        [Outcome::Failed("bad".into()), Outcome::Again("bad luck".into()), Outcome::Failed("bad".into())];
    queue.finish(&items.iter().cloned().zip(outcomes).collect::<Vec<_>>()).await.unwrap();
    queue.retry(items[0].number).await.unwrap().unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:1"]);
    queue.skip(items[2].number).await.unwrap().unwrap();
    assert!(claim(&queue).await.is_empty());
    assert_eq!(queue.find(items[1].id).await.unwrap().unwrap().state, State::Pending);
}
