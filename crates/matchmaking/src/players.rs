//! Matchmaking for players, each of whom is known and has tickets of their own.
//!
//! What a player can ask for is a [`Queue`]. A ticket carries the queue's name as a search field, by which pools tell tickets
//! apart, and its player's id, by which every call here tells whose it is.
//!
//! Invariants:
//! - a player has one ticket in a queue, and waits in several queues only where all of them allow it
//! - joining again, from any device and any process, finds the ticket that is there
//! - a ticket of somebody else is like one that does not exist
//! - a ticket that is created here is published to the player's streams, from whichever caller; one that is made through the
//!   Open Match frontend belongs to no player
//! - where a queue says so, a ticket is cancelled when no stream of its player has been open for so long, and not before
//!
//! Failure modes: as the store's. A process that cannot say for a while which streams are open may cost its players their
//! tickets, where queues cancel those of players who are gone.

mod presence;
mod ticket;
mod topic;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_server::Connection;
use live::{Live, Player};
use runtime::lifecycle::LoopError;
use runtime::{Drain, fault};

use crate::error::Error;
use crate::frontend::{Frontend, ticket_id};
use crate::metrics::{JoinLabels, Metrics};
use crate::model::TicketId;
use crate::store::{Claim, Claimed};
use crate::wire;

use self::presence::Presence;

pub use self::presence::Present;
pub use self::ticket::{PlayerAssignment, PlayerState, PlayerTicket};
pub use self::topic::TicketCreated;

/// The search field that holds a ticket's queue, a text. Pools filter by it: `queue = ranked`.
pub const QUEUE_FIELD: &str = "queue";

/// The entry of `persistent_field` that says whose a ticket is, a `StringValue`.
pub const USER_FIELD: &str = "user_id";

/// What players can ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Whether a player who waits in this queue may wait in others that allow it too.
    pub beside_others: bool,
    /// The search fields that a player may set.
    pub numbers: Vec<String>,
    pub strings: Vec<String>,
    pub tags: Vec<String>,
    /// After which time without a stream of the player the ticket is cancelled, if it is.
    pub cancel_when_gone: Option<Duration>,
    /// How long a ticket may wait, if not as long as any other.
    pub ticket_ttl: Option<Duration>,
}

/// What a player asks for.
#[derive(Clone, Debug, Default)]
pub struct Join {
    pub queue: String,
    pub numbers: BTreeMap<String, f64>,
    pub strings: BTreeMap<String, String>,
    pub tags: Vec<String>,
    /// The assigned ticket that the player is done with. Without it, whoever joins while that one can still be read gets it.
    pub replaces: Option<TicketId>,
}

#[derive(Clone, Debug)]
pub struct Joined {
    pub ticket: PlayerTicket,
    /// Whether the ticket is new.
    pub created: bool,
}

/// The use cases. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Players {
    frontend: Frontend,
    queues: Arc<BTreeMap<String, Queue>>,
    presence: Presence,
    live: Live,
    metrics: Metrics,
}

impl Players {
    /// Makes the use cases on top of a frontend of this process. The frontend's loop has to run: it delivers assignments.
    pub fn new(frontend: Frontend, queues: BTreeMap<String, Queue>, live: Live, metrics: Metrics) -> Self {
        let presence = Presence::new(frontend.store.clone(), &queues, metrics.clone());
        Self { frontend, queues: Arc::new(queues), presence, live, metrics }
    }

    /// What players can ask for, by name.
    pub fn queues(&self) -> &BTreeMap<String, Queue> {
        &self.queues
    }

    /// Returns the player's ticket in this queue. Creates it if there is none, and publishes [`TicketCreated`].
    pub async fn join(&self, user: Uuid, request: Join) -> Result<Joined, Error> {
        let Join { queue: name, numbers, strings, tags, replaces } = request;
        let (name, queue) = self.queues.get_key_value(&name).ok_or_else(|| self.unknown_queue(&name))?;
        let fields = queue.fields(name, numbers, strings, tags)?;
        let ticket = self.frontend.prepare(queue.ticket(user, fields))?;
        let (id, ttl) = (ticket.id.clone(), ticket.ttl);
        let beside = |(_, other): &(&String, &Queue)| queue.beside_others && other.beside_others;
        let claim = Claim {
            user,
            queue: name.clone(),
            ticket,
            beside: self.queues.iter().filter(beside).map(|(name, _)| name.clone()).collect(),
            replaces,
            cancel_when_gone: queue.cancel_when_gone,
        };
        // Listened for before it can be matched.
        self.frontend.hub.made(id.clone(), ttl);
        let claimed = self.frontend.store.join(&claim).await?;
        let outcome = match &claimed {
            Claimed::Ticket { id: there, .. } if *there == id => "made",
            Claimed::Ticket { .. } => "there",
            Claimed::Elsewhere { .. } => "refused",
        };
        if outcome != "made" {
            self.frontend.hub.not_made(&id);
        }
        self.metrics.joins.get_or_create(&JoinLabels { queue: name.clone(), outcome }).inc();
        match claimed {
            Claimed::Elsewhere { queue, id } => Err(Error::OtherQueue { queue, ticket: id }),
            Claimed::Ticket { id, found } => {
                let ticket = PlayerTicket::read(user, &id, &found).ok_or(Error::NotFound(id))?;
                let created = outcome == "made";
                if created {
                    fault::point("matchmaking.joined");
                    self.publish_created(user).await;
                }
                Ok(Joined { ticket, created })
            }
        }
    }

