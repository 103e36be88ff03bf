//! What operators see of the outbox, and what they can do: the admin port's `/outbox`.

use axum::Json;
use axum::extract::{Path, Query};
use base::error::{Coded, chain};
use base::id::Uuid;
use base::{Code, Timestamp};
use bus::Event;
use http_server::Problem;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};
use work_queue::{Choice, Decision, Entry, Filter, State as ItemState, Unfit};

use crate::{Outbox, event};

/// How many are listed if nobody says.
const LISTED: u32 = 100;
const MOST: u32 = 10_000;

/// The operator's view of the outbox.
#[derive(Clone, Debug)]
pub struct Operator {
    outbox: Outbox,
}

impl Operator {
    pub fn new(outbox: Outbox) -> Self {
        Self { outbox }
    }

    async fn find(&self, name: &str) -> Result<Entry, Problem> {
        let queue = self.outbox.queue();
        let found = match (name.parse::<i64>(), Uuid::try_parse(name)) {
            (Ok(number), _) => queue.find_number(number).await.map_err(internal)?,
            (_, Ok(id)) => queue.find(id).await.map_err(internal)?,
            _ => {
                let detail = "Name an event by its id or by its number in the outbox.";
                return Err(Problem::new(Code::InvalidArgument).detail(detail));
            }
        };
        found.ok_or_else(|| {
            let detail = format!(
                "{name} is not in the outbox: it never was, or it was published and has been removed."
            );
            Problem::new(Code::NotFound).detail(detail)
        })
    }
}

/// `/outbox` (list), `/outbox/blocked`, `/outbox/{event}` and its `retry` and `skip`, `/outbox/retry` and `/outbox/skip` for all
/// failed events that fit, `/outbox/republish`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/outbox", list),
        OperatorRoute::get("/outbox/blocked", blocked),
        OperatorRoute::post("/outbox/republish", republish),
        OperatorRoute::post("/outbox/retry", retry_failed),
        OperatorRoute::post("/outbox/skip", skip_failed),
        OperatorRoute::get("/outbox/{event}", show),
        OperatorRoute::post("/outbox/{event}/retry", retry),
        OperatorRoute::post("/outbox/{event}/skip", skip),
    ]
}

#[derive(Deserialize)]
struct ListQuery {
    state: Option<String>,
    limit: Option<u32>,
}

