//! What arrives together is done together.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

/// Does things in batches: while as many batches as may be are under way, the next one gathers. Nothing waits for company.
pub struct Batcher<I, O>(Arc<Inner<I, O>>);

struct Inner<I, O> {
    /// How many batches may be under way.
    lanes: usize,
    max: usize,
    work: Box<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync>,
    state: Mutex<State<I, O>>,
}

struct State<I, O> {
    waiting: Vec<(I, oneshot::Sender<O>)>,
    under_way: usize,
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Batches of at most `max` items, as many at once as there are lanes. `work` returns one result for each item, in their order.
    pub fn new<F>(lanes: usize, max: usize, work: impl Fn(Vec<I>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<O>> + Send + 'static,
    {
        let work = Box::new(move |items| work(items).boxed());
        let state = Mutex::new(State { waiting: Vec::new(), under_way: 0 });
        Self(Arc::new(Inner { lanes, max, work, state }))
    }

    /// Does one thing, in whichever batch comes next. It is done even if the caller goes away. Nothing comes back when the work
    /// panicked.
    pub async fn run(&self, item: I) -> Option<O> {
        let (sender, receiver) = oneshot::channel();
        let is_free = {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting.push((item, sender));
            let is_free = state.under_way < self.0.lanes;
            state.under_way += usize::from(is_free);
            is_free
        };
        if is_free {
            tokio::spawn(self.clone().work_off());
        }
        receiver.await.ok()
    }

    /// Ends when nothing waits any more.
    async fn work_off(self) {
        loop {
            let batch: Vec<_> = {
                let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
                let size = state.waiting.len().min(self.0.max);
                if size == 0 {
                    state.under_way -= 1;
                    return;
                }
                state.waiting.drain(..size).collect()
            };
            let (items, senders): (Vec<I>, Vec<_>) = batch.into_iter().unzip();
            // A panic is the affair of its batch; the log has it.
            let work = AssertUnwindSafe(async { (self.0.work)(items).await }).catch_unwind();
            for (sender, result) in senders.into_iter().zip(work.await.unwrap_or_default()) {
                // Who has gone away does not want to know.
                let _ = sender.send(result);
            }
        }
    }
}

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I, O> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("max", &self.0.max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn everybody_gets_the_answer_to_their_own_question() {
        let batcher =
            Batcher::new(3, 7, async |items: Vec<u32>| items.into_iter().map(|item| item * 2).collect());
        let asked = (0..1000).map(|item| {
            let batcher = batcher.clone();
            tokio::spawn(async move { (item, batcher.run(item).await.unwrap()) })
        });
        for answer in futures::future::join_all(asked).await {
            let (item, answer) = answer.unwrap();
            assert_eq!(answer, item * 2);
        }
    }

    #[tokio::test]
    async fn a_panic_is_the_affair_of_its_batch() {
        let batcher = Batcher::new(1, 1, async |items: Vec<u32>| {
            assert_ne!(items[0], 1, "as intended");
            items
        });
        let asked = futures::future::join_all((0..3).map(|item| batcher.run(item))).await;
        assert_eq!(asked, [Some(0), None, Some(2)]);
        assert_eq!(batcher.run(3).await, Some(3));
    }

    #[tokio::test]
    async fn what_arrives_while_a_batch_is_under_way_makes_the_next_one() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let batcher = Batcher::new(1, 100, move |items: Vec<()>| {
            seen.lock().unwrap().push(items.len());
            async move {
                tokio::task::yield_now().await;
                items
            }
        });
        let asked: Vec<_> = (0..51).map(|_| batcher.run(())).collect();
        futures::future::join_all(asked).await;
        let sizes = sizes.lock().unwrap();
        assert_eq!(sizes.iter().sum::<usize>(), 51);
        assert!(sizes.len() <= 3, "{sizes:?}");
    }
}
