//! The format of an outbox row: a line of JSON with the event's attributes, then its data unchanged.
//!
//! The first line of a single event is an object. The first line of a batch is an array with one object per event.

use std::borrow::Cow;

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventId, Json};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// An event's attributes, without its id (which is the row's id) and its data.
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

/// The marker at the start of a payload that holds no event.
pub(crate) const UNREADABLE: &[u8] = b"unreadable\n";

/// The attributes of one event in a batch row. An absent attribute equals that of the previous event: events of a batch differ little.
#[derive(Default, Serialize, Deserialize)]
struct BatchHead<'a> {
    id: Uuid,
    /// The size of its data in bytes.
    size: usize,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    subject: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    source: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time: Option<i64>,
    #[serde(borrow, default, skip_serializing_if = "Key::is_id")]
    key: Key<'a>,
    /// Empty if the event has no trace.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'a, str>>,
}

/// The key of an event in a batch row.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Key<'a> {
    /// The event's own id.
    #[default]
    Id,
    None,
    #[serde(borrow, rename = "of")]
    Named(Cow<'a, str>),
}

impl Key<'_> {
    const fn is_id(&self) -> bool {
        matches!(self, Self::Id)
    }
}

/// Why a row cannot be read as events.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the row has no data")]
    NoData,
    #[error("the row holds bytes that could not be read when they were recorded")]
    Recorded,
    #[error("the first event of the row lacks a field")]
    Incomplete,
    #[error("the row has less data than its events say")]
    TooShort,
    #[error("the row cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Encodes one event as the payload of a row.
pub(crate) fn encode(event: &Event) -> Vec<u8> {
    let head = Head {
        subject: event.subject.as_str().into(),
        kind: event.kind.as_str().into(),
        source: event.source.as_str().into(),
        time: event.time.as_millis(),
        key: event.key.as_deref().map(Cow::from),
        traceparent: event.traceparent.as_deref().map(Cow::from),
    };
    // Serializing strings and a number cannot fail.
    let mut payload = serde_json::to_vec(&head).unwrap_or_default();
    payload.push(b'\n');
    payload.extend_from_slice(event.data.as_bytes());
    payload
}

/// Encodes events as the payload of one row.
pub(crate) fn encode_batch(events: &[Event]) -> Vec<u8> {
    let mut previous: Option<&Event> = None;
    let mut heads = Vec::with_capacity(events.len());
    for event in events {
        let last = previous.replace(event);
        let changed = |get: fn(&Event) -> &str| {
            let value = get(event);
            (last.map(get) != Some(value)).then_some(Cow::from(value))
        };
        heads.push(BatchHead {
            id: *event.id.as_uuid(),
            size: event.data.as_bytes().len(),
            subject: changed(|event| &event.subject),
            kind: changed(|event| &event.kind),
            source: changed(|event| &event.source),
            time: Some(event.time.as_millis()).filter(|_| last.map(|last| last.time) != Some(event.time)),
            key: match &event.key {
                None => Key::None,
                Some(key) if *key == event.id.to_string() => Key::Id,
                Some(key) => Key::Named(key.into()),
            },
            traceparent: changed(|event| event.traceparent.as_deref().unwrap_or_default()),
        });
    }
    // Serializing strings and numbers cannot fail.
    let mut payload = serde_json::to_vec(&heads).unwrap_or_default();
    payload.push(b'\n');
    events.iter().for_each(|event| payload.extend_from_slice(event.data.as_bytes()));
    payload
}

/// Returns the text by which a batch row names an event.
pub(crate) fn batched_id(id: Uuid) -> String {
    format!("{{\"id\":\"{id}\",\"size\":")
}

/// Returns how many events a row holds, without decoding them. An unreadable row counts as one.
pub(crate) fn count(payload: &[u8]) -> usize {
    if !is_batch(payload) {
        return 1;
    }
    let heads =
        split(payload).ok().and_then(|(head, _)| serde_json::from_slice::<Vec<IgnoredAny>>(head).ok());
    heads.map_or(1, |heads| heads.len())
}

pub(crate) fn is_batch(payload: &[u8]) -> bool {
    payload.first() == Some(&b'[')
}

