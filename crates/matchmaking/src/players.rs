//! Matchmaking for signed-in players.
//!
//! Players join a [`Queue`]. A ticket carries the queue's name as a search field, which pools filter by, and its
//! player's id, which every call here checks.
//!
//! Invariants:
//! - a player has one ticket in a queue, and waits in several queues only if all of them allow it
//! - joining again, from any device and any process, returns the existing ticket
//! - another player's ticket looks like one that does not exist
//! - a ticket created here is published to the player's streams; a ticket created through the Open Match frontend
//!   belongs to no player
//! - only the player of a ticket can answer its ready check
//! - if a queue is configured so, a ticket is cancelled once its player has had no stream open for the configured time,
//!   and not before
//!
//! Failure modes: those of the store. If a process cannot report its open streams for a while, its players may lose
//! tickets in queues that cancel the tickets of absent players.

mod estimate;
mod presence;
mod ticket;
mod topic;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base::id::Uuid;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_server::Connection;
use live::{Live, Player};
use runtime::lifecycle::LoopError;
use runtime::{Drain, fault};

use crate::engine::Profile;
use crate::error::Error;
use crate::frontend::hub::TicketChange;
use crate::frontend::{Frontend, ticket_id};
use crate::metrics::{JoinLabels, Metrics};
use crate::model::{Moment, Ticket, TicketId};
use crate::store::{AnswerOutcome, JoinOutcome, NewPlayerTicket, NewTicket, ReadyAnswer, StoredTicket};
use crate::wire;

use self::presence::Presence;

pub(crate) use self::estimate::RecentWaits;

pub use self::estimate::{EstimateBasis, WaitEstimate};
pub use self::presence::PresenceGuard;
pub use self::ticket::{PlayerAssignment, PlayerReadyCheck, PlayerState, PlayerTicket};
pub use self::topic::TicketCreated;

/// The search field with the name of a ticket's queue, a string. Pools filter by it: `queue = ranked`.
pub const QUEUE_FIELD: &str = "queue";

/// The key in `persistent_field` with the id of a ticket's player, a `StringValue`.
pub const USER_FIELD: &str = "user_id";

/// The key in `persistent_field` with the ids of all players of a party's ticket, a `StringValue` with spaces in between.
pub const MEMBERS_FIELD: &str = "member_ids";

/// A queue that players can join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Whether a player in this queue may also wait in other queues that allow it.
    pub allow_other_queues: bool,
    /// The search fields that a player may set.
    pub numbers: Vec<String>,
    pub strings: Vec<String>,
    pub tags: Vec<String>,
    /// How long a player may be without a stream before the ticket is cancelled. `None` never cancels.
    pub cancel_when_gone: Option<Duration>,
    /// The lifetime of a ticket, if it differs from the default.
    pub ticket_ttl: Option<Duration>,
    /// How many members a party in this queue may have.
    pub max_party: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            allow_other_queues: false,
            numbers: Vec::new(),
            strings: Vec::new(),
            tags: Vec::new(),
            cancel_when_gone: None,
            ticket_ttl: None,
            max_party: 1,
        }
    }
}

/// A player's request to wait in a queue.
#[derive(Clone, Debug, Default)]
pub struct JoinRequest {
    pub queue: String,
    pub numbers: BTreeMap<String, f64>,
    pub strings: BTreeMap<String, String>,
    pub tags: Vec<String>,
    /// The assigned ticket that the player no longer needs. Without it, joining returns that ticket while it can still
    /// be read.
    pub replaces: Option<TicketId>,
}

#[derive(Clone, Debug)]
pub struct JoinedTicket {
    pub ticket: PlayerTicket,
    /// Whether the ticket is new.
    pub is_new: bool,
}

/// The use cases. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Players {
    pub(crate) frontend: Frontend,
    /// The current queues.
    queues: Arc<RwLock<Arc<BTreeMap<String, Queue>>>>,
    presence: Presence,
    pub(crate) live: Live,
    pub(crate) metrics: Metrics,
    /// The profiles that make the matches, to estimate waiting times and to refuse what they never match.
    profiles: Arc<RwLock<Arc<[Profile]>>>,
}

impl Players {
    /// Creates the use cases on top of a frontend of this process. The frontend's loop must run, because it delivers
    /// assignments.
    pub fn new(frontend: Frontend, queues: BTreeMap<String, Queue>, live: Live, metrics: Metrics) -> Self {
        let presence = Presence::new(frontend.store.clone(), &queues, metrics.clone());
        Self {
            frontend,
            queues: Arc::new(RwLock::new(Arc::new(queues))),
            presence,
            live,
            metrics,
            profiles: Arc::default(),
        }
    }

