//! Backfills on the wire, and in the parts in which they are stored.
//!
//! Each part is an encoded `openmatch.Backfill` with some of its fields. Concatenated they are the whole message,
//! because Protobuf merges messages that way.

use buffa::{Message, MessageField};
use bytes::Bytes;
use proto::openmatch;
use serde_json::json;

use super::{fields_from_wire, json_to_any, moment_from_timestamp, timestamp};
use crate::model::{BackfillId, Moment, SearchFields};
use crate::store::{BackfillData, NewBackfill, Room, RoomOrigin, Seat};

/// Splits a backfill into its parts, with the id and the creation time that we choose.
pub(crate) fn new_backfill(id: BackfillId, created: Moment, wire: openmatch::Backfill) -> NewBackfill {
    let fixed = openmatch::Backfill {
        id: id.to_string(),
        create_time: MessageField::some(timestamp(created)),
        ..Default::default()
    };
    let (fields, persistent) = backfill_parts(wire);
    NewBackfill { id, fixed: fixed.encode_to_bytes(), fields, persistent }
}

/// Returns the parts of a backfill that callers may change: search fields with extensions, and persistent data.
pub(crate) fn backfill_parts(wire: openmatch::Backfill) -> (Bytes, Bytes) {
    let openmatch::Backfill { search_fields, extensions, persistent_field, .. } = wire;
    let fields = openmatch::Backfill { search_fields, extensions, ..Default::default() };
    let persistent = openmatch::Backfill { persistent_field, ..Default::default() };
    (fields.encode_to_bytes(), persistent.encode_to_bytes())
}

/// Decodes a stored backfill. Returns `None` if its data is unreadable.
pub(crate) fn backfill_from_parts(data: &BackfillData) -> Option<openmatch::Backfill> {
    let BackfillData { generation, fixed, fields, persistent, room } = data;
    let whole = [&fixed[..], &fields[..], &persistent[..]].concat();
    let mut wire = openmatch::Backfill::decode_from_slice(&whole).ok()?;
    wire.generation = *generation;
    if let Some(room) = room {
        add_room(&mut wire, room);
    }
    Some(wire)
}

/// Adds what made the match, and the places that are open now, so that pools can filter by them.
fn add_room(wire: &mut openmatch::Backfill, room: &Room) {
    let extensions = [
        ("teams", json!(room.teams)),
        ("match_id", json!(room.origin.match_id)),
        ("rules", rules_of(&room.origin)),
    ];
    let extensions =
        extensions.iter().filter_map(|(name, value)| Some(((*name).to_owned(), json_to_any(value)?)));
    wire.extensions.extend(extensions);
    let mut fields = wire.search_fields.take().unwrap_or_default();
    let texts = [("match_profile", &room.origin.profile), ("rule_set", &room.origin.rule_set)];
    fields.string_args.extend(texts.map(|(name, text)| (name.to_owned(), text.clone())));
    fields.double_args.insert("open".to_owned(), room.open() as f64);
    wire.search_fields = MessageField::some(fields);
}

fn rules_of(origin: &RoomOrigin) -> serde_json::Value {
    let mut rules = json!({ "rule_set": origin.rule_set, "version": origin.version });
    if let Some((name, version)) = &origin.definition {
        rules["definition"] = json!({ "name": name, "version": version });
    }
    rules
}

/// Returns the assignment of a ticket that joins a match under way: that of its game server, with the ticket's team, roles and rule
/// set. What the game server has set is kept.
pub(crate) fn assignment_of_seat(
    assignment: &openmatch::Assignment,
    room: &Room,
    seat: &Seat,
) -> openmatch::Assignment {
    let mut own = assignment.clone();
    let mut extensions = vec![("team", json!(seat.team)), ("rules", rules_of(&room.origin))];
    if !seat.roles.is_empty() {
        extensions.push(("roles", json!(seat.roles)));
    }
    for (name, value) in extensions {
        if !own.extensions.contains_key(name)
            && let Some(any) = json_to_any(&value)
        {
            own.extensions.insert(name.to_owned(), any);
        }
    }
    own
}

/// Returns what pools filter a backfill by.
pub(crate) fn backfill_filter_input(wire: &openmatch::Backfill) -> (SearchFields, Moment) {
    let fields = wire.search_fields.as_option().cloned().map(fields_from_wire).unwrap_or_default();
    let created = wire.create_time.as_option().map(moment_from_timestamp).unwrap_or_default();
    (fields, created)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::text_to_any;

    fn sample() -> openmatch::Backfill {
        openmatch::Backfill {
            id: "theirs".to_owned(),
            search_fields: MessageField::some(openmatch::SearchFields {
                string_args: [("map".to_owned(), "desert".to_owned())].into_iter().collect(),
                tags: vec!["beta".to_owned()],
                ..Default::default()
            }),
            extensions: [("slots".to_owned(), text_to_any("2"))].into_iter().collect(),
            persistent_field: [("server".to_owned(), text_to_any("s1"))].into_iter().collect(),
            generation: 42,
            ..Default::default()
        }
    }

    #[test]
    fn parts_are_the_whole_backfill_with_our_id_time_and_generation() {
        let created = Moment::from_nanos(1_800_000_000_000_000_001);
        let id = BackfillId::generate(created);
        let NewBackfill { fixed, fields, persistent, .. } = new_backfill(id.clone(), created, sample());
        let data = BackfillData { generation: 1, fixed, fields, persistent, room: None };
        let expected = openmatch::Backfill {
            id: id.to_string(),
            create_time: MessageField::some(timestamp(created)),
            generation: 1,
            ..sample()
        };
        assert_eq!(backfill_from_parts(&data), Some(expected));
    }

    #[test]
    fn replaced_part_leaves_nothing_of_the_old_one() {
        let id = BackfillId::generate(Moment::default());
        let NewBackfill { fixed, persistent, .. } = new_backfill(id, Moment::default(), sample());
        let (fields, _) = backfill_parts(openmatch::Backfill::default());
        let data = BackfillData { generation: 2, fixed, fields, persistent, room: None };
        let read = backfill_from_parts(&data).unwrap();
        assert!(read.extensions.is_empty() && !read.search_fields.is_set());
        assert_eq!(read.persistent_field, sample().persistent_field);
    }

    #[test]
    fn decoding_a_stored_backfill_never_panics() {
        let NewBackfill { fixed, fields, .. } =
            new_backfill(BackfillId::generate(Moment::default()), Moment::default(), sample());
        testkit::fuzz("open-match-backfill", &[fixed.to_vec(), fields.to_vec()], |input| {
            let fields = Bytes::copy_from_slice(input);
            let read = backfill_from_parts(&BackfillData { fields, ..BackfillData::default() });
            read.as_ref().map(backfill_filter_input).is_some()
        });
    }
}
