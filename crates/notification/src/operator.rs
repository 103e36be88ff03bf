//! What operators see of dead letters and destinations, and what they can do: the admin port's `/dlq` and `/webhooks`.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query};
use base::Code;
use base::id::Uuid;
use http_server::Problem;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};
use work_queue::Filter;

use crate::deliver::state_word;
use crate::http::problem;
use crate::{KINDS, Letter, Letters, Notifications, Progress};

/// How many are listed or replayed if nobody says, and at most.
const LISTED: u32 = 100;
const MOST: u32 = 1_000;
/// How many are replayed in a second if nobody says.
const PER_SECOND: u32 = 100;
/// How many characters of a payload that is no JSON are shown.
const SHOWN: usize = 2_000;

/// `/dlq` (list), `/dlq/{letter}` and its `replay` and `discard`, `/dlq/replay`, `/dlq/discard`, `/notifications/{notification}`,
/// `/broadcasts`, `/broadcasts/{broadcast}` and its `stop` and `resume`, `/webhooks` and `/webhooks/{name}/enable`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/dlq", list),
        OperatorRoute::post("/dlq/replay", replay_some),
        OperatorRoute::post("/dlq/discard", discard_some),
        OperatorRoute::get("/dlq/{letter}", show),
        OperatorRoute::post("/dlq/{letter}/replay", replay),
        OperatorRoute::post("/dlq/{letter}/discard", discard),
        OperatorRoute::get("/notifications/{notification}", follow),
        OperatorRoute::get("/broadcasts", broadcasts),
        OperatorRoute::get("/broadcasts/{broadcast}", broadcast),
        OperatorRoute::post("/broadcasts/{broadcast}/stop", stop),
        OperatorRoute::post("/broadcasts/{broadcast}/resume", resume),
        OperatorRoute::get("/webhooks", webhooks),
        OperatorRoute::post("/webhooks/{name}/enable", enable),
    ]
}

#[derive(Deserialize)]
struct LettersQuery {
    kind: Option<String>,
    destination: Option<String>,
    user: Option<String>,
    after: Option<i64>,
    up_to: Option<i64>,
    limit: Option<u32>,
    /// Of a replay.
    rate: Option<u32>,
}

impl LettersQuery {
    fn letters(&self) -> Result<Letters, Problem> {
        if let Some(kind) = self.kind.as_deref().filter(|kind| !KINDS.contains(kind)) {
            return Err(invalid(format!("kind is one of {}, not {kind}.", KINDS.join(", "))));
        }
        let user = self.user.as_deref().map(|user| id("user", user)).transpose()?;
        let (kind, destination) = (self.kind.clone(), self.destination.clone());
        Ok(Letters { kind, destination, user, after: self.after.unwrap_or_default(), up_to: self.up_to })
    }

    fn limit(&self) -> u32 {
        self.limit.unwrap_or(LISTED).clamp(1, MOST)
    }
}

async fn list(
    Open(notifications): Open<Notifications>,
    Query(query): Query<LettersQuery>,
) -> Result<Json<Value>, Problem> {
    // In this order: what dies between is listed, and stays.
    let last = notifications.last_letter().await.map_err(problem)?;
    let letters = notifications.letters(&query.letters()?, query.limit()).await.map_err(problem)?;
    let next = letters.last().filter(|_| letters.len() >= query.limit() as usize).map(|last| last.number);
    let counts = notifications.count_letters().await.map_err(problem)?;
    let counts: serde_json::Map<String, Value> =
        counts.into_iter().map(|(kind, count)| (kind.to_owned(), count.into())).collect();
    Ok(Json(
        json!({ "letters": letters.iter().map(summary).collect::<Vec<_>>(), "next": next, "last": last, "counts": counts }),
    ))
}

