//! Claims: who holds pending tickets, and since when (docs/adr/0028).

use std::fmt;

use bytes::Bytes;

use super::{BackfillChange, UnrecordedBatch};
use crate::model::TicketId;

/// Numbers per second: a fraction with this many steps is exact in the scores of Redis.
const STEPS: f64 = 2_097_152.0;

/// The fencing token of pending tickets: the Unix second in which the claim began, and its number. A ticket has at most
/// one claim, and no two claims are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Claim(f64);

impl Claim {
    pub(super) fn new(second: i64, number: u32) -> Self {
        Self(second as f64 + f64::from(number) / STEPS)
    }

    /// Reads a score of Redis.
    pub(super) const fn from_score(score: f64) -> Self {
        Self(score)
    }

    /// Returns the Unix second in which the claim began.
    pub const fn second(self) -> i64 {
        self.0 as i64
    }

    /// Returns its number: of a match of a Director, or of what an engine fetched. 0 means a program that does not number its
    /// claims, such as minimatch.
    pub fn number(self) -> u32 {
        (self.0.fract() * STEPS) as u32
    }

    /// Returns whether a Director holds the tickets, by `FetchMatches`. Otherwise an engine does.
    pub fn is_of_director(self) -> bool {
        self.number() % 2 == 1
    }
}

/// Writes the score with all its digits.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A match whose tickets are to be claimed for a Director.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The number of the first claim of the same call.
    pub number: Option<u32>,
    /// What operators see of the holder: its profile and match function.
    pub holder: Holder,
    pub tickets: Vec<TicketId>,
    /// What happens to the match's backfill in the same step, which also adds the tickets to it.
    pub backfill: Option<BackfillChange>,
}

/// A Director, as far as a claim shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Holder {
    pub profile: String,
    pub function: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ClaimOutcome {
    Claimed(Claim),
    /// This ticket is gone, or another claim holds it. Nothing was claimed.
    Refused(TicketId),
    /// The backfill is gone, has expired or has another generation. Nothing was claimed.
    StaleBackfill,
}

/// Tickets that a Director assigns.
#[derive(Clone, Debug)]
pub struct DirectGroup {
    pub tickets: Vec<TicketId>,
    /// The encoded assignment.
    pub assignment: Bytes,
    /// The encoded match, for watchers and the recorder.
    pub encoded_match: Bytes,
}

/// The result of a Director's assignment.
#[derive(Clone, Debug, Default)]
pub struct DirectResult {
    /// For each group, what prevents the assignment of each of its tickets. A group was assigned if nothing does.
    pub obstacles: Vec<Vec<Option<Obstacle>>>,
    /// The assigned groups. Their players are not notified yet.
    pub batches: Vec<UnrecordedBatch>,
}

/// What prevents an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The ticket has this assignment already.
    Repeated,
    AssignedElsewhere,
    NotFound,
    /// Another holder has claimed the ticket, or the group would cut another match of its holder.
    Claimed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_keeps_its_second_and_its_number() {
        for second in [0, 1_795_032_000, i64::from(u32::MAX)] {
            for number in [0, 1, 2, 1_048_577, 2_097_151] {
                let claim = Claim::new(second, number);
                assert_eq!((claim.second(), claim.number()), (second, number));
                let read = Claim::from_score(claim.to_string().parse().unwrap());
                assert_eq!(read, claim);
                assert_eq!(claim.is_of_director(), number % 2 == 1);
            }
        }
    }

    #[test]
    fn score_of_another_program_has_no_number() {
        assert_eq!(Claim::from_score(1_795_032_000.0).number(), 0);
    }
}
