//! What a process knows to be true because it was acknowledged. It must be true whatever dies after that.

use std::sync::Mutex;

use base::id::Uuid;
use serde::{Deserialize, Serialize};

/// Precedes a fact in the output of a process.
const MARK: &str = "FACT ";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Fact {
    /// A player joined, with this admission to come.
    Joined { player: usize, admission: Uuid, number: i64 },
    /// The provider is going to say that a payment of this order was refunded, or an operator is going to settle it.
    RefundBegun { order: Uuid },
    /// A webhook was recorded.
    Recorded { id: String, kind: String, order: Uuid, payment: String, amount: i64 },
}

impl Fact {
    /// Reads a line that a process has printed. Returns none if it is something else.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (_, fact) = line.split_once(MARK)?;
        serde_json::from_str(fact).ok()
    }
}

/// The facts of one process.
#[derive(Default)]
pub(super) struct Notes {
    /// Whether they are printed, for another process to read after this one was killed.
    are_printed: bool,
    facts: Mutex<Vec<Fact>>,
}

impl Notes {
    pub(super) fn printed() -> Self {
        Self { are_printed: true, ..Self::default() }
    }

    #[expect(clippy::print_stdout, reason = "how a child reports to the test that started it")]
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
