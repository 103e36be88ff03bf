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
use http_server::{Body, Caller, Problem, answered_before, idempotency_key};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{OpenApi, ToSchema};

use crate::deliver::state_word;
use crate::model::{Channel, Text};
use crate::wiring::RIGHT;
use crate::{Content, Error, Notifications, Recipients, Request, Sent};

/// The description of these routes.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(send, broadcast),
    tags((name = "notifications", description = "Telling players something."))
)]
pub struct Api;

/// Everything below `/internal/v1`.
pub fn routes(notifications: Notifications) -> Router {
    Router::new()
        .route("/internal/v1/notifications", post(send))
        .route("/internal/v1/notifications/broadcasts/{broadcast_id}", get(broadcast))
        .with_state(notifications)
}

/// Something to be told.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "to": {"user_ids": ["01990000-0000-7000-8000-000000000001"]},
    "texts": {"en": {"title": "Maintenance tonight", "body": "From 22:00 to 23:00 UTC"}}
}))]
struct SendRequest {
    to: To,
    /// The name of a template for services. It has the texts and the channels.
    #[serde(default)]
    template: Option<String>,
    /// Or the texts themselves, by language.
    #[serde(default)]
    texts: BTreeMap<String, TextBody>,
    /// How it is told beside the inbox, if there is no template: `live`, `log`, `webhook:NAME`. `live` if nothing is said.
    #[serde(default)]
    channels: Option<Vec<String>>,
    /// For the client, and for the fields of the template. At most 16 KiB.
    #[serde(default = "nothing")]
    #[schema(value_type = Object)]
    data: Value,
    /// When it is no longer of interest, as RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

/// Who is told: one of these.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
struct To {
    /// One user.
    user_id: Option<String>,
    /// Up to 1,000 users.
    user_ids: Option<Vec<String>>,
    /// `true`: everybody.
    all: bool,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct TextBody {
    /// 1 to 200 characters.
    title: String,
    /// At most 4,000 characters.
    #[serde(default)]
    body: String,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct SendAnswer {
    /// Of the request; of the broadcast, if all are told.
    id: Uuid,
    /// How many users have it in their inbox now. Absent while all users are being told: ask for the broadcast.
    #[serde(skip_serializing_if = "Option::is_none")]
    told: Option<u64>,
    /// Those of the users who do not exist, or were erased.
    unknown_user_ids: Vec<Uuid>,
}

/// How far a broadcast is.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct BroadcastAnswer {
    id: Uuid,
    /// PENDING, PROCESSING, SENT, FAILED (it is a dead letter) or STOPPED (by an operator).
    state: &'static str,
    /// How many users have been told.
    told: u64,
    /// Why it was interrupted the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
}

/// Tell one user, some, or all.
#[utoipa::path(
    post, path = "/internal/v1/notifications", tag = "notifications",
    params(("Idempotency-Key" = String, Header, description = "The request's own key. The same request sent again under it is \
        answered as before, and nobody is told twice.")),
    request_body = SendRequest,
    responses(
        (status = 200, description = "The users have it in their inbox", body = SendAnswer),
        (status = 202, description = "All users are being told", body = SendAnswer),
        (status = 400, description = "The request is not valid"),
        (status = 404, description = "There is no such user"),
        (status = 422, description = "The key was used for another request"),
    )
)]
async fn send(
    State(notifications): State<Notifications>,
    caller: Caller,
    headers: HeaderMap,
    Body(request): Body<SendRequest>,
) -> Result<Response, Problem> {
    caller.require(RIGHT)?;
    let key = idempotency_key(&headers)?;
    let request = request.sound()?;
    let (sent, is_replayed) = notifications.send(caller.name(), key, &request).await.map_err(problem)?;
    let Sent { id, told, unknown } = sent;
    let status = if told.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let response = (status, Json(SendAnswer { id, told, unknown_user_ids: unknown })).into_response();
    Ok(answered_before(response, is_replayed))
}

/// How far a broadcast to all users is.
#[utoipa::path(
    get, path = "/internal/v1/notifications/broadcasts/{broadcast_id}", tag = "notifications",
    params(("broadcast_id" = String, Path)),
    responses(
        (status = 200, description = "How far it is", body = BroadcastAnswer),
        (status = 400, description = "That is not an id"),
        (status = 404, description = "There is no such broadcast, or not any more"),
    )
)]
async fn broadcast(
    State(notifications): State<Notifications>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<BroadcastAnswer>, Problem> {
    caller.require(RIGHT)?;
    let id = Uuid::try_parse(&id)
        .map_err(|_| invalid("The path must name a broadcast by its id, which is a UUID."))?;
    let progress = notifications.broadcasts().progress(id).await.map_err(problem)?;
    let progress = progress.ok_or_else(|| {
        Problem::new(Code::NotFound)
            .detail("There is no such broadcast, or it was done and has been forgotten.")
    })?;
    let state = state_word(progress.state);
    Ok(Json(BroadcastAnswer { id, state, told: progress.told, cause: progress.cause }))
}

impl SendRequest {
    fn sound(self) -> Result<Request, Problem> {
        let content = match (self.template, self.texts.is_empty()) {
            (Some(_), false) => return Err(invalid("Give a template or texts, not both.")),
            (Some(_), true) if self.channels.is_some() => {
                return Err(invalid("The template says by which channels it is told: leave out channels."));
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
            text.parse().map_err(|error: base::NotATime| invalid(&format!("expires_at is {error}.")))
        });
        Ok(Request { to: self.to.sound()?, content, data: self.data, expires_at: expires_at.transpose()? })
    }
}

impl To {
    fn sound(self) -> Result<Recipients, Problem> {
        let user = |text: &String| -> Result<UserId, Problem> {
            text.parse()
                .map_err(|_| invalid(&format!("{text:?} is not the id of a user: a UUID is expected.")))
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
            _ => Err(invalid("`to` is one of {\"user_id\": …}, {\"user_ids\": […]} and {\"all\": true}.")),
        }
    }
}

/// No data.
fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}

/// What a caller is told. What happened inside is logged here, once.
pub(crate) fn problem(error: Error) -> Problem {
    let code = error.code();
    match code {
        Code::Internal => {
            tracing::error!(cause = chain(&error), "notifications could not be read or made");
            Problem::new(code)
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(
                outage = "notifications",
                cause = chain(&error),
                "notifications could not be read or made"
            );
            Problem::new(code)
        }
        _ => Problem::new(code).detail(error.to_string()),
    }
}
