//! The routes of the admin API for development: `/try-it`.

use axum::Json;
use axum::extract::Path;
use base::id::Uuid;
use http_server::{JsonBody, Problem};
use matchmaking::{JoinRequest, PlayerState, PlayerTicket};
use notification::{Channel, Content, Recipients, Request, Text};
use screens::{FieldKind, FormField, Operation};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use crate::TryIt;
use crate::tools::failed;

/// The language of texts that an operator enters here.
const LANGUAGE: &str = "en";

const SIGN_IN: Operation = Operation::new(
    "Sign in",
    "The player exists afterwards, as after a first sign-in: a user, an identity at the builtin issuer and an account. Repeating it changes \
     nothing.",
    "playhouse try-it sign-in {user}",
);

const NOTIFY: Operation = Operation::new(
    "Notify",
    "The player has this message in the inbox, and open pages show it at once.",
    "playhouse try-it notify {user} --title {title} [--body {body}]",
)
.fields(&[
    FormField::body("title", "Title", FieldKind::Text),
    FormField::body("body", "Text", FieldKind::LongText).optional(),
]);

const JOIN: Operation = Operation::new(
    "Join a queue",
    "The player has a ticket in this queue, and waits until a match is found. Delete the ticket to undo this.",
    "playhouse try-it join {user} --queue {queue}",
)
.fields(&[FormField::body("queue", "Queue", FieldKind::Text).hint("One of [matchmaking.queues.NAME]")]);

const FAIL: Operation = Operation::new(
    "Plant a failed event",
    "The bus refuses an event for good, and a second event waits behind it. Skip the first one in the pipeline: then the second is \
     published.",
    "playhouse try-it failed-event",
);

/// Returns the routes below `/try-it`. They are refused unless `console.try_it` is set.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::post("/try-it/players/{user}/sign-in", sign_in).operation(SIGN_IN),
        OperatorRoute::post("/try-it/players/{user}/notify", notify).operation(NOTIFY),
        OperatorRoute::post("/try-it/players/{user}/join", join).operation(JOIN),
        OperatorRoute::post("/try-it/failed-event", fail).operation(FAIL),
    ]
}

async fn sign_in(Open(try_it): Open<TryIt>, Path(user): Path<String>) -> Result<Json<Value>, Problem> {
    let tools = try_it.tools()?;
    let signed_in = tools.sign_in(&user).await?;
    let accounts = tools.accounts.accounts(signed_in.user.id).await;
    let accounts = accounts.map_err(|error| failed("account", &error))?;
    Ok(Json(json!({
        "user_id": signed_in.user.id.to_string(), "account_id": accounts.first().map(|account| account.id.to_string()),
        "name": signed_in.user.display_name, "created": signed_in.created,
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct NotifyRequest {
    title: String,
    #[serde(default)]
    body: String,
}

async fn notify(
    Open(try_it): Open<TryIt>,
    operator: Operator,
    Path(user): Path<String>,
    JsonBody(NotifyRequest { title, body }): JsonBody<NotifyRequest>,
) -> Result<Json<Value>, Problem> {
    let tools = try_it.tools()?;
    let player = tools.active(&user).await?;
    let texts = [(LANGUAGE.to_owned(), Text { title, body })].into();
    let request = Request {
        to: Recipients::Users(vec![player.id]),
        content: Content::Texts(texts, vec![Channel::Live]),
        data: json!({}),
        expires_at: None,
    };
    let (caller, key) = (format!("operator {}", operator.name), Uuid::now_v7().to_string());
    let sent = tools.notifications.send(&caller, &key, &request).await;
    let (receipt, _) = sent.map_err(|error| failed("notification", &error))?;
    Ok(Json(json!({ "id": receipt.id, "user_id": player.id.to_string(), "notified": receipt.notified })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct QueueRequest {
    queue: String,
}

async fn join(
    Open(try_it): Open<TryIt>,
    Path(user): Path<String>,
    JsonBody(QueueRequest { queue }): JsonBody<QueueRequest>,
) -> Result<Json<Value>, Problem> {
    let tools = try_it.tools()?;
    let player = tools.active(&user).await?;
    let user = *player.id.as_uuid();
    let problem = |error| failed("matchmaking", &error);
    let tickets = tools.players.tickets(user).await.map_err(problem)?;
    // Otherwise a player who was matched a moment ago would get that match again.
    let is_over = |ticket: &PlayerTicket| ticket.queue == queue && ticket.state == PlayerState::Assigned;
    let replaces = tickets.into_iter().find(is_over).map(|ticket| ticket.id);
    let request = JoinRequest { queue, replaces, ..JoinRequest::default() };
    let joined = tools.players.join(user, request).await.map_err(problem)?;
    let ticket = &joined.ticket;
    Ok(Json(json!({
        "ticket_id": ticket.id.to_string(), "user_id": player.id.to_string(), "queue": ticket.queue, "state": ticket.state.word(),
        "created": joined.is_new,
    })))
}

async fn fail(Open(try_it): Open<TryIt>) -> Result<Json<Value>, Problem> {
    let planted = try_it.tools()?.events.plant_failed().await?;
    Ok(Json(json!({ "event_id": planted.failed, "blocked_event_id": planted.blocked, "key": planted.key })))
}
