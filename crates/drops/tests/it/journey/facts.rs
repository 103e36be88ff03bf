//! Facts: effects of requests that were acknowledged to a process. They must hold even if any process is killed afterwards.

use std::sync::Mutex;

use base::id::Uuid;
use serde::{Deserialize, Serialize};

/// Marks a line of a process's output as a fact.
const MARK: &str = "FACT ";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Fact {
    /// A player joined the line and got this admission id, valid once they are admitted.
    Joined { player: usize, admission: Uuid, number: i64 },
    /// A refund webhook for this order is about to be sent, or an operator is about to settle its refund.
    RefundBegun { order: Uuid },
    /// A webhook was recorded.
    Recorded { id: String, kind: String, order: Uuid, payment: String, amount: i64 },
}

impl Fact {
    /// Parses a line of a process's output. Returns none if the line is not a fact.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (_, fact) = line.split_once(MARK)?;
        serde_json::from_str(fact).ok()
    }
}

/// Collects the facts of one process.
#[derive(Default)]
pub(super) struct FactLog {
    /// Whether facts are printed at once, so that the test can read them after this process is killed.
    are_printed: bool,
    facts: Mutex<Vec<Fact>>,
}

impl FactLog {
    pub(super) fn to_stdout() -> Self {
        Self { are_printed: true, ..Self::default() }
    }

    #[expect(clippy::print_stdout, reason = "the child process reports facts on its standard output")]
    pub(super) fn add(&self, fact: Fact) {
        if self.are_printed {
            println!("{MARK}{}", serde_json::to_string(&fact).unwrap());
        } else {
            self.facts.lock().unwrap().push(fact);
        }
    }

    pub(super) fn take(&self) -> Vec<Fact> {
        std::mem::take(&mut *self.facts.lock().unwrap())
    }
}
