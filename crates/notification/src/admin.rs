//! The admin API of notifications: dead letters, deliveries, broadcasts and webhook destinations.

pub(crate) mod broadcasts;
mod operations;
mod webhooks;

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query};
use base::id::Uuid;
use base::{Code, Timestamp};
use http_server::Problem;
use jobs::{COUNT_CAP, Jobs};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use self::operations::{DISCARD, DISCARD_ONE, REPLAY, REPLAY_ONE};
use crate::dead_letters::{self, SelectedDeadLetters};
use crate::deliver::state_word;
use crate::http::problem;
use crate::{DEAD_LETTER_KINDS, DeadLetter, DeadLetterFilter, Notifications};

/// How many rows a request lists, replays or discards, by default and at most.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;
/// How many dead letters are replayed per second by default.
const DEFAULT_RATE: u32 = 100;
/// How many characters of a payload that is not JSON are shown.
const MAX_SHOWN: usize = 2_000;

/// Returns the routes of notifications in the admin API.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    let mut routes = vec![
        OperatorRoute::get("/dlq", list),
        OperatorRoute::post("/dlq/replay", replay_some).operation(REPLAY),
        OperatorRoute::post("/dlq/discard", discard_some).operation(DISCARD),
        OperatorRoute::get("/dlq/{letter}", show),
        OperatorRoute::post("/dlq/{letter}/replay", replay).operation(REPLAY_ONE),
        OperatorRoute::post("/dlq/{letter}/discard", discard).operation(DISCARD_ONE),
        OperatorRoute::get("/notifications/{notification}", deliveries),
    ];
    routes.extend(broadcasts::operator_routes());
    routes.extend(webhooks::operator_routes());
    routes
}

#[derive(Deserialize)]
struct DeadLettersQuery {
    kind: Option<String>,
    destination: Option<String>,
    user: Option<String>,
    /// A substring of the cause.
    cause: Option<String>,
    /// Given up since this time.
    since: Option<String>,
    after: Option<i64>,
    up_to: Option<i64>,
    limit: Option<u32>,
    /// How many dead letters a replay starts per second.
    rate: Option<u32>,
    /// How many the operator saw. A bulk action is refused if another number matches now.
    expected: Option<u64>,
}

impl DeadLettersQuery {
    fn filter(&self) -> Result<DeadLetterFilter, Problem> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (kind, destination, cause) = (given(&self.kind), given(&self.destination), given(&self.cause));
        if let Some(kind) = kind.as_deref().filter(|kind| !DEAD_LETTER_KINDS.contains(kind)) {
            return Err(invalid(format!(
                "kind must be one of {}, not {kind}.",
                DEAD_LETTER_KINDS.join(", ")
            )));
        }
        let user = given(&self.user).map(|user| id("user", &user)).transpose()?;
        let since = given(&self.since).map(|text| time("since", &text)).transpose()?;
        Ok(DeadLetterFilter {
            kind,
            destination,
            user,
            cause,
            since,
            after: self.after.unwrap_or_default(),
            up_to: self.up_to,
        })
    }

    fn limit(&self) -> u32 {
        self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
    }
}

async fn list(
    Open(notifications): Open<Notifications>,
    Query(query): Query<DeadLettersQuery>,
) -> Result<Json<Value>, Problem> {
    // In this order: a dead letter that is added in between is listed, but a command up to `last` leaves it alone.
    let last = notifications.last_dead_letter().await.map_err(problem)?;
    let page = notifications.dead_letters(&query.filter()?, query.limit()).await.map_err(problem)?;
    let counts = notifications.count_dead_letters().await.map_err(problem)?;
    let counts: serde_json::Map<String, Value> =
        counts.into_iter().map(|(kind, count)| (kind.to_owned(), count.into())).collect();
    let dead_letters: Vec<Value> = page.dead_letters.iter().map(summary).collect();
    Ok(Json(json!({ "letters": dead_letters, "next": page.next, "last": last, "counts": counts })))
}

async fn show(
    Open(notifications): Open<Notifications>,
    Path(dead_letter): Path<String>,
) -> Result<Json<Value>, Problem> {
    let dead_letter = notifications.dead_letter(id("dead letter", &dead_letter)?).await.map_err(problem)?;
    let mut shown = summary(&dead_letter);
    shown["payload"] = serde_json::from_slice(&dead_letter.payload).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&dead_letter.payload);
        text.chars().take(MAX_SHOWN).collect::<String>().into()
    });
    shown["payload_bytes"] = dead_letter.payload.len().into();
    Ok(Json(shown))
}

