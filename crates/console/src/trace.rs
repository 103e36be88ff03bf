//! The trace of one thing: its steps through every store, with the times between them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use axum::Json;
use axum::extract::Path;
use base::Timestamp;
use base::id::Uuid;
use futures::stream::{self, StreamExt};
use http_server::Problem;
use screens::{Block, Filter, Section, Stage, Step, Subject, Tone, View};
use serde_json::{Value, json};
use service::{Menu, Open, OperatorRoute, Provided, Screen, ScreenRequest, Services};

use crate::call::quoted_if_needed;

/// How many steps each service returns for one id.
const STEPS_PER_ID: u32 = 100;
/// How many ids one trace follows. A user has many; those of one purchase or match are few.
const MAX_IDS: usize = 40;
/// How many ids are looked up at a time.
const CONCURRENT: usize = 4;

/// Shown if no service knows an id.
const UNKNOWN: &str = "Nothing is known of this id. A trace finds events, orders, reservations, payments, drops, tickets, matches, \
    notifications, broadcasts, dead letters, accounts and users by their ids, purchases by the reference of the shop, and changes by \
    operators by the id of the request. Ids are known as long as the thing is kept: published events for outbox.retention, \
    notifications for notification.retention, tickets until they expire or for matchmaking.assigned_ttl after their match, changes by \
    operators for admin.audit_retention. Requests of players and services are only in the log.";

/// Finds the steps of one thing in all services. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    services: Services,
    provided: Provided,
}

/// Everything that is known of one thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// From the oldest to the newest.
    pub(crate) steps: Vec<Step>,
    /// The ids that were followed, the given one first.
    pub(crate) ids: Vec<String>,
    /// The services whose steps could not be read.
    pub(crate) failed: Vec<&'static str>,
    /// Whether there were more ids to follow.
    pub(crate) is_cut: bool,
}

/// The steps so far, each once.
#[derive(Default)]
struct Collected {
    steps: Vec<Step>,
    places: HashMap<(Timestamp, &'static str, String, Option<String>), usize>,
    /// The events that lead to other ids, such as those of their notifications.
    events: HashMap<String, Uuid>,
}

impl Collected {
    /// Adds steps. A step that is already there learns its event.
    fn add(&mut self, steps: Vec<Step>) {
        for step in steps {
            if let Some(event) = step.event {
                let others = step.follow.iter().filter(|id| **id != event.to_string());
                self.events.extend(others.map(|id| (id.clone(), event)));
            }
            let href = step.link.as_ref().map(|link| link.href.clone());
            match self.places.entry((step.at, step.part, step.what.clone(), href)) {
                Entry::Occupied(place) => {
                    let known = &mut self.steps[*place.get()];
                    known.event = known.event.or(step.event);
                }
                Entry::Vacant(place) => {
                    place.insert(self.steps.len());
                    self.steps.push(step);
                }
            }
        }
    }

    /// Returns the steps in their order.
    fn sorted(mut self) -> Vec<Step> {
        for step in self.steps.iter_mut().filter(|step| step.stage > Stage::Change && step.event.is_none()) {
            step.event = step.follow.iter().find_map(|id| self.events.get(id)).copied();
        }
        Step::sort(&mut self.steps);
        self.steps
    }
}

impl Tracer {
    pub(crate) const fn new(services: Services, provided: Provided) -> Self {
        Self { services, provided }
    }

    /// Collects the steps of an id, and of the ids that these steps lead to. Ids at the same distance are looked up concurrently.
    pub(crate) async fn trace(&self, id: &str) -> Trace {
        let (mut trace, mut collected) = (Trace::default(), Collected::default());
        let (mut waiting, mut seen) = (vec![id.to_owned()], HashSet::from([id.to_owned()]));
        while !waiting.is_empty() {
            let room = MAX_IDS - trace.ids.len();
            trace.is_cut |= waiting.len() > room;
            waiting.truncate(room);
            let is_first = trace.ids.is_empty();
            let reads = waiting.clone().into_iter().map(|id| self.steps_of(id, is_first));
            let found: Vec<_> = stream::iter(reads).buffered(CONCURRENT).collect().await;
            trace.ids.append(&mut waiting);
            for (steps, failed) in found {
                // The newest ones first: they answer most questions, and there may be too many.
                let next = steps.iter().rev().flat_map(|step| &step.follow);
                waiting.extend(next.filter(|id| seen.insert((*id).clone())).cloned());
                collected.add(steps);
                trace.failed.extend(failed);
            }
        }
        trace.steps = collected.sorted();
        trace.failed.sort_unstable();
        trace.failed.dedup();
        trace
    }

