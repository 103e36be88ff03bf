//! Where tickets are kept: the port, and what its two adapters promise alike.
//!
//! Each method is one atomic step. The promises, which one suite holds for both adapters (`tests/store`):
//! - no ticket is handed out by [`Store::fetch`] twice within the pending timeout, and the oldest come first
//! - no ticket is ever assigned twice, and a match is assigned as a whole or not at all
//! - a ticket is cancelled or assigned, never both
//! - a player has one ticket in a queue, however many ask for one at once
//! - for every match that was assigned there is an entry until it is removed: its players are notified later, by [`Store::notify`]

mod memory;
mod player;
mod redis;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use base::id::Uuid;
use bytes::Bytes;
use futures::stream::BoxStream;
use redis_store::RedisStore;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::{MatchId, Moment, Ticket, TicketId};
use crate::wire;

pub use self::player::{Claim, Claimed, GoneAfter};
pub use self::redis::{Coordination, Redises, TRIALS};

/// How long the entries that one consumer has taken are not given to another. Two at once do no harm; they do the work twice.
pub const RECOVERY_LEASE: Duration = Duration::from_secs(5);

/// How long the failure of an assigner is remembered. One that still fails is asked more often, as long as there are players.
const FAILURE_KEPT: Duration = Duration::from_secs(900);

/// How long a match stays marked as abandoned: as long as the longest life of a ticket, after which no engine can make it.
const MARKED: Duration = Duration::from_secs(86_400);

/// Names an engine among all engines of a store.
pub(crate) type EngineName = Arc<str>;

/// How a store behaves.
#[derive(Clone, Debug)]
pub struct Rules {
    /// In front of every key.
    pub key_prefix: String,
    pub coordination: Coordination,
    /// After which time a ticket that is being processed is active again.
    pub pending_timeout: Duration,
    /// How long an assigned ticket and its assignment can be read.
    pub assigned_ttl: Duration,
    /// Whether every ticket of a match is checked to be there before it is assigned.
    pub check_tickets: bool,
    /// How many bytes the entries of matches that are not recorded may take before no more tickets are handed out.
    pub max_unrecorded: u64,
}

/// A ticket to be made.
#[derive(Clone, Debug)]
pub struct NewTicket {
    pub id: TicketId,
    pub created: Moment,
    pub ttl: Duration,
    /// The encoded ticket.
    pub data: Bytes,
}

/// What there is under an id, both encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub data: Option<Bytes>,
    pub assignment: Option<Bytes>,
}

/// What a watcher wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Gone,
    Waiting,
    Assigned(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    Done,
    /// There was no such ticket.
    Unknown,
    /// It has been assigned and stays so.
    Assigned,
}

/// Tickets that are now pending.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// Oldest first.
    pub ids: Vec<TicketId>,
    /// How many take part in matchmaking, these included.
    pub waiting: u64,
    /// Nothing is handed out, because [`Rules::max_unrecorded`] is reached.
    pub is_held_back: bool,
}

/// A match to be written.
#[derive(Clone, Debug)]
pub struct Group {
    /// Refuses the match if it was [marked](Store::mark_abandoned) as abandoned. Only matches with an allocator need it.
    pub fence: Option<MatchId>,
    pub tickets: Vec<TicketId>,
    pub assignments: Assignments,
    /// The encoded match, for watchers and the recorder.
    pub made: Bytes,
}

/// The encoded assignments of a match.
#[derive(Clone, Debug)]
pub enum Assignments {
    /// The same one for all tickets.
    Shared(Bytes),
    /// One for each ticket, in their order.
    Each(Vec<Bytes>),
}

impl Assignments {
    fn all(&self) -> &[Bytes] {
        match self {
            Self::Shared(all) => std::slice::from_ref(all),
            Self::Each(each) => each,
        }
    }
}

/// What became of groups.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// One for each group.
    pub outcomes: Vec<Outcome>,
    /// The matches that were made. Their players are not notified yet.
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Assigned,
    /// This ticket is gone, has left matchmaking or was assigned elsewhere: nothing was written.
    Refused(TicketId),
    /// The match was given up by a sweeper before it was made: nothing was written.
    Abandoned,
}

/// What a store tells those who listen.
#[derive(Clone, Debug)]
pub enum Push {
    /// Matches that were made, encoded.
    Assigned(Bytes),
    Gone(TicketId),
    /// Something may have been missed: ask.
    Missed,
}

/// Matches that were made by one step.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    /// Encoded, end to end.
    pub made: Bytes,
}