async fn show(
    Open(notifications): Open<Notifications>,
    Path(letter): Path<String>,
) -> Result<Json<Value>, Problem> {
    let letter = notifications.letter(id("letter", &letter)?).await.map_err(problem)?;
    let mut shown = summary(&letter);
    shown["payload"] = serde_json::from_slice(&letter.payload).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&letter.payload);
        text.chars().take(SHOWN).collect::<String>().into()
    });
    shown["payload_bytes"] = letter.payload.len().into();
    Ok(Json(shown))
}

async fn replay(
    Open(notifications): Open<Notifications>,
    Path(letter): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("letter", &letter)?;
    notifications.replay(id, Duration::ZERO).await.map_err(problem)?;
    tracing::warn!(letter = %id, "replayed by an operator");
    Ok(Json(json!({ "id": id })))
}

async fn discard(
    Open(notifications): Open<Notifications>,
    Path(letter): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("letter", &letter)?;
    notifications.discard(id).await.map_err(problem)?;
    tracing::warn!(letter = %id, "discarded by an operator");
    Ok(Json(json!({ "id": id })))
}

async fn replay_some(
    Open(notifications): Open<Notifications>,
    Query(query): Query<LettersQuery>,
) -> Result<Json<Value>, Problem> {
    let rate = query.rate.unwrap_or(PER_SECOND);
    if rate == 0 {
        return Err(invalid("rate is how many are replayed in a second: at least 1.".to_owned()));
    }
    let which = query.letters()?;
    let replayed = notifications.replay_some(&which, query.limit(), rate).await.map_err(problem)?;
    tracing::warn!(
        letters = replayed.replayed,
        failed = replayed.failed.len(),
        ?which,
        "replayed by an operator"
    );
    let failed = replayed.failed.iter().map(|(id, cause)| json!({ "id": id, "cause": cause }));
    let failed: Vec<Value> = failed.collect();
    Ok(Json(json!({ "replayed": replayed.replayed, "failed": failed, "next": replayed.next })))
}

async fn discard_some(
    Open(notifications): Open<Notifications>,
    Query(query): Query<LettersQuery>,
) -> Result<Json<Value>, Problem> {
    let which = query.letters()?;
    let letters = notifications.letters(&which, query.limit()).await.map_err(problem)?;
    let next = letters.last().filter(|_| letters.len() >= query.limit() as usize).map(|last| last.number);
    let mut discarded = 0;
    for letter in &letters {
        match notifications.discard(letter.id).await {
            Ok(()) => discarded += 1,
            // Somebody else was faster.
            Err(crate::Error::NoLetter(_)) => {}
            Err(error) => return Err(problem(error)),
        }
    }
    tracing::warn!(letters = discarded, ?which, "discarded by an operator");
    Ok(Json(json!({ "discarded": discarded, "next": next })))
}

/// What became of a notification, on each of its channels.
async fn follow(
    Open(notifications): Open<Notifications>,
    Path(notification): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("notification", &notification)?;
    let deliveries = notifications.deliveries().of(id).await.map_err(|error| problem(error.into()))?;
    if deliveries.is_empty() {
        let detail = "No delivery of this notification is known: there is no such notification, it goes to the inbox alone, or its \
            deliveries were done and have been forgotten (notification.delivery.retention).";
        return Err(Problem::new(Code::NotFound).detail(detail));
    }
    let deliveries = deliveries.into_iter().map(|(channel, entry)| {
        json!({
            "channel": channel, "state": state_word(entry.state), "user_id": entry.user, "attempts": entry.attempts,
            "created": entry.created.to_rfc3339(), "due": entry.due.to_rfc3339(), "holder": entry.holder,
            "cause": entry.cause,
        })
    });
    Ok(Json(json!({ "notification_id": id, "deliveries": deliveries.collect::<Vec<_>>() })))
}

#[derive(Deserialize)]
struct BroadcastsQuery {
    state: Option<String>,
    limit: Option<u32>,
}

