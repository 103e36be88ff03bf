//! What operators see of tickets, and what they can do: the admin port's `/tickets`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query};
use base::error::Coded;
use base::id::Uuid;
use base::{Clock, Timestamp};
use buffa::Message;
use fleet::Fleet;
use http_server::Problem;
use proto::openmatch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Open, OperatorRoute, Role};

use crate::engine::Profile;
use crate::error::Error;
use crate::model::{Moment, Ticket, TicketId};
use crate::store::{AssignerFailure, Deleted, Status, Store};
use crate::wire;

/// How many tickets are listed if nobody says.
const LISTED: usize = 100;

/// Why no engine fetches tickets.
const HELD_BACK: &str = "no engine fetches tickets: matches that the database has not recorded take \
                         matchmaking.max_unrecorded; bring the database back";

/// Why nobody looks at tickets.
const NO_ENGINE: &str =
    "no process has the role matchmaking-engine: nobody makes matches; `playhouse status` shows who runs";

/// The operator's view of matchmaking.
#[derive(Clone, Debug)]
pub struct Operator {
    store: Store,
    profiles: Arc<[Profile]>,
    /// How many tickets are considered when it is explained why one waits.
    limit: usize,
    clock: Clock,
    /// Who runs, if that is known.
    fleet: Option<Fleet>,
}

/// What a ticket is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketState {
    /// Takes part in matchmaking.
    Waiting,
    /// An engine has fetched it.
    Pending,
    /// Does not take part any more, though it was not assigned.
    Deindexed,
    Assigned,
    /// Still counted, though its data is gone: the next fetch repairs that.
    Expired,
}

#[derive(Clone, Debug, Serialize)]
pub struct TicketSummary {
    pub id: String,
    pub state: TicketState,
    /// How long ago it was made, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
}

/// Everything about one ticket.
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

impl Operator {
    pub fn new(store: Store, profiles: Vec<Profile>, limit: usize, clock: Clock) -> Self {
        // Whatever the roles of this process: an `Any` is shown as what it is.
        wire::register_types();
        Self { store, profiles: profiles.into(), limit, clock, fleet: None }
    }

    /// The same view, which also knows whether an engine runs.
    pub fn with_fleet(self, fleet: Fleet) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    /// The oldest tickets that take part, and how many there are in all.
    pub async fn list(&self, limit: usize) -> Result<(Vec<TicketSummary>, u64), Error> {
        let (ids, count) = self.store.list(limit).await?;
        let mut tickets = Vec::with_capacity(ids.len());
        for id in ids {
            let status = self.store.status(&id).await?;
            tickets.push(self.summary(&id, &status));
        }
        Ok((tickets, count))
    }

    /// The tickets that a player made at the gateway: those that wait, and those assigned that can still be read. The oldest first.
    pub async fn list_of_player(&self, user: Uuid) -> Result<Vec<TicketSummary>, Error> {
        let mut tickets = Vec::new();
        for (id, _) in self.store.of_player(user).await? {
            let status = self.store.status(&id).await?;
            tickets.push(self.summary(&id, &status));
        }
        let age = |ticket: &TicketSummary| ticket.age_seconds.unwrap_or_default();
        tickets.sort_by(|a, b| age(b).total_cmp(&age(a)));
        Ok(tickets)
    }

    /// Whether too many matches are unrecorded for tickets to be fetched.
    pub(crate) async fn is_held_back(&self) -> Result<bool, Error> {
        self.store.is_held_back().await
    }

