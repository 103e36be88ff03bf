//! The description of every event that is published.

use bus::EventKind;
use serde_json::{Map, Value, json};
use service::Services;

use crate::VERSION;

/// The events of these services in AsyncAPI 3.0.
pub(crate) fn document(services: Services) -> Value {
    let (mut channels, mut operations, mut messages) = (Map::new(), Map::new(), Map::new());
    for EventKind { kind, summary, key, schema } in services.events() {
        let message = json!({ "$ref": format!("#/components/messages/{kind}") });
        channels.insert(kind.to_owned(), json!({ "address": kind, "messages": { kind: message } }));
        operations.insert(
            format!("tell.{kind}"),
            json!({ "action": "send", "channel": { "$ref": format!("#/channels/{kind}") }, "summary": summary }),
        );
        messages.insert(kind.to_owned(), message_of(kind, summary, key, &schema));
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events of Playhouse",
            "version": VERSION,
            "description": "CloudEvents 1.0 in JSON, in the JetStream stream `bus.stream`. The subject is the event's type; where \
                `bus.subjects` is not \"playhouse\", that takes the place of the first word. Every event is stored at least once, \
                and twice only if NATS has forgotten it: tell repeats by their id. Events with the same partitionkey come in order.",
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages },
    })
}

fn message_of(kind: &str, summary: &str, key: &str, data: &Value) -> Value {
    let trace =
        json!({ "type": "string", "description": "The W3C trace that it belongs to, if there is one." });
    json!({
        "name": kind,
        "summary": summary,
        "headers": {
            "type": "object",
            "required": ["Nats-Msg-Id"],
            "properties": {
                "Nats-Msg-Id": { "type": "string", "description": "The event's id." },
                "traceparent": trace,
            },
        },
        "payload": {
            "type": "object",
            "required": ["specversion", "id", "source", "type", "time", "partitionkey", "datacontenttype", "data"],
            "properties": {
                "specversion": { "const": "1.0" },
                "id": { "type": "string", "format": "uuid" },
                "source": { "type": "string" },
                "type": { "const": kind },
                "time": { "type": "string", "format": "date-time" },
                "partitionkey": { "type": "string", "description": format!("What it happened to: {key}") },
                "traceparent": trace,
                "datacontenttype": { "const": "application/json" },
                "data": data,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::SERVICES;

    /// `docs/asyncapi.json` is this document. INSTA_UPDATE=always writes it anew.
    #[test]
    fn the_document_in_docs_is_true() {
        crate::assert_in_docs("asyncapi.json", &document(SERVICES));
    }

    #[test]
    fn every_kind_has_a_version_and_a_schema_without_references() {
        for event in SERVICES.events() {
            let (prefix, version) = event.kind.rsplit_once(".v").unwrap();
            assert!(prefix.starts_with("playhouse.") && version.parse::<u32>().is_ok(), "{}", event.kind);
            assert!(event.schema["properties"].is_object(), "{}", event.kind);
            assert!(!event.schema.to_string().contains("$ref"), "{}", event.kind);
        }
    }
}
