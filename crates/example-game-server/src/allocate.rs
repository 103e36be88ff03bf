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
    /// All players of a party's ticket.
    #[serde(default)]
    user_ids: Vec<Uuid>,
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

/// What only the player of this ticket learns, or each member of a party alone.
#[derive(Debug, Serialize)]
struct Ticket {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    extensions: Option<Extensions>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    players: Vec<Player>,
}

#[derive(Debug, Serialize)]
struct Player {
    user_id: Uuid,
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
    let players: Vec<_> = tickets.iter().flat_map(RequestedTicket::players).collect();
    let players: [_; 2] = players.try_into().ok()?;
    let members = server.rooms.allocate(match_id, players)?;
    let connection = server.room_url(match_id);
    let tickets = tickets.iter().map(|requested| ticket(requested, &members)).collect();
    Some(Assignment { match_id, connection, tickets })
}

impl RequestedTicket {
    /// Returns the players of this ticket: the members of the party, or one player.
    fn players(&self) -> Vec<(String, Option<Uuid>)> {
        match self.user_ids.as_slice() {
            [] => vec![(self.id.clone(), self.user_id)],
            party => party.iter().map(|user| (self.id.clone(), Some(*user))).collect(),
        }
    }
}

/// Gives each player of a ticket their own token.
fn ticket(requested: &RequestedTicket, members: &[Member; 2]) -> Ticket {
    let of_ticket = members.iter().filter(|member| member.ticket_id == requested.id);
    let token = |member: &Member| Extensions { token: member.token.clone() };
    let id = requested.id.clone();
    if requested.user_ids.is_empty() {
        return Ticket { id, extensions: of_ticket.map(token).next(), players: Vec::new() };
    }
    let player = |member: &Member| Some(Player { user_id: member.user_id?, extensions: token(member) });
    Ticket { id, extensions: None, players: of_ticket.filter_map(player).collect() }
}