    /// One ticket, with its state and why it is in it.
    pub async fn show(&self, id: &str) -> Result<TicketReport, Error> {
        let id = parse(id)?;
        let status = self.store.status(&id).await?;
        if status.found.data.is_none() && status.found.assignment.is_none() && !status.indexed {
            return Err(Error::NotFound(id));
        }
        let summary = self.summary(&id, &status);
        let mut why = self.why(&id, summary.state, &status).await?;
        if matches!(summary.state, TicketState::Waiting | TicketState::Pending) && !self.has_engine().await {
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

    /// Gives a ticket that an engine has fetched back to matchmaking.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        let id = parse(id)?;
        let status = self.store.status(&id).await?;
        match status {
            Status { indexed: true, .. } => self.store.release(&[id]).await,
            Status { found, .. } if found.assignment.is_some() => Err(Error::AlreadyAssigned(id)),
            Status { found, .. } if found.data.is_some() => {
                Err(Error::Invalid(format!("ticket {id} was taken out of matchmaking (DeindexTicket)")))
            }
            _ => Err(Error::NotFound(id)),
        }
    }

    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let id = parse(id)?;
        match self.store.delete(&id).await? {
            Deleted::Done => Ok(()),
            Deleted::Unknown => Err(Error::NotFound(id)),
            Deleted::Assigned => Err(Error::AlreadyAssigned(id)),
        }
    }

    fn summary(&self, id: &TicketId, status: &Status) -> TicketSummary {
        let ticket = status.found.data.as_ref().and_then(|data| wire::ticket(id.clone(), data).ok());
        let state = match status {
            Status { found, .. } if found.assignment.is_some() => TicketState::Assigned,
            Status { found, .. } if found.data.is_none() => TicketState::Expired,
            Status { indexed: false, .. } => TicketState::Deindexed,
            Status { pending_since: Some(_), .. } => TicketState::Pending,
            _ => TicketState::Waiting,
        };
        let age = ticket.map(|ticket| ticket.created.age(self.now()).as_secs_f64());
        TicketSummary { id: id.to_string(), state, age_seconds: age }
    }

    fn now(&self) -> Moment {
        Moment::from(self.clock.now())
    }

    async fn why(&self, id: &TicketId, state: TicketState, status: &Status) -> Result<Vec<String>, Error> {
        Ok(match state {
            TicketState::Assigned => Vec::new(),
            TicketState::Expired => vec!["its data has expired; the next fetch takes it out".to_owned()],
            TicketState::Deindexed => vec!["it was taken out of matchmaking (DeindexTicket)".to_owned()],
            TicketState::Pending => {
                let pending = "an engine has fetched it and is looking for a match, or died doing so";
                let failures = self.assigner_failures(|_| true).await?;
                std::iter::once(pending.to_owned()).chain(failures).collect()
            }
            TicketState::Waiting if self.profiles.is_empty() => {
                let failures = self.assigner_failures(|_| true).await?;
                let none = "this process has no [matchmaking.profiles.NAME], so it cannot say why";
                std::iter::once(none.to_owned()).chain(failures).collect()
            }
            TicketState::Waiting => {
                let Some(data) = &status.found.data else { return Ok(Vec::new()) };
                let Ok(ticket) = wire::ticket(id.clone(), data) else {
                    return Ok(vec!["its data cannot be read".to_owned()]);
                };
                let (ids, _) = self.store.list(self.limit).await?;
                let others = self.store.read(&ids).await?;
                let held_back = self.store.is_held_back().await?.then(|| HELD_BACK.to_owned());
                let obstacles =
                    self.profiles.iter().flat_map(|profile| self.why_not(profile, &ticket, &others));
                let admits = |name: &str| {
                    let profile = self.profiles.iter().find(|profile| *profile.name == *name);
                    profile.is_none_or(|profile| profile.admits(&ticket, self.now()))
                };
                let failures = self.assigner_failures(admits).await?;
                held_back.into_iter().chain(obstacles).chain(failures).collect()
            }
        })
    }

    /// Whether an engine runs, as far as anybody knows.
    async fn has_engine(&self) -> bool {
        match &self.fleet {
            Some(fleet) => fleet.has(Role::MatchmakingEngine).await.unwrap_or(true),
            None => true,
        }
    }

