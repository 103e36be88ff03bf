//! Figures of a running simulation: counts, latencies, and values per second.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

/// The figures. Shared by all players.
#[derive(Debug)]
pub(crate) struct Meter {
    started: Instant,
    figures: Mutex<Figures>,
}

/// All figures so far.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) counts: Counts,
    /// By the name of the request.
    pub(crate) calls: BTreeMap<&'static str, CallFigures>,
    /// How long requests waited because the simulator sends only so many at a time. In microseconds. It is part of their latency.
    pub(crate) held_back: Histogram<u64>,
    /// One value per second since the start.
    pub(crate) seconds: Vec<Second>,
    /// The line and the stock over time: seconds since the start, players who wait, units that are available.
    pub(crate) drop: Vec<(f64, u64, u64)>,
    /// Whether all players have ended, and the truth is read.
    pub(crate) is_reading: bool,
    /// The seconds since the start at which something was done to the instance.
    pub(crate) marks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) arrived: u64,
    pub(crate) finished: u64,
    /// Players whose data was read back at the end, or whose task panicked.
    pub(crate) read_back: u64,
    pub(crate) requests: u64,
    pub(crate) retries: u64,
    pub(crate) joined: u64,
    pub(crate) admitted: u64,
    pub(crate) bought: u64,
    pub(crate) matched: u64,
    pub(crate) notified: u64,
    pub(crate) streams: u64,
    pub(crate) reconnects: u64,
    /// Streams that were given up because nothing arrived.
    pub(crate) silences: u64,
    /// Access tokens that were refused and replaced.
    pub(crate) renewals: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct CallFigures {
    /// In microseconds.
    pub(crate) latency: Histogram<u64>,
    /// Responses that are no success: 4xx and 5xx.
    pub(crate) refused: u64,
}

/// What happened in one second.
#[derive(Clone, Debug)]
pub(crate) struct Second {
    pub(crate) counts: Counts,
    pub(crate) latency: Histogram<u64>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), figures: Mutex::default() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn snapshot(&self) -> Figures {
        self.lock().clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Changes a count, in total and in this second.
    pub(crate) fn count(&self, change: impl Fn(&mut Counts)) {
        let mut figures = self.lock();
        change(&mut figures.counts);
        change(&mut self.second(&mut figures).counts);
    }

    /// Counts a closed stream. The number of open streams is a gauge, so only its total decreases.
    pub(crate) fn closed_stream(&self) {
        let mut figures = self.lock();
        figures.counts.streams = figures.counts.streams.saturating_sub(1);
    }

    pub(crate) fn retried(&self) {
        self.count(|counts| counts.retries += 1);
    }

    /// Adds an answered request. `after` is the time since the player wanted to send it, `held_back` the part of it before it was sent.
    pub(crate) fn answered(&self, what: &'static str, status: u16, after: Duration, held_back: Duration) {
        let micros = in_micros(after);
        let mut figures = self.lock();
        figures.counts.requests += 1;
        figures.held_back.saturating_record(in_micros(held_back));
        let call =
            figures.calls.entry(what).or_insert_with(|| CallFigures { latency: histogram(), refused: 0 });
        call.latency.saturating_record(micros);
        call.refused += u64::from(status >= 400);
        let second = self.second(&mut figures);
        second.counts.requests += 1;
        second.latency.saturating_record(micros);
    }

    /// Adds a sample of the line and the stock.
    pub(crate) fn sample(&self, waiting: u64, available: u64) {
        let at = self.elapsed().as_secs_f64();
        self.lock().drop.push((at, waiting, available));
    }

    pub(crate) fn begin_reading(&self) {
        self.lock().is_reading = true;
    }

    pub(crate) fn mark(&self, what: String) {
        let at = self.elapsed().as_secs_f64();
        self.lock().marks.push((at, what));
    }

    fn second<'a>(&self, figures: &'a mut Figures) -> &'a mut Second {
        let index = usize::try_from(self.elapsed().as_secs()).unwrap_or(usize::MAX);
        let empty = || Second { counts: Counts::default(), latency: histogram() };
        if figures.seconds.len() <= index {
            figures.seconds.resize_with(index + 1, empty);
        }
        &mut figures.seconds[index]
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn in_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            counts: Counts::default(),
            calls: BTreeMap::new(),
            held_back: histogram(),
            seconds: Vec::new(),
            drop: Vec::new(),
            is_reading: false,
            marks: Vec::new(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    #[expect(clippy::expect_used, reason = "the bounds are constants")]
    Histogram::new_with_bounds(1, 60_000_000, 2).expect("valid bounds")
}
