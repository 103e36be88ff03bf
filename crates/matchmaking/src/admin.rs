//! The admin API's `/tickets`: shows tickets and why they wait, and lets operators release or cancel them.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Json;
use axum::extract::{Path, Query};
use base::error::Coded;
use base::id::Uuid;
use base::{Clock, Timestamp};
use buffa::Message;
use fleet::Fleet;
use http_server::Problem;
use proto::openmatch;
use screens::Operation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Open, OperatorRoute, Role};

use crate::engine::Profile;
use crate::error::Error;
use crate::model::{Moment, Ticket, TicketId};
use crate::store::{AssignerFailure, DeleteOutcome, Store, TicketStatus};
use crate::wire;

/// The default number of listed tickets.
const DEFAULT_LIMIT: usize = 100;
/// How many tickets are read to explain why one waits.
const EXPLAINED: usize = 1_000;

/// Shown while engines fetch no tickets.
const HELD_BACK: &str = "no engine fetches tickets: unrecorded matches have reached matchmaking.max_unrecorded; \
                         restore the database";

/// Shown while no engine runs.
const NO_ENGINE: &str = "no running process has the role matchmaking-engine, so only Directors make matches: start one \
                         with `playhouse serve --roles matchmaking-engine`, or check that a Director calls FetchMatches";

/// Matchmaking as operators see it.
#[derive(Clone, Debug)]
pub struct MatchmakingAdmin {
    store: Store,
    /// The current profiles.
    profiles: Arc<RwLock<Arc<[Profile]>>>,
    /// How many tickets are considered to explain why one waits.
    limit: usize,
    clock: Clock,
    /// The running processes, if they are known.
    fleet: Option<Fleet>,
}

/// The state of a ticket, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketState {
    /// In matchmaking.
    Waiting,
    /// Fetched by an engine.
    Pending,
    /// Removed from matchmaking without being assigned.
    Deindexed,
    Assigned,
    /// Still in the set, though its data is gone. The next fetch repairs that.
    Expired,
}

