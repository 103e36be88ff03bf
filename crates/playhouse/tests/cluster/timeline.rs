//! The numbers of offered and stored events over time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, Context};
use futures::TryStreamExt;

use super::shop::STREAM;

/// The interval between two samples.
const STEP: Duration = Duration::from_millis(100);
/// The time over which a rate is measured. A shorter span would show single batches.
pub(crate) const SPAN: Duration = Duration::from_secs(2);
/// The share of the offered rate at which the fleet counts as recovered.
const ENOUGH: f64 = 0.95;

/// The numbers of grants and of matches.
pub(crate) type Counts = [u64; 2];

/// The numbers of offered and stored events at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    offered: Counts,
    stored: Counts,
}

/// Samples a run. Stops when dropped.
pub(crate) struct Timeline {
    samples: Arc<Mutex<Vec<Sample>>>,
    sampling: tokio::task::JoinHandle<()>,
}

impl Timeline {
    pub(crate) async fn start(
        nats: Vec<String>,
        offered: impl Fn() -> Counts + Send + Sync + 'static,
    ) -> Self {
        // Short timeouts, so that the client soon leaves a server that is paused.
        let options = ConnectOptions::new().ping_interval(STEP * 5).request_timeout(Some(STEP * 5));
        let jetstream = jetstream::new(options.connect(nats).await.unwrap());
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let sampling = tokio::spawn({
            let samples = samples.clone();
            async move {
                let mut stored = Counts::default();
                loop {
                    // While no server answers, the last known count is kept.
                    let before = offered();
                    if let Ok(Some(counts)) = tokio::time::timeout(STEP * 5, count(&jetstream)).await {
                        stored = counts;
                    }
                    samples.lock().unwrap().push(Sample { at: Instant::now(), offered: before, stored });
                    tokio::time::sleep(STEP).await;
                }
            }
        });
        Self { samples, sampling }
    }

    /// Returns the start of the first span after `from` in which events were stored at almost the offered rate.
    pub(crate) fn recovered_since(&self, from: Instant) -> Option<Instant> {
        let samples = self.samples.lock().unwrap();
        let later = &samples[samples.partition_point(|sample| sample.at < from)..];
        later.iter().enumerate().find_map(|(n, begin)| {
            let end = later[n..].iter().find(|end| end.at >= begin.at + SPAN)?;
            (0..2).all(|kind| is_enough(kind, begin, end)).then_some(begin.at)
        })
    }

    /// Returns the last known numbers of stored events.
    pub(crate) fn stored(&self) -> Counts {
        self.samples.lock().unwrap().last().map_or([0, 0], |sample| sample.stored)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.sampling.abort();
    }
}

fn is_enough(kind: usize, begin: &Sample, end: &Sample) -> bool {
    // A new leader may report a smaller count than the previous one for a moment.
    let stored = end.stored[kind].saturating_sub(begin.stored[kind]);
    let offered = end.offered[kind] - begin.offered[kind];
    offered > 0 && stored as f64 >= ENOUGH * offered as f64
}

/// Returns how many grants and matches the stream has. None while no server answers.
async fn count(jetstream: &Context) -> Option<Counts> {
    let stream = jetstream.get_stream_no_info(STREAM).await.ok()?;
    let subjects = stream.info_with_subjects(">").await.ok()?;
    let subjects: Vec<(String, usize)> = subjects.try_collect().await.ok()?;
    let of = |kind: &str| {
        subjects.iter().filter(|(subject, _)| subject.contains(kind)).map(|(_, n)| *n as u64).sum()
    };
    Some([of(".entitlement.granted."), of(".match.made.")])
}
