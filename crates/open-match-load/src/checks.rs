//! Checks that each player was assigned once, to the same connection as the opponent.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::Hasher;

/// Compares all assignments of a run.
///
/// Expects matches of two, each with its own connection. Tickets and connections are kept as hashes. A hash collision is far less
/// likely than the faults.
#[derive(Debug, Default)]
pub struct Checks {
    /// The connection of each ticket.
    connections: HashMap<u64, u64>,
    /// The number of players of each connection.
    players: HashMap<u64, u32>,
    changed: u64,
    repeated: u64,
}

/// Counts of errors that a matchmaker must never make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Connections with one player. 0 if players failed, because each of them leaves an opponent alone.
    pub alone: u64,
    /// Connections with more than two players.
    pub crowded: u64,
    /// Tickets that were assigned again, to another connection.
    pub changed: u64,
    /// Ticket ids that more than one player got.
    pub repeated: u64,
}

impl Checks {
    /// Records the first assignment of a player.
    pub fn record_first(&mut self, ticket: &[u8], connection: &[u8]) {
        let connection = hash(connection);
        match self.connections.entry(hash(ticket)) {
            Entry::Vacant(entry) => {
                entry.insert(connection);
            }
            Entry::Occupied(_) => self.repeated += 1,
        }
        *self.players.entry(connection).or_default() += 1;
    }

    /// Records a later assignment of the same player.
    pub fn record_update(&mut self, ticket: &[u8], connection: &[u8]) {
        if self.connections.get(&hash(ticket)) != Some(&hash(connection)) {
            self.changed += 1;
        }
    }

    /// Returns the faults. Call it when all players are done.
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
    /// Returns whether there are no faults.
    pub fn is_empty(self) -> bool {
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
            checks.record_first(ticket.as_bytes(), connection.as_bytes());
        }
        checks
    }

    #[test]
    fn matching_pairs_have_no_faults() {
        assert!(checks(&[("a", "x"), ("b", "y"), ("c", "y"), ("d", "x")]).faults().is_empty());
        assert!(Checks::default().faults().is_empty());
    }

    #[test]
    fn pair_with_different_connections_is_two_players_alone() {
        assert_eq!(checks(&[("a", "x"), ("b", "y")]).faults(), Faults { alone: 2, ..Faults::default() });
    }

    #[test]
    fn three_players_on_one_connection_are_crowded() {
        let found = checks(&[("a", "x"), ("b", "x"), ("c", "x")]).faults();
        assert_eq!(found, Faults { crowded: 1, ..Faults::default() });
    }

    #[test]
    fn ticket_in_two_matches_is_detected() {
        // b was matched with a and with c, and received one of the two assignments.
        let found = checks(&[("a", "x"), ("b", "x"), ("c", "y")]).faults();
        assert_eq!(found, Faults { alone: 1, ..Faults::default() });
    }

    #[test]
    fn changed_assignment_is_detected() {
        let mut checks = checks(&[("a", "x"), ("b", "x")]);
        checks.record_update(b"a", b"x");
        assert!(checks.faults().is_empty());
        checks.record_update(b"a", b"z");
        assert_eq!(checks.faults(), Faults { changed: 1, ..Faults::default() });
    }

    #[test]
    fn repeated_ticket_id_is_detected() {
        let found = checks(&[("a", "x"), ("a", "x")]).faults();
        assert_eq!(found, Faults { repeated: 1, ..Faults::default() });
    }
}
