//! The explanation in sentences.

use std::fmt;

use super::{FewerPlayers, Limit, Miss, Reason, RuleWhy, Why};

/// How many of the nearest candidates are named.
const NAMED: usize = 3;

impl Why {
    /// Returns the explanation, a sentence each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.reason.sentence()];
        lines.extend(self.unsent.iter().map(ToString::to_string));
        lines.extend(self.rules.iter().map(RuleWhy::sentence));
        lines.extend(self.nearest.iter().filter(|near| !near.broken.is_empty()).take(NAMED).map(|near| {
            let when = match near.admitted_in {
                Some(seconds) => format!("admitted in {seconds:.0} s"),
                None => "never admitted".to_owned(),
            };
            format!("ticket {}: separated by {}, {when}", near.ticket, near.broken.join(", "))
        }));
        lines
    }
}

impl Reason {
    fn sentence(&self) -> String {
        match self {
            Self::Matched => "the rules admit a match now".to_owned(),
            Self::Refused { detail } => format!("the rules never match it: {detail}"),
            Self::TooFewPlayers { waiting, needed, relaxes: None } => {
                format!("{waiting} of {needed} players wait")
            }
            Self::TooFewPlayers {
                waiting,
                needed,
                relaxes: Some(FewerPlayers { needed: fewer, seconds }),
            } => {
                format!("{waiting} of {needed} players wait; {fewer} suffice in {seconds:.0} s")
            }
            Self::Rule { rule } => format!("blocked by rule {rule}"),
            Self::NoLineup { rule: Some(rule) } => format!("no complete lineup passes rule {rule}"),
            Self::NoLineup { rule: None } => {
                "every pair passes the rules, but no complete lineup does".to_owned()
            }
        }
    }
}

impl RuleWhy {
    fn sentence(&self) -> String {
        let count = match (self.passed, self.failed) {
            (Some(passed), Some(failed)) => match passed + failed {
                1 => format!("{passed} of 1 candidate passes"),
                all => format!("{passed} of {all} candidates pass"),
            },
            _ => "applies to complete matches only".to_owned(),
        };
        let needs = match (self.is_off, &*self.limits) {
            (true, _) => "; it is off now".to_owned(),
            (false, []) => self.switches(),
            (false, limits) => {
                let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
                format!("; {}{}", limits.join(", "), self.switches())
            }
        };
        let miss =
            self.nearest_miss.as_ref().map(|miss| format!("; nearest miss: {miss}")).unwrap_or_default();
        format!("rule {}: {count}{needs}{miss}", self.rule)
    }

    /// Says when the rule is turned off, unless a limit changes before.
    fn switches(&self) -> String {
        let by_limit = |seconds: f64| {
            self.limits.iter().any(|limit| limit.next.as_ref().is_some_and(|next| next.seconds <= seconds))
        };
        match self.changes_in {
            Some(seconds) if !by_limit(seconds) => format!("; off in {seconds:.0} s"),
            _ => String::new(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |value: Option<f64>| value.map_or_else(|| "unlimited".to_owned(), number);
        write!(f, "{} {}", self.name, word(self.value))?;
        match &self.next {
            Some(next) => write!(f, " ({} in {:.0} s)", word(next.value), next.seconds),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value, self.by) {
            (Some(value), Some(by)) => {
                write!(f, "{} with ticket {}, {} off", number(value), self.ticket, number(by))
            }
            _ => write!(f, "ticket {}", self.ticket),
        }
    }
}

/// Formats with at most three digits after the point.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
