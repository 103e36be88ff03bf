//! Field names as the .proto files write them.

use buffa_descriptor::{FieldKind, MessageDescriptor, SingularKind};
use serde_json::{Map, Value};

use super::SCHEMA;

/// Messages whose JSON has a form of its own, not an object of fields.
const WELL_KNOWN: &str = "google.protobuf.";
const ANY: &str = "google.protobuf.Any";

/// Renames the fields of a message in JSON from `searchFields` to `search_fields`, at any depth. Keys of maps stay.
pub(super) fn to_original(value: &mut Value, message: &MessageDescriptor) {
    let Value::Object(fields) = value else { return };
    if message.full_name() == ANY {
        to_original_any(value);
        return;
    }
    if message.full_name().starts_with(WELL_KNOWN) {
        return;
    }
    for (name, mut value) in std::mem::take(fields) {
        let field = message.fields().iter().find(|field| field.json_name() == name);
        match field.map(|field| field.kind()) {
            Some(FieldKind::Singular(kind)) => to_original_kind(&mut value, kind),
            Some(FieldKind::List(kind)) => {
                let items = value.as_array_mut().into_iter().flatten();
                items.for_each(|item| to_original_kind(item, kind));
            }
            Some(FieldKind::Map { value: kind, .. }) => {
                let entries = value.as_object_mut().into_iter().flat_map(Map::values_mut);
                entries.for_each(|entry| to_original_kind(entry, kind));
            }
            None => {}
        }
        fields.insert(field.map_or(name, |field| field.name().to_owned()), value);
    }
}

fn to_original_kind(value: &mut Value, kind: SingularKind) {
    if let SingularKind::Message(index) = kind {
        to_original(value, SCHEMA.message(index));
    }
}

/// Renames the fields of the message that an `Any` carries, if its type is known.
fn to_original_any(value: &mut Value) {
    let name = value["@type"].as_str().and_then(|url| url.rsplit('/').next());
    if let Some(message) = name.and_then(|name| SCHEMA.message_by_name(name))
        && message.full_name() != ANY
    {
        to_original(value, message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_renamed_and_keys_of_maps_are_not() {
        let message = SCHEMA.message_by_name("openmatch.Match").unwrap();
        let nested =
            json!({ "@type": "type.googleapis.com/openmatch.SearchFields", "doubleArgs": { "aB": 1.0 } });
        let foreign =
            json!({ "@type": "type.googleapis.com/google.protobuf.Struct", "value": { "aB": { "cD": 1 } } });
        let mut value = json!({
            "matchId": "m",
            "tickets": [{
                "createTime": "2026-03-01T12:00:00Z",
                "searchFields": { "stringArgs": { "gameMode": "x" } },
                "persistentField": { "myField": nested, "otherField": foreign },
            }],
            "allocateGameserver": true,
        });
        to_original(&mut value, message);
        let nested =
            json!({ "@type": "type.googleapis.com/openmatch.SearchFields", "double_args": { "aB": 1.0 } });
        let expected = json!({
            "match_id": "m",
            "tickets": [{
                "create_time": "2026-03-01T12:00:00Z",
                "search_fields": { "string_args": { "gameMode": "x" } },
                "persistent_field": { "myField": nested, "otherField": foreign },
            }],
            "allocate_gameserver": true,
        });
        assert_eq!(value, expected);
    }
}
