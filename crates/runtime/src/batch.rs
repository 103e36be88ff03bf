//! Processes items in batches.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

/// Processes items in batches. An item starts at once if a lane is free. Items that arrive while all lanes are busy form the next
/// batch.
///
/// Cheap to clone; clones share state.
pub struct Batcher<I, O>(Arc<Inner<I, O>>);

struct Inner<I, O> {
    /// How many batches may be in flight.
    lanes: usize,
    max: usize,
    work: Box<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync>,
    state: Mutex<State<I, O>>,
}

struct State<I, O> {
    waiting: Vec<(I, oneshot::Sender<O>)>,
    in_flight: usize,
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Creates a batcher of at most `lanes` concurrent batches of at most `max` items. `work` returns one result per item, in order.
    pub fn new<F>(lanes: usize, max: usize, work: impl Fn(Vec<I>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<O>> + Send + 'static,
    {
        let work = Box::new(move |items| work(items).boxed());
        let state = Mutex::new(State { waiting: Vec::new(), in_flight: 0 });
        Self(Arc::new(Inner { lanes, max, work, state }))
    }

    /// Processes one item in the next batch and returns its result. The item is processed even if the caller is cancelled. Returns
    /// none if the work panicked.
    pub async fn run(&self, item: I) -> Option<O> {
        let (sender, receiver) = oneshot::channel();
        let is_free = {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting.push((item, sender));
            let is_free = state.in_flight < self.0.lanes;
            state.in_flight += usize::from(is_free);
            is_free
        };
        if is_free {
            tokio::spawn(self.clone().run_batches());
        }
        receiver.await.ok()
    }

    /// Runs batches until no item is waiting.
    async fn run_batches(self) {
        loop {
            let batch: Vec<_> = {
                let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
                let size = state.waiting.len().min(self.0.max);
                if size == 0 {
                    state.in_flight -= 1;
                    return;
                }
                state.waiting.drain(..size).collect()
            };
            let (items, senders): (Vec<I>, Vec<_>) = batch.into_iter().unzip();
            // A panic fails its own batch only. The panic hook has logged it.
            let work = AssertUnwindSafe(async { (self.0.work)(items).await }).catch_unwind();
            for (sender, result) in senders.into_iter().zip(work.await.unwrap_or_default()) {
                // The caller may have been cancelled.
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
    async fn each_caller_gets_the_result_of_its_own_item() {
        let batcher =
            Batcher::new(3, 7, async |items: Vec<u32>| items.into_iter().map(|item| item * 2).collect());
        let results = (0..1000).map(|item| {
            let batcher = batcher.clone();
            tokio::spawn(async move { (item, batcher.run(item).await.unwrap()) })
        });
        for result in futures::future::join_all(results).await {
            let (item, result) = result.unwrap();
            assert_eq!(result, item * 2);
        }
    }

    #[tokio::test]
    async fn panic_fails_its_own_batch_only() {
        let batcher = Batcher::new(1, 1, async |items: Vec<u32>| {
            assert_ne!(items[0], 1, "the injected panic");
            items
        });
        let results = futures::future::join_all((0..3).map(|item| batcher.run(item))).await;
        assert_eq!(results, [Some(0), None, Some(2)]);
        assert_eq!(batcher.run(3).await, Some(3));
    }

    #[tokio::test]
    async fn items_that_arrive_during_a_batch_form_the_next_one() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let batcher = Batcher::new(1, 100, move |items: Vec<()>| {
            seen.lock().unwrap().push(items.len());
            async move {
                tokio::task::yield_now().await;
                items
            }
        });
        let results: Vec<_> = (0..51).map(|_| batcher.run(())).collect();
        futures::future::join_all(results).await;
        let sizes = sizes.lock().unwrap();
        assert_eq!(sizes.iter().sum::<usize>(), 51);
        assert!(sizes.len() <= 3, "{sizes:?}");
    }
}