    /// Makes the player's streams look for the new ticket. From then on each of them [watches](Self::watch) it, and so receives
    /// its assignment or its end.
    async fn publish_created(&self, user: Uuid) {
        // If this fails, streams find the ticket at their next heartbeat.
        let _ = self.live.publish::<TicketCreated>(Player(user), ()).await;
    }

    fn unknown_queue(&self, name: &str) -> Error {
        Error::Invalid(format!("there is no queue {name:?}; there is {}", list(self.queues.keys())))
    }

    /// The player's tickets: those that wait, and those that were assigned and can still be read. The oldest come first.
    pub async fn tickets(&self, user: Uuid) -> Result<Vec<PlayerTicket>, Error> {
        let mut found = self.frontend.store.of_player(user).await?;
        let created =
            |id: &TicketId, data: &Bytes| wire::ticket(id.clone(), data).ok().map(|ticket| ticket.created);
        found.sort_by_cached_key(|(id, found)| found.data.as_ref().and_then(|data| created(id, data)));
        Ok(found.iter().filter_map(|(id, found)| PlayerTicket::read(user, id, found)).collect())
    }

    /// One of the player's tickets.
    pub async fn ticket(&self, user: Uuid, id: &str) -> Result<PlayerTicket, Error> {
        let id = ticket_id(id)?;
        let found = self.frontend.store.find(&id).await?;
        PlayerTicket::read(user, &id, &found).ok_or(Error::NotFound(id))
    }

    /// Takes a ticket of the player back. One that is gone already, or was never theirs, is as good as taken back.
    pub async fn leave(&self, user: Uuid, id: &str) -> Result<(), Error> {
        match self.ticket(user, id).await {
            Err(Error::NotFound(_)) => return Ok(()),
            found => found?,
        };
        self.frontend.delete(id).await
    }

    /// A ticket of the player as it is, and then as it becomes. Ends after it is gone; with an error when the process stops.
    ///
    /// While the stream is open, the player is [present](Self::present).
    pub async fn watch(
        &self,
        user: Uuid,
        id: &str,
        connection: &Connection,
    ) -> Result<impl Stream<Item = Result<PlayerTicket, Error>> + Send + use<>, Error> {
        let ticket = self.ticket(user, id).await?;
        let held = self.frontend.hold(connection)?;
        let watcher = self.frontend.hub.watcher(ticket.id.clone(), held).await?;
        let present = self.present(user);
        let (first, known) = (ticket.clone(), ticket);
        let changes = watcher.rest(connection.drain().clone());
        let rest = changes.scan((known, present), |(known, _), change| {
            let next = match change {
                Ok(response) => known.assigned_by(&response).map(Ok),
                Err(Error::NotFound(_)) => Some(Ok(known.gone())),
                Err(error) => Some(Err(error)),
            };
            if let Some(Ok(ticket)) = &next {
                *known = ticket.clone();
            }
            async { Some(next) }
        });
        Ok(futures::stream::iter([Ok(first)]).chain(rest.filter_map(std::future::ready)))
    }

    /// Says that a stream of the player is open, until this is dropped. Their tickets are not cancelled meanwhile, those that
    /// are made meanwhile included.
    pub fn present(&self, user: Uuid) -> Present {
        self.presence.enter(user)
    }

    /// Says which players are present, and cancels the tickets of those who have been gone for too long. Returns how many.
    pub async fn tick(&self) -> Result<usize, Error> {
        self.presence.tick().await
    }

    /// Does so as often as it takes, until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.presence.run(drain).await
    }
}

/// Names for a sentence.
fn list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
