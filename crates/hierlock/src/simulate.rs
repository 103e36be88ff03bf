//! Simulates bucket collisions with the real hash, to choose the number of buckets before any row is created.

use crate::Target;
use crate::bucket_space::bucket;

/// A simulation of ids of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulation {
    pub ids: u64,
    pub buckets: u32,
    /// How many of the ids are locked at the same time.
    pub held: u64,
}

/// The result of a [`Simulation`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The share of acquisitions that wait for an unrelated id in the same bucket.
    pub false_conflicts: f64,
    /// The same share by formula, for a perfect hash.
    pub expected: f64,
    /// The share of ids whose bucket has other ids too. Harmless unless they are locked at the same time.
    pub sharing: f64,
    /// The number of ids in the fullest bucket.
    pub fullest: u32,
}

impl Simulation {
    /// Hashes all ids and counts the collisions.
    pub fn run(self) -> Prediction {
        let Self { ids, buckets, held } = self;
        let (buckets, held) = (buckets.max(1), held.min(ids));
        let of = |number: u64| {
            Target::user(&format!("player-{number}")).map_or(0, |target| bucket(&target, buckets) as usize)
        };
        let mut counts = vec![0_u32; buckets as usize];
        let mut taken = vec![false; buckets as usize];
        // The held ids are spread evenly over all ids.
        let before = |number: u64| u128::from(number) * u128::from(held) / u128::from(ids.max(1));
        let is_held = |number: u64| before(number) != before(number + 1);
        for number in 0..ids {
            counts[of(number)] += 1;
            if is_held(number) {
                taken[of(number)] = true;
            }
        }
        let waiting = (0..ids).filter(|number| !is_held(*number) && taken[of(*number)]).count();
        let sharing: u64 = counts.iter().filter(|count| **count > 1).map(|count| u64::from(*count)).sum();
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        Prediction {
            false_conflicts: share(waiting as u64, ids - held),
            expected: 1.0 - (1.0 - 1.0 / f64::from(buckets)).powf(held as f64),
            sharing: share(sharing, ids),
            fullest: counts.iter().copied().max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulation_agrees_with_the_formula() {
        for (buckets, held) in [(1_000, 10), (10_000, 500), (100_000, 1_000)] {
            let found = Simulation { ids: 200_000, buckets, held }.run();
            let ratio = found.false_conflicts / found.expected;
            assert!((0.8..1.2).contains(&ratio), "{buckets}: {found:?}");
        }
    }

    #[test]
    fn extreme_parameters_are_handled() {
        let none = Simulation { ids: 0, buckets: 10, held: 5 }.run();
        assert_eq!((none.false_conflicts, none.fullest), (0.0, 0));
        let one_bucket = Simulation { ids: 10, buckets: 1, held: 1 }.run();
        assert_eq!((one_bucket.false_conflicts, one_bucket.sharing), (1.0, 1.0));
        let all_held = Simulation { ids: 10, buckets: 5, held: 99 }.run();
        assert_eq!(all_held.false_conflicts, 0.0);
    }
}
