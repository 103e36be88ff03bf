//! `AssignTickets`: what Directors assign.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use base::id::Uuid;
use buffa::{Message, MessageField};
use proto::openmatch::{self, assignment_failure::Cause};
use proto::playhouse;
use runtime::fault;
use runtime::telemetry::TraceContext;

use super::Backend;
use crate::error::Error;
use crate::metrics::ProfileLabels;
use crate::model::{MatchId, Moment, Ticket, TicketId};
use crate::recorder;
use crate::store::{DirectGroup, Holder, Obstacle};

/// How often a group is tried. Each further attempt leaves out the tickets that prevented the one before, so it fails only
/// if another ticket is cancelled or assigned in between.
const ATTEMPTS: usize = 8;
/// The label of the profile in metrics. Profiles of Directors are too many for labels.
const PROFILE: &str = "(director)";

/// A group of a request.
#[derive(Debug)]
struct Group {
    tickets: Vec<TicketId>,
    assignment: openmatch::Assignment,
}

/// What is known of the tickets of a request.
#[derive(Debug)]
struct Known {
    tickets: HashMap<TicketId, Arc<Ticket>>,
    holders: HashMap<TicketId, Holder>,
}

impl Backend {
    /// Assigns groups of tickets, each to its server. Returns the tickets that could not be assigned.
    ///
    /// A ticket that has the same assignment already counts as assigned. One that has another is not assigned again.
    pub async fn assign_tickets(
        &self,
        groups: Vec<openmatch::AssignmentGroup>,
    ) -> Result<Vec<openmatch::AssignmentFailure>, Error> {
        let mut failures = Vec::new();
        let mut groups = read(groups, &mut failures)?;
        let ids: Vec<TicketId> = groups.iter().flat_map(|group| group.tickets.clone()).collect();
        let known = self.look_up(&ids).await?;
        let mut cause_of: HashMap<TicketId, Option<Cause>> = HashMap::with_capacity(ids.len());
        for _ in 0..ATTEMPTS {
            groups.retain(|group| !group.tickets.is_empty());
            if groups.is_empty() {
                break;
            }
            let requests: Vec<DirectGroup> = groups.iter().map(|group| self.request(group, &known)).collect();
            let done = self.0.store.assign_directly(&requests).await?;
            fault::point("matchmaking.assigned");
            let recording = done
                .batches
                .iter()
                .map(|batch| recorder::record_and_notify(&self.0.store, self.0.recorder.as_deref(), batch));
            futures::future::join_all(recording).await;
            for (group, obstacles) in groups.iter_mut().zip(done.obstacles) {
                let is_assigned = obstacles.iter().all(Option::is_none);
                if is_assigned {
                    self.observe(&group.tickets, &known);
                }
                let mut obstacles = obstacles.into_iter();
                group.tickets.retain(|id| {
                    let obstacle = obstacles.next().flatten();
                    if obstacle == Some(Obstacle::Claimed) {
                        self.0.metrics.claims_stale("assign", 1);
                    }
                    let is_settled = is_assigned || obstacle.is_some();
                    if is_settled {
                        cause_of.insert(id.clone(), obstacle.and_then(cause));
                    }
                    !is_settled
                });
            }
        }
        // In the order of the request. A ticket without an outcome was contended for in every attempt.
        failures.extend(ids.iter().filter_map(|id| {
            let cause = cause_of.get(id).copied().unwrap_or(Some(Cause::UNKNOWN))?;
            Some(failure(id.as_str(), cause))
        }));
        Ok(failures)
    }

    /// Reads the tickets of a request and who has claimed them.
    async fn look_up(&self, ids: &[TicketId]) -> Result<Known, Error> {
        let (tickets, holders) = tokio::try_join!(self.0.store.read(ids), self.0.store.holders(ids))?;
        let tickets = tickets.into_iter().map(|ticket| (ticket.id.clone(), ticket)).collect();
        let holders =
            ids.iter().zip(holders).filter_map(|(id, holder)| Some((id.clone(), holder?))).collect();
        Ok(Known { tickets, holders })
    }

