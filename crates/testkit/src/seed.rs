//! Reproducible random choices.

use std::fmt;

use fastrand::Rng;

/// The variable that holds the seed of an earlier run.
const VARIABLE: &str = "SEED";

/// The seed of all random choices of a test against real servers. Set `SEED` to repeat the choices of an earlier run.
///
/// The timing of servers and of the scheduler is not reproduced. Tests without servers use `proptest`, which also
/// shrinks a failing case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// Takes the seed from the environment, or else a random one, and prints it. Cargo shows the output of a failed test.
    ///
    /// # Panics
    /// If `SEED` is not a number.
    #[expect(clippy::new_without_default, reason = "each new seed is different")]
    pub fn new() -> Self {
        let seed = Self::from_variable(std::env::var(VARIABLE).ok().as_deref());
        eprintln!("to repeat these random choices: {seed}");
        seed
    }

    /// Returns the generator of one task. Each task has its own number, so its choices do not depend on the other tasks.
    pub fn choices(self, task: u64) -> Rng {
        Rng::with_seed(self.0.wrapping_add(task))
    }

    fn from_variable(variable: Option<&str>) -> Self {
        let given = variable.filter(|text| !text.is_empty());
        Self(given.map_or_else(|| fastrand::u64(..), |text| text.parse().expect("SEED must be a number")))
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VARIABLE}={}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(mut choices: Rng) -> [u64; 4] {
        std::array::from_fn(|_| choices.u64(..))
    }

    #[test]
    fn printed_seed_repeats_the_choices() {
        let seed = Seed::from_variable(None);
        let printed = seed.to_string();
        let again = Seed::from_variable(printed.strip_prefix("SEED="));
        assert_eq!((again, some(again.choices(3))), (seed, some(seed.choices(3))));
    }

    #[test]
    fn tasks_and_runs_make_different_choices() {
        let seed = Seed::from_variable(Some("18446744073709551615"));
        assert_ne!(some(seed.choices(0)), some(seed.choices(1)));
        assert_ne!(Seed::from_variable(None), Seed::from_variable(Some("")));
    }
}