impl TicketState {
    pub(crate) const fn of(status: &TicketStatus) -> Self {
        match status {
            TicketStatus { found, .. } if found.assignment.is_some() => Self::Assigned,
            TicketStatus { found, .. } if found.data.is_none() => Self::Expired,
            TicketStatus { is_indexed: false, .. } => Self::Deindexed,
            TicketStatus { pending_since: Some(_), .. } => Self::Pending,
            _ => Self::Waiting,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct TicketSummary {
    pub id: String,
    pub state: TicketState,
    /// Seconds since its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
}

/// The full report about one ticket.
#[derive(Clone, Debug, Serialize)]
pub struct TicketReport {
    #[serde(flatten)]
    pub summary: TicketSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Value>,
    /// Why it is not assigned, in sentences.
    pub why: Vec<String>,
}

impl MatchmakingAdmin {
    pub fn new(store: Store, profiles: Vec<Profile>, limit: usize, clock: Clock) -> Self {
        // Needed in every role, so that an `Any` is shown with its real type.
        wire::register_types();
        Self { store, profiles: Arc::new(RwLock::new(profiles.into())), limit, clock, fleet: None }
    }

    /// Adds the running processes, to show whether an engine runs.
    pub fn with_fleet(self, fleet: Fleet) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    /// Returns the oldest tickets in matchmaking, and how many there are in all.
    pub async fn list(&self, limit: usize) -> Result<(Vec<TicketSummary>, u64), Error> {
        let (ids, count) = self.store.list(limit).await?;
        let mut tickets = Vec::with_capacity(ids.len());
        for id in ids {
            let status = self.store.status(&id).await?;
            tickets.push(self.summary(&id, &status));
        }
        Ok((tickets, count))
    }

    /// Returns the tickets that a player created at the gateway and that wait, or are assigned and can still be read.
    /// The oldest first.
    pub async fn list_player_tickets(&self, user: Uuid) -> Result<Vec<TicketSummary>, Error> {
        let mut tickets = Vec::new();
        for (id, _) in self.store.player_tickets(user).await? {
            let status = self.store.status(&id).await?;
            tickets.push(self.summary(&id, &status));
        }
        let age = |ticket: &TicketSummary| ticket.age_seconds.unwrap_or_default();
        tickets.sort_by(|a, b| age(b).total_cmp(&age(a)));
        Ok(tickets)
    }

    /// Returns whether too many matches are unrecorded for tickets to be fetched.
    pub(crate) async fn is_held_back(&self) -> Result<bool, Error> {
        self.store.is_held_back().await
    }

    /// Returns one ticket with its state and the reasons for it.
    pub async fn show(&self, id: &str) -> Result<TicketReport, Error> {
        let id = parse(id)?;
        let status = self.store.status(&id).await?;
        if status.found.data.is_none() && status.found.assignment.is_none() && !status.is_indexed {
            return Err(Error::NotFound(id.to_string()));
        }
        let summary = self.summary(&id, &status);
        let mut why = self.why(&id, summary.state, &status).await?;
        let needs_engine = matches!(summary.state, TicketState::Waiting | TicketState::Pending);
        if needs_engine && status.holder.is_none() && !self.has_engine().await {
            why.insert(0, NO_ENGINE.to_owned());
        }
        let ticket =
            status.found.data.as_ref().and_then(|data| openmatch::Ticket::decode_from_slice(data).ok());
        let assignment = status
            .found
            .assignment
            .as_ref()
            .and_then(|data| openmatch::Assignment::decode_from_slice(data).ok());
        Ok(TicketReport {
            summary,
            pending_since: status.pending_since,
            expires_in_seconds: status.ttl.map(|ttl| ttl.as_secs_f64()),
            ticket: ticket.and_then(|mut ticket| {
                ticket.assignment = assignment.into();
                serde_json::to_value(ticket).ok()
            }),
            why,
        })
    }

    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn profiles(&self) -> Arc<[Profile]> {
        self.profiles.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the profiles.
    pub fn set_profiles(&self, profiles: Vec<Profile>) {
        *self.profiles.write().unwrap_or_else(PoisonError::into_inner) = profiles.into();
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns a reason why no ticket is matched at all, if there is one.
    pub(crate) async fn standstill(&self) -> Result<Option<&'static str>, Error> {
        if !self.has_engine().await {
            return Ok(Some(NO_ENGINE));
        }
        Ok(self.is_held_back().await?.then_some(HELD_BACK))
    }

    /// Makes a pending ticket active again.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        let id = parse(id)?;
        let status = self.store.status(&id).await?;
        match status {
            TicketStatus { is_indexed: true, .. } => self.store.release(&[id]).await,
            TicketStatus { found, .. } if found.assignment.is_some() => Err(Error::AlreadyAssigned(id)),
            TicketStatus { found, .. } if found.data.is_some() => {
                Err(Error::Invalid(format!("ticket {id} was removed from matchmaking (DeindexTicket)")))
            }
            _ => Err(Error::NotFound(id.to_string())),
        }
    }

    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let id = parse(id)?;
        match self.store.delete(&id).await? {
            DeleteOutcome::Deleted => Ok(()),
            DeleteOutcome::NotFound => Err(Error::NotFound(id.to_string())),
            DeleteOutcome::AlreadyAssigned => Err(Error::AlreadyAssigned(id)),
        }
    }

    fn summary(&self, id: &TicketId, status: &TicketStatus) -> TicketSummary {
        let ticket = status.found.data.as_ref().and_then(|data| wire::decode_ticket(id.clone(), data).ok());
        let state = TicketState::of(status);
        let age = ticket.map(|ticket| ticket.created.age(self.now()).as_secs_f64());
        TicketSummary { id: id.to_string(), state, age_seconds: age }
    }

    fn now(&self) -> Moment {
        Moment::from(self.clock.now())
    }

    async fn why(
        &self,
        id: &TicketId,
        state: TicketState,
        status: &TicketStatus,
    ) -> Result<Vec<String>, Error> {
        let profiles = self.profiles();
        Ok(match state {
            TicketState::Assigned => Vec::new(),
            TicketState::Expired => vec!["its data has expired; the next fetch removes it".to_owned()],
            TicketState::Deindexed => vec!["it was removed from matchmaking (DeindexTicket)".to_owned()],
            TicketState::Pending => {
                let pending = match &status.holder {
                    Some(holder) => format!(
                        "a Director holds it in a match of profile {:?}, proposed by the match function at {}, or died while \
                         doing so",
                        holder.profile, holder.function
                    ),
                    None => {
                        "an engine has fetched it and looks for a match, or died while doing so".to_owned()
                    }
                };
                let failures = self.assigner_failures(|_| true).await?;
                std::iter::once(pending).chain(failures).collect()
            }
            TicketState::Waiting if profiles.is_empty() => {
                let failures = self.assigner_failures(|_| true).await?;
                let none = "this process has no [matchmaking.profiles.NAME], so it cannot say why";
                std::iter::once(none.to_owned()).chain(failures).collect()
            }
            TicketState::Waiting => {
                let Some(data) = &status.found.data else { return Ok(Vec::new()) };
                let Ok(ticket) = wire::decode_ticket(id.clone(), data) else {
                    return Ok(vec!["its data is unreadable".to_owned()]);
                };
                let (ids, _) = self.store.list(self.limit.min(EXPLAINED)).await?;
                let others = self.store.read(&ids).await?;
                let held_back = self.store.is_held_back().await?.then(|| HELD_BACK.to_owned());
                let obstacles =
                    profiles.iter().flat_map(|profile| self.explain_profile(profile, &ticket, &others));
                let admits = |name: &str| {
                    let profile = profiles.iter().find(|profile| *profile.name == *name);
                    profile.is_none_or(|profile| profile.admits(&ticket, self.now()))
                };
                let failures = self.assigner_failures(admits).await?;
                held_back.into_iter().chain(obstacles).chain(failures).collect()
            }
        })
    }

    /// Returns whether an engine runs. Assumes one if that is unknown.
    pub(crate) async fn has_engine(&self) -> bool {
        match &self.fleet {
            Some(fleet) => fleet.has(Role::MatchmakingEngine).await.unwrap_or(true),
            None => true,
        }
    }

    /// Returns the last failures of the assigners of these profiles, as sentences.
    pub(crate) async fn assigner_failures(
        &self,
        concerns: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Error> {
        let now = self.clock.now();
        let failures = self.store.assigner_failures().await?;
        let concerned = failures.iter().filter(|failure| concerns(&failure.profile));
        Ok(concerned.map(|failure| describe_failure(failure, now)).collect())
    }

    /// Explains, pool by pool, what keeps a ticket out of a match of this profile.
    fn explain_profile(&self, profile: &Profile, ticket: &Ticket, others: &[Arc<Ticket>]) -> Vec<String> {
        let now = self.now();
        let tickets = others;
        let explain = |pool: &Arc<crate::model::Pool>| -> Vec<String> {
            let obstacles: Vec<String> =
                pool.obstacles(ticket, now).map(|filter| format!("`{filter}`")).collect();
            let place = format!("profile {}, pool {}", profile.name, pool.name);
            if obstacles.is_empty() {
                let admitted = others.iter().filter(|other| pool.admits(other, now)).count();
                let count = base::counted(admitted.saturating_sub(1), "other ticket");
                let sample = if others.len() == EXPLAINED { " of the 1,000 oldest" } else { "" };
                let others = format!("{place}: admitted, with {count}{sample}");
                let found = match profile.function.size() {
                    Some(size) => format!("{others}; {} of {size} found", admitted.min(size)),
                    None => others,
                };
                let pool: Vec<Arc<Ticket>> =
                    tickets.iter().filter(|other| pool.admits(other, now)).cloned().collect();
                let reasons = profile.function.explain(ticket, &pool, now);
                std::iter::once(found)
                    .chain(reasons.into_iter().map(|reason| format!("{place}: {reason}")))
                    .collect()
            } else {
                vec![format!("{place}: excluded by {}", obstacles.join(", "))]
            }
        };
        profile.pools.iter().flat_map(explain).collect()
    }
}

/// Describes the failure, how often it happened, and when the next attempt is.
fn describe_failure(failure: &AssignerFailure, now: Timestamp) -> String {
    let AssignerFailure { profile, cause, failures, .. } = failure;
    let seconds = |millis: i64| millis.max(0) / 1000;
    let ago = seconds(now.as_millis() - failure.failed_at);
    let next = seconds(failure.next_at - now.as_millis());
    let times = if *failures == 1 { "once".to_owned() } else { format!("{failures} times in a row") };
    format!(
        "profile {profile}: a match was found, but the last attempt to get a server failed {ago} s ago: {cause} \
         (failed {times}; the next attempt is in {next} s)"
    )
}

fn parse(id: &str) -> Result<TicketId, Error> {
    TicketId::parse(id).ok_or_else(|| Error::Invalid(format!("{id:?} is not a valid ticket id")))
}

const DELETE: Operation = Operation::new(
    "Delete",
    "Cancels the ticket, as its player could. The player leaves the queue and must join again.",
    "playhouse tickets delete {ticket_id}",
)
.dangerous();
const RELEASE: Operation = Operation::new(
    "Release",
    "The ticket is active again at once, instead of after the pending timeout. An engine that still works on it can match it, too; the ticket \
     is assigned only once.",
    "playhouse tickets release {ticket_id}",
);

/// Returns the routes: `/tickets` (list), `/tickets/{ticket_id}` and its `release`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/tickets", list),
        OperatorRoute::get("/tickets/{ticket_id}", show),
        OperatorRoute::delete("/tickets/{ticket_id}", delete).operation(DELETE),
        OperatorRoute::post("/tickets/{ticket_id}/release", release).operation(RELEASE),
    ]
}

pub(crate) fn problem(error: Error) -> Problem {
    error.log();
    Problem::new(error.code()).detail(error.to_string())
}

#[derive(Deserialize)]
struct ListQuery {
    /// Lists only the tickets of this player.
    user_id: Option<String>,
    limit: Option<usize>,
}

async fn list(
    Open(admin): Open<MatchmakingAdmin>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    if let Some(user) = &query.user_id {
        let bad = || Error::Invalid("user_id must be a UUID".to_owned());
        let user = user.parse().map_err(|_| problem(bad()))?;
        let tickets = admin.list_player_tickets(user).await.map_err(problem)?;
        return Ok(Json(json!({ "count": tickets.len(), "tickets": tickets })));
    }
    let (tickets, count) = admin.list(query.limit.unwrap_or(DEFAULT_LIMIT)).await.map_err(problem)?;
    Ok(Json(json!({ "tickets": tickets, "count": count })))
}

async fn show(
    Open(admin): Open<MatchmakingAdmin>,
    Path(id): Path<String>,
) -> Result<Json<TicketReport>, Problem> {
    admin.show(&id).await.map(Json).map_err(problem)
}

async fn release(
    Open(admin): Open<MatchmakingAdmin>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    admin.release(&id).await.map_err(problem)?;
    Ok(Json(json!({})))
}

async fn delete(Open(admin): Open<MatchmakingAdmin>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    admin.delete(&id).await.map_err(problem)?;
    Ok(Json(json!({})))
}
