//! The event that announces a match.

use base::Timestamp;
use bus::{Event, EventId, EventKind, Json};
use proto::playhouse::MatchMade;
use serde::Serialize;
use serde_json::json;

use crate::model::MatchId;

/// The type of the event.
pub(crate) const MATCH_MADE: &str = "playhouse.match.made.v1";

/// The data of the event.
#[derive(Serialize)]
struct Data<'a> {
    match_id: &'a str,
    match_profile: &'a str,
    match_function: &'a str,
    ticket_ids: &'a [String],
    user_ids: &'a [String],
    connection: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    backfill_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_version: Option<i64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    definition: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    definition_version: Option<i64>,
}

/// Builds the event of a match, with the match's id. Returns `None` if the match has no valid id.
pub(crate) fn event(match_: &MatchMade) -> Option<Event> {
    let id: MatchId = match_.match_id.parse().ok()?;
    let data = Data {
        match_id: &match_.match_id,
        match_profile: &match_.match_profile,
        match_function: &match_.match_function,
        ticket_ids: &match_.ticket_ids,
        user_ids: &match_.user_ids,
        connection: &match_.assignment.connection,
        backfill_id: &match_.backfill_id,
        profile_version: match_.profile_version,
        definition: &match_.definition,
        definition_version: (!match_.definition.is_empty()).then_some(match_.definition_version),
    };
    Some(Event {
        id: EventId::from_uuid(*id.as_uuid()),
        subject: MATCH_MADE.trim_start_matches("playhouse.").to_owned(),
        kind: MATCH_MADE.to_owned(),
        source: "/playhouse/matchmaking".to_owned(),
        time: Timestamp::from_millis(match_.made_at),
        key: Some(match_.match_id.clone()),
        traceparent: Some(match_.traceparent.clone()).filter(|trace| !trace.is_empty()),
        data: Json::from_value(&data).ok()?,
    })
}

/// Returns every kind of event that matchmaking publishes.
pub fn events() -> Vec<EventKind> {
    let text = json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "required": ["match_id", "match_profile", "match_function", "ticket_ids", "user_ids", "connection"],
        "properties": {
            "match_id": text, "match_profile": text, "match_function": text,
            "ticket_ids": { "type": "array", "items": text, "description": "The tickets of the match." },
            "user_ids": {
                "type": "array", "items": text,
                "description": "The players of the match. Tickets of Open Match clients that name no player add none.",
            },
            "connection": { "type": "string", "description": "Where the match is played." },
            "backfill_id": {
                "type": "string",
                "description": "The backfill that these tickets joined. Missing unless they joined a match under way.",
            },
            "profile_version": {
                "type": "integer",
                "description": "The version of the profile: 0 for the one of the configuration file. Missing for matches of Directors and for backfills.",
            },
            "definition": { "type": "string", "description": "The rule set that made the match, if one did, as `playhouse rules` names it." },
            "definition_version": {
                "type": "integer",
                "description": "The version of that rule set: 0 for the one of the configuration file.",
            },
        },
    });
    let summary = "A match was match_ and its tickets were assigned to a server.";
    vec![EventKind { kind: MATCH_MADE, summary, key: "{match_id}", schema }, crate::allocation::event_kind()]
}
