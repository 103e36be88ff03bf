//! Events as a row keeps them: a line of JSON with all that is around the data, then the data as it is.
//!
//! A row of one event has an object in its first line, a batch row an array with an object for each event.

use std::borrow::Cow;

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventId, Json};
use serde::de::IgnoredAny;
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

/// How the payload of a row begins that holds no event.
pub(crate) const UNREADABLE: &[u8] = b"unreadable\n";

/// One event of a batch row. What is absent is as in the event before: the events of a batch differ in little.
#[derive(Default, Serialize, Deserialize)]
struct BatchHead<'a> {
    id: Uuid,
    /// How many bytes its data has.
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
    /// Empty for none.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'a, str>>,
}

/// The key of an event in a batch row.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Key<'a> {
    /// Its own id.
    #[default]
    Id,
    None,
    #[serde(borrow)]
    Of(Cow<'a, str>),
}

impl Key<'_> {
    const fn is_id(&self) -> bool {
        matches!(self, Self::Id)
    }
}

/// The row does not hold an event.
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

/// Writes events into one row.
pub(crate) fn encode_batch(events: &[Event]) -> Vec<u8> {
    let mut before: Option<&Event> = None;
    let mut heads = Vec::with_capacity(events.len());
    for event in events {
        let last = before.replace(event);
        let changed = |of: fn(&Event) -> &str| {
            let value = of(event);
            (last.map(of) != Some(value)).then_some(Cow::from(value))
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
                Some(key) => Key::Of(key.into()),
            },
            traceparent: changed(|event| event.traceparent.as_deref().unwrap_or_default()),
        });
    }
    // Strings and numbers can always be written.
    let mut payload = serde_json::to_vec(&heads).unwrap_or_default();
    payload.push(b'\n');
    events.iter().for_each(|event| payload.extend_from_slice(event.data.as_bytes()));
    payload
}

/// How many events a row holds, without reading them. One that cannot be read counts as one.
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

/// Reads the events of a row: those of a batch, or the one that has the row's id.
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
        let own;
        (own, data) = data.split_at_checked(head.size).ok_or(Unreadable::TooShort)?;
        let last = events.last();
        let text = |value: Option<Cow<'_, str>>, of: fn(&Event) -> &str| {
            let value = value.map(Cow::into_owned).or_else(|| last.map(|last| of(last).to_owned()));
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
                Key::Of(key) => Some(key.into_owned()),
            },
            traceparent: Some(traceparent).filter(|trace| !trace.is_empty()),
            data: Json::from_text(own.to_vec())?,
        };
        events.push(event);
    }
    Ok(events)
}

/// The first line, and what follows it.
fn split(payload: &[u8]) -> Result<(&[u8], &[u8]), Unreadable> {
    // A line break inside of a JSON text is written as an escape.
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
    fn events_survive_a_batch_row() {
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
        let alike = Event { id: EventId::generate(), data: Json::of(&json!([])).unwrap(), ..first.clone() };
        let other = Event {
            id: EventId::generate(),
            subject: "other".to_owned(),
            kind: "kind".to_owned(),
            source: "source".to_owned(),
            time: Timestamp::from_millis(1),
            key: None,
            traceparent: None,
            data: Json::of(&json!("ä")).unwrap(),
        };
        let events = [first, alike, other.clone(), other];
        let row = encode_batch(&events);
        assert_eq!(decode_all(Uuid::nil(), &row).unwrap(), events);
        assert_eq!(count(&row), 4);
        assert_eq!(decode_all(Uuid::nil(), &encode_batch(&[])).unwrap(), []);
        let single = encode(&events[0]);
        assert_eq!(decode_all(*events[0].id.as_uuid(), &single).unwrap(), events[..1]);
        assert_eq!(count(&single), 1);
        assert!(decode_all(Uuid::nil(), &row[..row.len() - 1]).is_err());
    }

    #[test]
    fn what_is_no_event_is_said_to_be_none() {
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
