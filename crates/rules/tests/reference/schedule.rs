//! Limits that change while players wait, with their meaning written a second time.

use proptest::prelude::*;
use rules::Ticket;

use crate::players::{age, mean};

/// Whose waiting time counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Age {
    Oldest,
    Average,
    Youngest,
}

impl Age {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Oldest => "oldest",
            Self::Average => "average",
            Self::Youngest => "youngest",
        }
    }

    pub(crate) fn of(self, tickets: &[&Ticket]) -> f64 {
        let ages: Vec<f64> = tickets.iter().map(|ticket| age(ticket)).collect();
        match self {
            Self::Oldest => ages.iter().copied().fold(0.0, f64::max),
            Self::Average => mean(&ages),
            Self::Youngest => ages.iter().copied().fold(f64::MAX, f64::min),
        }
    }

    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![3 => Just(Self::Oldest), 1 => Just(Self::Average), 1 => Just(Self::Youngest)]
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Set(u32),
    Grow { by: u32, every: u32, more: u32 },
    Off(bool),
}

/// The `max` of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Relaxed {
    base: u32,
    age: Age,
    /// By seconds.
    steps: Vec<(u32, Change)>,
}

impl Relaxed {
    /// Returns the lines of the rule: its limit, its age and its relaxation.
    pub(crate) fn text(&self) -> String {
        let mut value = self.base;
        let steps = self.steps.iter().map(|(after, change)| {
            let change = match change {
                Change::Set(to) => {
                    value = *to;
                    format!("max = {to}")
                }
                Change::Grow { by, every, more } => {
                    value += more;
                    format!("max = {{ by = {by}, every = {every}, limit = {value} }}")
                }
                Change::Off(off) => format!("off = {off}"),
            };
            format!("{{ after = {after}, {change} }}")
        });
        let steps: Vec<String> = steps.collect();
        format!("max = {}\nage = \"{}\"\nrelax = [{}]\n", self.base, self.age.word(), steps.join(", "))
    }

    /// Returns the limit for these tickets, or none while the rule is off. Goes through the seconds one by one.
    pub(crate) fn limit(&self, tickets: &[&Ticket]) -> Option<f64> {
        let age = self.age.of(tickets);
        let (mut value, mut limit, mut is_off) = (self.base, self.base, false);
        let mut growth: Option<(u32, u32, u32)> = None;
        for second in 0..=age as u32 {
            if let Some((start, by, every)) = growth
                && second > start
                && (second - start).is_multiple_of(every)
            {
                value = (value + by).min(limit);
            }
            for (_, change) in self.steps.iter().filter(|(after, _)| *after == second) {
                match change {
                    Change::Set(to) => (value, limit, growth) = (*to, *to, None),
                    Change::Grow { by, every, more } => {
                        // The limit in the text goes by what the earlier steps reach at last.
                        limit += more;
                        growth = Some((second, *by, *every));
                    }
                    Change::Off(off) => is_off = *off,
                }
            }
        }
        (!is_off).then_some(f64::from(value))
    }

    /// Limits from `low` to `high` that grow.
    pub(crate) fn any(low: u32, high: u32) -> impl Strategy<Value = Self> {
        let change = prop_oneof![
            3 => (low..high).prop_map(Change::Set),
            3 => (1..6_u32, 1..5_u32, 0..20_u32).prop_map(|(by, every, more)| Change::Grow { by, every, more }),
            1 => any::<bool>().prop_map(Change::Off),
        ];
        (low..high, Age::any(), proptest::collection::btree_map(1..30_u32, change, 0..4))
            .prop_map(|(base, age, steps)| Self { base, age, steps: steps.into_iter().collect() })
    }
}
