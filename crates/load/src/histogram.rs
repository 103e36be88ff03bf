//! Times, to within one percent.

use std::time::Duration;

/// Each power of two is cut into this many buckets.
const CUTS: u64 = 128;
const CUT_BITS: u32 = CUTS.trailing_zeros();

/// How often which time was seen: microseconds, in buckets that are at most 1/128 wide.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Histogram {
    /// Adds a time.
    pub fn record(&mut self, time: Duration) {
        let bucket = bucket(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(time);
    }

    /// Adds all times of another.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(ours, theirs)| *ours += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many times were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The time that the share `q` (0.0 to 1.0) of all did not exceed; zero if there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        let wanted = (self.count as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(upper_bound(bucket)).min(self.max);
            }
        }
        self.max
    }
}

fn bucket(micros: u64) -> usize {
    // Below 2 * CUTS every microsecond has a bucket of its own.
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(CUT_BITS + 1);
    (u64::from(shift) * CUTS + (micros >> shift)) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / CUTS).saturating_sub(1);
    ((bucket - shift * CUTS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut last = 0;
        for micros in 0..100_000 {
            let bucket = bucket(micros);
            assert!(bucket == last || bucket == last + 1, "{micros}");
            let bound = upper_bound(bucket);
            assert!(bound >= micros && bound - micros <= micros / 128, "{micros} is counted as {bound}");
            last = bucket;
        }
    }

    #[test]
    fn quantiles_are_close() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for milli in 1..=1000 {
            histogram.record(Duration::from_millis(milli));
        }
        for (q, milli) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0), (0.0, 1.0)] {
            let found = histogram.quantile(q).as_secs_f64() * 1e3;
            assert!((found / milli - 1.0).abs() < 0.01, "{q}: {found}");
        }
        assert_eq!((histogram.count(), histogram.max()), (1000, Duration::from_secs(1)));
    }
}
