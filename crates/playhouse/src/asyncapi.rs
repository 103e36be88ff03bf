//! The AsyncAPI description of every event that is published.

use bus::EventKind;
use serde_json::{Map, Value, json};
use service::Services;

use crate::VERSION;

/// Returns the events of these services as an AsyncAPI 3.0 document.
pub(crate) fn document(services: Services) -> Value {
    let (mut channels, mut operations, mut messages) = (Map::new(), Map::new(), Map::new());
    for EventKind { kind, summary, key, schema } in services.events() {
        let message = json!({ "$ref": format!("#/components/messages/{kind}") });
        channels.insert(kind.to_owned(), json!({ "address": kind, "messages": { kind: message } }));
        operations.insert(
            format!("publish.{kind}"),
            json!({ "action": "send", "channel": { "$ref": format!("#/channels/{kind}") }, "summary": summary }),
        );
        messages.insert(kind.to_owned(), self::message(kind, summary, key, &schema));
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events of Playhouse",
            "version": VERSION,
            "description": "CloudEvents 1.0 in JSON, in the JetStream stream `bus.stream`. The subject is the type of the event, with \
                `bus.subjects` instead of its first word \"playhouse\". Events are delivered at least once: deduplicate them by \
                their id. Events with the same partitionkey arrive in order.",
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages },
    })
}

fn message(kind: &str, summary: &str, key: &str, data: &Value) -> Value {
    let trace =
        json!({ "type": "string", "description": "The W3C trace context of the event, if there is one." });
    json!({
        "name": kind,
        "summary": summary,
        "headers": {
            "type": "object",
            "required": ["Nats-Msg-Id"],
            "properties": {
                "Nats-Msg-Id": { "type": "string", "description": "The id of the event, by which NATS deduplicates." },
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
                "partitionkey": { "type": "string", "description": format!("The key of the event: {key}") },
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

    /// `docs/reference/asyncapi.json` is this document. INSTA_UPDATE=always updates it.
    #[test]
    fn document_in_docs_is_up_to_date() {
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
