//! The loop that remembers since when a finding exists, and removes old samples. One process of the fleet does it for all.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Timestamp;
use base::finding::{Finding, Verdict};
use base::id::ProcessId;
use db::Error;
use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::Fleet;
use crate::model::ProcessState;
use crate::store::{findings, samples};

/// How often the findings are read.
const INTERVAL: Duration = Duration::from_secs(15);

/// A finding that was absent for this long is over.
const ABSENT: Duration = Duration::from_secs(60);

/// How long samples are kept.
const SAMPLE_RETENTION: Duration = Duration::from_secs(3600);

/// The width of the column, in characters.
const MAX_FINDING: usize = 200;

/// Watches the findings for the whole fleet if this process is its oldest. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Watch {
    fleet: Fleet,
    process: ProcessId,
}

impl Watch {
    pub(crate) const fn new(fleet: Fleet, process: ProcessId) -> Self {
        Self { fleet, process }
    }

    /// Records the findings and removes a batch of old samples, if this is the oldest running process.
    pub async fn tick(&self) -> Result<(), Error> {
        let (processes, now) = self.fleet.processes().await?;
        let oldest = processes.iter().find(|process| process.state(now) == ProcessState::Running);
        // Two processes may both be the oldest for a moment. Their writes are the same.
        if oldest.is_none_or(|oldest| oldest.id != self.process) {
            return Ok(());
        }
        self.record().await?;
        samples::remove_old(self.fleet.db(), SAMPLE_RETENTION).await?;
        Ok(())
    }

    async fn record(&self) -> Result<(), Error> {
        let status = self.fleet.status().await?;
        let bad = status.findings.iter().filter(|(_, finding)| finding.verdict != Verdict::Good);
        let keys: Vec<_> = bad.map(|(part, finding)| key(part, finding)).collect();
        let db = self.fleet.db();
        if keys.is_empty() && findings::read(db).await?.is_empty() {
            return Ok(());
        }
        findings::record(db, &keys, ABSENT).await
    }

    /// Watches until the process stops.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.tick().await?;
            if !drain.sleep(INTERVAL).await {
                return Ok(());
            }
        }
    }
}

/// Returns the identity of a finding: its text without the numbers, which change while it lasts.
fn key(part: &str, finding: &Finding) -> findings::FindingKey {
    let mut text = String::new();
    for c in finding.what.chars().take(MAX_FINDING) {
        let c = if c.is_ascii_digit() { '#' } else { c };
        if c != '#' || !text.ends_with('#') {
            text.push(c);
        }
    }
    (part.to_owned(), text)
}

/// Since when findings exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct FindingTimes(pub(crate) BTreeMap<findings::FindingKey, Timestamp>);

impl FindingTimes {
    pub(crate) fn since(&self, part: &str, finding: &Finding) -> Option<Timestamp> {
        self.0.get(&key(part, finding)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_whose_numbers_change_stays_the_same() {
        let late =
            |seconds: u32| Finding::warning(format!("the next event has been due for {seconds} s"), "");
        assert_eq!(key("outbox", &late(9)), key("outbox", &late(1234)));
        assert_ne!(key("outbox", &late(9)), key("drops", &late(9)));
        let long = Finding::warning("ä".repeat(1_000), "");
        assert_eq!(key("outbox", &long).1.chars().count(), MAX_FINDING);
    }
}
