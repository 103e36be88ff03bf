//! The service API of notifications.

use std::collections::BTreeMap;

use account::UserId;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use base::Code;
use base::error::{Coded, chain};
use base::id::Uuid;
use http_server::{Caller, JsonBody, Problem, idempotency_key, mark_replayed};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{OpenApi, ToSchema};

use crate::deliver::state_word;
use crate::model::{Channel, Text};
use crate::wiring::RIGHT;
use crate::{Content, Error, Notifications, Recipients, Request, SendReceipt};

/// The description of these routes.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(send, broadcast),
    tags((name = "notifications", description = "Sends notifications to players."))
)]
pub struct Api;

/// Returns the routes of notifications in the service API.
pub fn routes(notifications: Notifications) -> Router {
    Router::new()
        .route("/internal/v1/notifications", post(send))
        .route("/internal/v1/notifications/broadcasts/{broadcast_id}", get(broadcast))
        .with_state(notifications)
}

/// A notification to be sent.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "to": {"user_ids": ["01990000-0000-7000-8000-000000000001"]},
    "texts": {"en": {"title": "Maintenance tonight", "body": "From 22:00 to 23:00 UTC"}}
}), as = NotificationRequest)]
struct SendRequest {
    to: To,
    /// The name of a template for services, which has the texts and the channels.
    #[serde(default)]
    template: Option<String>,
    /// Or the texts themselves, by language.
    #[serde(default)]
    texts: BTreeMap<String, TextBody>,
    /// The channels beside the inbox, if there is no template: `live`, `log`, `webhook:NAME`. Default: `live`.
    #[serde(default)]
    channels: Option<Vec<String>>,
    /// JSON for the client and for the fields of the template. At most 16 KiB.
    #[serde(default = "empty_object")]
    #[schema(value_type = BTreeMap<String, Value>)]
    data: Value,
    /// When it expires, as RFC 3339. An expired notification is not shown.
    #[serde(default)]
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

/// The recipients: exactly one of these.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[schema(as = Recipients)]
struct To {
    /// One user.
    #[schema(value_type = Option<Uuid>)]
    user_id: Option<String>,
    /// Up to 1,000 users.
    #[schema(value_type = Option<Vec<Uuid>>)]
    user_ids: Option<Vec<String>>,
    /// `true`: all users.
    all: bool,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(as = NotificationText)]
struct TextBody {
    /// 1 to 200 characters.
    title: String,
    /// At most 4,000 characters.
    #[serde(default)]
    body: String,
}

/// The result of a request.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = NotificationResult)]
struct SendAnswer {
    /// The id of the request. It is also the id of the broadcast if the request was to all users.
    id: Uuid,
    /// How many users have it in their inbox now. Absent if it is to all users: see the broadcast.
    #[serde(skip_serializing_if = "Option::is_none")]
    notified: Option<u64>,
    /// The users who do not exist or were erased.
    unknown_user_ids: Vec<Uuid>,
}

/// The progress of a broadcast.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Broadcast)]
struct BroadcastAnswer {
    id: Uuid,
    /// PENDING, PROCESSING, SENT, FAILED (it is a dead letter) or STOPPED (by an operator).
    state: &'static str,
    /// How many users have it in their inbox.
    notified: u64,
    /// The cause of the last interruption.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
}

/// Notify one user, several, or all.
#[utoipa::path(
    post, path = "/internal/v1/notifications", tag = "notifications", operation_id = "send_notification",
    params(("Idempotency-Key" = String, Header, description = "A key of your choice for this request. If you send the \
        request again with it, you get the recorded response, and no user is notified twice.")),
    request_body = SendRequest,
    responses(
        (status = 200, description = "The users have it in their inbox", body = SendAnswer),
        (status = 202, description = "The broadcast to all users has begun", body = SendAnswer),
        (status = 400, description = "The request is not valid"),
        (status = 404, description = "The only user does not exist"),
        (status = 422, description = "The key was used for a different request"),
    )
)]
async fn send(
    State(notifications): State<Notifications>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<SendRequest>,
) -> Result<Response, Problem> {
    caller.require(RIGHT)?;
    let key = idempotency_key(&headers)?;
    let request = request.validated()?;
    let (receipt, is_replayed) = notifications.send(caller.name(), key, &request).await.map_err(problem)?;
    let SendReceipt { id, notified, unknown } = receipt;
    let status = if notified.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let response = (status, Json(SendAnswer { id, notified, unknown_user_ids: unknown })).into_response();
    Ok(mark_replayed(response, is_replayed))
}

