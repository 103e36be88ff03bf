//! The loop that records the figures of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base::id::ProcessId;
use db::{Db, Error};
use runtime::lifecycle::LoopError;
use runtime::{Drain, Metrics};
use screens::Figure;
use tokio::time::Instant;

use crate::exposition::{self, Reading};
use crate::figures::{SAMPLE_INTERVAL, measure};
use crate::store::samples;

/// Records the figures of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Sampler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    process: ProcessId,
    metrics: Metrics,
    figures: Vec<Figure>,
    last: Mutex<Option<Readings>>,
}

#[derive(Debug)]
struct Readings {
    at: Instant,
    of_figures: Vec<Option<Reading>>,
}

impl Sampler {
    pub fn new(db: Db, process: ProcessId, metrics: Metrics, figures: Vec<Figure>) -> Self {
        Self(Arc::new(Inner { db, process, metrics, figures, last: Mutex::new(None) }))
    }

    /// Reads the metrics once and writes a sample. A figure without a value is left out, and a sample without figures is not written.
    /// Rates and quantiles begin with the second call.
    pub async fn tick(&self) -> Result<(), Error> {
        let values = self.measure();
        if values.is_empty() {
            return Ok(());
        }
        let text = serde_json::Value::from_iter(values).to_string();
        samples::insert(&self.0.db, self.0.process, &text).await
    }

    /// Takes samples until the process stops.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            let started = Instant::now();
            self.tick().await?;
            if !drain.sleep(SAMPLE_INTERVAL.saturating_sub(started.elapsed())).await {
                return Ok(());
            }
        }
    }

    fn measure(&self) -> BTreeMap<String, f64> {
        let Inner { metrics, figures, last, .. } = &*self.0;
        let now = Readings { at: Instant::now(), of_figures: exposition::read(&metrics.encode(), figures) };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let value = |(at, figure): (usize, &Figure)| {
            let reading = now.of_figures.get(at)?.as_ref()?;
            let value = match &*last {
                Some(last) => {
                    let before = last.of_figures.get(at).and_then(Option::as_ref);
                    measure(figure.measure, reading, before, now.at.duration_since(last.at))
                }
                // What was counted before the first sample is not the rate of the last seconds.
                None => (figure.measure == screens::Measure::Gauge).then_some(reading.value),
            };
            Some((figure.name.to_owned(), value.filter(|value| value.is_finite())?))
        };
        let values = figures.iter().enumerate().filter_map(value).collect();
        *last = Some(now);
        values
    }
}
