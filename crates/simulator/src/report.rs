//! The report of a run: as text, as JSON, and as a view that the console renders as a page.

mod text;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use base::Timestamp;
use serde_json::{Value, json};

use crate::checks::{Promise, Violation, owed_templates};
use crate::history::{History, Purchase, TicketOutcome};
use crate::meter::{CallFigures, Figures};
use crate::scenario::Scenario;

/// What a run found.
#[derive(Debug)]
pub struct Report {
    /// The scenario.
    pub name: String,
    pub seed: u64,
    /// The id of the run: part of the names of its players.
    pub run: String,
    /// How players sign in.
    pub sign_in: &'static str,
    pub began: Timestamp,
    pub took: Duration,
    pub scenario: Scenario,
    pub(crate) figures: Figures,
    pub history: History,
    pub violations: Vec<Violation>,
}

impl Report {
    /// Returns whether every promise held.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns whether the run was stopped before all players had finished.
    pub fn is_interrupted(&self) -> bool {
        self.history.players.iter().any(|player| player.is_interrupted)
    }

    /// Returns how long requests waited because the simulator sends only so many at a time: the 99th percentile in milliseconds.
    fn held_back(&self) -> f64 {
        millis(self.figures.held_back.value_at_quantile(0.99))
    }

    fn violations_of(&self, promise: Promise) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(move |violation| violation.promise == promise)
    }

    /// Returns how often each outcome occurred, in the order of the journey.
    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut add = |name| *counts.entry(name).or_default() += 1;
        for player in &self.history.players {
            if player.panic.is_some() {
                add("lost to a panic");
            }
            if player.is_interrupted {
                add("interrupted");
            }
            if let Some(purchase) = &player.purchase {
                add(match purchase {
                    Purchase::Bought { .. } => "bought",
                    Purchase::RefundDue { .. } => "paid too late, refund due",
                    Purchase::SoldOut => "found nothing left",
                    Purchase::NotWanted => "admitted, did not buy",
                    Purchase::WaitedInVain => "waited until the end",
                    Purchase::TooLate => "arrived after the end",
                });
            }
            for ticket in &player.tickets {
                add(match ticket.outcome {
                    TicketOutcome::Assigned { .. } => "tickets matched",
                    TicketOutcome::Cancelled => "tickets cancelled",
                    TicketOutcome::Declined => "ready checks declined",
                    TicketOutcome::Missed => "ready checks missed",
                });
            }
        }
        const ORDER: [&str; 12] = [
            "bought",
            "found nothing left",
            "admitted, did not buy",
            "paid too late, refund due",
            "waited until the end",
            "came after the end",
            "tickets matched",
            "tickets cancelled",
            "ready checks declined",
            "ready checks missed",
            "interrupted",
            "lost to a panic",
        ];
        ORDER.into_iter().filter_map(|name| Some((name, *counts.get(name)?))).collect()
    }

    /// Returns how many notifications of each template players were owed.
    fn owed(&self) -> BTreeMap<&'static str, u64> {
        let mut owed = BTreeMap::new();
        for template in self.history.players.iter().flat_map(owed_templates) {
            *owed.entry(template).or_default() += 1;
        }
        owed
    }

    /// Returns the report as JSON.
    pub fn to_json(&self) -> Value {
        let counts = &self.figures.counts;
        let checks: BTreeMap<&str, Value> = Promise::ALL
            .into_iter()
            .map(|promise| {
                let found: Vec<&str> = self.violations_of(promise).map(|one| one.what.as_str()).collect();
                (promise.name(), json!({ "holds": found.is_empty(), "violations": found }))
            })
            .collect();
        let calls: BTreeMap<&str, Value> =
            self.figures.calls.iter().map(|(name, call)| (*name, of_call(call))).collect();
        let seconds: Vec<Value> = self
            .figures
            .seconds
            .iter()
            .map(|second| {
                json!({
                    "arrived": second.counts.arrived, "requests": second.counts.requests,
                    "p99_ms": millis(second.latency.value_at_quantile(0.99)), "bought": second.counts.bought,
                    "matched": second.counts.matched, "notified": second.counts.notified,
                })
            })
            .collect();
        json!({
            "interrupted": self.is_interrupted(), "held_back_p99_ms": self.held_back(),
            "sign_in": self.sign_in, "scenario": self.name, "seed": self.seed, "run": self.run, "began_at": self.began.to_rfc3339(),
            "seconds": self.took.as_secs_f64(), "players": self.history.players.len(), "holds": self.is_clean(),
            "checks": checks, "outcomes": self.outcomes().into_iter().collect::<BTreeMap<_, _>>(),
            "owed_notifications": self.owed(), "requests": counts.requests, "retries": counts.retries, "notifications": counts.notified,
            "reconnects": counts.reconnects, "silences": counts.silences, "renewals": counts.renewals, "calls": calls, "each_second": seconds,
            "marks": self.figures.marks.iter().map(|(at, what)| json!({ "second": at, "what": what })).collect::<Vec<_>>(),
        })
    }
}

fn of_call(call: &CallFigures) -> Value {
    let CallFigures { latency, refused } = call;
    json!({
        "count": latency.len(), "refused": refused, "p50_ms": millis(latency.value_at_quantile(0.5)),
        "p99_ms": millis(latency.value_at_quantile(0.99)), "max_ms": millis(latency.max()),
    })
}

/// Converts microseconds to milliseconds with one decimal.
fn millis(micros: u64) -> f64 {
    (micros as f64 / 100.0).round() / 10.0
}
