//! Attributes that rules read and nobody sends.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::lint::Warning;
use crate::model::{RuleKind, RuleSet};
use crate::ticket::Ticket;

/// Something that rules read and that no ticket of a pool has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unsent {
    /// The name of the attribute, or `latency`.
    pub attribute: Arc<str>,
    /// The rules that read it. `role_attribute` and `quality` are not rules, and listed all the same.
    pub readers: Vec<Arc<str>>,
    /// Whether the default is used for everyone. Without one, every ticket is refused.
    pub has_default: bool,
}

impl Unsent {
    /// Says that a sender, such as "no waiting ticket", sends it, and what follows.
    pub fn by(&self, sender: &str) -> String {
        let Self { attribute, readers, has_default } = self;
        let outcome = match has_default {
            true => "the default is used for everyone",
            false if **attribute == *LATENCY => "no region is possible",
            false => "no ticket can be matched",
        };
        format!("{sender} sends {attribute}, which {} reads: {outcome}", readers.join(", "))
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.by("no waiting ticket"))
    }
}

/// What players send beside attributes.
const LATENCY: &str = "latency";

impl RuleSet {
    /// Returns the attributes that the rules read and that none of these tickets has. Of no tickets nothing is known.
    pub fn unsent(&self, tickets: &[Ticket]) -> Vec<Unsent> {
        if tickets.is_empty() {
            return Vec::new();
        }
        let players = || tickets.iter().flat_map(|ticket| &ticket.players);
        let sent: BTreeSet<&Arc<str>> = players().flat_map(|player| player.attributes.keys()).collect();
        let mut unsent: Vec<Unsent> = self
            .attributes
            .iter()
            .enumerate()
            .filter(|(_, attribute)| !sent.contains(&attribute.name))
            .map(|(at, attribute)| Unsent {
                attribute: attribute.name.clone(),
                readers: self.readers(at),
                has_default: attribute.default.is_some(),
            })
            .filter(|unsent| !unsent.readers.is_empty())
            .collect();
        let by_latency: Vec<Arc<str>> = self
            .rules
            .iter()
            .filter(|rule| matches!(rule.kind, RuleKind::Latency { .. }))
            .map(|rule| rule.name.clone())
            .collect();
        if !by_latency.is_empty() && players().all(|player| player.latency.is_empty()) {
            unsent.push(Unsent { attribute: LATENCY.into(), readers: by_latency, has_default: false });
        }
        unsent
    }

    /// Returns what is wrong with the rule set for these tickets, in addition to [`lint`](Self::lint).
    pub fn lint_with(&self, tickets: &[Ticket]) -> Vec<Warning> {
        let warning = |unsent: &Unsent| Warning { position: None, message: unsent.to_string() };
        self.unsent(tickets).iter().map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Player, Value};

    #[test]
    fn attribute_that_nobody_sends_is_named_with_its_readers() {
        let rules = RuleSet::parse(
            "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[attributes.level]\ntype = \"number\"\ndefault = 1\n\
             [teams.a]\ncount = 2\nmax = 1\n[rules.fair]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10\n\
             [rules.sum]\ntype = \"total\"\nattribute = \"level\"\nmax = 10\n[rules.near]\ntype = \"latency\"\nmax = 80\n",
        )
        .unwrap();
        let mut ticket = Ticket { id: "anna".into(), created: 0, players: vec![Player::default()] };
        let words = |tickets: &[Ticket]| -> Vec<String> {
            rules.unsent(tickets).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            words(std::slice::from_ref(&ticket)),
            [
                "no waiting ticket sends skill, which fair reads: no ticket can be matched",
                "no waiting ticket sends level, which sum reads: the default is used for everyone",
                "no waiting ticket sends latency, which near reads: no region is possible",
            ]
        );
        assert_eq!(words(&[]), Vec::<String>::new(), "an empty pool says nothing about what is sent");
        let player = &mut ticket.players[0];
        player.attributes.insert("skill".into(), Value::Number(1.0));
        player.attributes.insert("level".into(), Value::Number(1.0));
        player.latency.insert("eu".into(), 1.0);
        assert_eq!(words(&[ticket]), Vec::<String>::new());
    }
}
