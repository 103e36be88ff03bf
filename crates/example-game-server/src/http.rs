//! The HTTP interface: the webhook for Playhouse, and a stream and actions for players.
//!
//! A player proves with the token of their assignment that they belong to the match. The token is sent as a header, so it is in no log of
//! addresses.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::Stream;
use futures::stream::unfold;
use serde_json::json;
use tower_http::cors::{Any, CorsLayer};
use uuid::Uuid;

use crate::GameServer;
use crate::allocate;
use crate::duel::{Action, Seat};
use crate::rooms::{Connection, Member, RoomError};

/// The path of the webhook.
pub(crate) const ALLOCATE: &str = "/allocate";
/// A request may be for many matches.
const MAX_BODY: usize = 4 << 20;
/// How often an idle stream sends a comment: sooner than proxies give up, and than clients suspect the network.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(crate) fn routes(server: GameServer) -> Router {
    // Pages of every origin may play: the token is all that counts, and browsers never add it by themselves.
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([AUTHORIZATION, CONTENT_TYPE]);
    let players = Router::new()
        .route("/matches/{match_id}/events", get(events))
        .route("/matches/{match_id}/actions", post(act))
        .layer(cors);
    Router::new()
        .route(ALLOCATE, post(allocate::webhook).layer(DefaultBodyLimit::max(MAX_BODY)))
        .route("/healthz", get(health))
        .merge(players)
        .with_state(server)
}

/// A player of the match in the path.
pub(crate) struct Caller {
    match_id: Uuid,
    seat: Seat,
    member: Member,
}

impl FromRequestParts<GameServer> for Caller {
    type Rejection = RoomError;

    async fn from_request_parts(parts: &mut Parts, server: &GameServer) -> Result<Self, RoomError> {
        let path = Path::<Uuid>::from_request_parts(parts, server).await;
        let Path(match_id) = path.map_err(|_| RoomError::NoSuchMatch)?;
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        let (seat, member) = server.rooms.authenticate(match_id, token)?;
        Ok(Self { match_id, seat, member })
    }
}

/// Streams the state of the game: once at the beginning, and whenever it changes.
async fn events(State(server): State<GameServer>, caller: Caller) -> Result<Response, RoomError> {
    let Caller { match_id, seat, member } = caller;
    if let (None, Some(user_id)) = (&member.name, member.user_id)
        && let Some(name) = server.api.name(user_id).await
    {
        server.rooms.set_name(match_id, seat, name)?;
    }
    let connection = server.rooms.connect(match_id, seat)?;
    let stream = Sse::new(states(server, connection)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([(CACHE_CONTROL, "no-store")], stream).into_response())
}

/// Returns the states of a game as events. The stream ends when the room is freed or the server stops.
fn states(
    server: GameServer,
    connection: Connection,
) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
    unfold((server, connection, true), |(server, mut connection, is_first)| async move {
        if !is_first {
            tokio::select! {
                () = connection.changed() => {}
                () = server.stopped() => return None,
            }
        }
        let view = connection.view()?;
        let event = Event::default().event("state").json_data(&view).ok()?;
        Some((Ok(event), (server, connection, false)))
    })
}

async fn act(
    State(server): State<GameServer>,
    caller: Caller,
    action: Result<Json<Action>, axum::extract::rejection::JsonRejection>,
) -> Result<StatusCode, Response> {
    let Json(action) = action.map_err(IntoResponse::into_response)?;
    let acted = server.rooms.act(caller.match_id, caller.seat, action);
    acted.map(|()| StatusCode::NO_CONTENT).map_err(IntoResponse::into_response)
}

async fn health(State(server): State<GameServer>) -> Json<serde_json::Value> {
    Json(json!({ "alive": true, "rooms": server.rooms.count() }))
}

impl IntoResponse for RoomError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoSuchMatch => StatusCode::NOT_FOUND,
            Self::NotAPlayer => StatusCode::UNAUTHORIZED,
            Self::TooManyStreams => StatusCode::TOO_MANY_REQUESTS,
        };
        (status, Json(json!({ "error": self.to_string() }))).into_response()
    }
}