/// Decodes the events of a row: those of a batch, or the single one that has the row's id.
pub(crate) fn decode_all(id: Uuid, payload: &[u8]) -> Result<Vec<Event>, Unreadable> {
    if payload.starts_with(UNREADABLE) {
        return Err(Unreadable::Recorded);
    }
    if !is_batch(payload) {
        return Ok(vec![decode(id, payload)?]);
    }
    let (heads, mut data) = split(payload)?;
    let heads: Vec<BatchHead<'_>> = serde_json::from_slice(heads)?;
    let mut events: Vec<Event> = Vec::with_capacity(heads.len());
    for head in heads {
        let body;
        (body, data) = data.split_at_checked(head.size).ok_or(Unreadable::TooShort)?;
        let last = events.last();
        let text = |value: Option<Cow<'_, str>>, get: fn(&Event) -> &str| {
            let value = value.map(Cow::into_owned).or_else(|| last.map(|last| get(last).to_owned()));
            value.ok_or(Unreadable::Incomplete)
        };
        let traceparent = text(head.traceparent, |event| event.traceparent.as_deref().unwrap_or_default())?;
        let event = Event {
            id: EventId::from_uuid(head.id),
            subject: text(head.subject, |event| &event.subject)?,
            kind: text(head.kind, |event| &event.kind)?,
            source: text(head.source, |event| &event.source)?,
            time: match head.time {
                Some(time) => Timestamp::from_millis(time),
                None => last.map(|last| last.time).ok_or(Unreadable::Incomplete)?,
            },
            key: match head.key {
                Key::Id => Some(head.id.to_string()),
                Key::None => None,
                Key::Named(key) => Some(key.into_owned()),
            },
            traceparent: Some(traceparent).filter(|trace| !trace.is_empty()),
            data: Json::from_text(body.to_vec())?,
        };
        events.push(event);
    }
    Ok(events)
}

/// Splits a payload into its first line and the rest.
fn split(payload: &[u8]) -> Result<(&[u8], &[u8]), Unreadable> {
    // A line break inside a JSON string is escaped.
    let end = payload.iter().position(|byte| *byte == b'\n').ok_or(Unreadable::NoData)?;
    let (head, data) = payload.split_at(end);
    Ok((head, data.get(1..).unwrap_or_default()))
}

fn decode(id: Uuid, payload: &[u8]) -> Result<Event, Unreadable> {
    let (head, data) = split(payload)?;
    let head: Head<'_> = serde_json::from_slice(head)?;
    Ok(Event {
        id: EventId::from_uuid(id),
        subject: head.subject.into_owned(),
        kind: head.kind.into_owned(),
        source: head.source.into_owned(),
        time: Timestamp::from_millis(head.time),
        key: head.key.map(Cow::into_owned),
        traceparent: head.traceparent.map(Cow::into_owned),
        data: Json::from_text(data.to_vec())?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_round_trips_through_a_row() {
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
            data: Json::from_value(&json!([])).unwrap(),
            ..event
        };
        assert_eq!(decode(*traced.id.as_uuid(), &encode(&traced)).unwrap(), traced);
    }

    #[test]
    fn events_round_trip_through_a_batch_row() {
        let id = EventId::generate();
        let first = Event {
            id,
            subject: "match.made.v1".to_owned(),
            kind: "playhouse.match.made.v1".to_owned(),
            source: "/playhouse/matchmaking".to_owned(),
            time: Timestamp::from_millis(1_772_366_400_120),
            key: Some(id.to_string()),
            traceparent: Some("00-1".to_owned()),
            data: Json::from_text("{\n  \"spread\": \"over lines\"\n}").unwrap(),
        };
        let alike =
            Event { id: EventId::generate(), data: Json::from_value(&json!([])).unwrap(), ..first.clone() };
        let other = Event {
            id: EventId::generate(),
            subject: "other".to_owned(),
            kind: "kind".to_owned(),
            source: "source".to_owned(),
            time: Timestamp::from_millis(1),
            key: None,
            traceparent: None,
            data: Json::from_value(&json!("ä")).unwrap(),
        };
        let events = [first, alike, other.clone(), other];
        let row = encode_batch(&events);
        assert_eq!(decode_all(Uuid::nil(), &row).unwrap(), events);
        let text = String::from_utf8(row.clone()).unwrap();
        assert!(events.iter().all(|event| text.contains(&batched_id(*event.id.as_uuid()))), "{text}");
        assert_eq!(count(&row), 4);
        assert_eq!(decode_all(Uuid::nil(), &encode_batch(&[])).unwrap(), []);
        let single = encode(&events[0]);
        assert_eq!(decode_all(*events[0].id.as_uuid(), &single).unwrap(), events[..1]);
        assert_eq!(count(&single), 1);
        assert!(decode_all(Uuid::nil(), &row[..row.len() - 1]).is_err());
    }

    #[test]
    fn invalid_rows_are_unreadable() {
        for row in [
            "",
            "{}",
            "{}\n{}",
            "not\njson",
            "[",
            "[{}]\n{}",
            "[{\"id\":\"00000000-0000-0000-0000-000000000000\",\"size\":9}]\n{}",
            "{\"subject\":\"a\",\"kind\":\"b\",\"source\":\"c\",\"time\":1}\n{",
        ] {
            assert!(decode_all(Uuid::nil(), row.as_bytes()).is_err(), "{row}");
        }
    }
}
