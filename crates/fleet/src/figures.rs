//! Values of figures: from two readings of a process, and from the samples of all processes. Nothing here knows a store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use screens::{Combine, Figure, Measure, Series};

use crate::exposition::Reading;
use crate::store::samples::Sample;

/// How often a process takes a sample, and the distance of two points of a chart.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

const SLOT_MILLIS: i64 = 10_000;

/// Computes a figure from its metric now and at the last sample. None if there is no value, such as a quantile of nothing.
pub(crate) fn measure(
    measure: Measure,
    now: &Reading,
    before: Option<&Reading>,
    elapsed: Duration,
) -> Option<f64> {
    match measure {
        Measure::Gauge => Some(now.value),
        Measure::Rate => {
            let seconds = elapsed.as_secs_f64();
            (seconds > 0.0).then(|| rise(now.value, before.map_or(0.0, |before| before.value)) / seconds)
        }
        Measure::Quantile(quantile) => {
            let before = before.map_or(&[][..], |before| &before.buckets);
            let was = |bound: f64| {
                before
                    .iter()
                    .find(|(known, _)| known.total_cmp(&bound).is_eq())
                    .map_or(0.0, |(_, count)| *count)
            };
            let rises: Vec<(f64, f64)> =
                now.buckets.iter().map(|(bound, count)| (*bound, rise(*count, was(*bound)))).collect();
            quantile_of(&rises, quantile)
        }
    }
}

/// Returns the rise of a counter. A counter that fell was reset and counts from 0.
fn rise(now: f64, before: f64) -> f64 {
    if now < before { now } else { now - before }
}

/// Estimates a quantile from cumulative buckets. Values are assumed to be spread evenly within a bucket. The last, unbounded bucket
/// counts as its lower bound.
fn quantile_of(cumulative: &[(f64, f64)], quantile: f64) -> Option<f64> {
    let total = cumulative.last()?.1;
    if total <= 0.0 {
        return None;
    }
    let rank = quantile * total;
    let (mut lower, mut below) = (0.0, 0.0);
    for (upper, count) in cumulative {
        if *count >= rank && *count > below {
            let share = (rank - below) / (count - below);
            return Some(if upper.is_finite() { lower + (upper - lower) * share } else { lower });
        }
        (lower, below) = (if upper.is_finite() { *upper } else { lower }, *count);
    }
    Some(lower)
}

