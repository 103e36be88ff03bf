//! The no-show controller: computes how many players to admit so that the target number arrives.

use serde::{Deserialize, Serialize};

/// How many admissions the no-show share is measured over. Fewer would follow changes faster, but their noise alone would move the inflow
/// by more than a few percent.
const MEMORY: f64 = 4_000.0;
/// The highest share that is used: one cycle admits at most ten times its target.
const MAX_SHARE: f64 = 0.9;

/// A group of admissions whose time to arrive is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cohort {
    pub(crate) admitted: i64,
    pub(crate) arrived: i64,
}

/// The state of the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Controller {
    /// Admissions in memory whose player arrived.
    arrived: f64,
    /// Admissions in memory whose player did not arrive.
    missed: f64,
    /// The fraction of a player that the last cycle rounded away, so that rounding does not bias the inflow.
    carry: f64,
}

impl Controller {
    /// Adds a cohort to the measurement. Beyond [`MEMORY`] admissions, older ones lose weight in proportion.
    pub(super) fn learn(&mut self, Cohort { admitted, arrived }: Cohort) {
        let arrived = arrived.clamp(0, admitted.max(0));
        let new = admitted.max(0) as f64;
        let known = self.arrived + self.missed;
        let kept =
            if known + new > MEMORY { ((MEMORY - new).max(0.0) / known.max(1.0)).min(1.0) } else { 1.0 };
        self.arrived = self.arrived * kept + arrived as f64;
        self.missed = self.missed * kept + (new - arrived as f64);
    }

    /// Returns the share of admissions that are never used. Returns 0 before the first cohort.
    pub(super) fn no_show_share(&self) -> f64 {
        let known = self.arrived + self.missed;
        if known > 0.0 { self.missed / known } else { 0.0 }
    }

    /// Returns how many players to admit so that `target` arrive.
    pub(super) fn release(&mut self, target: u32) -> u32 {
        let wanted = f64::from(target) / (1.0 - self.no_show_share().min(MAX_SHARE)) + self.carry;
        let release = wanted.floor();
        self.carry = wanted - release;
        release as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fastrand::Rng;

    use super::*;

    const PERIODS_PER_MINUTE: usize = 20;
    const TARGET: u32 = 200;

    /// Simulates admission cycles of 3 s with players who arrive after up to `patience` periods or never. Returns the arrivals of each minute.
    fn inflow(seed: u64, no_shows: f64, patience: usize, minutes: usize, is_controlled: bool) -> Vec<u32> {
        let mut choices = Rng::with_seed(seed);
        let mut controller = Controller::default();
        let mut pending: VecDeque<Cohort> = VecDeque::new();
        let mut arrivals = vec![0_u32; minutes * PERIODS_PER_MINUTE + patience + 1];
        for period in 0..minutes * PERIODS_PER_MINUTE {
            if pending.len() > patience {
                controller.learn(pending.pop_front().unwrap());
            }
            let release = if is_controlled { controller.release(TARGET) } else { TARGET };
            let mut cohort = Cohort { admitted: release.into(), arrived: 0 };
            for _ in 0..release {
                if choices.f64() >= no_shows {
                    cohort.arrived += 1;
                    arrivals[period + choices.usize(0..=patience)] += 1;
                }
            }
            pending.push_back(cohort);
        }
        let minute = |at: usize| arrivals[at * PERIODS_PER_MINUTE..][..PERIODS_PER_MINUTE].iter().sum();
        (0..minutes).map(minute).collect()
    }

    #[test]
    fn inflow_meets_the_target_at_30_percent_no_shows() {
        let wanted = f64::from(TARGET) * PERIODS_PER_MINUTE as f64;
        for seed in 0..50 {
            // Players have 10 periods (30 s) to arrive. The first two minutes have no full measurement.
            let minutes = inflow(seed, 0.3, 10, 12, true);
            for (minute, arrived) in minutes.iter().enumerate().skip(2) {
                let error = f64::from(*arrived) / wanted - 1.0;
                assert!(error.abs() <= 0.05, "seed {seed}, minute {minute}: {:+.1} %", error * 100.0);
            }
            let without = inflow(seed, 0.3, 10, 12, false);
            assert!(f64::from(without[5]) < 0.75 * wanted, "without the controller a third is missing");
        }
    }

    #[test]
    fn no_show_share_follows_a_change() {
        let mut controller = Controller::default();
        for _ in 0..40 {
            controller.learn(Cohort { admitted: 300, arrived: 210 });
        }
        assert!((controller.no_show_share() - 0.3).abs() < 0.001);
        for _ in 0..40 {
            controller.learn(Cohort { admitted: 300, arrived: 300 });
        }
        assert!(controller.no_show_share() < 0.02, "{}", controller.no_show_share());
    }

    #[test]
    fn rounding_does_not_bias_the_inflow() {
        let mut controller = Controller::default();
        controller.learn(Cohort { admitted: 1_000, arrived: 700 });
        let released: u32 = (0..700).map(|_| controller.release(1)).sum();
        assert!((999..=1_000).contains(&released), "{released}");
    }

    #[test]
    fn release_is_bounded_when_no_player_arrives() {
        let mut controller = Controller::default();
        controller.learn(Cohort { admitted: 100_000, arrived: 0 });
        assert!(controller.release(100) <= 1_000);
        // Impossible counts are clamped.
        controller.learn(Cohort { admitted: -5, arrived: 7 });
        controller.learn(Cohort { admitted: 10, arrived: 70 });
        assert!((0.0..=1.0).contains(&controller.no_show_share()));
    }
}
