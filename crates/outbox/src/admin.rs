//! The admin API of the outbox: `/outbox`.

use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base::error::{Coded, chain};
use base::id::Uuid;
use base::{Code, Timestamp};
use bus::Event;
use http_server::Problem;
use jobs::{COUNT_CAP, Jobs};
use screens::{FieldKind, FormField, Operation};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{DryRun, Open, Operator, OperatorRoute};
use work_queue::{DecisionError, Filter, ItemView, State as ItemState};

use crate::bulk::{self, FailedEvents, PublishedEvents};
use crate::{Outbox, event};

/// How many rows are listed by default.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 10_000;

/// The outbox, as operators see and change it.
#[derive(Clone, Debug)]
pub struct OutboxAdmin {
    pub(crate) outbox: Outbox,
    jobs: Jobs,
}

impl OutboxAdmin {
    pub fn new(outbox: Outbox, jobs: Jobs) -> Self {
        Self { outbox, jobs }
    }

    /// Finds an event by its id, or by its number in the outbox.
    pub(crate) async fn find(&self, name: &str) -> Result<ItemView, Problem> {
        let queue = self.outbox.queue();
        let found = match (name.parse::<i64>(), Uuid::try_parse(name)) {
            (Ok(number), _) => queue.find_by_number(number).await.map_err(internal)?,
            (_, Ok(id)) => queue.find(id).await.map_err(internal)?,
            _ => {
                let detail = "Give the id of the event, or its number in the outbox.";
                return Err(Problem::new(Code::InvalidArgument).detail(detail));
            }
        };
        found.ok_or_else(|| {
            let detail = format!(
                "{name} is not in the outbox: it was never appended, or it was published and removed after outbox.retention."
            );
            Problem::new(Code::NotFound).detail(detail)
        })
    }
}

/// The filter of a bulk action about failed events, as the console shows it.
const FAILED_FIELDS: &[FormField] = &[
    FormField::query("cause", "Cause contains", FieldKind::Text).optional().hint("Empty: any cause"),
    FormField::query("kind", "Type", FieldKind::Text).optional().hint("Empty: any type"),
    FormField::query("key", "Ordering key", FieldKind::Text).optional().hint("Empty: any key"),
    FormField::query("since", "Failed since", FieldKind::Text).optional().hint("2026-03-01T12:00:00Z"),
    FormField::query("until", "Failed until", FieldKind::Text).optional().hint("Empty: now"),
    FormField::query("expected", "Number that you saw", FieldKind::HiddenNumber).optional(),
];
const RETRY_FAILED: Operation = Operation::new(
    "Retry failed events",
    "Publishes the failed events again, with all their attempts, as a job. Later events of their keys follow in order.",
    "playhouse outbox retry [--cause {cause}] [--kind {kind}] [--key {key}] [--since {since}] [--until {until}] \
     [--expected {expected}]",
)
.fields(FAILED_FIELDS);
const SKIP_FAILED: Operation = Operation::new(
    "Skip failed events",
    "These events are never published; consumers miss them. Later events of their keys follow at once. Runs as a job.",
    "playhouse outbox skip [--cause {cause}] [--kind {kind}] [--key {key}] [--since {since}] [--until {until}] \
     [--expected {expected}]",
)
.dangerous()
.fields(FAILED_FIELDS);
const REPUBLISH: Operation = Operation::new(
    "Publish again",
    "Publishes every event again that was published since this time, under its id, as a job. Consumers that do not dedupe by id handle \
     them twice.",
    "playhouse outbox republish --since {since} [--until {until}] [--expected {expected}]",
)
.fields(&[
    FormField::query("since", "Published since", FieldKind::Text).hint("2026-03-01T12:00:00Z"),
    FormField::query("until", "Published until", FieldKind::Text).optional().hint("Empty: now"),
    FormField::query("expected", "Number that you saw", FieldKind::HiddenNumber).optional(),
]);
const RETRY: Operation = Operation::new(
    "Retry",
    "Publishes the event again, with all its attempts. Later events of its key follow in order.",
    "playhouse outbox retry {event}",
);
const SKIP: Operation = Operation::new(
    "Skip",
    "This event is never published; consumers miss it. Later events of its key follow at once.",
    "playhouse outbox skip {event}",
)
.dangerous();

