//! Sorts: which of several candidates is chosen.

use std::cmp::Ordering;

use proptest::prelude::*;
use rules::Ticket;

use crate::players::{NumberParty, map, mean, text};

#[derive(Clone, Copy, Debug)]
enum By {
    Skill(NumberParty),
    Mode,
    /// The entry of the number map that is highest (or lowest) for the pivot.
    Score {
        is_max: bool,
        party: NumberParty,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sort {
    by: By,
    is_distance: bool,
    is_descending: bool,
}

impl Sort {
    pub(crate) fn text(&self, name: &str) -> String {
        let kind = if self.is_distance { "distance-sort" } else { "absolute-sort" };
        let direction = if self.is_descending { "descending" } else { "ascending" };
        let what = match self.by {
            By::Skill(party) => format!("attribute = \"skill\"\nparty = \"{}\"\n", party.word()),
            By::Mode => "attribute = \"mode\"\n".to_owned(),
            By::Score { is_max, party } => format!(
                "attribute = \"scores\"\nkey = \"{}\"\nparty = \"{}\"\n",
                if is_max { "max" } else { "min" },
                party.word()
            ),
        };
        format!("[rules.{name}]\ntype = \"{kind}\"\ndirection = \"{direction}\"\n{what}")
    }

    /// Compares two candidates of a pivot. The smaller one comes first.
    pub(crate) fn compare(&self, pivot: &Ticket, one: &Ticket, two: &Ticket) -> Ordering {
        if let By::Mode = self.by {
            let mode = |ticket: &Ticket| text(&ticket.players[0], "mode").to_owned();
            let order = mode(one).cmp(&mode(two));
            return if self.is_descending { order.reverse() } else { order };
        }
        let key = |ticket: &Ticket| {
            let value = self.value(pivot, ticket)?;
            Some(if self.is_distance { (value - self.value(pivot, pivot)?).abs() } else { value })
        };
        match (key(one), key(two)) {
            (Some(one), Some(two)) if self.is_descending => two.total_cmp(&one),
            (Some(one), Some(two)) => one.total_cmp(&two),
            // A ticket without a value comes last.
            (one, two) => two.is_some().cmp(&one.is_some()),
        }
    }

    fn value(&self, pivot: &Ticket, ticket: &Ticket) -> Option<f64> {
        match self.by {
            // With `each` the lowest player of a party counts.
            By::Skill(party) => party.values(ticket, "skill").into_iter().reduce(f64::min),
            By::Mode => None,
            By::Score { is_max, party } => {
                let mut entries: Vec<_> = map(&pivot.players[0], "scores").iter().collect();
                entries.sort_by(|one, two| {
                    let order = one.1.total_cmp(two.1);
                    (if is_max { order.reverse() } else { order }).then_with(|| one.0.cmp(two.0))
                });
                let (name, _) = entries.first()?;
                let scores: Vec<f64> = ticket
                    .players
                    .iter()
                    .filter_map(|player| map(player, "scores").get(*name).copied())
                    .collect();
                if scores.is_empty() {
                    return None;
                }
                Some(match party {
                    NumberParty::Min => scores.iter().copied().fold(f64::MAX, f64::min),
                    NumberParty::Max => scores.iter().copied().fold(f64::MIN, f64::max),
                    NumberParty::Each | NumberParty::Average => mean(&scores),
                })
            }
        }
    }

    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let by = prop_oneof![
            NumberParty::any().prop_map(By::Skill),
            Just(By::Mode),
            (any::<bool>(), NumberParty::any()).prop_map(|(is_max, party)| By::Score { is_max, party })
        ];
        (by, any::<bool>(), any::<bool>()).prop_map(|(by, is_distance, is_descending)| Self {
            by,
            is_distance,
            is_descending,
        })
    }
}
