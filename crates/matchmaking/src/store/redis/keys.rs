//! The names of all keys and channels, which are all made here, but for those that only scripts know: `idleEngines`,
//! `matchEventsLease`, `player:USER` and `presence`.

use std::sync::Arc;

use crate::model::{MatchId, TicketId};

/// Makes the names of keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, name: &str) -> String {
        [&*self.prefix, name].concat()
    }

    /// Documented: a set of the ids that take part.
    pub(super) fn all(&self) -> String {
        self.key("allTickets")
    }

    /// Documented: a sorted set of the ids that are being processed, by the Unix second when that began.
    pub(super) fn pending(&self) -> String {
        self.key("proposed_ticket_ids")
    }

    /// Documented: an encoded ticket.
    pub(super) fn ticket(&self, id: &TicketId) -> String {
        self.key(id.as_str())
    }

    /// Documented: an encoded assignment.
    pub(super) fn assign(&self, id: &TicketId) -> String {
        [&self.prefix, "assign:", id.as_str()].concat()
    }

    /// Documented: the token of the one who holds the lock. With it go the keys by which minimatch's lock library spells the
    /// same lock.
    pub(super) fn lock(&self) -> [String; 4] {
        let name = self.key("fetchTicketsLock");
        let [first, second, third] = [0, 1, 2].map(|number| format!("rueidislock:{number}:{name}"));
        [name, first, second, third]
    }

    /// Ours: a sorted set of the same ids as `all`, by the microsecond of their creation.
    pub(super) fn queue(&self) -> String {
        self.key("ticketQueue")
    }

    /// Ours: says that a match must not be made.
    pub(super) fn abandoned(&self, id: &MatchId) -> String {
        format!("{}abandoned:{id}", self.prefix)
    }

    /// Ours: a stream of the matches that are not recorded in SQL yet.
    pub(super) fn events(&self) -> String {
        self.key("matchEvents")
    }

    pub(super) fn wake_channel(&self, engine: &str) -> String {
        [&self.prefix, "wake:", engine].concat()
    }

    pub(super) fn assigned_channel(&self) -> String {
        self.key("assigned")
    }

    pub(super) fn gone_channel(&self) -> String {
        self.key("gone")
    }
}
