//! An event, and how it is written.

use std::borrow::Cow;
use std::fmt::Display;

use base::{Timestamp, typed_id};
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;

/// Completes the sentence "must be …".
pub(crate) const SUBJECT_FORM: &str = "words of letters, digits, `_` and `-`, separated by dots";

typed_id!(
    /// One event. The stream stores each id once, so what is published again has the id it had at first.
    EventId
);

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: EventId,
    /// Where it is published, below `bus.subjects`: `match.made`.
    pub subject: String,
    /// What kind of thing has happened, with the version of its data: `playhouse.match.made.v1`.
    pub kind: String,
    /// The part that tells: `/playhouse/matchmaking`.
    pub source: String,
    pub time: Timestamp,
    /// What it happened to. Readers that work in parallel keep the order of events with the same key.
    pub key: Option<String>,
    /// The W3C trace that it belongs to.
    pub traceparent: Option<String>,
    pub data: Json,
}

/// A JSON text that is known to be sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(|text| Self(text.into()))
    }

    /// Takes a text that is JSON already.
    pub fn from_text(text: impl Into<Bytes>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        serde_json::from_slice::<IgnoredAny>(&text)?;
        Ok(Self(text))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// All of a CloudEvent but its data.
#[derive(Serialize)]
struct Head<'a> {
    specversion: &'static str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitionkey: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    datacontenttype: &'static str,
}

/// What we read of a CloudEvent.
#[derive(Deserialize)]
struct Found<'a> {
    #[serde(borrow)]
    specversion: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    time: Cow<'a, str>,
    partitionkey: Option<String>,
    traceparent: Option<String>,
    /// As it is written: to parse it and write it again might change its numbers.
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Event {
    /// As a CloudEvent in structured mode.
    pub(crate) fn encode(&self) -> Result<Bytes, Error> {
        let head = Head {
            specversion: "1.0",
            id: self.id.to_string(),
            source: &self.source,
            kind: &self.kind,
            time: self.time.to_rfc3339(),
            partitionkey: self.key.as_deref(),
            traceparent: self.trace(),
            datacontenttype: "application/json",
        };
        let mut body = serde_json::to_vec(&head).map_err(|error| Error::Event(error.to_string()))?;
        // The data is JSON already; to parse it only to write it again would cost more than all the rest.
        body.pop();
        body.extend_from_slice(b",\"data\":");
        body.extend_from_slice(self.data.as_bytes());
        body.push(b'}');
        Ok(body.into())
    }

    /// From a CloudEvent in structured mode, as it was delivered.
    pub fn decode(subject: &str, body: &[u8]) -> Result<Self, Error> {
        fn wrong(what: &str, text: &str, why: impl Display) -> Error {
            Error::Unreadable(format!("its {what} {text:?}: {why}"))
        }
        let found: Found<'_> =
            serde_json::from_slice(body).map_err(|error| Error::Unreadable(error.to_string()))?;
        if !found.specversion.starts_with("1.") {
            return Err(wrong("specversion", &found.specversion, "we read 1.0"));
        }
        Ok(Self {
            id: found.id.parse().map_err(|error| wrong("id", &found.id, error))?,
            subject: subject.to_owned(),
            kind: found.kind,
            source: found.source,
            time: found.time.parse().map_err(|error| wrong("time", &found.time, error))?,
            key: found.partitionkey,
            traceparent: found.traceparent,
            data: Json(Bytes::copy_from_slice(found.data.get().as_bytes())),
        })
    }

    /// The trace, if it is one: a broken trace does not keep an event from being told.
    pub(crate) fn trace(&self) -> Option<&str> {
        let is_sound = |text: &&str| {
            text.len() == 55 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f' | b'-'))
        };
        self.traceparent.as_deref().filter(is_sound)
    }

    /// Where it is published below the prefix of all subjects.
    pub(crate) fn full_subject(&self, prefix: &str) -> Result<String, Error> {
        if is_subject(&self.subject) {
            Ok(format!("{prefix}.{}", self.subject))
        } else {
            Err(Error::Event(format!("its subject {:?} is not made of {SUBJECT_FORM}", self.subject)))
        }
    }
}

/// Whether NATS takes it for the name of one place: no empty words, no wildcards, nothing that ends a line.
pub(crate) fn is_subject(text: &str) -> bool {
    text.split('.').all(is_word)
}