async fn replay(
    Open(notifications): Open<Notifications>,
    Path(dead_letter): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("dead letter", &dead_letter)?;
    notifications.replay(id, Duration::ZERO).await.map_err(problem)?;
    tracing::warn!(dead_letter = %id, "an operator replayed a dead letter");
    Ok(Json(json!({ "id": id })))
}

async fn discard(
    Open(notifications): Open<Notifications>,
    Path(dead_letter): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("dead letter", &dead_letter)?;
    notifications.discard(id).await.map_err(problem)?;
    tracing::warn!(dead_letter = %id, "an operator discarded a dead letter");
    Ok(Json(json!({ "id": id })))
}

async fn replay_some(
    notifications: Open<Notifications>,
    jobs: Open<Jobs>,
    operator: Operator,
    Query(query): Query<DeadLettersQuery>,
) -> Result<Json<Value>, Problem> {
    let rate = query.rate.unwrap_or(DEFAULT_RATE);
    if rate == 0 {
        return Err(invalid("rate must be at least 1 dead letter per second.".to_owned()));
    }
    let filter = query.filter()?;
    start_job(notifications, jobs, &operator, (dead_letters::REPLAY, Some(rate)), (&filter, query.expected))
        .await
}

async fn discard_some(
    notifications: Open<Notifications>,
    jobs: Open<Jobs>,
    operator: Operator,
    Query(query): Query<DeadLettersQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = query.filter()?;
    start_job(notifications, jobs, &operator, (dead_letters::DISCARD, None), (&filter, query.expected)).await
}

/// Starts a job about the dead letters that exist now.
async fn start_job(
    Open(notifications): Open<Notifications>,
    Open(jobs): Open<Jobs>,
    operator: &Operator,
    (kind, rate): (&'static str, Option<u32>),
    (filter, expected): (&DeadLetterFilter, Option<u64>),
) -> Result<Json<Value>, Problem> {
    let last = notifications.last_dead_letter().await.map_err(problem)?;
    let matching = notifications.count_matching_dead_letters(filter, COUNT_CAP).await.map_err(problem)?;
    let selected = SelectedDeadLetters::new(filter, last, rate);
    jobs.start_action(operator, kind, json!(selected), expected, matching).await
}

/// Shows the deliveries of a notification, one per channel.
async fn deliveries(
    Open(notifications): Open<Notifications>,
    Path(notification): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("notification", &notification)?;
    let deliveries =
        notifications.deliveries().for_notification(id).await.map_err(|error| problem(error.into()))?;
    if deliveries.is_empty() {
        let detail = "There are no deliveries of this notification: it does not exist, it goes to the inbox only, or its \
            deliveries are done and were removed after notification.delivery.retention.";
        return Err(Problem::new(Code::NotFound).detail(detail));
    }
    let deliveries = deliveries.into_iter().map(|(channel, item)| {
        json!({
            "channel": channel, "state": state_word(item.state), "user_id": item.user, "attempts": item.attempts,
            "created": item.created.to_rfc3339(), "due": item.due.to_rfc3339(), "holder": item.holder,
            "cause": item.cause,
        })
    });
    Ok(Json(json!({ "notification_id": id, "deliveries": deliveries.collect::<Vec<_>>() })))
}

fn summary(dead_letter: &DeadLetter) -> Value {
    json!({
        "number": dead_letter.number, "id": dead_letter.id, "kind": dead_letter.kind, "destination": dead_letter.destination,
        "notification_id": dead_letter.notification, "user_id": dead_letter.user, "stream_position": dead_letter.stream_position,
        "attempts": dead_letter.attempts, "cause": dead_letter.cause, "created": dead_letter.created.to_rfc3339(),
        "died": dead_letter.died.to_rfc3339(),
    })
}

fn id(what: &str, text: &str) -> Result<Uuid, Problem> {
    Uuid::try_parse(text).map_err(|_| invalid(format!("The id of the {what} must be a UUID.")))
}

fn time(name: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|error: base::InvalidTime| invalid(format!("{name}: {error}")))
}

fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
