//! A match as an event.

use base::Timestamp;
use bus::{Event, EventId, EventKind, Json};
use proto::playhouse::MatchMade;
use serde::Serialize;
use serde_json::json;

use crate::model::MatchId;

/// The kind of the event.
const MATCH_MADE: &str = "playhouse.match.made.v1";

/// The data of the event.
#[derive(Serialize)]
struct Data<'a> {
    match_id: &'a str,
    match_profile: &'a str,
    match_function: &'a str,
    ticket_ids: &'a [String],
    user_ids: &'a [String],
    connection: &'a str,
}

/// The event of a match, under the match's id. None if the match has no id.
pub(crate) fn event(made: &MatchMade) -> Option<Event> {
    let id: MatchId = made.match_id.parse().ok()?;
    let data = Data {
        match_id: &made.match_id,
        match_profile: &made.match_profile,
        match_function: &made.match_function,
        ticket_ids: &made.ticket_ids,
        user_ids: &made.user_ids,
        connection: &made.assignment.connection,
    };
    Some(Event {
        id: EventId::from_uuid(*id.as_uuid()),
        subject: MATCH_MADE.trim_start_matches("playhouse.").to_owned(),
        kind: MATCH_MADE.to_owned(),
        source: "/playhouse/matchmaking".to_owned(),
        time: Timestamp::from_millis(made.made_at),
        key: Some(made.match_id.clone()),
        traceparent: Some(made.traceparent.clone()).filter(|trace| !trace.is_empty()),
        data: Json::of(&data).ok()?,
    })
}

/// Every kind of event that is published here.
pub fn events() -> Vec<EventKind> {
    let text = json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "required": ["match_id", "match_profile", "match_function", "ticket_ids", "user_ids", "connection"],
        "properties": {
            "match_id": text, "match_profile": text, "match_function": text,
            "ticket_ids": { "type": "array", "items": text, "description": "The tickets that play." },
            "user_ids": {
                "type": "array", "items": text,
                "description": "Who plays. Tickets of Open Match clients that name no player add nobody.",
            },
            "connection": { "type": "string", "description": "Where the match is played." },
        },
    });
    let summary = "A match was made, and its tickets were assigned to a server.";
    vec![EventKind { kind: MATCH_MADE, summary, key: "{match_id}", schema }, crate::allocation::event_kind()]
}
