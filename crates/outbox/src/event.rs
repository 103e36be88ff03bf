//! An event as a row keeps it: a line of JSON with all that is around the data, then the data as it is.

use std::borrow::Cow;

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventId, Json};
use serde::{Deserialize, Serialize};

/// All of an event but its id, which the row has, and its data.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
    time: i64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'a, str>>,
}

/// The row does not hold an event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the row has no data")]
    NoData,
    #[error("the row cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

pub(crate) fn encode(event: &Event) -> Vec<u8> {
    let head = Head {
        subject: event.subject.as_str().into(),
        kind: event.kind.as_str().into(),
        source: event.source.as_str().into(),
        time: event.time.as_millis(),
        key: event.key.as_deref().map(Cow::from),
        traceparent: event.traceparent.as_deref().map(Cow::from),
    };
    // Strings and a number can always be written.
    let mut payload = serde_json::to_vec(&head).unwrap_or_default();
    payload.push(b'\n');
    payload.extend_from_slice(event.data.as_bytes());
    payload
}

pub(crate) fn decode(id: Uuid, payload: &[u8]) -> Result<Event, Unreadable> {
    // A line break inside of a JSON text is written as an escape.
    let end = payload.iter().position(|byte| *byte == b'\n').ok_or(Unreadable::NoData)?;
    let (head, data) = payload.split_at(end);
    let head: Head<'_> = serde_json::from_slice(head)?;
    Ok(Event {
        id: EventId::from_uuid(id),
        subject: head.subject.into_owned(),
        kind: head.kind.into_owned(),
        source: head.source.into_owned(),
        time: Timestamp::from_millis(head.time),
        key: head.key.map(Cow::into_owned),
        traceparent: head.traceparent.map(Cow::into_owned),
        data: Json::from_text(data.get(1..).unwrap_or_default().to_vec())?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_survives_the_row() {
        let event = Event {
            id: EventId::generate(),
            subject: "entitlement.granted.v1".to_owned(),
            kind: "playhouse.entitlement.granted.v1".to_owned(),
            source: "/playhouse/entitlement".to_owned(),
            time: Timestamp::from_millis(1_772_366_400_120),
            key: Some("a \"key\"\nof two lines".to_owned()),
            traceparent: None,
            data: Json::from_text("{\n  \"spread\": \"over lines\"\n}").unwrap(),
        };
        let row = encode(&event);
        assert_eq!(decode(*event.id.as_uuid(), &row).unwrap(), event);
        let traced = Event {
            key: None,
            traceparent: Some("00-1".to_owned()),
            data: Json::of(&json!([])).unwrap(),
            ..event
        };
        assert_eq!(decode(*traced.id.as_uuid(), &encode(&traced)).unwrap(), traced);
    }

    #[test]
    fn what_is_no_event_is_said_to_be_none() {
        for row in [
            "",
            "{}",
            "{}\n{}",
            "not\njson",
            "{\"subject\":\"a\",\"kind\":\"b\",\"source\":\"c\",\"time\":1}\n{",
        ] {
            assert!(decode(Uuid::nil(), row.as_bytes()).is_err(), "{row}");
        }
    }
}
