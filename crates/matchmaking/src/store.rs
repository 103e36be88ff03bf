//! The store of tickets: the port, and the guarantees that both adapters give.
//!
//! Each method is one atomic step. One test suite (`tests/store`) checks these guarantees for both adapters:
//! - [`Store::fetch`] never returns a ticket twice within the pending timeout, and returns the oldest tickets first
//! - no ticket has two live claims, and what an old claim releases or assigns changes nothing
//! - no ticket is ever assigned twice, and a match is assigned as a whole or not at all
//! - a ticket is either cancelled or assigned, never both
//! - a ticket is in one ready check at most, and an accepted match is assigned at most once
//! - a player has one ticket in a queue, however many requests arrive at once
//! - a user is in one party, and a party and its ticket change together
//! - every assigned match stays in an [`UnrecordedBatch`] until the batch is removed; its players are notified later,
//!   by [`Store::notify`]

mod backfill;
pub(crate) mod changes;
mod claim;
mod memory;
mod party;
mod player;
pub(crate) mod ready;
mod redis;
mod room;

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
use crate::model::{BackfillId, MatchId, Moment, PartyId, ReadyCheckId, Ticket, TicketId};
use crate::wire;

pub use self::backfill::{
    AcknowledgeOutcome, AcknowledgedBackfill, AssignBackfillOutcome, BackfillChange, BackfillData,
    BackfillStatus, ExpiredBackfills, NewBackfill, UpdateBackfillOutcome,
};
use self::changes::{Changes, Position, ScanCursor, ScanPage};
pub use self::claim::{Claim, ClaimOutcome, ClaimRequest, DirectGroup, DirectResult, Holder, Obstacle};
pub use self::party::{Membership, NewPartyTicket, PartyChange, PartyOutcome, StoredParty, TicketStep};
pub use self::player::{AbsenceTimeouts, JoinOutcome, NewPlayerTicket};
pub use self::ready::{
    AcceptedMatch, AnswerOutcome, DueChecks, NewReadyCheck, OpenOutcome, ReadyAnswer, ReadyCheck, ReadyState,
    ReadyStates, TicketReason,
};
pub use self::redis::{Coordination, RedisServers, TRIALS};
pub use self::room::{NewRoom, OpenRoom, Room, RoomJoin, RoomOrigin, RoomOutcome, RoomTeam, Seat};

/// How long batches claimed by one consumer are withheld from others. Two consumers at once do no harm; they only
/// repeat work.
pub const RECOVERY_LEASE: Duration = Duration::from_secs(5);

/// How long the failure of an assigner is remembered. An assigner that keeps failing is called more often than this
/// while players wait.
const FAILURE_RETENTION: Duration = Duration::from_secs(900);

/// How long a match stays marked as abandoned: the longest lifetime of a ticket, after which no engine can assign the
/// match.
const ABANDONED_MARK_TTL: Duration = Duration::from_secs(86_400);

/// The name of an engine, unique among the engines of a store.
pub(crate) type EngineName = Arc<str>;

/// The rules of a store.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The prefix of every key.
    pub key_prefix: String,
    pub coordination: Coordination,
    /// How long a fetched ticket stays pending before it becomes active again.
    pub pending_timeout: Duration,
    /// How long an assigned ticket and its assignment can be read.
    pub assigned_ttl: Duration,
    /// Whether to check that every ticket of a match still exists before the match is assigned.
    pub check_tickets: bool,
    /// How many bytes of unrecorded matches may accumulate before the store stops handing out tickets.
    pub max_unrecorded: u64,
}

/// A ticket to create.
#[derive(Clone, Debug)]
pub struct NewTicket {
    pub id: TicketId,
    pub created: Moment,
    pub ttl: Duration,
    /// The encoded ticket.
    pub data: Bytes,
}