/// What becomes of entries when their players are notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They stay, to be recorded later.
    Keep,
    Remove,
    /// Their players were notified before, and only their assignments may be missing at the server they are read at. Removes those
    /// whose assignments are copied now, and pushes no others.
    RemoveCopied,
}

/// A part of the entries, in their order. The default is all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part<'a> {
    /// The key of the entry that it begins behind.
    pub after: Option<&'a str>,
    /// The key of its last entry.
    pub up_to: Option<&'a str>,
}

/// An assigner failed the last time it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignerFailure {
    pub profile: String,
    pub engine: String,
    pub cause: String,
    /// Failures in a row.
    pub failures: u32,
    /// Milliseconds since the Unix epoch.
    pub failed_at: i64,
    /// When it is asked again, if there are matches.
    pub next_at: i64,
}

/// What an operator sees of a ticket.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub found: Found,
    pub indexed: bool,
    /// Since when it is being processed, in Unix seconds, if it is.
    pub pending_since: Option<i64>,
    /// How long its data lives.
    pub ttl: Option<Duration>,
}

/// The tickets. Clones are the same store.
#[derive(Clone, Debug)]
pub enum Store {
    Memory(Arc<memory::Memory>),
    Redis(Arc<redis::Redis>),
}

/// Calls the same method of whichever adapter there is.
macro_rules! each {
    ($store:expr, $adapter:ident => $call:expr) => {
        match $store {
            Store::Memory($adapter) => $call,
            Store::Redis($adapter) => $call,
        }
    };
}

impl Store {
    pub fn new(
        redis_store: &RedisStore,
        others: Redises,
        rules: Rules,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        match redis_store {
            RedisStore::Memory => Self::Memory(Arc::new(memory::Memory::new(rules, clock, metrics))),
            RedisStore::Redis(primary) => {
                Self::Redis(Arc::new(redis::Redis::new(primary.clone(), others, rules, metrics)))
            }
        }
    }

    /// Makes a ticket and lets it take part. Doing so again changes nothing.
    pub async fn create(&self, ticket: NewTicket) -> Result<(), Error> {
        each!(self, store => store.create(ticket).await)
    }

    /// Gives a player a ticket in a queue: the one that is there, or a new one. Doing so again finds what was made.
    pub async fn join(&self, claim: &Claim) -> Result<Claimed, Error> {
        each!(self, store => store.join(claim).await)
    }

    /// The tickets of a player: those that wait, and those that were assigned and can still be read.
    pub async fn of_player(&self, user: Uuid) -> Result<Vec<(TicketId, Found)>, Error> {
        each!(self, store => store.of_player(user).await)
    }

    /// Says that these players have a stream open, or had one until this moment.
    pub async fn present(&self, users: &[Uuid], gone_after: &GoneAfter) -> Result<(), Error> {
        each!(self, store => store.present(users, gone_after).await)
    }

    /// Cancels the tickets of players who have been gone for too long. Returns how many.
    pub async fn sweep(&self) -> Result<usize, Error> {
        each!(self, store => store.sweep().await)
    }

    /// Reads a ticket for a player. Does not repair.
    pub async fn find(&self, id: &TicketId) -> Result<Found, Error> {
        each!(self, store => store.find(id).await)
    }

    /// What there is to tell the watchers of these tickets, in their order.
    pub async fn look(&self, ids: &[TicketId]) -> Result<Vec<Seen>, Error> {
        each!(self, store => store.look(ids).await)
    }

    /// Takes a ticket back.
    pub async fn delete(&self, id: &TicketId) -> Result<Deleted, Error> {
        each!(self, store => store.delete(id).await)
    }

    /// Takes a ticket out of matchmaking; it can still be read.
    pub async fn deindex(&self, id: &TicketId) -> Result<(), Error> {
        each!(self, store => store.deindex(id).await)
    }

    /// Hands out the oldest active tickets and marks them as pending. If there are fewer than the limit, the engine is idle
    /// from this moment: the next ticket that is made wakes it.
    pub async fn fetch(&self, engine: &EngineName, limit: usize) -> Result<Fetched, Error> {
        each!(self, store => store.fetch(engine, limit).await)
    }

    /// Reads tickets for matching. Those whose data is gone are taken out of matchmaking: the repair.
    pub async fn read(&self, ids: &[TicketId]) -> Result<Vec<Arc<Ticket>>, Error> {
        let data = each!(self, store => store.read(ids).await)?;
        let mut tickets = Vec::with_capacity(ids.len());
        let mut unreadable = Vec::new();
        for (id, data) in ids.iter().zip(data) {
            match data.map(|data| wire::ticket(id.clone(), &data)) {
                Some(Ok(ticket)) => tickets.push(Arc::new(ticket)),
                Some(Err(error)) => {
                    tracing::error!(ticket = %id, %error, "taken out of matchmaking");
                    unreadable.push(id.clone());
                }
                None => {}
            }
        }
        for id in unreadable {
            self.deindex(&id).await?;
        }
        Ok(tickets)
    }