async fn list(
    Open(operator): Open<Operator>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = match query.state.as_deref() {
        None | Some("all") => Filter::All,
        Some("open") => Filter::Open,
        Some("published") => Filter::Done,
        Some("failed") => Filter::Failed,
        Some("skipped") => Filter::Skipped,
        Some(_) => {
            let detail = "state is one of all, open, published, failed, skipped.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
    };
    let entries = operator.outbox.queue().list(filter, limit(query.limit)).await.map_err(internal)?;
    Ok(Json(json!({ "events": entries.iter().map(summary).collect::<Vec<_>>() })))
}

async fn blocked(
    Open(operator): Open<Operator>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let keys = operator.outbox.queue().blocked_keys(limit(query.limit)).await.map_err(internal)?;
    let keys = keys.into_iter().map(|blocked| {
        json!({
            "key": blocked.key, "number": blocked.number, "id": blocked.id, "cause": blocked.cause,
            "since": blocked.since.to_rfc3339(), "waiting": blocked.waiting,
        })
    });
    Ok(Json(json!({ "keys": keys.collect::<Vec<_>>() })))
}

async fn show(Open(operator): Open<Operator>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let entry = operator.find(&name).await?;
    let mut shown = summary(&entry);
    match event::decode_all(entry.id, &entry.payload) {
        Ok(events) if event::is_batch(&entry.payload) => {
            let events = events.iter().map(|event| {
                let mut shown = content(event);
                shown["id"] = json!(event.id.to_string());
                shown
            });
            shown["events"] = events.collect();
        }
        Ok(events) => shown["event"] = events.first().map(content).unwrap_or_default(),
        Err(error) => {
            let bytes: String = entry.payload.iter().map(|byte| format!("{byte:02x}")).collect();
            shown["event"] = json!({ "unreadable": error.to_string(), "bytes": bytes });
        }
    }
    Ok(Json(shown))
}

fn content(event: &Event) -> Value {
    json!({
        "subject": event.subject, "source": event.source, "time": event.time.to_rfc3339(),
        "traceparent": event.traceparent,
        "data": serde_json::from_slice::<Value>(event.data.as_bytes()).unwrap_or_default(),
    })
}

async fn retry(Open(operator): Open<Operator>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let entry = operator.find(&name).await?;
    let done = operator.outbox.queue().retry(entry.number).await.map_err(internal)?;
    decided(done, &entry, "retried")
}

async fn skip(Open(operator): Open<Operator>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let entry = operator.find(&name).await?;
    let done = operator.outbox.queue().skip(entry.number).await.map_err(internal)?;
    decided(done, &entry, "skipped")
}

fn decided(done: Result<(), Unfit>, entry: &Entry, what: &str) -> Result<Json<Value>, Problem> {
    let refused =
        |unfit: Unfit| Problem::new(Code::FailedPrecondition).detail(format!("{}: {unfit}.", entry.id));
    done.map_err(refused)?;
    tracing::warn!(event = %entry.id, key = entry.key, "{what} by an operator");
    Ok(Json(json!({ "id": entry.id })))
}

/// Which failed events: those that fit everything that is given.
#[derive(Deserialize)]
struct FailedQuery {
    /// A part of the cause.
    cause: Option<String>,
    /// When they failed.
    since: Option<String>,
    until: Option<String>,
    key: Option<String>,
    /// All of them, which has to be said.
    #[serde(default)]
    all: bool,
    /// Only count them.
    #[serde(default)]
    dry_run: bool,
}

impl FailedQuery {
    fn choice(&self) -> Result<Choice, Problem> {
        let choice = Choice {
            cause: self.cause.clone(),
            since: self.since.as_deref().map(|text| time("since", text)).transpose()?,
            until: self.until.as_deref().map(|text| time("until", text)).transpose()?,
            key: self.key.clone(),
        };
        if choice == Choice::default() && !self.all {
            let detail = "Say which failed events: cause, since, until, key, or all=true.";
            return Err(Problem::new(Code::InvalidArgument).detail(detail));
        }
        Ok(choice)
    }
}

async fn retry_failed(operator: Open<Operator>, query: Query<FailedQuery>) -> Result<Json<Value>, Problem> {
    decide_failed(operator, query, Decision::Retry).await
}

async fn skip_failed(operator: Open<Operator>, query: Query<FailedQuery>) -> Result<Json<Value>, Problem> {
    decide_failed(operator, query, Decision::Skip).await
}

async fn decide_failed(
    Open(operator): Open<Operator>,
    Query(query): Query<FailedQuery>,
    decision: Decision,
) -> Result<Json<Value>, Problem> {
    let queue = operator.outbox.queue();
    let choice = query.choice()?;
    let events = if query.dry_run {
        queue.count_failed(&choice).await.map_err(internal)?
    } else {
        let events = queue.decide_failed(&choice, decision).await.map_err(internal)?;
        tracing::warn!(events, ?choice, ?decision, "an operator decided on failed events");
        events
    };
    Ok(Json(json!({ "events": events, "dry_run": query.dry_run })))
}

#[derive(Deserialize)]
struct RepublishQuery {
    since: String,
}

async fn republish(
    Open(operator): Open<Operator>,
    Query(query): Query<RepublishQuery>,
) -> Result<Json<Value>, Problem> {
    let since = time("since", &query.since)?;
    let events = operator.outbox.queue().again_since(since).await.map_err(internal)?;
    tracing::warn!(events, since = since.to_rfc3339(), "published again by an operator");
    Ok(Json(json!({ "events": events })))
}

fn summary(entry: &Entry) -> Value {
    let events = event::decode_all(entry.id, &entry.payload).unwrap_or_default();
    let kind = events.first().map(|event| &event.kind);
    json!({
        "number": entry.number, "id": entry.id, "kind": kind, "key": entry.key, "user_id": entry.user,
        "state": state_word(entry.state), "created": entry.created.to_rfc3339(), "due": entry.due.to_rfc3339(),
        "attempts": entry.attempts, "lease": entry.lease, "holder": entry.holder, "cause": entry.cause,
        "count": event::count(&entry.payload),
    })
}

/// The state of a row in a word: here an item that is done is published.
const fn state_word(state: ItemState) -> &'static str {
    match state {
        ItemState::Done => "PUBLISHED",
        other => other.word(),
    }
}

fn time(name: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::NotATime| {
        Problem::new(Code::InvalidArgument).detail(format!("{name}: {error}"))
    })
}

fn limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(LISTED).clamp(1, MOST)
}

fn internal(error: db::Error) -> Problem {
    tracing::error!(cause = chain(&error), "the outbox could not be read or changed");
    Problem::new(error.code())
}
