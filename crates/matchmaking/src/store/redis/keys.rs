//! Builds the names of all keys and channels.

use base::id::Uuid;
use redis_store::{Key, KeySpace};

use crate::model::{BackfillId, MatchId, PartyId, TicketId};

const LOCK: &str = "fetchTicketsLock";

/// Builds the names of keys and channels.
#[derive(Clone, Debug)]
pub(super) struct Keys(KeySpace);

impl Keys {
    pub(super) fn new(redis: &redis_store::Redis, prefix: &str) -> Self {
        Self(redis.key_space("matchmaking", prefix))
    }

    /// Returns the keys that `preamble.lua` expects in every step.
    pub(super) fn shared(&self) -> [Key; 4] {
        [self.all(), self.queue(), self.pending(), self.lock()]
    }

    /// Documented: the set of ticket ids in matchmaking.
    pub(super) fn all(&self) -> Key {
        self.0.key("allTickets")
    }

    /// Documented: the sorted set of pending ticket ids, by the Unix second in which they were claimed. The fraction is
    /// the number of the claim (see docs/adr/0028).
    pub(super) fn pending(&self) -> Key {
        self.0.key("proposed_ticket_ids")
    }

    /// Documented: an encoded ticket.
    pub(super) fn ticket(&self, id: &TicketId) -> Key {
        self.0.key(id.as_str())
    }

    /// Documented: an encoded assignment.
    pub(super) fn assign(&self, id: &TicketId) -> Key {
        self.0.key_of("assign:", id.as_str())
    }

    /// Returns the keys of a ticket and its assignment.
    pub(super) fn ticket_and_assign(&self, id: &str) -> [Key; 2] {
        [self.0.key(id), self.0.key_of("assign:", id)]
    }

    /// Returns the key prefixes of tickets and assignments, for scripts that look up the ids themselves.
    pub(super) fn stems(&self) -> [Key; 2] {
        [self.0.stem(""), self.0.stem("assign:")]
    }

    /// Documented: the token of the lock's holder.
    fn lock(&self) -> Key {
        self.0.key(LOCK)
    }

    /// Returns the documented lock, and the keys under which minimatch's lock library takes it.
    pub(super) fn lock_with_library(&self) -> [Key; 4] {
        let [first, second, third] =
            [0, 1, 2].map(|number| self.0.key_behind(&format!("rueidislock:{number}:"), LOCK));
        [self.lock(), first, second, third]
    }

    /// Returns the keys under which minimatch's lock library takes the lock, which `refuse_beside_lock.lua` expects.
    pub(super) fn library_lock(&self) -> [Key; 3] {
        let [_, first, second, third] = self.lock_with_library();
        [first, second, third]
    }

    /// Ours: a sorted set of the same ids as `all`, by their creation time in microseconds.
    pub(super) fn queue(&self) -> Key {
        self.0.key("ticketQueue")
    }

    /// Ours: counts claims. Expires when none is live.
    pub(super) fn claim_number(&self) -> Key {
        self.0.key("claimNumber")
    }

    /// Ours: who holds the claim with this number: the number of the first claim of its call, and a description. The number
    /// has as many digits as a ticket's id.
    pub(super) fn holder(&self, number: u32) -> Key {
        self.0.key_of("holder:", &format!("{number:020}"))
    }

    /// Returns the key prefix of [`holder`](Self::holder), for scripts that number claims themselves.
    pub(super) fn holders(&self) -> Key {
        self.0.stem("holder:")
    }

    /// Ours: marks a match as abandoned.
    pub(super) fn abandoned(&self, id: &MatchId) -> Key {
        self.0.key_of("abandoned:", &id.to_string())
    }

    /// Ours: a stream of the matches that are not recorded in SQL yet.
    pub(super) fn events(&self) -> Key {
        self.0.key("matchEvents")
    }

    /// Ours: the consumer that currently recovers batches.
    pub(super) fn events_lease(&self) -> Key {
        self.0.key("matchEventsLease")
    }

    /// Ours: a hash of each assigner's last failure, by engine and profile.
    pub(super) fn assigner_failures(&self) -> Key {
        self.0.key("assignerFailures")
    }

    /// Ours: the set of idle engines.
    pub(super) fn idle_engines(&self) -> Key {
        self.0.key("idleEngines")
    }

    /// Ours: a hash of a player's tickets, each with its queue.
    pub(super) fn player(&self, user: &Uuid) -> Key {
        self.0.key_of("player:", &user.to_string())
    }

    /// Ours: a hash of a party: its version and its data.
    pub(super) fn party(&self, id: &PartyId) -> Key {
        self.0.key_of("party:", id.as_str())
    }

    /// Returns the key prefix of [`party`](Self::party), for scripts that look up the ids themselves.
    pub(super) fn parties(&self) -> Key {
        self.0.stem("party:")
    }

    /// Ours: the id of the party with this join code.
    pub(super) fn party_code(&self, code: &str) -> Key {
        self.0.key_of("partyCode:", code)
    }

    /// Ours: a hash of the party that a user is in, and of those that invite the user.
    pub(super) fn member(&self, user: &Uuid) -> Key {
        self.0.key_of("member:", &user.to_string())
    }

    /// Ours: a sorted set of tickets, by the millisecond at which they become overdue. Tickets of parties have an entry for
    /// each member: ticket, colon, user.
    pub(super) fn presence(&self) -> Key {
        self.0.key("presence")
    }

    /// Ours: a hash of a backfill and its tickets.
    pub(super) fn backfill(&self, id: &BackfillId) -> Key {
        self.0.key_of("backfill:", id.as_str())
    }

    /// Ours: a sorted set of backfills, by the millisecond of their last acknowledgement.
    pub(super) fn backfill_acks(&self) -> Key {
        self.0.key("backfillAcks")
    }

    /// Returns the keys that `ready.lua` expects: the sorted set of checks by when they are due, the revision of the last news,
    /// and the key prefixes of checks (a hash each), of pointers to the check of a ticket, of tickets and of assignments.
    pub(super) fn ready_checks(&self) -> [Key; 6] {
        let [tickets, assignments] = self.stems();
        let [due, revision] = [self.0.key("readyChecks"), self.0.key("readyRevision")];
        [due, revision, self.0.stem("ready:"), self.0.stem("readyOf:"), tickets, assignments]
    }

    /// Ours: the ready check of a ticket, or how it ended.
    pub(super) fn ready_of(&self, id: &TicketId) -> Key {
        self.0.key_of("readyOf:", id.as_str())
    }

    /// Ours: a stream of what happened to tickets, while a process reads it to answer queries.
    pub(super) fn changes(&self) -> Key {
        self.0.key("ticketChanges")
    }

    pub(super) fn wake_channel(&self, engine: &str) -> String {
        [&self.wake_channels(), engine].concat()
    }

    /// Returns the common prefix of the engines' channels.
    pub(super) fn wake_channels(&self) -> String {
        self.0.channel("wake:")
    }

    pub(super) fn assigned_channel(&self) -> String {
        self.0.channel("assigned")
    }

    pub(super) fn ready_channel(&self) -> String {
        self.0.channel("ready")
    }

    pub(super) fn gone_channel(&self) -> String {
        self.0.channel("gone")
    }
}