    /// Makes pending tickets active again.
    pub async fn release(&self, ids: &[TicketId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        each!(self, store => store.release(ids).await)
    }

    /// Writes matches: for each its assignments, the end of its tickets' part in matchmaking, and its place in an entry. Nobody is
    /// notified: that is [`notify`](Self::notify)'s. In process, nobody sees the assignments before.
    pub async fn assign(&self, groups: &[Group]) -> Result<Assigned, Error> {
        each!(self, store => store.assign(groups).await)
    }

    /// Pushes matches to their watchers, and keeps or removes their entries. The watchers of an entry that is gone are not notified
    /// again. Returns the entries that were to be removed and are gone: an entry stays whose assignments could not be copied to the
    /// server that they are read at.
    pub async fn notify<'a>(&self, entries: &'a [Entry], then: Then) -> Result<Vec<&'a Entry>, Error> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        each!(self, store => store.notify(entries, then).await)
    }

    /// Marks matches as abandoned: from now on [`assign`](Self::assign) refuses them. The mark outlives their tickets.
    pub async fn mark_abandoned(&self, ids: &[MatchId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        each!(self, store => store.mark_abandoned(ids).await)
    }

    /// Returns the matches that were made and are not recorded yet.
    pub async fn unrecorded_matches(&self) -> Result<HashSet<MatchId>, Error> {
        let entries = each!(self, store => store.unrecorded_matches().await)?;
        let ids = |made: &Bytes| -> Vec<MatchId> {
            let matches = wire::matches_made(made).unwrap_or_default();
            matches.iter().filter_map(|made| made.match_id.parse().ok()).collect()
        };
        Ok(entries.iter().flat_map(ids).collect())
    }

    /// What happens from now on, to be told to watchers. The stream ends when the store is lost.
    pub async fn pushes(&self) -> Result<BoxStream<'static, Push>, Error> {
        each!(self, store => store.pushes().await)
    }

    /// Passes wake-ups on until the store is lost.
    pub async fn listen_for_wakes(&self, engine: &EngineName, wake: &Notify) -> Result<(), Error> {
        each!(self, store => store.listen_for_wakes(engine, wake).await)
    }

    /// Returns up to `max` entries of a part that are older than this, the oldest first. While one consumer has some, others get none
    /// for [`RECOVERY_LEASE`].
    pub async fn take_unrecorded(
        &self,
        consumer: &str,
        max: usize,
        older_than: Duration,
        part: Part<'_>,
    ) -> Result<Vec<Entry>, Error> {
        each!(self, store => store.take_unrecorded(consumer, max, older_than, part).await)
    }

    /// How many entries there are, and about how many bytes they take. Those that wait only for their assignments to be copied count,
    /// too.
    pub async fn unrecorded(&self) -> Result<(u64, u64), Error> {
        each!(self, store => store.unrecorded().await)
    }

    /// Whether entries take so much room that no tickets are handed out.
    pub async fn is_held_back(&self) -> Result<bool, Error> {
        let (_, bytes) = self.unrecorded().await?;
        let rules = each!(self, store => store.rules());
        Ok(bytes >= rules.max_unrecorded)
    }

    /// Whether the tickets are part of this process, and end with it.
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// The oldest tickets that take part, and how many there are in all.
    pub async fn list(&self, limit: usize) -> Result<(Vec<TicketId>, u64), Error> {
        each!(self, store => store.list(limit).await)
    }

    /// Remembers, or forgets, that the assigner of this profile failed this engine. What is old is forgotten by itself.
    pub async fn report_assigner(
        &self,
        engine: &EngineName,
        profile: &str,
        failure: Option<&AssignerFailure>,
    ) -> Result<(), Error> {
        each!(self, store => store.report_assigner(engine, profile, failure).await)
    }

    /// The assigners that failed when an engine asked them last, the latest failure first.
    pub async fn assigner_failures(&self) -> Result<Vec<AssignerFailure>, Error> {
        let mut failures = each!(self, store => store.assigner_failures().await)?;
        failures.sort_by_key(|failure| std::cmp::Reverse(failure.failed_at));
        Ok(failures)
    }

    pub async fn status(&self, id: &TicketId) -> Result<Status, Error> {
        each!(self, store => store.status(id).await)
    }
}