/// How long tickets have been waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingTimes {
    /// How many tickets are in matchmaking.
    pub tickets: u64,
    /// How many of them an engine has fetched.
    pub pending: u64,
    /// How many tickets were created before the first bound, between each two, and since the last one.
    pub ranges: Vec<u64>,
    /// The oldest tickets with their creation time in microseconds since the Unix epoch, the oldest first.
    pub oldest: Vec<(TicketId, i64)>,
}

/// The data stored under a ticket's id. Both parts are encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredTicket {
    pub data: Option<Bytes>,
    pub assignment: Option<Bytes>,
}

/// The state of a ticket, as a watcher sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchState {
    Gone,
    Waiting,
    Assigned(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    /// There is no such ticket.
    NotFound,
    /// The ticket is assigned, and stays assigned.
    AlreadyAssigned,
}

/// Tickets that are now pending.
#[derive(Clone, Debug, Default)]
pub struct FetchedTickets {
    /// Oldest first.
    pub ids: Vec<TicketId>,
    /// The claim on these tickets.
    pub claim: Claim,
    /// How many tickets take part in matchmaking, including these.
    pub waiting: u64,
    /// Whether the store handed out nothing because [`Rules::max_unrecorded`] is reached.
    pub is_held_back: bool,
}

/// A match to assign.
#[derive(Clone, Debug)]
pub struct AssignmentGroup {
    /// Refuses the match if it was [marked as abandoned](Store::mark_abandoned). Only matches with an allocator need
    /// this.
    pub fence: Option<MatchId>,
    /// Refuses the match unless this claim holds all its tickets.
    pub claim: Option<Claim>,
    pub tickets: Vec<TicketId>,
    pub assignments: Assignments,
    /// The encoded match, for watchers and the recorder.
    pub encoded_match: Bytes,
    /// The backfill that is created with the match.
    pub room: Option<NewRoom>,
}

/// The encoded assignments of a match.
#[derive(Clone, Debug)]
pub enum Assignments {
    /// One assignment for all tickets.
    Shared(Bytes),
    /// One assignment per ticket, in the order of the tickets.
    PerTicket(Vec<Bytes>),
}

impl Assignments {
    fn all(&self) -> &[Bytes] {
        match self {
            Self::Shared(all) => std::slice::from_ref(all),
            Self::PerTicket(each) => each,
        }
    }
}

/// The result of assigning groups.
#[derive(Clone, Debug, Default)]
pub struct AssignResult {
    /// One outcome for each group.
    pub outcomes: Vec<AssignOutcome>,
    /// The assigned matches. Their players are not notified yet.
    pub batches: Vec<UnrecordedBatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignOutcome {
    Assigned,
    /// This ticket is gone, has left matchmaking or was assigned elsewhere. Nothing was written.
    Refused(TicketId),
    /// Another claim holds this ticket: ours has expired. Nothing was written.
    Stale(TicketId),
    /// A sweeper abandoned the match before it was assigned. Nothing was written.
    Abandoned,
}

/// A change that a store publishes to its subscribers.
#[derive(Clone, Debug)]
pub enum TicketEvent {
    /// Assigned matches, encoded.
    Assigned(Bytes),
    Gone(TicketId),
    /// Ready checks changed.
    Ready(ReadyStates),
    /// Events may have been missed: query the store.
    Gap,
}

/// Matches that were assigned in one step and are not recorded in SQL yet.
#[derive(Clone, Debug)]
pub struct UnrecordedBatch {
    pub key: String,
    /// The encoded matches, concatenated.
    pub matches: Bytes,
}

/// What [`Store::notify`] does with the batches afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterNotify {
    /// Keeps them, to be recorded later.
    Keep,
    Remove,
    /// Their players were notified before, and only the copy of their assignments is missing. Removes the batches whose
    /// assignments can be copied now, and notifies only their watchers.
    RemoveCopied,
}

/// A range of batches, in their order. The default is all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchRange<'a> {
    /// The key of the batch before the first one.
    pub after: Option<&'a str>,
    /// The key of the last batch.
    pub up_to: Option<&'a str>,
}