/// Get the progress of a broadcast to all users.
#[utoipa::path(
    get, path = "/internal/v1/notifications/broadcasts/{broadcast_id}", tag = "notifications", operation_id = "get_broadcast",
    params(("broadcast_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The progress", body = BroadcastAnswer),
        (status = 400, description = "The id is not a UUID"),
        (status = 404, description = "There is no such broadcast, or it was removed after its retention"),
    )
)]
async fn broadcast(
    State(notifications): State<Notifications>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<BroadcastAnswer>, Problem> {
    caller.require(RIGHT)?;
    let id =
        Uuid::try_parse(&id).map_err(|_| invalid("The id of the broadcast in the path must be a UUID."))?;
    let progress = notifications.broadcasts().progress(id).await.map_err(problem)?;
    let progress = progress.ok_or_else(|| {
        Problem::new(Code::NotFound)
            .detail("There is no such broadcast, or it is done and was removed after notification.delivery.retention.")
    })?;
    let state = state_word(progress.state);
    Ok(Json(BroadcastAnswer { id, state, notified: progress.notified, cause: progress.cause }))
}

impl SendRequest {
    fn validated(self) -> Result<Request, Problem> {
        let content = match (self.template, self.texts.is_empty()) {
            (Some(_), false) => return Err(invalid("Give either a template or texts, not both.")),
            (Some(_), true) if self.channels.is_some() => {
                return Err(invalid("The template defines the channels: leave out channels."));
            }
            (Some(name), true) => Content::Template(name),
            (None, _) => {
                let texts = self.texts.into_iter();
                let texts =
                    texts.map(|(language, TextBody { title, body })| (language, Text { title, body }));
                let channels = self.channels.unwrap_or_else(|| vec![Channel::Live.to_string()]);
                let channel =
                    |text: String| text.parse::<Channel>().map_err(|error| invalid(&error.to_string()));
                Content::Texts(texts.collect(), channels.into_iter().map(channel).collect::<Result<_, _>>()?)
            }
        };
        let expires_at = self.expires_at.map(|text| {
            text.parse().map_err(|error: base::InvalidTime| invalid(&format!("expires_at is {error}.")))
        });
        Ok(Request {
            to: self.to.validated()?,
            content,
            data: self.data,
            expires_at: expires_at.transpose()?,
        })
    }
}

impl To {
    fn validated(self) -> Result<Recipients, Problem> {
        let user = |text: &String| -> Result<UserId, Problem> {
            text.parse().map_err(|_| invalid(&format!("{text:?} is not the id of a user, which is a UUID.")))
        };
        match (self.user_id, self.user_ids, self.all) {
            (Some(one), None, false) => Ok(Recipients::Users(vec![user(&one)?])),
            (None, Some(several), false) => {
                let mut users = several.iter().map(user).collect::<Result<Vec<_>, _>>()?;
                users.sort_unstable();
                users.dedup();
                Ok(Recipients::Users(users))
            }
            (None, None, true) => Ok(Recipients::All),
            _ => Err(invalid(
                "`to` must be exactly one of {\"user_id\": …}, {\"user_ids\": […]} and {\"all\": true}.",
            )),
        }
    }
}

/// Returns the default of `data`.
fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}

/// Maps an error to a response. Logs internal causes here, once.
pub(crate) fn problem(error: Error) -> Problem {
    let code = error.code();
    match code {
        Code::Internal => {
            tracing::error!(cause = chain(&error), "cannot read or create notifications");
            Problem::new(code)
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(
                outage = "notifications",
                cause = chain(&error),
                "cannot read or create notifications"
            );
            Problem::new(code)
        }
        _ => Problem::new(code).detail(error.to_string()),
    }
}
