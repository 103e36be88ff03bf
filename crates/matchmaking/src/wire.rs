//! Conversions between the wire types and the model.

mod backfill;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Once};
use std::time::Duration;

use base::id::Uuid;
use buffa::{Message, MessageField};
use buffa_types::google::protobuf as wkt;
use bytes::Bytes;
use proto::{openmatch, playhouse};

use crate::error::Error;
use crate::model::{
    Any, Assignment, BackfillId, Bounds, Filter, Match, MatchId, Moment, Pool, SearchFields, Ticket, TicketId,
};
use crate::players::{MEMBERS_FIELD, USER_FIELD};
use crate::store::RoomOrigin;

pub(crate) use self::backfill::{
    assignment_of_seat, backfill_filter_input, backfill_from_parts, backfill_parts, new_backfill,
};

/// The key in `persistent_field` with the lifetime of a ticket.
pub(crate) const TTL: &str = "ttl";
/// The extension of an assignment that has the data of single players: an object by user id. Players see their own part of it.
pub(crate) const PLAYERS: &str = "playhouse.players";
const STRING: &str = "type.googleapis.com/google.protobuf.StringValue";
const VALUE: &str = "type.googleapis.com/google.protobuf.Value";
const INT64: &str = "type.googleapis.com/google.protobuf.Int64Value";

/// The stored data is not a ticket.
#[derive(Debug, thiserror::Error)]
#[error("the data of ticket {0} is unreadable")]
pub(crate) struct UnreadableTicket(pub(crate) TicketId);

/// Decodes a stored ticket. Its id is that of the key, by which all other keys refer to the ticket.
pub(crate) fn decode_ticket(id: TicketId, data: &[u8]) -> Result<Ticket, UnreadableTicket> {
    let Ok(mut wire) = openmatch::Ticket::decode_from_slice(data) else { return Err(UnreadableTicket(id)) };
    let created = wire.create_time.as_option().map(moment_from_timestamp).unwrap_or_default();
    let ttl = wire.persistent_field.get(TTL).and_then(duration_from_any);
    let (user, members) = (ticket_owner(&wire), ticket_members(&wire));
    let fields = wire.search_fields.take().map(fields_from_wire);
    Ok(Ticket {
        id,
        created,
        user,
        members,
        expires: ttl.map(|ttl| Moment::from_nanos(created.nanos().saturating_add(nanos(ttl)))),
        fields: fields.unwrap_or_default(),
        extensions: wire.extensions.drain().map(|(name, any)| (name, any_from_wire(any))).collect(),
    })
}

/// Returns the player of a ticket. Returns `None` if a client stored something that is no user id.
pub(crate) fn ticket_owner(ticket: &openmatch::Ticket) -> Option<Uuid> {
    ticket.persistent_field.get(USER_FIELD).and_then(text_from_any)?.parse().ok()
}

/// Returns the players of a party's ticket. Returns none for other tickets.
fn ticket_members(ticket: &openmatch::Ticket) -> Vec<Uuid> {
    let text = ticket.persistent_field.get(MEMBERS_FIELD).and_then(text_from_any);
    text.iter().flat_map(|text| text.split(' ')).filter_map(|id| id.parse().ok()).collect()
}

/// Returns whether a user is a player of this ticket.
pub(crate) fn is_ticket_of(ticket: &openmatch::Ticket, user: Uuid) -> bool {
    ticket_owner(ticket) == Some(user) || ticket_members(ticket).contains(&user)
}

pub(crate) fn fields_from_wire(fields: openmatch::SearchFields) -> SearchFields {
    SearchFields {
        doubles: fields.double_args.into_iter().collect(),
        strings: fields.string_args.into_iter().collect(),
        tags: fields.tags,
    }
}

pub(crate) fn fields_to_wire(fields: SearchFields) -> openmatch::SearchFields {
    openmatch::SearchFields {
        double_args: fields.doubles.into_iter().collect(),
        string_args: fields.strings.into_iter().collect(),
        tags: fields.tags,
        ..Default::default()
    }
}

/// Encodes a stored ticket again, with this id in front.
pub(crate) fn ticket_with_id(id: &TicketId, data: &[u8]) -> Option<Bytes> {
    let mut ticket = openmatch::Ticket::decode_from_slice(data).ok()?;
    ticket.id = id.to_string();
    Some(ticket.encode_to_bytes())
}