/// The failure of an assigner's last call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignerFailure {
    pub profile: String,
    pub engine: String,
    pub cause: String,
    /// Consecutive failures.
    pub failures: u32,
    /// Milliseconds since the Unix epoch.
    pub failed_at: i64,
    /// When it is called again, if there are matches.
    pub next_at: i64,
}

/// The state of a ticket, as an operator sees it.
#[derive(Clone, Debug, Default)]
pub struct TicketStatus {
    pub found: StoredTicket,
    pub is_indexed: bool,
    /// Since when the ticket is pending, in Unix seconds.
    pub pending_since: Option<i64>,
    /// The Director that has claimed it. `None` if an engine has.
    pub holder: Option<Holder>,
    /// The remaining lifetime of its data.
    pub ttl: Option<Duration>,
}

/// The store of tickets. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub enum Store {
    Memory(Arc<memory::Memory>),
    Redis(Arc<redis::Redis>),
}

/// Calls the same method on either adapter.
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
        others: RedisServers,
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

    /// Checks whether the servers that every call needs answer.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.ping().await,
        }
    }

    /// Creates a ticket and adds it to matchmaking. Repeating the call changes nothing.
    pub async fn create(&self, ticket: NewTicket) -> Result<(), Error> {
        each!(self, store => store.create(ticket).await)
    }

    /// Returns the player's ticket in a queue, or creates it. Repeating the call returns the ticket created before.
    pub async fn join(&self, request: &NewPlayerTicket) -> Result<JoinOutcome, Error> {
        each!(self, store => store.join(request).await)
    }

    /// Returns the tickets of a player that wait, or that were assigned and can still be read.
    pub async fn player_tickets(&self, user: Uuid) -> Result<Vec<(TicketId, StoredTicket)>, Error> {
        each!(self, store => store.player_tickets(user).await)
    }

    /// Returns the parties that a user is in or invited to, as far as they may still exist.
    pub async fn membership(&self, user: Uuid) -> Result<Membership, Error> {
        each!(self, store => store.membership(user).await)
    }

    pub async fn party(&self, id: &PartyId) -> Result<Option<StoredParty>, Error> {
        each!(self, store => store.party(id).await)
    }

    /// Returns the party with this join code.
    pub async fn party_by_code(&self, code: &str) -> Result<Option<PartyId>, Error> {
        each!(self, store => store.party_by_code(code).await)
    }

    /// Changes a party if it has the version of the change. Creates or cancels its ticket in the same step.
    pub async fn change_party(&self, change: &PartyChange) -> Result<PartyOutcome, Error> {
        each!(self, store => store.change_party(change).await)
    }

    /// Records that these players have a stream open, or had one until now.
    pub async fn mark_present(
        &self,
        users: &[Uuid],
        absence_timeouts: &AbsenceTimeouts,
    ) -> Result<(), Error> {
        each!(self, store => store.mark_present(users, absence_timeouts).await)
    }

    /// Cancels the tickets of players who have been absent for too long. Returns how many.
    pub async fn cancel_overdue(&self) -> Result<usize, Error> {
        each!(self, store => store.cancel_overdue().await)
    }

    /// Reads a ticket for a player. Does not repair lost tickets.
    pub async fn find(&self, id: &TicketId) -> Result<StoredTicket, Error> {
        each!(self, store => store.find(id).await)
    }

    /// Returns the state of each of these tickets, in their order, for their watchers.
    pub async fn watch_states(&self, ids: &[TicketId]) -> Result<Vec<WatchState>, Error> {
        each!(self, store => store.watch_states(ids).await)
    }

    /// Cancels a ticket.
    pub async fn delete(&self, id: &TicketId) -> Result<DeleteOutcome, Error> {
        each!(self, store => store.delete(id).await)
    }

    /// Removes a ticket from matchmaking. It can still be read.
    pub async fn deindex(&self, id: &TicketId) -> Result<(), Error> {
        each!(self, store => store.deindex(id).await)
    }

    /// Marks the oldest active tickets as pending and returns them. If there are fewer than `limit`, the engine counts
    /// as idle from now on, and the next ticket created wakes it.
    pub async fn fetch(&self, engine: &EngineName, limit: usize) -> Result<FetchedTickets, Error> {
        self.fetch_joining(engine, limit, None).await
    }

    /// Fetches tickets as [`fetch`](Self::fetch) does. They join a claim that the engine holds, so that a match may have
    /// tickets of several fetches. Without one they get a claim of their own.
    pub async fn fetch_joining(
        &self,
        engine: &EngineName,
        limit: usize,
        joined: Option<Claim>,
    ) -> Result<FetchedTickets, Error> {
        each!(self, store => store.fetch(engine, limit, joined).await)
    }

    /// Reads tickets for matching. Removes tickets whose data is gone from matchmaking (the repair).
    pub async fn read(&self, ids: &[TicketId]) -> Result<Vec<Arc<Ticket>>, Error> {
        let data = each!(self, store => store.read(ids).await)?;
        let mut tickets = Vec::with_capacity(ids.len());
        let mut unreadable = Vec::new();
        for (id, data) in ids.iter().zip(data) {
            match data.map(|data| wire::decode_ticket(id.clone(), &data)) {
                Some(Ok(ticket)) => tickets.push(Arc::new(ticket)),
                Some(Err(error)) => {
                    tracing::error!(ticket = %id, %error, "Removed an unreadable ticket from matchmaking");
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

    /// Claims the tickets of matches for a Director: marks them as pending, each match as a whole or not at all. A match
    /// is refused if one of its tickets left matchmaking or is pending.
    pub async fn claim(&self, matches: &[ClaimRequest]) -> Result<Vec<ClaimOutcome>, Error> {
        if matches.is_empty() {
            return Ok(Vec::new());
        }
        each!(self, store => store.claim(matches).await)
    }

    /// Makes the pending tickets active again that this claim still holds. Returns how many tickets another claim holds.
    pub async fn release_claim(&self, claim: Claim, ids: &[TicketId]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        each!(self, store => store.release(Some(claim), ids).await)
    }

    /// Makes pending tickets active again, whatever claim holds them. Matches that are being made of them are refused.
    pub async fn release(&self, ids: &[TicketId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        each!(self, store => store.release(None, ids).await).map(drop)
    }

    /// Makes all pending tickets active again, whatever claim holds them. Returns how many there were.
    pub async fn release_all(&self) -> Result<u64, Error> {
        each!(self, store => store.release_all().await)
    }

    /// Assigns matches. Writes the assignments of each match, removes its tickets from matchmaking, and adds it to a
    /// batch. Notifies no player: [`notify`](Self::notify) does that. The in-memory store hides the assignments until
    /// then.
    pub async fn assign(&self, groups: &[AssignmentGroup]) -> Result<AssignResult, Error> {
        each!(self, store => store.assign(groups).await)
    }

    /// Assigns groups of tickets for a Director, each group as a whole or not at all. A pending ticket can be assigned by
    /// a Director that has not claimed it. A group is refused if it also contains tickets that another holder claimed.
    pub async fn assign_directly(&self, groups: &[DirectGroup]) -> Result<DirectResult, Error> {
        each!(self, store => store.assign_directly(groups).await)
    }

    /// Returns the Directors that have claimed these tickets.
    pub async fn holders(&self, ids: &[TicketId]) -> Result<Vec<Option<Holder>>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        each!(self, store => store.holders(ids).await)
    }

    /// Opens ready checks, each as a whole or not at all. The tickets stay pending until the deadline, whatever happens to
    /// the engine.
    pub async fn open_ready_checks(&self, checks: &[NewReadyCheck]) -> Result<Vec<OpenOutcome>, Error> {
        each!(self, store => store.open_ready_checks(checks).await)
    }

    /// Records a player's answer. A decline cancels the ticket and releases the others. Repeating the call changes nothing.
    pub async fn answer_ready_check(
        &self,
        ticket: &TicketId,
        user: Uuid,
        answer: ReadyAnswer,
    ) -> Result<AnswerOutcome, Error> {
        each!(self, store => store.answer_ready_check(ticket, user, answer).await)
    }

    /// Takes up to `limit` matches that everybody has accepted, and ends checks whose time is up or that lost a ticket. Other
    /// engines do not get the accepted matches for 80 % of the pending timeout.
    pub async fn due_ready_checks(&self, limit: usize) -> Result<DueChecks, Error> {
        each!(self, store => store.due_ready_checks(limit).await)
    }

    /// Ends taken checks: those of assigned matches, and those whose tickets are to be released. Changes nothing where another
    /// claim has taken the check since.
    pub async fn close_ready_checks(&self, claim: Claim, ids: &[ReadyCheckId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        each!(self, store => store.close_ready_checks(claim, ids).await)
    }

    /// Returns what is known of the ready checks of these tickets. Tickets without any are left out.
    pub async fn ready_states(&self, ids: &[TicketId]) -> Result<ReadyStates, Error> {
        if ids.is_empty() {
            return Ok(ReadyStates::default());
        }
        each!(self, store => store.ready_states(ids).await)
    }

    /// Returns whether any ready check is open.
    pub(crate) async fn has_ready_checks(&self) -> Result<bool, Error> {
        each!(self, store => store.has_ready_checks().await)
    }

    /// Creates a backfill. Returns false if another one has its id. Repeating the call changes nothing.
    pub async fn create_backfill(&self, backfill: &NewBackfill) -> Result<bool, Error> {
        each!(self, store => store.create_backfill(backfill).await)
    }

    /// Reads backfills, also expired ones that are not deleted yet.
    pub async fn read_backfills(&self, ids: &[BackfillId]) -> Result<Vec<Option<BackfillData>>, Error> {
        each!(self, store => store.read_backfills(ids).await)
    }

    /// Replaces the data of a backfill, whatever its generation, and releases its tickets.
    pub async fn update_backfill(
        &self,
        id: &BackfillId,
        fields: &Bytes,
        persistent: &Bytes,
    ) -> Result<UpdateBackfillOutcome, Error> {
        each!(self, store => store.update_backfill(id, fields, persistent).await)
    }

    /// Deletes a backfill and releases its tickets. Returns whether it existed.
    pub async fn delete_backfill(&self, id: &BackfillId) -> Result<bool, Error> {
        each!(self, store => store.delete_backfill(id).await)
    }

    /// Records that the game server of a backfill is alive, and returns the tickets to assign to it.
    pub async fn acknowledge_backfill(&self, id: &BackfillId) -> Result<AcknowledgeOutcome, Error> {
        each!(self, store => store.acknowledge_backfill(id).await)
    }

    /// Assigns tickets of a backfill, all of them or none, and adds their match to a batch. Notifies no player:
    /// [`notify`](Self::notify) does that.
    pub async fn assign_backfill(
        &self,
        id: &BackfillId,
        tickets: &[TicketId],
        assignments: &Assignments,
        encoded_match: &Bytes,
    ) -> Result<AssignBackfillOutcome, Error> {
        each!(self, store => store.assign_backfill(id, tickets, assignments, encoded_match).await)
    }

    /// Records that the game server has received these assigned tickets, so that no later answer lists them again. Deletes the
    /// backfill of a rule set once it is full, and returns whether it did.
    pub async fn mark_listed(&self, id: &BackfillId, tickets: &[TicketId]) -> Result<bool, Error> {
        if tickets.is_empty() {
            return Ok(false);
        }
        each!(self, store => store.mark_listed(id, tickets).await)
    }

    /// Reads those of these backfills that are live and that rule sets fill, in their order, with all seats.
    pub async fn open_rooms(&self, ids: &[BackfillId]) -> Result<Vec<OpenRoom>, Error> {
        each!(self, store => store.open_rooms(ids).await)
    }

    /// Adds tickets that an engine holds to matches under way, for each match all of them or none. They get a claim of their
    /// own, and wait for the game server.
    pub async fn join_rooms(&self, joins: &[RoomJoin]) -> Result<Vec<RoomOutcome>, Error> {
        if joins.is_empty() {
            return Ok(Vec::new());
        }
        each!(self, store => store.join_rooms(joins).await)
    }

    /// Returns the backfills that have not expired, the oldest first.
    pub async fn live_backfills(&self) -> Result<Vec<BackfillId>, Error> {
        each!(self, store => store.live_backfills().await)
    }

    /// Returns some of the backfills that have not expired, in the order of their ids, and how many there are in all.
    pub async fn list_backfills(&self, limit: usize) -> Result<(Vec<BackfillId>, u64), Error> {
        each!(self, store => store.list_backfills(limit).await)
    }

    /// Looks at a random sample of the tickets in matchmaking, and removes those whose data has expired. Returns how many.
    pub async fn remove_expired(&self, sample: usize) -> Result<usize, Error> {
        each!(self, store => store.remove_expired(sample).await)
    }

    /// Deletes some expired backfills and releases their tickets.
    pub async fn expire_backfills(&self) -> Result<ExpiredBackfills, Error> {
        each!(self, store => store.expire_backfills().await)
    }

    /// Returns the state of a backfill for operators.
    pub async fn backfill_status(&self, id: &BackfillId) -> Result<Option<BackfillStatus>, Error> {
        each!(self, store => store.backfill_status(id).await)
    }

    /// Publishes matches to their watchers, then keeps or removes their batches. Does not notify the watchers of a
    /// batch that is gone. Returns the batches that were to be removed and are gone. A batch stays if its assignments
    /// could not be copied to the server that they are read from.
    pub async fn notify<'a>(
        &self,
        batches: &'a [UnrecordedBatch],
        after: AfterNotify,
    ) -> Result<Vec<&'a UnrecordedBatch>, Error> {
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        each!(self, store => store.notify(batches, after).await)
    }

    /// Marks matches as abandoned, so that [`assign`](Self::assign) refuses them. The mark outlives their tickets.
    pub async fn mark_abandoned(&self, ids: &[MatchId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        each!(self, store => store.mark_abandoned(ids).await)
    }

    /// Returns the ids of assigned matches that are not recorded yet.
    pub async fn unrecorded_matches(&self) -> Result<HashSet<MatchId>, Error> {
        let batches = each!(self, store => store.unrecorded_matches().await)?;
        let ids = |matches: &Bytes| -> Vec<MatchId> {
            let matches = wire::decode_matches(matches).unwrap_or_default();
            matches.iter().filter_map(|match_| match_.match_id.parse().ok()).collect()
        };
        Ok(batches.iter().flat_map(ids).collect())
    }

    /// Subscribes to changes of tickets. The stream ends when the connection to the store is lost.
    pub async fn ticket_events(&self) -> Result<BoxStream<'static, TicketEvent>, Error> {
        each!(self, store => store.ticket_events().await)
    }

    /// Notifies `wake` when tickets are created. Returns when the connection to the store is lost.
    pub async fn listen_for_wakes(&self, engine: &EngineName, wake: &Notify) -> Result<(), Error> {
        each!(self, store => store.listen_for_wakes(engine, wake).await)
    }

    /// Removes an engine that stops from the engines that new tickets wake.
    pub(crate) async fn forget_engine(&self, engine: &EngineName) -> Result<(), Error> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.forget_engine(engine).await,
        }
    }

    /// Returns whether an engine of another program, which notifies no watcher, works on the tickets.
    pub(crate) fn has_foreign_engine(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(store) => store.has_foreign_engine(),
        }
    }

    /// Claims up to `max` batches in `range` that are older than `older_than`, the oldest first. While one consumer
    /// holds the lease, others get none for [`RECOVERY_LEASE`].
    pub async fn claim_unrecorded(
        &self,
        consumer: &str,
        max: usize,
        older_than: Duration,
        range: BatchRange<'_>,
    ) -> Result<Vec<UnrecordedBatch>, Error> {
        each!(self, store => store.claim_unrecorded(consumer, max, older_than, range).await)
    }

    /// Returns the number of batches and their approximate size in bytes. Batches that only wait for their assignments
    /// to be copied count too.
    pub async fn unrecorded_size(&self) -> Result<(u64, u64), Error> {
        each!(self, store => store.unrecorded_size().await)
    }

    /// Returns whether unrecorded batches take so much memory that no tickets are handed out.
    pub async fn is_held_back(&self) -> Result<bool, Error> {
        let (_, bytes) = self.unrecorded_size().await?;
        let rules = each!(self, store => store.rules());
        Ok(bytes >= rules.max_unrecorded)
    }

    /// Returns how long an assigned ticket can be read.
    pub(crate) fn assigned_ttl(&self) -> Duration {
        each!(self, store => store.rules()).assigned_ttl
    }

    /// Returns after how long without an acknowledgement a backfill expires.
    pub(crate) fn backfill_expiry(&self) -> Duration {
        each!(self, store => store.rules()).backfill_expiry()
    }

    /// Returns whether the tickets live in this process and end with it.
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Returns the oldest tickets in matchmaking, and how many there are in all.
    pub async fn list(&self, limit: usize) -> Result<(Vec<TicketId>, u64), Error> {
        each!(self, store => store.list(limit).await)
    }

    /// Counts the tickets in matchmaking by their time of creation, and returns the oldest ones. `bounds` are microseconds since the Unix
    /// epoch, in ascending order; the cost does not depend on how many tickets wait.
    pub async fn waiting_times(&self, bounds: &[i64], oldest: usize) -> Result<WaitingTimes, Error> {
        each!(self, store => store.waiting_times(bounds, oldest).await)
    }

    /// Records or clears the failure of this profile's assigner, as seen by this engine. Old failures expire.
    pub async fn set_assigner_failure(
        &self,
        engine: &EngineName,
        profile: &str,
        failure: Option<&AssignerFailure>,
    ) -> Result<(), Error> {
        each!(self, store => store.set_assigner_failure(engine, profile, failure).await)
    }

    /// Returns the assigners whose last call failed, the latest failure first.
    pub async fn assigner_failures(&self) -> Result<Vec<AssignerFailure>, Error> {
        let mut failures = each!(self, store => store.assigner_failures().await)?;
        failures.sort_by_key(|failure| std::cmp::Reverse(failure.failed_at));
        Ok(failures)
    }

    /// Reads what happened to tickets since a position, and has the store go on recording it for
    /// [`CHANGES_LIFETIME`](changes::CHANGES_LIFETIME).
    pub(crate) async fn changes(&self, since: &Position) -> Result<Changes, Error> {
        each!(self, store => store.changes(since).await)
    }

    /// Reads a page of all tickets and pending marks. A ticket that is there during the whole scan is in a page.
    pub(crate) async fn scan(&self, cursor: ScanCursor) -> Result<ScanPage, Error> {
        each!(self, store => store.scan(cursor).await)
    }

    /// Reads the data of tickets, and repairs nothing.
    pub(crate) async fn peek(&self, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        each!(self, store => store.peek(ids).await)
    }

    pub async fn status(&self, id: &TicketId) -> Result<TicketStatus, Error> {
        each!(self, store => store.status(id).await)
    }
}
