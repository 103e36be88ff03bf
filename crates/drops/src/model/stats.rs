//! What admission cycles have stats. It is stored in the drop's head row, so that every process continues from it.

use std::time::Duration;

use base::Timestamp;
use serde::{Deserialize, Serialize};

use super::controller::{Cohort, Controller};
use super::stored;

/// The weight of the latest cycle in the moving average of the pace.
const NEWEST: f64 = 0.2;

/// The measurements of a drop's admission cycles: the no-show share and the pace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CycleStats {
    controller: Controller,
    /// The controller has learned of all admissions up to this time.
    known_until: i64,
    /// Admissions per millisecond while players waited. None until the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<f64>,
}

impl CycleStats {
    /// Returns the share of admissions that are never used.
    pub fn no_show_share(&self) -> f64 {
        self.controller.no_show_share()
    }

    /// Estimates the wait of a player with `ahead` players before them. Returns none while the pace is unknown or zero.
    pub fn wait_behind(&self, ahead: u64) -> Option<Duration> {
        let pace = self.pace.filter(|pace| *pace > 0.0)?;
        Duration::try_from_secs_f64((ahead as f64 + 1.0) / pace / 1_000.0).ok()
    }

    /// Returns the time range (from, until) of the admissions that the controller has to learn of next.
    pub(crate) fn unlearned_range(&self, now: Timestamp, arrive_within: Duration) -> (Timestamp, Timestamp) {
        let within = i64::try_from(arrive_within.as_millis()).unwrap_or(i64::MAX);
        let until = now.as_millis().saturating_sub(within).max(self.known_until);
        (Timestamp::from_millis(self.known_until), Timestamp::from_millis(until))
    }

    pub(crate) fn learn(&mut self, cohort: Cohort, until: Timestamp) {
        self.controller.learn(cohort);
        self.known_until = until.as_millis();
    }

    pub(crate) fn release(&mut self, target: u32) -> u32 {
        self.controller.release(target)
    }

    /// Learns the pace from a cycle that left players waiting.
    pub(crate) fn learn_pace(&mut self, admitted: usize, since_last: Duration) {
        let millis = since_last.as_millis().max(1) as f64;
        let pace = admitted as f64 / millis;
        self.pace = Some(self.pace.map_or(pace, |known| known + NEWEST * (pace - known)));
    }
}

impl CycleStats {
    pub(crate) fn to_stored(&self) -> Result<String, serde_json::Error> {
        stored::write(self)
    }

    pub(crate) fn from_stored(text: &str) -> Result<Self, serde_json::Error> {
        stored::read(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_unlearned_range_a_pace_is_measured() {
        let mut stats = CycleStats::default();
        assert_eq!(stats.wait_behind(10), None);
        stats.learn_pace(0, Duration::from_secs(3));
        assert_eq!(stats.wait_behind(10), None, "no player was admitted");
        for _ in 0..100 {
            stats.learn_pace(30, Duration::from_secs(3));
        }
        let wait = stats.wait_behind(99).unwrap().as_secs_f64();
        assert!((9.9..10.1).contains(&wait), "{wait}");
        let stored = stats.to_stored().unwrap();
        assert_eq!(CycleStats::from_stored(&stored).unwrap(), stats);
    }

    #[test]
    fn every_admission_is_learned_once() {
        let mut stats = CycleStats::default();
        let within = Duration::from_secs(30);
        let (_, first) = stats.unlearned_range(Timestamp::from_millis(100_000), within);
        stats.learn(Cohort::default(), first);
        let (from, until) = stats.unlearned_range(Timestamp::from_millis(103_000), within);
        assert_eq!((first, from, until.as_millis()), (from, first, 73_000));
        // A longer time to arrive counts no admission twice.
        let (from, until) = stats.unlearned_range(Timestamp::from_millis(103_000), 10 * within);
        assert_eq!(from, until);
    }
}