async fn broadcasts(
    Open(notifications): Open<Notifications>,
    Query(query): Query<BroadcastsQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = match query.state.as_deref() {
        None | Some("all") => Filter::All,
        Some("open") => Filter::Open,
        Some("sent") => Filter::Done,
        Some("failed") => Filter::Failed,
        Some("stopped") => Filter::Held,
        Some(_) => return Err(invalid("state is one of all, open, sent, failed, stopped.".to_owned())),
    };
    let limit = query.limit.unwrap_or(LISTED).clamp(1, MOST);
    let broadcasts = notifications.broadcasts().list(filter, limit).await.map_err(problem)?;
    Ok(Json(json!({ "broadcasts": broadcasts.iter().map(progress).collect::<Vec<_>>() })))
}

async fn broadcast(
    Open(notifications): Open<Notifications>,
    Path(broadcast): Path<String>,
) -> Result<Json<Value>, Problem> {
    shown(&notifications, id("broadcast", &broadcast)?).await
}

async fn stop(
    Open(notifications): Open<Notifications>,
    Path(broadcast): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("broadcast", &broadcast)?;
    notifications.broadcasts().stop(id).await.map_err(problem)?;
    tracing::warn!(broadcast = %id, "stopped by an operator");
    shown(&notifications, id).await
}

async fn resume(
    Open(notifications): Open<Notifications>,
    Path(broadcast): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("broadcast", &broadcast)?;
    notifications.resume_broadcast(id).await.map_err(problem)?;
    tracing::warn!(broadcast = %id, "resumed by an operator");
    shown(&notifications, id).await
}

async fn shown(notifications: &Notifications, id: Uuid) -> Result<Json<Value>, Problem> {
    let found = notifications.broadcasts().progress(id).await.map_err(problem)?;
    let found = found.ok_or_else(|| problem(crate::Error::NoBroadcast(id)))?;
    Ok(Json(progress(&found)))
}

fn progress(progress: &Progress) -> Value {
    json!({
        "id": progress.id, "state": state_word(progress.state), "told": progress.told, "title": progress.title,
        "attempts": progress.attempts, "cause": progress.cause, "created": progress.created.to_rfc3339(),
        "due": progress.due.to_rfc3339(),
    })
}

async fn webhooks(Open(notifications): Open<Notifications>) -> Result<Json<Value>, Problem> {
    let shown = notifications.deliveries().destinations().await.map_err(problem)?;
    let shown = shown.into_iter().map(|webhook| {
        let (since, cause) = webhook.disabled.map(|(since, cause)| (since.to_rfc3339(), cause)).unzip();
        let (until, waiting, last) =
            webhook.resting.map_or((None, 0, None), |rest| (Some(rest.until.to_rfc3339()), rest.waiting, rest.cause));
        json!({
            "name": webhook.name, "disabled_since": since, "cause": cause.or(last), "resting_until": until, "waiting": waiting,
        })
    });
    Ok(Json(json!({ "webhooks": shown.collect::<Vec<_>>() })))
}

async fn enable(
    Open(notifications): Open<Notifications>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let webhooks = notifications.webhooks();
    if !webhooks.has(&name) {
        let detail = format!("There is no [notification.webhooks.{name}] in the configuration.");
        return Err(Problem::new(Code::NotFound).detail(detail));
    }
    let was_disabled = webhooks.enable(&name).await.map_err(problem)?;
    tracing::warn!(destination = name, "enabled by an operator");
    Ok(Json(json!({ "name": name, "was_disabled": was_disabled })))
}

fn summary(letter: &Letter) -> Value {
    json!({
        "number": letter.number, "id": letter.id, "kind": letter.kind, "destination": letter.destination,
        "notification_id": letter.notification, "user_id": letter.user, "stream_position": letter.stream_position,
        "attempts": letter.attempts, "cause": letter.cause, "created": letter.created.to_rfc3339(),
        "died": letter.died.to_rfc3339(),
    })
}

fn id(what: &str, text: &str) -> Result<Uuid, Problem> {
    Uuid::try_parse(text).map_err(|_| invalid(format!("Name the {what} by its id, which is a UUID.")))
}

fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