    /// Reads the ticket of this player, and estimates how much longer it waits. Returns `None` if it does not exist or
    /// belongs to another player.
    pub(crate) fn decode(&self, user: Uuid, id: &TicketId, found: &StoredTicket) -> Option<PlayerTicket> {
        let ticket = PlayerTicket::decode(user, id, found)?;
        let is_waiting = ticket.state == PlayerState::Waiting;
        let estimate = if is_waiting { self.estimate(id, found) } else { None };
        Some(PlayerTicket { estimate, ..ticket })
    }

    fn estimate(&self, id: &TicketId, found: &StoredTicket) -> Option<WaitEstimate> {
        let ticket = &wire::decode_ticket(id.clone(), found.data.as_ref()?).ok()?;
        let now = Moment::from(self.frontend.clock.now());
        let profiles = self.profiles();
        let names = admitting(&profiles, ticket, now).map(|profile| &*profile.name);
        self.frontend.hub.waits().estimate(names, ticket.created.age(now), now)
    }

    fn profiles(&self) -> Arc<[Profile]> {
        self.profiles.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses a ticket that no match can ever have: all profiles that could admit it refuse it. A ticket that no profile admits
    /// passes, because a Director may match it.
    pub(crate) fn check_matchable(&self, new: &NewTicket) -> Result<(), Error> {
        let Ok(ticket) = wire::decode_ticket(new.id.clone(), &new.data) else { return Ok(()) };
        let profiles = self.profiles();
        let mut refusals = Vec::new();
        for profile in admitting(&profiles, &ticket, new.created) {
            match profile.function.refuse(&ticket) {
                Some(refusal) => refusals.push(refusal),
                None => return Ok(()),
            }
        }
        match refusals.is_empty() {
            true => Ok(()),
            false => Err(Error::Invalid(format!("no match can have this ticket: {}", refusals.join("; ")))),
        }
    }

    /// Returns whether the player already waits in this queue, or is matched in it with a ticket that is not to be replaced.
    async fn is_queued(&self, user: Uuid, queue: &str, replaces: Option<&TicketId>) -> Result<bool, Error> {
        let found = self.frontend.store.player_tickets(user).await?;
        let tickets = found.iter().filter_map(|(id, found)| PlayerTicket::decode(user, id, found));
        Ok(tickets.into_iter().any(|ticket| ticket.queue == queue && Some(&ticket.id) != replaces))
    }

    /// Returns the queues by name.
    pub fn queues(&self) -> Arc<BTreeMap<String, Queue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the queues. Tickets keep waiting, also in a queue that is gone.
    pub fn set_queues(&self, queues: Arc<BTreeMap<String, Queue>>) {
        self.presence.set_queues(&queues);
        *self.queues.write().unwrap_or_else(PoisonError::into_inner) = queues;
    }

    /// Replaces the profiles that make the matches. Without them no waiting time is estimated, and no ticket is refused.
    pub fn set_profiles(&self, profiles: &[Profile]) {
        *self.profiles.write().unwrap_or_else(PoisonError::into_inner) = profiles.into();
    }

    /// Returns the player's ticket in this queue. Creates it if there is none, and publishes [`TicketCreated`].
    pub async fn join(&self, user: Uuid, request: JoinRequest) -> Result<JoinedTicket, Error> {
        let JoinRequest { queue: name, numbers, strings, tags, replaces } = request;
        let queues = self.queues();
        let (name, queue) = queues.get_key_value(&name).ok_or_else(|| unknown_queue(&queues, &name))?;
        let fields = queue.fields(name, numbers, strings, tags)?;
        let ticket = self.frontend.prepare(queue.ticket(user, fields))?;
        let refused = self.check_matchable(&ticket);
        // Who joins again gets the existing ticket, whatever the fields.
        if refused.is_err() && !self.is_queued(user, name, replaces.as_ref()).await? {
            refused?;
        }
        let (id, ttl) = (ticket.id.clone(), ticket.ttl);
        let new_ticket = NewPlayerTicket {
            user,
            queue: name.clone(),
            ticket,
            allowed_queues: allowed_queues(&queues, queue),
            replaces,
            cancel_when_gone: queue.cancel_when_gone,
        };
        // Subscribe before it can be matched.
        self.frontend.hub.ticket_created(id.clone(), ttl);
        let joined = self.frontend.store.join(&new_ticket).await?;
        let outcome = match &joined {
            JoinOutcome::Ticket { id: existing, .. } if *existing == id => "created",
            JoinOutcome::Ticket { .. } => "existing",
            JoinOutcome::OtherQueue { .. } => "refused",
        };
        if outcome != "created" {
            self.frontend.hub.ticket_not_created(&id);
        }
        self.metrics.joins.get_or_create(&JoinLabels { queue: name.clone(), outcome }).inc();
        match joined {
            JoinOutcome::OtherQueue { queue, id } => Err(Error::OtherQueue { queue, ticket: id }),
            JoinOutcome::Ticket { id, found } => {
                let ticket = self.decode(user, &id, &found).ok_or_else(|| Error::NotFound(id.to_string()))?;
                let is_new = outcome == "created";
                if is_new {
                    fault::point("matchmaking.joined");
                    self.publish_created(user).await;
                    return Ok(JoinedTicket { ticket, is_new });
                }
                let with_check = self.with_ready(user, vec![ticket.clone()]).await?.pop();
                Ok(JoinedTicket { ticket: with_check.unwrap_or(ticket), is_new })
            }
        }
    }

    /// Makes the player's streams look for the new ticket. Each of them then [watches](Self::watch) it, and so receives
    /// its assignment or its end.
    pub(crate) async fn publish_created(&self, user: Uuid) {
        // If this fails, streams find the ticket at their next heartbeat.
        let _ = self.live.publish::<TicketCreated>(Player(user), ()).await;
    }

    /// Returns the player's tickets that wait, or that were assigned and can still be read. The oldest come first.
    pub async fn tickets(&self, user: Uuid) -> Result<Vec<PlayerTicket>, Error> {
        let mut found = self.frontend.store.player_tickets(user).await?;
        let created = |id: &TicketId, data: &Bytes| {
            wire::decode_ticket(id.clone(), data).ok().map(|ticket| ticket.created)
        };
        found.sort_by_cached_key(|(id, found)| found.data.as_ref().and_then(|data| created(id, data)));
        let tickets = found.iter().filter_map(|(id, found)| self.decode(user, id, found));
        self.with_ready(user, tickets.collect()).await
    }

    /// Adds their ready checks to tickets of a player. Leaves out those that were cancelled since they were read.
    pub(crate) async fn with_ready(
        &self,
        user: Uuid,
        mut tickets: Vec<PlayerTicket>,
    ) -> Result<Vec<PlayerTicket>, Error> {
        let waiting = tickets.iter().filter(|ticket| ticket.state == PlayerState::Waiting);
        let waiting: Vec<TicketId> = waiting.map(|ticket| ticket.id.clone()).collect();
        let states = self.frontend.store.ready_states(&waiting).await?.states;
        for (id, state) in states {
            if let Some(ticket) = tickets.iter_mut().find(|ticket| ticket.id == id) {
                *ticket = ticket.clone().with_ready(user, &state);
            }
        }
        tickets.retain(|ticket| ticket.state != PlayerState::Gone);
        Ok(tickets)
    }

    /// Returns one of the player's tickets.
    pub async fn ticket(&self, user: Uuid, id: &str) -> Result<PlayerTicket, Error> {
        let id = ticket_id(id)?;
        self.checked_ticket(user, &id).await.map(|(ticket, _)| ticket)
    }

    /// Returns one of the player's tickets with its ready check, and as it is stored.
    async fn checked_ticket(&self, user: Uuid, id: &TicketId) -> Result<(PlayerTicket, StoredTicket), Error> {
        let (ticket, found) = self.owned_ticket(user, id).await?;
        let ticket = self.with_ready(user, vec![ticket]).await?.pop();
        Ok((ticket.ok_or_else(|| Error::NotFound(id.to_string()))?, found))
    }

    /// Returns one of the player's tickets without its ready check, and as it is stored.
    async fn owned_ticket(&self, user: Uuid, id: &TicketId) -> Result<(PlayerTicket, StoredTicket), Error> {
        let found = self.frontend.store.find(id).await?;
        let ticket = self.decode(user, id, &found).ok_or_else(|| Error::NotFound(id.to_string()))?;
        Ok((ticket, found))
    }

    /// Accepts the match of the ticket's ready check. Returns the ticket as it is now. Repeating the call changes nothing.
    pub async fn accept(&self, user: Uuid, id: &str) -> Result<PlayerTicket, Error> {
        let id = ticket_id(id)?;
        self.owned_ticket(user, &id).await?;
        let outcome = self.frontend.store.answer_ready_check(&id, user, ReadyAnswer::Accept).await?;
        fault::point("matchmaking.ready.answered");
        match outcome {
            AnswerOutcome::Open(_) | AnswerOutcome::Assigned => self.ticket(user, id.as_str()).await,
            AnswerOutcome::Left | AnswerOutcome::NoCheck => Err(Error::NoReadyCheck(id)),
        }
    }

    /// Declines the match of the ticket's ready check, which cancels the ticket. Repeating the call changes nothing.
    pub async fn decline(&self, user: Uuid, id: &str) -> Result<(), Error> {
        let id = ticket_id(id)?;
        let owned = self.owned_ticket(user, &id).await;
        if !matches!(owned, Ok(_) | Err(Error::NotFound(_))) {
            return owned.map(drop);
        }
        // The store remembers who has declined a ticket that is gone.
        match self.frontend.store.answer_ready_check(&id, user, ReadyAnswer::Decline).await? {
            AnswerOutcome::Left => Ok(()),
            _ => owned.and(Err(Error::NoReadyCheck(id))),
        }
    }

    /// Cancels a ticket of the player. Succeeds if the ticket is already gone, or belongs to another player.
    pub async fn leave(&self, user: Uuid, id: &str) -> Result<(), Error> {
        match self.ticket(user, id).await {
            Err(Error::NotFound(_)) => return Ok(()),
            found => found?,
        };
        self.frontend.delete(id).await
    }

    /// Streams a ticket of the player: its current state, then each change. Ends after the ticket is gone, or with an
    /// error when the process stops.
    ///
    /// While the stream is open, the player counts as [present](Self::mark_present).
    pub async fn watch(
        &self,
        user: Uuid,
        id: &str,
        connection: &Connection,
    ) -> Result<impl Stream<Item = Result<PlayerTicket, Error>> + Send + use<>, Error> {
        let (ticket, found) = self.checked_ticket(user, &ticket_id(id)?).await?;
        let held = self.frontend.hold(connection)?;
        let watcher = self.frontend.hub.ready_watcher(ticket.id.clone(), held).await?;
        let present = self.mark_present(user);
        let (first, known) = (ticket.clone(), ticket);
        let changes = watcher.changes(connection.drain().clone());
        let players = self.clone();
        let rest = changes.scan((known, present), move |(known, _), change| {
            let next = match change {
                Ok(TicketChange::Assigned(response)) => known.assigned_by(user, &response).map(Ok),
                Ok(TicketChange::Ready(state)) => {
                    let mut ticket = known.clone().with_ready(user, &state);
                    let waits_again =
                        known.state == PlayerState::ReadyCheck && ticket.state == PlayerState::Waiting;
                    if waits_again {
                        ticket.estimate = players.estimate(&ticket.id, &found);
                    }
                    (ticket != *known).then_some(Ok(ticket))
                }
                Ok(TicketChange::Gone(reason)) => Some(Ok(known.gone(reason, players.frontend.clock.now()))),
                Err(error) => Some(Err(error)),
            };
            if let Some(Ok(ticket)) = &next {
                *known = ticket.clone();
            }
            async { Some(next) }
        });
        Ok(futures::stream::iter([Ok(first)]).chain(rest.filter_map(std::future::ready)))
    }

    /// Marks the player as present until the guard is dropped. Their tickets are not cancelled meanwhile, including
    /// tickets created later.
    pub fn mark_present(&self, user: Uuid) -> PresenceGuard {
        self.presence.enter(user)
    }

    /// Reports which players are present, and cancels the tickets of players who have been absent for too long. Returns
    /// how many.
    pub async fn tick(&self) -> Result<usize, Error> {
        self.presence.tick().await
    }

    /// Runs ticks until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.presence.run(drain).await
    }
}

/// Returns the queues in which a player of this queue may also wait.
pub(crate) fn allowed_queues(queues: &BTreeMap<String, Queue>, queue: &Queue) -> Vec<String> {
    let is_allowed = |(_, other): &(&String, &Queue)| queue.allow_other_queues && other.allow_other_queues;
    queues.iter().filter(is_allowed).map(|(name, _)| name.clone()).collect()
}

pub(crate) fn unknown_queue(queues: &BTreeMap<String, Queue>, name: &str) -> Error {
    Error::Invalid(format!("there is no queue {name:?}; the queues are {}", list(queues.keys())))
}

/// Joins names for a sentence.
fn list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns the profiles that admit a ticket, now or after some waiting.
fn admitting<'a>(profiles: &'a [Profile], ticket: &Ticket, now: Moment) -> impl Iterator<Item = &'a Profile> {
    let admits =
        move |profile: &&Profile| profile.pools.iter().any(|pool| estimate::may_admit(pool, ticket, now));
    profiles.iter().filter(admits)
}
