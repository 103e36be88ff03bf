//! What admission cycles have measured. The head row of a drop keeps it, so that every process goes on from it.

use std::time::Duration;

use base::Timestamp;
use serde::{Deserialize, Serialize};

use super::controller::{Cohort, Controller};
use super::stored;

/// How much the last cycle counts for the pace.
const NEWEST: f64 = 0.2;

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    controller: Controller,
    /// Admissions up to this time are known to the controller.
    known_until: i64,
    /// Admissions per millisecond while players waited. None until a cycle has measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<f64>,
}

impl Measured {
    /// Returns the share of admissions that are never used.
    pub fn no_show_share(&self) -> f64 {
        self.controller.no_show_share()
    }

    /// Returns how long a player waits who has so many before them. None if that is unknown.
    pub fn wait_behind(&self, ahead: u64) -> Option<Duration> {
        let pace = self.pace.filter(|pace| *pace > 0.0)?;
        Duration::try_from_secs_f64((ahead as f64 + 1.0) / pace / 1_000.0).ok()
    }

    /// Returns the times (from, up to) of the admissions that the controller has to learn of next.
    pub(crate) fn unknown_until(&self, now: Timestamp, arrive_within: Duration) -> (Timestamp, Timestamp) {
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

impl Measured {
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
    fn a_wait_is_unknown_until_it_is_measured() {
        let mut measured = Measured::default();
        assert_eq!(measured.wait_behind(10), None);
        measured.learn_pace(0, Duration::from_secs(3));
        assert_eq!(measured.wait_behind(10), None, "nobody was admitted");
        for _ in 0..100 {
            measured.learn_pace(30, Duration::from_secs(3));
        }
        let wait = measured.wait_behind(99).unwrap().as_secs_f64();
        assert!((9.9..10.1).contains(&wait), "{wait}");
        let stored = measured.to_stored().unwrap();
        assert_eq!(Measured::from_stored(&stored).unwrap(), measured);
    }

    #[test]
    fn every_admission_is_learned_once() {
        let mut measured = Measured::default();
        let within = Duration::from_secs(30);
        let (_, first) = measured.unknown_until(Timestamp::from_millis(100_000), within);
        measured.learn(Cohort::default(), first);
        let (from, until) = measured.unknown_until(Timestamp::from_millis(103_000), within);
        assert_eq!((first, from, until.as_millis()), (from, first, 73_000));
        // Longer terms do not count anybody again.
        let (from, until) = measured.unknown_until(Timestamp::from_millis(103_000), 10 * within);
        assert_eq!(from, until);
    }
}