/// Returns the routes: `/outbox` (list), `/outbox/blocked`, `/outbox/{event}` with `retry` and `skip`, `/outbox/retry` and
/// `/outbox/skip` for all failed events that match, and `/outbox/republish`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/outbox", list),
        OperatorRoute::get("/outbox/blocked", blocked),
        OperatorRoute::post("/outbox/republish", republish).operation(REPUBLISH),
        OperatorRoute::post("/outbox/retry", retry_failed).operation(RETRY_FAILED),
        OperatorRoute::post("/outbox/skip", skip_failed).operation(SKIP_FAILED),
        OperatorRoute::get("/outbox/{event}", show),
        OperatorRoute::post("/outbox/{event}/retry", retry).operation(RETRY),
        OperatorRoute::post("/outbox/{event}/skip", skip).operation(SKIP),
    ]
}

#[derive(Deserialize)]
struct ListQuery {
    state: Option<String>,
    limit: Option<u32>,
}

async fn list(
    Open(admin): Open<OutboxAdmin>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = match query.state.as_deref() {
        None | Some("all") => Filter::All,
        Some("open") => Filter::Open,
        Some("published") => Filter::Done,
        Some("failed") => Filter::Failed,
        Some("skipped") => Filter::Skipped,
        Some(_) => {
            let detail = "state must be one of all, open, published, failed, skipped.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
    };
    let items = admin.outbox.queue().list(filter, limit(query.limit)).await.map_err(internal)?;
    Ok(Json(json!({ "events": items.iter().map(summary).collect::<Vec<_>>() })))
}

async fn blocked(
    Open(admin): Open<OutboxAdmin>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let keys = admin.outbox.queue().blocked_keys(limit(query.limit)).await.map_err(internal)?;
    let keys = keys.into_iter().map(|blocked| {
        json!({
            "key": blocked.key, "number": blocked.number, "id": blocked.id, "cause": blocked.cause,
            "since": blocked.since.to_rfc3339(), "waiting": blocked.waiting,
        })
    });
    Ok(Json(json!({ "keys": keys.collect::<Vec<_>>() })))
}

async fn show(Open(admin): Open<OutboxAdmin>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let item = admin.find(&name).await?;
    let mut shown = summary(&item);
    if let Some(ahead) = admin.outbox.queue().failed_ahead(&item).await.map_err(internal)? {
        shown["waits_behind"] = json!(ahead.to_string());
    }
    match event::decode_all(item.id, &item.payload) {
        Ok(events) if event::is_batch(&item.payload) => {
            let events = events.iter().map(|event| {
                let mut shown = content(event);
                shown["id"] = json!(event.id.to_string());
                shown
            });
            shown["events"] = events.collect();
        }
        Ok(events) => shown["event"] = events.first().map(content).unwrap_or_default(),
        Err(error) => {
            let bytes: String = item.payload.iter().map(|byte| format!("{byte:02x}")).collect();
            shown["event"] = json!({ "unreadable": error.to_string(), "bytes": bytes });
        }
    }
    Ok(Json(shown))
}

pub(crate) fn content(event: &Event) -> Value {
    json!({
        "subject": event.subject, "source": event.source, "time": event.time.to_rfc3339(),
        "traceparent": event.traceparent,
        "data": serde_json::from_slice::<Value>(event.data.as_bytes()).unwrap_or_default(),
    })
}

async fn retry(Open(admin): Open<OutboxAdmin>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let item = admin.find(&name).await?;
    let done = admin.outbox.queue().retry(item.number).await.map_err(internal)?;
    decided(done, &item, "retried")
}

async fn skip(Open(admin): Open<OutboxAdmin>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let item = admin.find(&name).await?;
    let done = admin.outbox.queue().skip(item.number).await.map_err(internal)?;
    decided(done, &item, "skipped")
}

fn decided(done: Result<(), DecisionError>, item: &ItemView, what: &str) -> Result<Json<Value>, Problem> {
    let refused = |error: DecisionError| {
        Problem::new(Code::FailedPrecondition).detail(format!("{}: {error}.", item.id))
    };
    done.map_err(refused)?;
    tracing::warn!(event = %item.id, key = item.key, "event {what} by an operator");
    Ok(Json(json!({ "id": item.id })))
}

/// Selects failed events for a bulk action. An event must match every field that is set.
#[derive(Deserialize)]
struct FailedQuery {
    /// A substring of the cause.
    cause: Option<String>,
    /// When the event failed.
    since: Option<String>,
    until: Option<String>,
    key: Option<String>,
    /// The type of the event.
    kind: Option<String>,
    /// Required to select all of them, unless `expected` is set.
    #[serde(default)]
    all: bool,
    /// How many the operator saw. The action is refused if another number matches now.
    expected: Option<u64>,
    /// Whether to only count them.
    #[serde(default)]
    dry_run: bool,
}

impl FailedQuery {
    fn events(&self) -> Result<FailedEvents, Problem> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let events = FailedEvents {
            cause: given(&self.cause),
            kind: given(&self.kind),
            key: given(&self.key),
            since: given(&self.since),
            until: given(&self.until),
        };
        if events == FailedEvents::default() && !self.all && self.expected.is_none() {
            let detail = "Select failed events by cause, kind, since, until or key, or set all=true.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
        Ok(events)
    }
}

async fn retry_failed(
    admin: Open<OutboxAdmin>,
    operator: Operator,
    query: Query<FailedQuery>,
) -> Result<Response, Problem> {
    decide_failed(admin, &operator, query, bulk::RETRY).await
}

async fn skip_failed(
    admin: Open<OutboxAdmin>,
    operator: Operator,
    query: Query<FailedQuery>,
) -> Result<Response, Problem> {
    decide_failed(admin, &operator, query, bulk::SKIP).await
}

async fn decide_failed(
    Open(admin): Open<OutboxAdmin>,
    operator: &Operator,
    Query(query): Query<FailedQuery>,
    kind: &'static str,
) -> Result<Response, Problem> {
    let queue = admin.outbox.queue();
    let mut events = query.events()?;
    let filter = events.filter().map_err(|detail| Problem::new(Code::InvalidArgument).detail(detail))?;
    if query.dry_run {
        let events = queue.count_failed(&filter).await.map_err(internal)?;
        return Ok((Extension(DryRun), Json(json!({ "events": events, "dry_run": true }))).into_response());
    }
    let matching = queue.count_failed_up_to(&filter, COUNT_CAP).await.map_err(internal)?;
    if events.until.is_none() {
        // Events that fail after this are left alone.
        events.until = Some(admin.outbox.now().await.map_err(internal)?.to_rfc3339());
    }
    let started = admin.jobs.start_action(operator, kind, json!(events), query.expected, matching).await?;
    Ok(started.into_response())
}

#[derive(Deserialize)]
struct RepublishQuery {
    since: String,
    /// Until when they were published: by default until now.
    until: Option<String>,
    /// How many events the operator saw.
    expected: Option<u64>,
}

async fn republish(
    Open(admin): Open<OutboxAdmin>,
    operator: Operator,
    Query(query): Query<RepublishQuery>,
) -> Result<Json<Value>, Problem> {
    let since = time("since", &query.since)?;
    let given = query.until.as_deref().filter(|text| !text.is_empty());
    let given = given.map(|text| time("until", text)).transpose()?;
    // Not later: events that the job publishes are not published a third time.
    let now = admin.outbox.now().await.map_err(internal)?;
    let until = given.map_or(now, |until| until.min(now));
    let matching = admin.outbox.queue().count_done(since, until, COUNT_CAP).await.map_err(internal)?;
    let filter = json!(PublishedEvents { since: since.to_rfc3339(), until: until.to_rfc3339() });
    admin.jobs.start_action(&operator, bulk::REPUBLISH, filter, query.expected, matching).await
}

fn summary(item: &ItemView) -> Value {
    let events = event::decode_all(item.id, &item.payload).unwrap_or_default();
    let kind = events.first().map(|event| &event.kind);
    json!({
        "number": item.number, "id": item.id, "kind": kind, "key": item.key, "user_id": item.user,
        "state": state_word(item.state), "created": item.created.to_rfc3339(), "due": item.due.to_rfc3339(),
        "attempts": item.attempts, "lease": item.lease, "holder": item.holder, "cause": item.cause,
        "count": event::count(&item.payload),
    })
}

/// Returns the word for a row's state. Here a done item is published.
pub(crate) const fn state_word(state: ItemState) -> &'static str {
    match state {
        ItemState::Done => "PUBLISHED",
        other => other.word(),
    }
}

fn time(name: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::InvalidTime| {
        Problem::new(Code::InvalidArgument).detail(format!("{name}: {error}"))
    })
}

fn limit(requested: Option<u32>) -> u32 {
    requested.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
}

pub(crate) fn internal(error: db::Error) -> Problem {
    tracing::error!(cause = chain(&error), "cannot read or change the outbox");
    Problem::new(error.code())
}
