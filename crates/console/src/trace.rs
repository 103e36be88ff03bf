//! The trace of one thing: its steps through every store, with the times between them.

use std::collections::{BTreeSet, VecDeque};

use axum::Json;
use axum::extract::Path;
use base::id::Uuid;
use http_server::Problem;
use screens::{Block, Filter, Section, Step, Subject, Tone, View};
use serde_json::{Value, json};
use service::{Menu, Open, OperatorRoute, Provided, Screen, ScreenRequest, Services};

/// How many steps each service returns for one id.
const STEPS_PER_ID: u32 = 100;
/// How many ids one trace follows. A user has many; those of one purchase or match are few.
const MAX_IDS: usize = 40;

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

impl Tracer {
    pub(crate) const fn new(services: Services, provided: Provided) -> Self {
        Self { services, provided }
    }

    /// Collects the steps of an id, and of the ids that these steps lead to.
    pub(crate) async fn trace(&self, id: &str) -> Trace {
        let mut trace = Trace::default();
        let (mut waiting, mut seen) = (VecDeque::from([id.to_owned()]), BTreeSet::from([id.to_owned()]));
        while let Some(id) = waiting.pop_front() {
            if trace.ids.len() == MAX_IDS {
                trace.is_cut = true;
                break;
            }
            let is_first = trace.ids.is_empty();
            let (mut steps, failed) =
                self.services.steps(&self.provided, &Subject::Id(id.clone()), STEPS_PER_ID).await;
            if steps.is_empty()
                && is_first
                && let Ok(user) = id.parse::<Uuid>()
            {
                // Nothing has this id, so it may be a user's. Their steps lead to everything, so they are not followed.
                let (of_user, more) =
                    self.services.steps(&self.provided, &Subject::User(user), STEPS_PER_ID).await;
                steps = of_user.into_iter().map(|step| Step { follow: Vec::new(), ..step }).collect();
                trace.failed.extend(more);
            }
            for next in steps.iter().flat_map(|step| &step.follow) {
                if seen.insert(next.clone()) {
                    waiting.push_back(next.clone());
                }
            }
            trace.steps.extend(steps);
            trace.failed.extend(failed);
            trace.ids.push(id);
        }
        trace
            .steps
            .sort_by(|one, other| (one.at, one.part, &one.what).cmp(&(other.at, other.part, &other.what)));
        trace.steps.dedup();
        trace.failed.sort_unstable();
        trace.failed.dedup();
        trace
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
            let gap = last.map(|last: base::Timestamp| step.at.as_millis() - last.as_millis());
            last = Some(step.at);
            json!({
                "at": step.at.to_rfc3339(), "gap_ms": gap, "store": step.store, "part": step.part, "what": step.what,
                "link": step.link.as_ref().map(|link| &link.href),
            })
        })
        .collect();
    Json(
        json!({ "id": id, "steps": steps, "ids": trace.ids, "unavailable": trace.failed, "cut": trace.is_cut }),
    )
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
        .block(Block::Code(format!("playhouse trace {id}")));
    let steps = if trace.steps.is_empty() {
        let text = "No service knows this id. Ids are kept as long as their service keeps the thing itself.";
        steps.block(Block::Empty { text: text.to_owned(), link: None })
    } else {
        steps.block(Block::Timeline(trace.steps))
    };
    Ok(View::new().section(search).section(steps).section(command))
}