    /// Prepares the assignment of a group, with the event of its match.
    fn request(&self, group: &Group, known: &Known) -> DirectGroup {
        let players = group.tickets.iter().filter_map(|id| known.tickets.get(id));
        let players = players.flat_map(|ticket| ticket.users());
        let players: BTreeSet<Uuid> = players.collect();
        let holder = group.tickets.iter().find_map(|id| known.holders.get(id)).cloned().unwrap_or_default();
        let trace = TraceContext::current();
        let traceparent =
            trace.headers().find(|(name, _)| *name == "traceparent").map_or("", |(_, value)| value);
        let match_ = playhouse::MatchMade {
            match_id: MatchId::generate().to_string(),
            match_profile: holder.profile,
            match_function: holder.function,
            ticket_ids: group.tickets.iter().map(TicketId::to_string).collect(),
            assignment: MessageField::some(group.assignment.clone()),
            made_at: self.0.clock.now().as_millis(),
            traceparent: traceparent.to_owned(),
            user_ids: players.iter().map(Uuid::to_string).collect(),
            ..Default::default()
        };
        let matches = playhouse::MatchesMade { matches: vec![match_], ..Default::default() };
        DirectGroup {
            tickets: group.tickets.clone(),
            assignment: group.assignment.encode_to_bytes(),
            encoded_match: matches.encode_to_bytes(),
        }
    }

    fn observe(&self, assigned: &[TicketId], known: &Known) {
        let metrics = &self.0.metrics;
        let waited =
            metrics.time_to_assignment.get_or_create(&ProfileLabels { profile: PROFILE.to_owned() }).clone();
        let now = Moment::from(self.0.clock.now());
        for ticket in assigned.iter().filter_map(|id| known.tickets.get(id)) {
            waited.observe(ticket.created.age(now).as_secs_f64());
        }
        metrics.assigned.inc_by(assigned.len() as u64);
    }
}

/// Checks a request in the order of the original, which decides the error that its caller sees.
fn read(
    groups: Vec<openmatch::AssignmentGroup>,
    failures: &mut Vec<openmatch::AssignmentFailure>,
) -> Result<Vec<Group>, Error> {
    let (mut seen, mut read) = (HashSet::new(), Vec::with_capacity(groups.len()));
    let is_empty = groups.is_empty();
    for group in groups {
        let Some(assignment) = group.assignment.into_option() else {
            return Err(Error::Invalid("AssignmentGroup.Assignment is required".to_owned()));
        };
        let mut tickets = Vec::with_capacity(group.ticket_ids.len());
        for id in group.ticket_ids {
            match TicketId::parse(&id) {
                Some(ticket) => tickets.push(ticket),
                None => failures.push(failure(&id, Cause::TICKET_NOT_FOUND)),
            }
            if let Some(id) = seen.replace(id) {
                let text = format!("Ticket id {id} is assigned multiple times in one assign tickets call");
                return Err(Error::Invalid(text));
            }
        }
        read.push(Group { tickets, assignment });
    }
    if seen.is_empty() && !is_empty {
        return Err(Error::Invalid("AssignmentGroupTicketIds is empty".to_owned()));
    }
    Ok(read)
}

/// Returns how the original's protocol names an obstacle. A repetition is none.
const fn cause(obstacle: Obstacle) -> Option<Cause> {
    match obstacle {
        Obstacle::Repeated => None,
        Obstacle::NotFound => Some(Cause::TICKET_NOT_FOUND),
        Obstacle::AssignedElsewhere | Obstacle::Claimed => Some(Cause::UNKNOWN),
    }
}

fn failure(id: &str, cause: Cause) -> openmatch::AssignmentFailure {
    openmatch::AssignmentFailure { ticket_id: id.to_owned(), cause: cause.into(), ..Default::default() }
}
