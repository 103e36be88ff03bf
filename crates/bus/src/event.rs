//! An event, and how it is written.

use base::{Timestamp, typed_id};
use bytes::Bytes;
use serde::Serialize;
use serde::de::IgnoredAny;

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
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    text.split('.').all(is_word)
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
}