    /// What went wrong when the assigners of these profiles were asked last.
    pub(crate) async fn assigner_failures(
        &self,
        concerns: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Error> {
        let now = self.clock.now();
        let failures = self.store.assigner_failures().await?;
        let concerned = failures.iter().filter(|failure| concerns(&failure.profile));
        Ok(concerned.map(|failure| sentence(failure, now)).collect())
    }

    /// What keeps a ticket from a match of this profile, pool by pool.
    fn why_not(&self, profile: &Profile, ticket: &Ticket, others: &[Arc<Ticket>]) -> Vec<String> {
        let now = self.now();
        let explain = |pool: &Arc<crate::model::Pool>| {
            let obstacles: Vec<String> =
                pool.obstacles(ticket, now).map(|filter| format!("`{filter}`")).collect();
            let who = format!("profile {}, pool {}", profile.name, pool.name);
            if obstacles.is_empty() {
                let there = others.iter().filter(|other| pool.admits(other, now)).count();
                let others = format!("{who}: it is in, with {} other tickets", there.saturating_sub(1));
                match profile.function.size() {
                    Some(size) => format!("{others}; {} of {size} found", there.min(size)),
                    None => others,
                }
            } else {
                format!("{who}: kept out by {}", obstacles.join(", "))
            }
        };
        profile.pools.iter().map(explain).collect()
    }
}

/// Says what happened, how often, and when it is tried again.
fn sentence(failure: &AssignerFailure, now: Timestamp) -> String {
    let AssignerFailure { profile, cause, failures, .. } = failure;
    let seconds = |millis: i64| millis.max(0) / 1000;
    let ago = seconds(now.as_millis() - failure.failed_at);
    let next = seconds(failure.next_at - now.as_millis());
    let times = if *failures == 1 { "once".to_owned() } else { format!("{failures} times in a row") };
    format!(
        "profile {profile}: players were found, but the last attempt to get a server failed {ago} s ago: {cause} \
         (failed {times}; the assigner is asked again in {next} s)"
    )
}

fn parse(id: &str) -> Result<TicketId, Error> {
    TicketId::parse(id).ok_or_else(|| Error::Invalid(format!("{id:?} is not the id of a ticket")))
}

/// `/tickets` (list), `/tickets/{ticket_id}` and its `release`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/tickets", list),
        OperatorRoute::get("/tickets/{ticket_id}", show),
        OperatorRoute::delete("/tickets/{ticket_id}", delete),
        OperatorRoute::post("/tickets/{ticket_id}/release", release),
    ]
}

fn problem(error: Error) -> Problem {
    error.log();
    Problem::new(error.code()).detail(error.to_string())
}

#[derive(Deserialize)]
struct ListQuery {
    /// Only those of this player.
    user_id: Option<String>,
    limit: Option<usize>,
}

async fn list(
    Open(operator): Open<Operator>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    if let Some(user) = &query.user_id {
        let bad = || Error::Invalid("user_id is not an id of ours: a UUID is expected".to_owned());
        let user = user.parse().map_err(|_| problem(bad()))?;
        let tickets = operator.list_of_player(user).await.map_err(problem)?;
        return Ok(Json(json!({ "count": tickets.len(), "tickets": tickets })));
    }
    let (tickets, count) = operator.list(query.limit.unwrap_or(LISTED)).await.map_err(problem)?;
    Ok(Json(json!({ "tickets": tickets, "count": count })))
}

async fn show(Open(operator): Open<Operator>, Path(id): Path<String>) -> Result<Json<TicketReport>, Problem> {
    operator.show(&id).await.map(Json).map_err(problem)
}

async fn release(Open(operator): Open<Operator>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    operator.release(&id).await.map_err(problem)?;
    Ok(Json(json!({})))
}

async fn delete(Open(operator): Open<Operator>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    operator.delete(&id).await.map_err(problem)?;
    Ok(Json(json!({})))
}
