//! The webhook of Playhouse: `match.assign` opens rooms, `match.abandoned` frees them. Both are signed.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

use crate::GameServer;
use crate::rooms::Member;

/// How far the clock of Playhouse may differ from ours. Older requests may be replayed ones.
const TOLERANCE: Duration = Duration::from_secs(300);

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Message {
    #[serde(rename = "match.assign")]
    Assign { matches: Vec<RequestedMatch> },
    #[serde(rename = "match.abandoned")]
    Abandoned { data: Abandoned },
}

#[derive(Debug, Deserialize)]
struct RequestedMatch {
    match_id: Uuid,
    tickets: Vec<RequestedTicket>,
}

#[derive(Debug, Deserialize)]
struct RequestedTicket {
    id: String,
    user_id: Option<Uuid>,
}

#[derive(Debug, Deserialize)]
struct Abandoned {
    match_id: Uuid,
}

#[derive(Debug, Serialize)]
struct Assignments {
    assignments: Vec<Assignment>,
}

#[derive(Debug, Serialize)]
struct Assignment {
    match_id: Uuid,
    connection: String,
    tickets: Vec<Ticket>,
}

/// What only this player learns.
#[derive(Debug, Serialize)]
struct Ticket {
    id: String,
    extensions: Extensions,
}

#[derive(Debug, Serialize)]
struct Extensions {
    token: String,
}

pub(crate) async fn webhook(State(server): State<GameServer>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(error) = server.verifier.verify(&headers, &body, server.clock.now(), TOLERANCE) {
        tracing::warn!(%error, "refused a webhook");
        return (StatusCode::UNAUTHORIZED, Json(json!({ "error": error.to_string() }))).into_response();
    }
    match serde_json::from_slice(&body) {
        Ok(Message::Assign { matches }) => {
            let assignments =
                matches.into_iter().filter_map(|requested| assign(&server, requested)).collect();
            Json(Assignments { assignments }).into_response()
        }
        Ok(Message::Abandoned { data }) => {
            server.rooms.abandon(data.match_id);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, Json(json!({ "error": error.to_string() }))).into_response(),
    }
}

/// Opens the room of a match. A match that is left out of the answer is not made, and its players keep waiting.
fn assign(server: &GameServer, requested: RequestedMatch) -> Option<Assignment> {
    let RequestedMatch { match_id, tickets } = requested;
    let players: Vec<_> = tickets.into_iter().map(|ticket| (ticket.id, ticket.user_id)).collect();
    let players: [_; 2] = players.try_into().ok()?;
    let members = server.rooms.allocate(match_id, players)?;
    let connection = server.room_url(match_id);
    let tickets = members
        .into_iter()
        .map(|Member { ticket_id, token, .. }| Ticket { id: ticket_id, extensions: Extensions { token } })
        .collect();
    Some(Assignment { match_id, connection, tickets })
}