    /// Reads the steps of an id. Only the first id of a trace can be that of a user: a user's steps lead to everything.
    async fn steps_of(&self, id: String, is_first: bool) -> (Vec<Step>, Vec<&'static str>) {
        let user = id.parse().ok().filter(|_| is_first);
        let (mut steps, mut failed) = self.read(Subject::Id(id)).await;
        if let Some(user) = user {
            let (of_user, more) = self.read(Subject::User(user)).await;
            steps.extend(of_user);
            failed.extend(more);
            Step::sort(&mut steps);
        }
        (steps, failed)
    }

    async fn read(&self, subject: Subject) -> (Vec<Step>, Vec<&'static str>) {
        self.services.steps(&self.provided, &subject, STEPS_PER_ID).await
    }
}

pub(crate) fn routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/trace/{id}", show)]
}

async fn show(Open(tracer): Open<Tracer>, Path(id): Path<String>) -> Json<Value> {
    let trace = tracer.trace(&id).await;
    let mut last = None;
    let steps: Vec<Value> = trace
        .steps
        .iter()
        .map(|step| {
            let gap = last.map(|last: Timestamp| step.at.as_millis() - last.as_millis());
            last = Some(step.at);
            json!({
                "at": step.at.to_rfc3339(), "gap_ms": gap, "store": step.store, "part": step.part, "what": step.what,
                "link": step.link.as_ref().map(|link| &link.href), "event": step.event,
            })
        })
        .collect();
    let mut found = json!({
        "id": id, "steps": steps, "ids": trace.ids, "unavailable": trace.failed, "cut": trace.is_cut,
    });
    if trace.steps.is_empty() {
        found["detail"] = json!(UNKNOWN);
    }
    Json(found)
}

pub(crate) fn screen() -> Screen {
    Screen::listed(
        Menu::Events,
        "/console/trace",
        "Trace",
        "Which steps did this event, order, ticket, match or notification take?",
        view,
    )
}

async fn view(tracer: Tracer, request: ScreenRequest) -> Result<View, Problem> {
    let id = request.query("id");
    let filter = Filter::new("Trace").text(
        "id",
        "Id",
        "of an event, order, ticket, match, notification, request or user",
        id,
    );
    let search = Section::new("search", "Find").block(filter);
    let Some(id) = id else {
        let text =
            "Enter an id. Screens show ids in this style, and error messages have the id of their request.";
        let empty = Block::Empty { text: text.to_owned(), link: None };
        return Ok(View::new().section(search.block(empty)));
    };
    let trace = tracer.trace(id).await;
    let mut steps = Section::new("steps", format!("Steps ({})", trace.steps.len()));
    if !trace.failed.is_empty() {
        steps = steps
            .notice(Tone::Warning, format!("Not available now: the steps of {}.", trace.failed.join(", ")));
    }
    if trace.is_cut {
        steps = steps.notice(Tone::Warning, format!("Only {MAX_IDS} connected ids were followed."));
    }
    let command = Section::new("command", "The same on the command line")
        .block(Block::Code(format!("playhouse trace {}", quoted_if_needed(id))));
    let steps = if trace.steps.is_empty() {
        steps.block(Block::Empty { text: UNKNOWN.to_owned(), link: None })
    } else {
        steps.block(Block::Timeline(trace.steps))
    };
    Ok(View::new().section(search).section(steps).section(command))
}

#[cfg(test)]
mod tests;