/// Converts the pool of a query.
pub(crate) fn pool_from_wire(pool: openmatch::Pool) -> Result<Pool, Error> {
    let mut filters = Vec::new();
    for range in pool.double_range_filters {
        let bounds = match range.exclude.to_i32() {
            0 => Bounds::Closed,
            1 => Bounds::OpenMin,
            2 => Bounds::OpenMax,
            3 => Bounds::Open,
            other => return Err(Error::Invalid(format!(".invalid exclude value {other}"))),
        };
        filters.push(Filter::Double { field: range.double_arg, min: range.min, max: range.max, bounds });
    }
    let texts = pool.string_equals_filters.into_iter();
    filters.extend(texts.map(|filter| Filter::Text { field: filter.string_arg, value: filter.value }));
    filters.extend(pool.tag_present_filters.into_iter().map(|filter| Filter::Tag(filter.tag)));
    let moment = |time: &wkt::Timestamp, name| match is_timestamp(time) {
        true => Ok(moment_from_timestamp(time)),
        false => Err(Error::Invalid(format!(".invalid {name} value"))),
    };
    if let Some(time) = pool.created_before.as_option() {
        filters.push(Filter::CreatedBefore(moment(time, "created_before")?));
    }
    if let Some(time) = pool.created_after.as_option() {
        filters.push(Filter::CreatedAfter(moment(time, "created_after")?));
    }
    Ok(Pool { name: pool.name, filters })
}

/// Returns whether a timestamp is in the years 1 to 9999, as the format demands.
fn is_timestamp(time: &wkt::Timestamp) -> bool {
    (-62_135_596_800..=253_402_300_799).contains(&time.seconds) && (0..1_000_000_000).contains(&time.nanos)
}

/// Returns whether the data is the ticket with this id, and not another program's data under a similar key.
pub(crate) fn is_ticket(id: &TicketId, data: &[u8]) -> bool {
    openmatch::Ticket::decode_from_slice(data).is_ok_and(|ticket| ticket.id == id.as_str())
}

/// Returns the assignment shared by all players of a match.
pub(crate) fn assignment_to_wire(assignment: &Assignment) -> openmatch::Assignment {
    openmatch::Assignment {
        connection: assignment.connection.clone(),
        extensions: assignment
            .extensions
            .iter()
            .map(|(name, any)| (name.clone(), any_to_wire(any)))
            .collect(),
        ..Default::default()
    }
}

/// Returns the assignment of this ticket. Data of single players is in the extension [`PLAYERS`].
pub(crate) fn assignment_of_ticket(assignment: &Assignment, ticket: &Ticket) -> openmatch::Assignment {
    let mut wire = assignment_to_wire(assignment);
    let own = assignment.of_ticket.get(&ticket.id).into_iter().flatten();
    wire.extensions.extend(own.map(|(name, any)| (name.clone(), any_to_wire(any))));
    let of_players: serde_json::Map<String, serde_json::Value> = ticket
        .users()
        .filter_map(|user| {
            let of_player = assignment.of_player.get(&user)?.iter();
            let json = of_player
                .filter_map(|(name, any)| Some((name.clone(), serde_json::to_value(any_to_wire(any)).ok()?)));
            Some((user.to_string(), json.collect()))
        })
        .collect();
    if !of_players.is_empty() {
        wire.extensions.extend(json_to_any(&of_players.into()).map(|any| (PLAYERS.to_owned(), any)));
    }
    wire
}

/// Returns the extensions that this player sees, in Open Match's JSON form.
pub(crate) fn extensions_of_player(
    mut extensions: BTreeMap<String, wkt::Any>,
    user: Uuid,
) -> serde_json::Map<String, serde_json::Value> {
    let of_players = extensions.remove(PLAYERS).and_then(|any| any_to_json(&any_from_wire(any)));
    let shared =
        extensions.into_iter().filter_map(|(name, any)| Some((name, serde_json::to_value(any).ok()?)));
    let mut visible: serde_json::Map<_, _> = shared.collect();
    if let Some(serde_json::Value::Object(mut of_players)) = of_players
        && let Some(serde_json::Value::Object(own)) = of_players.remove(&user.to_string())
    {
        visible.extend(own);
    }
    visible
}

/// Encodes a match to be assigned, as bytes that can be concatenated with other matches.
pub(crate) fn encode_match(
    match_: &Match,
    assignment: openmatch::Assignment,
    ticket_assignments: Vec<openmatch::Assignment>,
    is_allocated: bool,
    at: base::Timestamp,
    traceparent: &str,
) -> Bytes {
    let users: BTreeSet<Uuid> = match_.tickets.iter().flat_map(|ticket| ticket.users()).collect();
    let definition = match_.lineup.as_ref().and_then(|lineup| lineup.definition.as_ref());
    let match_ = playhouse::MatchMade {
        definition: definition.map_or_else(String::new, |(name, _)| name.to_string()),
        definition_version: definition.map_or(0, |(_, version)| *version),
        match_id: match_.id.to_string(),
        match_profile: match_.profile.to_string(),
        profile_version: Some(match_.profile_version),
        match_function: match_.function.to_string(),
        ticket_ids: match_.tickets.iter().map(|ticket| ticket.id.to_string()).collect(),
        assignment: MessageField::some(assignment),
        ticket_assignments,
        made_at: at.as_millis(),
        traceparent: traceparent.to_owned(),
        user_ids: users.iter().map(Uuid::to_string).collect(),
        is_allocated,
        ..Default::default()
    };
    playhouse::MatchesMade { matches: vec![match_], ..Default::default() }.encode_to_bytes()
}