/// Whether it is one word of a subject, and no wildcard.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event() -> Event {
        Event {
            id: "0198c0de-0000-7000-8000-000000000001".parse().unwrap(),
            subject: "match.made".to_owned(),
            kind: "playhouse.match.made.v1".to_owned(),
            source: "/playhouse/matchmaking".to_owned(),
            time: Timestamp::from_millis(1_772_366_400_120),
            key: Some("duel".to_owned()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            data: Json::of(&json!({"players": ["a", "b"]})).unwrap(),
        }
    }

    #[test]
    fn an_event_is_written_as_a_cloud_event() {
        let body: Value = serde_json::from_slice(&event().encode().unwrap()).unwrap();
        let expected = json!({
            "specversion": "1.0",
            "id": "0198c0de-0000-7000-8000-000000000001",
            "source": "/playhouse/matchmaking",
            "type": "playhouse.match.made.v1",
            "time": "2026-03-01T12:00:00.120Z",
            "partitionkey": "duel",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "datacontenttype": "application/json",
            "data": {"players": ["a", "b"]},
        });
        assert_eq!(body, expected);
        let bare = Event { key: None, traceparent: Some("x\r\ny".to_owned()), ..event() };
        let body: Value = serde_json::from_slice(&bare.encode().unwrap()).unwrap();
        assert!(body.get("partitionkey").is_none() && body.get("traceparent").is_none(), "{body}");
    }

    #[test]
    fn what_was_written_is_read() {
        let exact =
            Json::from_text(r#"{ "price": 1.10, "stock": 123456789012345678901234567890, "\u00e4": null }"#);
        let bare = Event { key: None, traceparent: None, data: exact.unwrap(), ..event() };
        let odd = Event { kind: "\"quoted\"\n".to_owned(), source: "ä".to_owned(), ..event() };
        for event in [event(), bare, odd] {
            assert_eq!(Event::decode(&event.subject, &event.encode().unwrap()).unwrap(), event);
        }
    }

    #[test]
    fn what_is_no_event_is_refused_with_the_cause() {
        let sound: Value = serde_json::from_slice(&event().encode().unwrap()).unwrap();
        let with = |key: &str, value: Value| {
            let mut body = sound.clone();
            body[key] = value;
            Event::decode("a", body.to_string().as_bytes())
        };
        let extended = with("theirs", json!({"a": 1})).unwrap();
        assert_eq!(extended.id, event().id);
        for (key, value) in [
            ("specversion", json!("0.3")),
            ("id", json!("A234-1234")),
            ("time", json!("yesterday")),
            ("type", json!(7)),
            ("source", json!(null)),
        ] {
            let error = with(key, value).unwrap_err();
            assert!(matches!(error, Error::Unreadable(_)), "{key}: {error:?}");
        }
        for wrong in ["", "{}", "[]", "null", "\u{0}"] {
            assert!(matches!(Event::decode("a", wrong.as_bytes()), Err(Error::Unreadable(_))), "{wrong}");
        }
    }

    #[test]
    fn data_that_is_no_json_is_refused() {
        assert!(Json::from_text(r#"{"a":1}"#).is_ok());
        for wrong in ["", "{", "{} {}", "a"] {
            assert!(Json::from_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_subject_names_one_place() {
        assert_eq!(event().full_subject("playhouse").unwrap(), "playhouse.match.made");
        for wrong in ["", ".", "a.", "a..b", "a b", "a.*", ">", "a\r\nPUB x", "ä"] {
            let event = Event { subject: wrong.to_owned(), ..event() };
            assert!(matches!(event.full_subject("p"), Err(Error::Event(_))), "{wrong}");
        }
    }

    #[test]
    fn no_message_breaks_the_intake() {
        let whole = event().encode().unwrap();
        let bare = Event { key: None, traceparent: None, ..event() }.encode().unwrap();
        testkit::fuzz("cloud-events", &[whole, bare], |input| {
            let Ok(event) = Event::decode("match.made", input) else { return false };
            // What was read can be written, and is read again as the same.
            let again = Event::decode("match.made", &event.encode().unwrap()).unwrap();
            assert_eq!((again.id, &again.kind, &again.data), (event.id, &event.kind, &event.data));
            true
        });
    }
}
