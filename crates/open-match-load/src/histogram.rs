//! A histogram of durations.

use std::time::Duration;

/// The significant digits of a recorded duration.
const DIGITS: u8 = 3;

/// Counts durations with three significant digits. The longest one is kept exactly.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// In nanoseconds.
    counts: hdrhistogram::Histogram<u64>,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new(DIGITS).expect("three digits are supported");
        Self { counts, max: Duration::ZERO }
    }
}

impl Histogram {
    /// Records a duration.
    pub fn record(&mut self, time: Duration) {
        let nanos = time.as_nanos().try_into().unwrap_or(u64::MAX);
        self.counts.record(nanos).expect("an unbounded histogram accepts any duration");
        self.max = self.max.max(time);
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts += &other.counts;
        self.max = self.max.max(other.max);
    }

    /// Returns how many durations were recorded.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns the longest duration.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns the quantile `q` (0.0 to 1.0), or zero if the histogram is empty.
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_nanos(self.counts.value_at_quantile(q)).min(self.max)
    }
}

impl FromIterator<Duration> for Histogram {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut histogram = Self::default();
        times.into_iter().for_each(|time| histogram.record(time));
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_significant_digits() {
        let mut time = Duration::from_nanos(1);
        while time < Duration::from_secs(100_000) {
            let found = Histogram::from_iter([time, time * 2]).quantile(0.5);
            assert!(found >= time && found - time <= time / 1_000, "{time:?} is kept as {found:?}");
            time += time / 7 + Duration::from_nanos(1);
        }
    }

    #[test]
    fn quantiles_are_accurate() {
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
        let histogram: Histogram = (1..=1000).map(Duration::from_millis).collect();
        for (q, milli) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0), (0.0, 1.0)] {
            let found = histogram.quantile(q).as_secs_f64() * 1e3;
            assert!((found / milli - 1.0).abs() <= 0.001, "{q}: {found}");
        }
        assert_eq!((histogram.count(), histogram.max()), (1000, Duration::from_secs(1)));
    }

    #[test]
    fn merged_histogram_has_the_durations_of_both() {
        let mut histogram: Histogram = (1..=500).map(Duration::from_micros).collect();
        histogram.merge(&(501..=1000).map(Duration::from_millis).collect());
        assert_eq!((histogram.count(), histogram.max()), (1000, Duration::from_secs(1)));
        assert!(histogram.quantile(0.5) < Duration::from_millis(1));
        assert!(histogram.quantile(0.501) > Duration::from_millis(500));
        histogram.record(Duration::MAX);
        assert_eq!((histogram.count(), histogram.max()), (1001, Duration::MAX));
    }
}