/// Encodes the match of tickets that joined a match under way. Its origin is empty if no rule set fills it.
pub(crate) fn encode_backfilled(
    backfill: &BackfillId,
    origin: RoomOrigin,
    tickets: &[Arc<Ticket>],
    assignment: openmatch::Assignment,
    ticket_assignments: Vec<openmatch::Assignment>,
    at: base::Timestamp,
    traceparent: &str,
) -> Bytes {
    let users: BTreeSet<Uuid> = tickets.iter().flat_map(|ticket| ticket.users()).collect();
    let (definition, definition_version) = origin.definition.unwrap_or_default();
    let match_ = playhouse::MatchMade {
        match_id: MatchId::generate().to_string(),
        match_profile: origin.profile,
        match_function: origin.function,
        definition,
        definition_version,
        backfill_id: backfill.to_string(),
        ticket_assignments,
        ticket_ids: tickets.iter().map(|ticket| ticket.id.to_string()).collect(),
        assignment: MessageField::some(assignment),
        made_at: at.as_millis(),
        traceparent: traceparent.to_owned(),
        user_ids: users.iter().map(Uuid::to_string).collect(),
        ..Default::default()
    };
    playhouse::MatchesMade { matches: vec![match_], ..Default::default() }.encode_to_bytes()
}

/// Decodes concatenated matches.
pub(crate) fn decode_matches(data: &[u8]) -> Option<Vec<playhouse::MatchMade>> {
    playhouse::MatchesMade::decode_from_slice(data).ok().map(|encoded| encoded.matches)
}

pub(crate) fn moment_from_timestamp(time: &wkt::Timestamp) -> Moment {
    Moment::from_nanos(time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanos.into()))
}

pub(crate) fn timestamp(moment: Moment) -> wkt::Timestamp {
    let nanos = moment.nanos().rem_euclid(1_000_000_000);
    wkt::Timestamp {
        seconds: moment.nanos().div_euclid(1_000_000_000),
        nanos: nanos.try_into().unwrap_or_default(),
        ..Default::default()
    }
}

/// Encodes a duration as tickets carry it.
pub(crate) fn duration_to_any(length: Duration) -> wkt::Any {
    let value = wkt::Int64Value { value: nanos(length), ..Default::default() }.encode_to_bytes();
    any_to_wire(&Any { type_url: INT64.to_owned(), value })
}

pub(crate) fn duration_from_any(any: &wkt::Any) -> Option<Duration> {
    let is_number = any.type_url.rsplit('/').next() == INT64.rsplit('/').next();
    let number = is_number.then(|| wkt::Int64Value::decode_from_slice(&any.value).ok())??;
    number.value.try_into().ok().map(Duration::from_nanos)
}

pub(crate) fn text_to_any(text: &str) -> wkt::Any {
    let value = wkt::StringValue { value: text.to_owned(), ..Default::default() }.encode_to_bytes();
    any_to_wire(&Any { type_url: STRING.to_owned(), value })
}

pub(crate) fn text_from_any(any: &wkt::Any) -> Option<String> {
    let is_text = any.type_url.rsplit('/').next() == STRING.rsplit('/').next();
    is_text.then(|| wkt::StringValue::decode_from_slice(&any.value).ok())?.map(|text| text.value)
}

fn nanos(length: Duration) -> i64 {
    length.as_nanos().try_into().unwrap_or(i64::MAX)
}

fn any_from_wire(any: wkt::Any) -> Any {
    Any { type_url: any.type_url, value: any.value }
}

fn any_to_wire(any: &Any) -> wkt::Any {
    wkt::Any { type_url: any.type_url.clone(), value: any.value.clone(), ..Default::default() }
}

/// Returns the tickets of an assigned match, each with its assignment.
pub(crate) fn ticket_assignments(
    match_: &playhouse::MatchMade,
) -> impl Iterator<Item = (&str, &openmatch::Assignment)> {
    let own = match_.ticket_assignments.iter().map(Some).chain(std::iter::repeat(None));
    let each = match_.ticket_ids.iter().zip(own);
    each.filter_map(|(id, own)| Some((id.as_str(), own.or(match_.assignment.as_option())?)))
}