/// Combines the samples of all processes into a series per figure, from `since` to the last complete interval before `now`.
pub(crate) fn combine(
    figures: &[Figure],
    samples: &[Sample],
    since: Timestamp,
    now: Timestamp,
) -> BTreeMap<&'static str, Series> {
    let slot = |at: Timestamp| at.as_millis().div_euclid(SLOT_MILLIS);
    let processes: BTreeSet<Uuid> = samples.iter().map(|sample| sample.process).collect();
    let by_slot: BTreeMap<(i64, Uuid), &BTreeMap<String, f64>> =
        samples.iter().map(|sample| ((slot(sample.at), sample.process), &sample.figures)).collect();
    // A late sample leaves an interval without one. The sample before it stands in, so that a sum has no dip.
    let value = |slot: i64, process: Uuid, name: &str| {
        let sample = by_slot.get(&(slot, process)).or_else(|| by_slot.get(&(slot - 1, process)))?;
        sample.get(name).copied()
    };
    let series = |figure: &Figure| {
        let point = |slot: i64| {
            let values = processes.iter().filter_map(|process| value(slot, *process, figure.name));
            let combined = values.reduce(|first, second| match figure.combine {
                Combine::Sum => first + second,
                Combine::Max => first.max(second),
            });
            (Timestamp::from_millis(slot * SLOT_MILLIS), combined)
        };
        let points = (slot(since)..slot(now)).map(point).collect();
        (figure.name, Series { name: figure.title.to_owned(), points })
    };
    figures.iter().map(series).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use screens::Unit;

    use super::*;

    pub(crate) const fn figure(metric: &'static str, measure: Measure) -> Figure {
        Figure {
            name: metric,
            title: metric,
            unit: Unit::Count,
            metric,
            labels: &[],
            measure,
            combine: Combine::Sum,
            href: "/console/nodes",
        }
    }

    const TEN: Duration = Duration::from_secs(10);

    fn counter(value: f64) -> Reading {
        Reading { value, buckets: Vec::new() }
    }

    fn histogram(counts: [f64; 3]) -> Reading {
        let buckets = vec![(0.1, counts[0]), (1.0, counts[1]), (f64::INFINITY, counts[2])];
        Reading { value: counts[2], buckets }
    }

    #[test]
    fn rate_is_the_rise_per_second_and_a_reset_counts_from_zero() {
        let rate = |now, before: Option<f64>| {
            measure(Measure::Rate, &counter(now), before.map(counter).as_ref(), TEN)
        };
        assert_eq!(rate(120.0, Some(20.0)), Some(10.0));
        assert_eq!(rate(20.0, Some(20.0)), Some(0.0));
        assert_eq!(rate(5.0, Some(20.0)), Some(0.5), "reset");
        assert_eq!(rate(5.0, None), Some(0.5), "a series that is new");
        assert_eq!(measure(Measure::Rate, &counter(1.0), None, Duration::ZERO), None);
        assert_eq!(measure(Measure::Gauge, &counter(-2.0), Some(&counter(5.0)), TEN), Some(-2.0));
    }

    #[test]
    fn quantile_is_interpolated_in_what_was_observed_since_the_last_sample() {
        let quantile = |quantile, now, before| {
            measure(Measure::Quantile(quantile), &histogram(now), Some(&histogram(before)), TEN)
        };
        // 10 new values, all between 0.1 and 1.
        let median = quantile(0.5, [100.0, 110.0, 110.0], [100.0, 100.0, 100.0]).unwrap();
        assert!((median - 0.55).abs() < 1e-9, "{median}");
        // 10 values of at most 0.1: interpolated from 0.
        let low = quantile(0.5, [10.0, 10.0, 10.0], [0.0, 0.0, 0.0]).unwrap();
        assert!((low - 0.05).abs() < 1e-9, "{low}");
        assert_eq!(quantile(0.99, [0.0, 0.0, 10.0], [0.0, 0.0, 0.0]), Some(1.0), "the last bound");
        assert_eq!(quantile(0.5, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), None, "nothing was observed");
        assert_eq!(measure(Measure::Quantile(0.5), &counter(5.0), None, TEN), None, "not a histogram");
    }

    fn sample(process: u128, at: i64, value: f64) -> Sample {
        let figures = BTreeMap::from([("a".to_owned(), value)]);
        Sample { at: Timestamp::from_millis(at), process: Uuid::from_u128(process), figures }
    }

    fn values(combine_by: Combine, samples: &[Sample]) -> Vec<Option<f64>> {
        let figure = Figure { combine: combine_by, ..figure("a", Measure::Gauge) };
        let (since, now) = (Timestamp::from_millis(100_000), Timestamp::from_millis(145_000));
        let series = combine(&[figure], samples, since, now).remove("a").unwrap();
        assert_eq!(series.points[0].0, since);
        series.points.into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn processes_are_summed_or_the_largest_taken() {
        let samples = [sample(1, 101_000, 1.0), sample(2, 109_999, 2.0), sample(1, 110_000, 4.0)];
        // The second process is carried for one interval, the first too.
        assert_eq!(values(Combine::Sum, &samples), [Some(3.0), Some(6.0), Some(4.0), None]);
        assert_eq!(values(Combine::Max, &samples), [Some(2.0), Some(4.0), Some(4.0), None]);
        assert_eq!(values(Combine::Sum, &[]), [None; 4]);
        let open = [sample(1, 141_000, 9.0)];
        assert_eq!(values(Combine::Sum, &open), [None; 4], "the current interval is not complete");
    }
}
