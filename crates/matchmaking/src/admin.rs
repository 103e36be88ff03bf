//! The admin API's `/tickets`: shows tickets and why they wait, and lets operators release or cancel them.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Json;
use axum::extract::{Path, Query};
use base::Clock;
use base::error::Coded;
use base::id::Uuid;
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
use crate::players::QUEUE_FIELD;
use crate::store::{DeleteOutcome, ReadyCheck, ReadyState, Store, TicketStatus};
use crate::why::{COMPARED, Obstacle, ObstacleCode, ProfileWhy, Sample, WhyReport, describe_failure};
use crate::wire;

/// The default number of listed tickets.
const DEFAULT_LIMIT: usize = 100;

/// Shown while engines fetch no tickets.
const HELD_BACK: &str = "no engine fetches tickets: unrecorded matches have reached matchmaking.max_unrecorded; \
                         restore the database";

/// Shown while no engine runs.
const NO_ENGINE: &str = "no running process has the role matchmaking-engine, so only Directors make matches: start one \
                         with `playhouse serve --roles matchmaking-engine`, or check that a Director calls FetchMatches";

/// Shown if a process has no profiles.
const NO_PROFILES: &str = "this process has no [matchmaking.profiles.NAME], so it cannot say why";

/// Shown if every pool excludes a ticket.
const NO_PROFILE_ADMITS: &str = "no profile admits it: every pool of every profile excludes it, so only a \
                                 Director could match it";

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

    /// Returns how many tickets of each profile have waited for longer than its `max_wait`, if there are any. Looks at the oldest
    /// tickets only, as many as an engine fetches at once.
    pub async fn starving(&self) -> Result<Vec<(Arc<str>, usize)>, Error> {
        let profiles = self.profiles();
        let Some(shortest) = profiles.iter().filter_map(|profile| profile.max_wait).min() else {
            return Ok(Vec::new());
        };
        let now = self.now();
        let mut starving: Vec<(&Profile, usize)> = profiles.iter().map(|profile| (profile, 0)).collect();
        let (ids, _) = self.store.list(self.limit).await?;
        for page in ids.chunks(COMPARED) {
            let tickets = self.store.read(page).await?;
            starving.iter_mut().for_each(|(profile, count)| *count += profile.starving(&tickets, now));
            // Younger tickets starve of no profile.
            if tickets.last().is_some_and(|youngest| youngest.created.age(now) <= shortest) {
                break;
            }
        }
        let found = starving.into_iter().filter(|(_, count)| *count > 0);
        Ok(found.map(|(profile, count)| (profile.name.clone(), count)).collect())
    }

    /// Returns whether too many matches are unrecorded for tickets to be fetched.
    pub(crate) async fn is_held_back(&self) -> Result<bool, Error> {
        self.store.is_held_back().await
    }

    /// Returns one ticket with its state and the reasons for it.
    pub async fn show(&self, id: &str) -> Result<TicketReport, Error> {
        self.show_with_reasons(id).await.map(|(report, _)| report)
    }

    /// Returns one ticket, and the reasons for its state as data too.
    pub(crate) async fn show_with_reasons(&self, id: &str) -> Result<(TicketReport, WhyReport), Error> {
        let id = parse(id)?;
        let status = self.find(&id).await?;
        let summary = self.summary(&id, &status);
        let reasons = self.explain(&id, &status).await?;
        let ticket =
            status.found.data.as_ref().and_then(|data| openmatch::Ticket::decode_from_slice(data).ok());
        let assignment = status
            .found
            .assignment
            .as_ref()
            .and_then(|data| openmatch::Assignment::decode_from_slice(data).ok());
        let report = TicketReport {
            summary,
            pending_since: status.pending_since,
            expires_in_seconds: status.ttl.map(|ttl| ttl.as_secs_f64()),
            ticket: ticket.and_then(|mut ticket| {
                ticket.assignment = assignment.into();
                serde_json::to_value(ticket).ok()
            }),
            why: reasons.lines.clone(),
        };
        Ok((report, reasons))
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

    /// Returns why a ticket is not assigned.
    pub async fn why(&self, id: &str) -> Result<WhyReport, Error> {
        let id = parse(id)?;
        let status = self.find(&id).await?;
        self.explain(&id, &status).await
    }

    async fn find(&self, id: &TicketId) -> Result<TicketStatus, Error> {
        let status = self.store.status(id).await?;
        if status.found.data.is_none() && status.found.assignment.is_none() && !status.is_indexed {
            return Err(Error::NotFound(id.to_string()));
        }
        Ok(status)
    }

    /// Reads tickets in pages, the oldest first, until each pool of this ticket has enough of them. Also returns how many were
    /// read.
    async fn sample(
        &self,
        ticket: &Ticket,
        ids: &[TicketId],
        in_matchmaking: u64,
        now: Moment,
    ) -> Result<(Sample, usize), Error> {
        let profiles = self.profiles();
        let pools =
            profiles.iter().flat_map(|profile| &profile.pools).filter(|pool| pool.admits(ticket, now));
        let mut counts: Vec<_> = pools.map(|pool| (pool, 0)).collect();
        let (mut sample, mut compared) = (Sample::default(), 0);
        for page in ids.chunks(COMPARED) {
            if counts.iter().all(|(_, count)| *count >= COMPARED) {
                break;
            }
            compared += page.len();
            for other in self.store.read(page).await? {
                let mut is_needed = false;
                for (pool, count) in counts.iter_mut().filter(|(_, count)| *count < COMPARED) {
                    if pool.admits(&other, now) {
                        *count += 1;
                        is_needed = true;
                    }
                }
                if is_needed {
                    sample.tickets.push(other);
                }
            }
        }
        sample.is_all = compared as u64 >= in_matchmaking;
        Ok((sample, compared))
    }

    async fn explain(&self, id: &TicketId, status: &TicketStatus) -> Result<WhyReport, Error> {
        let TicketSummary { state, age_seconds, .. } = self.summary(id, status);
        let data = status.found.data.as_ref();
        let ticket = data.and_then(|data| wire::decode_ticket(id.clone(), data).ok());
        let queue = ticket.as_ref().and_then(|ticket| ticket.fields.strings.get(QUEUE_FIELD).cloned());
        let (ids, in_matchmaking) = self.store.list(self.limit).await?;
        let profiles = self.profiles();
        let mut report = WhyReport {
            ticket_id: id.to_string(),
            state,
            age_seconds,
            queue,
            in_matchmaking,
            compared: 0,
            obstacles: Vec::new(),
            profiles: Vec::new(),
            assigner_failures: Vec::new(),
            lines: Vec::new(),
        };
        let mut add = |code: ObstacleCode, detail: &str| {
            report.obstacles.push(Obstacle { code, detail: detail.to_owned() });
        };
        let needs_engine = matches!(state, TicketState::Waiting | TicketState::Pending);
        let check = match (state, &status.holder) {
            (TicketState::Pending, None) => self.ready_check(id).await?,
            _ => None,
        };
        if needs_engine && status.holder.is_none() && !self.has_engine().await {
            add(ObstacleCode::NoEngine, NO_ENGINE);
        }
        match (state, &status.holder, &check) {
            (TicketState::Assigned, ..) => return Ok(report),
            (TicketState::Expired, ..) => {
                add(ObstacleCode::Expired, "its data has expired; the next fetch removes it");
            }
            (TicketState::Deindexed, ..) => {
                add(ObstacleCode::Deindexed, "it was removed from matchmaking (DeindexTicket)");
            }
            (TicketState::Pending, Some(holder), _) => {
                let detail = format!(
                    "a Director holds it in a match of profile {:?}, proposed by the match function at {}, or died while \
                     doing so",
                    holder.profile, holder.function
                );
                add(ObstacleCode::HeldByDirector, &detail);
            }
            (TicketState::Pending, None, Some(check)) => {
                let detail = format!(
                    "a match was found, and its players are asked whether they are ready: {} of {} have accepted",
                    check.accepted, check.players
                );
                add(ObstacleCode::ReadyCheck, &detail);
            }
            (TicketState::Pending, None, None) => {
                let detail = "an engine has fetched it and looks for a match, or died while doing so";
                add(ObstacleCode::Fetched, detail);
            }
            (TicketState::Waiting, ..) if ticket.is_none() => {
                add(ObstacleCode::Unreadable, "its data is unreadable");
            }
            (TicketState::Waiting, ..) => {
                if self.store.is_held_back().await? {
                    add(ObstacleCode::HeldBack, HELD_BACK);
                }
                if profiles.is_empty() {
                    add(ObstacleCode::NoProfiles, NO_PROFILES);
                }
            }
        }
        // Every tick an engine fetches all waiting tickets for a moment, so a ticket that it has fetched waits, too.
        // One in a ready check has a match.
        if needs_engine
            && status.holder.is_none()
            && check.is_none()
            && let Some(ticket) = &ticket
        {
            let now = self.now();
            let (sample, compared) = self.sample(ticket, &ids, in_matchmaking, now).await?;
            report.compared = compared;
            report.profiles =
                profiles.iter().map(|profile| ProfileWhy::new(profile, ticket, &sample, now)).collect();
            if !report.profiles.is_empty() && report.profiles.iter().all(|profile| !profile.admits) {
                add(ObstacleCode::NoProfileAdmits, NO_PROFILE_ADMITS);
            }
        }
        if needs_engine {
            let concerns = |name: &str| {
                let profile = report.profiles.iter().find(|profile| profile.profile == name);
                profile.is_none_or(|profile| profile.admits)
            };
            let failures = self.store.assigner_failures().await?;
            report.assigner_failures =
                failures.into_iter().filter(|failure| concerns(&failure.profile)).collect();
        }
        Ok(report.with_lines(self.clock.now()))
    }

    /// Returns the open ready check of a ticket.
    async fn ready_check(&self, id: &TicketId) -> Result<Option<ReadyCheck>, Error> {
        match self.store.ready_states(std::slice::from_ref(id)).await?.states.pop() {
            Some((_, ReadyState::Open(check))) => Ok(Some(check)),
            _ => Ok(None),
        }
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

/// Returns the routes: `/tickets` (list), `/tickets/{ticket_id}` with its `why` and `release`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/tickets", list),
        OperatorRoute::get("/tickets/{ticket_id}", show),
        OperatorRoute::get("/tickets/{ticket_id}/why", why),
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

async fn why(
    Open(admin): Open<MatchmakingAdmin>,
    Path(id): Path<String>,
) -> Result<Json<WhyReport>, Problem> {
    admin.why(&id).await.map(Json).map_err(problem)
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
