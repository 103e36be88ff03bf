//! Whether everybody was assigned once, and to the same place as their opponent.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::Hasher;

/// Compares all assignments of a run.
///
/// It expects matches of two, each with a connection of its own. Text is kept as a hash: two of them being equal by chance is
/// far less likely than the faults that are looked for.
#[derive(Debug, Default)]
pub struct Checks {
    /// By ticket.
    connections: HashMap<u64, u64>,
    /// By connection.
    players: HashMap<u64, u32>,
    changed: u64,
    repeated: u64,
}

/// What a matchmaker must never do, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Connections that one player only was sent to. Not known, hence 0, where players failed: each leaves an opponent.
    pub alone: u64,
    /// Connections that more than two players were sent to.
    pub crowded: u64,
    /// Tickets that were assigned, and then assigned to something else.
    pub changed: u64,
    /// Ticket ids that were given to more than one player.
    pub repeated: u64,
}

impl Checks {
    /// A player has got the first assignment.
    pub fn first(&mut self, ticket: &[u8], connection: &[u8]) {
        let connection = hash(connection);
        match self.connections.entry(hash(ticket)) {
            Entry::Vacant(entry) => {
                entry.insert(connection);
            }
            Entry::Occupied(_) => self.repeated += 1,
        }
        *self.players.entry(connection).or_default() += 1;
    }

    /// The same player has got another one.
    pub fn again(&mut self, ticket: &[u8], connection: &[u8]) {
        if self.connections.get(&hash(ticket)) != Some(&hash(connection)) {
            self.changed += 1;
        }
    }

    /// What was found, once all players are done.
    pub fn faults(&self) -> Faults {
        let count =
            |wrong: fn(u32) -> bool| self.players.values().filter(|players| wrong(**players)).count() as u64;
        Faults {
            alone: count(|players| players < 2),
            crowded: count(|players| players > 2),
            changed: self.changed,
            repeated: self.repeated,
        }
    }
}

impl Faults {
    /// Whether there is none.
    pub fn none(self) -> bool {
        self == Self::default()
    }
}

fn hash(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(assignments: &[(&str, &str)]) -> Checks {
        let mut checks = Checks::default();
        for (ticket, connection) in assignments {
            checks.first(ticket.as_bytes(), connection.as_bytes());
        }
        checks
    }

    #[test]
    fn pairs_that_agree_are_no_fault() {
        assert!(checks(&[("a", "x"), ("b", "y"), ("c", "y"), ("d", "x")]).faults().none());
        assert!(Checks::default().faults().none());
    }

    #[test]
    fn a_pair_that_does_not_agree_is_two_players_alone() {
        assert_eq!(checks(&[("a", "x"), ("b", "y")]).faults(), Faults { alone: 2, ..Faults::default() });
    }

    #[test]
    fn three_in_a_match_of_two_are_a_crowd() {
        let found = checks(&[("a", "x"), ("b", "x"), ("c", "x")]).faults();
        assert_eq!(found, Faults { crowded: 1, ..Faults::default() });
    }

    #[test]
    fn a_ticket_in_two_matches_is_noticed() {
        // b was matched with a and with c, and has seen one of the two.
        let found = checks(&[("a", "x"), ("b", "x"), ("c", "y")]).faults();
        assert_eq!(found, Faults { alone: 1, ..Faults::default() });
    }

    #[test]
    fn a_changed_assignment_is_noticed() {
        let mut checks = checks(&[("a", "x"), ("b", "x")]);
        checks.again(b"a", b"x");
        assert!(checks.faults().none());
        checks.again(b"a", b"z");
        assert_eq!(checks.faults(), Faults { changed: 1, ..Faults::default() });
    }

    #[test]
    fn an_id_that_is_given_twice_is_noticed() {
        let found = checks(&[("a", "x"), ("a", "x")]).faults();
        assert_eq!(found, Faults { repeated: 1, ..Faults::default() });
    }
}
