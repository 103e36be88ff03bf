//! How many buckets are enough: trying it out with the real hash, before any row is made.

use crate::Target;
use crate::space::bucket;

/// What is to be tried: ids of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub ids: u64,
    pub buckets: u32,
    /// How many of the ids are locked at the same time.
    pub held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The share of acquisitions that wait for an id they have nothing to do with.
    pub false_conflicts: f64,
    /// The same by the formula, for a perfect hash.
    pub expected: f64,
    /// The share of ids that have their bucket not for themselves. Harmless unless both are locked at once.
    pub sharing: f64,
    /// The ids in the fullest bucket.
    pub fullest: u32,
}

impl Question {
    pub fn answer(self) -> Prediction {
        let Self { ids, buckets, held } = self;
        let (buckets, held) = (buckets.max(1), held.min(ids));
        let of = |number: u64| {
            Target::user(&format!("player-{number}")).map_or(0, |target| bucket(&target, buckets) as usize)
        };
        let mut counts = vec![0_u32; buckets as usize];
        let mut taken = vec![false; buckets as usize];
        // Those that are held are spread over all, as players at play are.
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
    fn what_is_tried_out_is_what_the_formula_says() {
        for (buckets, held) in [(1_000, 10), (10_000, 500), (100_000, 1_000)] {
            let found = Question { ids: 200_000, buckets, held }.answer();
            let ratio = found.false_conflicts / found.expected;
            assert!((0.8..1.2).contains(&ratio), "{buckets}: {found:?}");
        }
    }

    #[test]
    fn extremes_are_answered_too() {
        let none = Question { ids: 0, buckets: 10, held: 5 }.answer();
        assert_eq!((none.false_conflicts, none.fullest), (0.0, 0));
        let one_bucket = Question { ids: 10, buckets: 1, held: 1 }.answer();
        assert_eq!((one_bucket.false_conflicts, one_bucket.sharing), (1.0, 1.0));
        let all_held = Question { ids: 10, buckets: 5, held: 99 }.answer();
        assert_eq!(all_held.false_conflicts, 0.0);
    }
}