/// Converts a value of an assigner's response. A string becomes a `StringValue`, an object with `@type` becomes the
/// message it names, anything else a `google.protobuf.Value`.
pub(crate) fn any_from_json(value: &serde_json::Value) -> Option<Any> {
    if let serde_json::Value::String(text) = value {
        return Some(any_from_wire(text_to_any(text)));
    }
    if value.get("@type").is_some() {
        return serde_json::from_value(value.clone()).ok().map(any_from_wire);
    }
    let value: wkt::Value = serde_json::from_value(value.clone()).ok()?;
    Some(Any { type_url: VALUE.to_owned(), value: value.encode_to_bytes() })
}

/// Converts a value as [`any_from_json`] does, for a ticket to create.
pub(crate) fn json_to_any(value: &serde_json::Value) -> Option<wkt::Any> {
    any_from_json(value).map(|any| any_to_wire(&any))
}

pub(crate) fn any_to_text(any: &Any) -> Option<String> {
    text_from_any(&any_to_wire(any))
}

/// Converts a text with JSON, or a `google.protobuf.Value`, to JSON.
pub(crate) fn any_to_json(any: &Any) -> Option<serde_json::Value> {
    let any = any_to_wire(any);
    if let Some(text) = text_from_any(&any) {
        return serde_json::from_str(&text).ok();
    }
    let is_value = any.type_url.rsplit('/').next() == VALUE.rsplit('/').next();
    let value = is_value.then(|| wkt::Value::decode_from_slice(&any.value).ok())??;
    serde_json::to_value(value).ok()
}

/// Registers the types that an `Any` may have in JSON. Without it an `Any` is written in base64, and an object with
/// `@type` cannot be read.
pub(crate) fn register_types() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut registry = buffa::type_registry::TypeRegistry::new();
        buffa_types::register_wkt_types(&mut registry);
        openmatch::register_types(&mut registry);
        buffa::type_registry::set_type_registry(registry);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> openmatch::Ticket {
        openmatch::Ticket {
            id: "dbt8pcfejq8o287bsa0g".to_owned(),
            search_fields: MessageField::some(openmatch::SearchFields {
                double_args: [("mmr".to_owned(), 1500.0)].into_iter().collect(),
                string_args: [("mode".to_owned(), "duel".to_owned())].into_iter().collect(),
                tags: vec!["beta".to_owned()],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Decodes a message, encodes it, and decodes it again.
    fn round_trips<M: Message + PartialEq + std::fmt::Debug>(input: &[u8]) -> bool {
        let Ok(message) = M::decode_from_slice(input) else { return false };
        let written = message.encode_to_vec();
        let again = M::decode_from_slice(&written).map(|again| again.encode_to_vec().len());
        assert_eq!(again.ok(), Some(written.len()), "{message:?}");
        true
    }

    #[test]
    fn decoding_a_message_never_panics() {
        let ticket = sample();
        let request = openmatch::CreateTicketRequest {
            ticket: MessageField::some(ticket.clone()),
            ..Default::default()
        };
        let samples =
            [ticket.encode_to_vec(), request.encode_to_vec(), vec![0x0a, 0x02, b'i', b'd', 0x1a, 0x00]];
        testkit::fuzz("open-match-messages", &samples, |input| {
            let read = [
                round_trips::<openmatch::CreateTicketRequest>(input),
                round_trips::<openmatch::Ticket>(input),
                round_trips::<openmatch::WatchAssignmentsRequest>(input),
                round_trips::<openmatch::WatchAssignmentsResponse>(input),
                round_trips::<openmatch::Assignment>(input),
            ];
            let _ = super::decode_ticket(TicketId::generate(Moment::default()), input);
            read.contains(&true)
        });
    }

    #[test]
    fn decoding_json_never_panics() {
        let samples = [
            r#"{"ticket":{"searchFields":{"doubleArgs":{"mmr":1500.5,"x":"NaN"},"stringArgs":{"mode":"duel"},"tags":["a"]}}}"#,
            r#"{"ticket":{"create_time":"2026-03-01T12:00:00.120Z","extensions":{"e":{"@type":"type.googleapis.com/google.protobuf.StringValue","value":"v"}}}}"#,
            r#"{"ticket":{"persistentField":{"ttl":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1.5s"}},"assignment":{"connection":"h:1"}}}"#,
        ];
        testkit::fuzz("open-match-json", &samples, |input| {
            let Ok(request) = serde_json::from_slice::<openmatch::CreateTicketRequest>(input) else {
                return false;
            };
            // An accepted message can be encoded as a response.
            let _ = serde_json::to_value(&request);
            let _ = request.encode_to_vec();
            true
        });
    }
}
