//! Events, and their encoding as CloudEvents.

use std::borrow::Cow;
use std::fmt::Display;

use base::{Timestamp, typed_id};
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::Error;

/// Completes the sentence "must be …".
pub(crate) const SUBJECT_FORM: &str = "words of letters, digits, `_` and `-`, separated by dots";

typed_id!(
    /// The id of an event. The stream stores each id once, so a repeated publication must use the same id.
    EventId
);

impl EventId {
    /// Returns the id of a CloudEvent. Other programs may use ids that are not UUIDs, which are unique per source only. Such an id is
    /// derived from the source and the text, so an event that arrives again has the same id.
    fn from_cloud_event(source: &str, id: &str) -> Self {
        id.parse().unwrap_or_else(|_| {
            let mut digest = Sha256::new();
            for part in [source, id] {
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
            let digest: [u8; 32] = digest.finalize().into();
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&digest[..16]);
            Self::from_uuid(base::id::derived(bytes))
        })
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: EventId,
    /// The subject below `bus.subjects`: `match.made`.
    pub subject: String,
    /// The type of the event, with the version of its data: `playhouse.match.made.v1`.
    pub kind: String,
    /// The service that publishes it: `/playhouse/matchmaking`.
    pub source: String,
    pub time: Timestamp,
    /// The entity it is about. Parallel readers keep the order of events with the same key.
    pub key: Option<String>,
    /// The W3C trace context.
    pub traceparent: Option<String>,
    pub data: Json,
}

/// A valid JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    /// Serializes a value.
    pub fn from_value(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(|text| Self(text.into()))
    }

    /// Validates a text as JSON and keeps it unchanged.
    pub fn from_text(text: impl Into<Bytes>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        serde_json::from_slice::<IgnoredAny>(&text)?;
        Ok(Self(text))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The attributes of a CloudEvent, without its data.
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

/// The fields of a CloudEvent that are read.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    specversion: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    /// Optional in the standard.
    time: Option<String>,
    partitionkey: Option<String>,
    traceparent: Option<String>,
    /// Optional in the standard. Kept as it is written: to parse it and write it again might change its numbers.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

impl Event {
    /// Encodes the event as a CloudEvent in structured mode.
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
        // The data is JSON already. Parsing it to write it again would cost more than everything else.
        body.pop();
        body.extend_from_slice(b",\"data\":");
        body.extend_from_slice(self.data.as_bytes());
        body.push(b'}');
        Ok(body.into())
    }

    /// Parses a CloudEvent in structured mode, as it was delivered. An event without a time gets the time at which it was `received`, and
    /// one without data gets `null`.
    pub fn decode(subject: &str, body: &[u8], received: Timestamp) -> Result<Self, Error> {
        fn invalid(what: &str, text: &str, why: impl Display) -> Error {
            Error::Unreadable(format!("its {what} {text:?}: {why}"))
        }
        let envelope: Envelope<'_> =
            serde_json::from_slice(body).map_err(|error| Error::Unreadable(error.to_string()))?;
        if !envelope.specversion.starts_with("1.") {
            return Err(invalid("specversion", &envelope.specversion, "only 1.x is supported"));
        }
        if envelope.id.is_empty() {
            return Err(invalid("id", &envelope.id, "it must not be empty"));
        }
        let time = match &envelope.time {
            Some(time) => time.parse().map_err(|error| invalid("time", time, error))?,
            None => received,
        };
        let data = envelope.data.map_or("null", RawValue::get);
        Ok(Self {
            id: EventId::from_cloud_event(&envelope.source, &envelope.id),
            subject: subject.to_owned(),
            kind: envelope.kind,
            source: envelope.source,
            time,
            key: envelope.partitionkey,
            traceparent: envelope.traceparent,
            data: Json(Bytes::copy_from_slice(data.as_bytes())),
        })
    }

    /// Returns the trace context if it is valid. An invalid one does not keep the event from being published.
    pub(crate) fn trace(&self) -> Option<&str> {
        let is_valid = |text: &&str| {
            text.len() == 55 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f' | b'-'))
        };
        self.traceparent.as_deref().filter(is_valid)
    }

    /// Returns the subject with its prefix. Fails if the subject is invalid.
    pub(crate) fn full_subject(&self, prefix: &str) -> Result<String, Error> {
        if is_subject(&self.subject) {
            Ok(format!("{prefix}.{}", self.subject))
        } else {
            Err(Error::Event(format!("its subject {:?} must be {SUBJECT_FORM}", self.subject)))
        }
    }
}

/// Returns whether NATS accepts this as one subject: no empty words, no wildcards, no line breaks.
pub(crate) fn is_subject(text: &str) -> bool {
    text.split('.').all(is_word)
}

/// Returns whether this is one word of a subject, and not a wildcard.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RECEIVED: Timestamp = Timestamp::from_millis(1_772_366_500_000);

    fn event() -> Event {
        Event {
            id: "0198c0de-0000-7000-8000-000000000001".parse().unwrap(),
            subject: "match.made".to_owned(),
            kind: "playhouse.match.made.v1".to_owned(),
            source: "/playhouse/matchmaking".to_owned(),
            time: Timestamp::from_millis(1_772_366_400_120),
            key: Some("duel".to_owned()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            data: Json::from_value(&json!({"players": ["a", "b"]})).unwrap(),
        }
    }

    #[test]
    fn event_is_encoded_as_a_cloud_event() {
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
    fn encoded_event_is_decoded() {
        let exact =
            Json::from_text(r#"{ "price": 1.10, "stock": 123456789012345678901234567890, "\u00e4": null }"#);
        let bare = Event { key: None, traceparent: None, data: exact.unwrap(), ..event() };
        let odd = Event { kind: "\"quoted\"\n".to_owned(), source: "ä".to_owned(), ..event() };
        for event in [event(), bare, odd] {
            assert_eq!(Event::decode(&event.subject, &event.encode().unwrap(), RECEIVED).unwrap(), event);
        }
    }

    #[test]
    fn invalid_event_is_refused_with_the_cause() {
        let valid: Value = serde_json::from_slice(&event().encode().unwrap()).unwrap();
        let with = |key: &str, value: Value| {
            let mut body = valid.clone();
            body[key] = value;
            Event::decode("a", body.to_string().as_bytes(), RECEIVED)
        };
        let extended = with("theirs", json!({"a": 1})).unwrap();
        assert_eq!(extended.id, event().id);
        for (key, value) in [
            ("specversion", json!("0.3")),
            ("id", json!("")),
            ("id", json!(7)),
            ("time", json!("yesterday")),
            ("type", json!(7)),
            ("source", json!(null)),
        ] {
            let error = with(key, value).unwrap_err();
            assert!(matches!(error, Error::Unreadable(_)), "{key}: {error:?}");
        }
        for wrong in ["", "{}", "[]", "null", "\u{0}"] {
            let decoded = Event::decode("a", wrong.as_bytes(), RECEIVED);
            assert!(matches!(decoded, Err(Error::Unreadable(_))), "{wrong}");
        }
    }

    #[test]
    fn optional_attributes_may_be_absent() {
        let minimal =
            json!({"specversion": "1.0", "id": "A234-1234", "source": "/shop", "type": "shop.sold.v1"});
        let decode = |event: &Value| Event::decode("shop", event.to_string().as_bytes(), RECEIVED).unwrap();
        let decoded = decode(&minimal);
        assert_eq!((decoded.time, decoded.data.as_bytes()), (RECEIVED, &b"null"[..]));
        let mut full = minimal.clone();
        full["time"] = json!("2026-03-01T12:00:00Z");
        full["data"] = json!({"a": 1});
        let decoded = decode(&full);
        assert_eq!(decoded.time, Timestamp::from_millis(1_772_366_400_000));
        assert_eq!(decoded.data.as_bytes(), br#"{"a":1}"#);
        full["time"] = Value::Null;
        assert_eq!(decode(&full).time, RECEIVED);
    }

    /// The expected id was computed by another program. It must never change, or an event repeated after an upgrade would be new.
    #[test]
    fn id_that_is_no_uuid_is_derived_from_source_and_id() {
        let id = |source, id| EventId::from_cloud_event(source, id);
        assert_eq!(id("/shop", "0198c0de-0000-7000-8000-000000000001"), event().id, "a UUID is unchanged");
        assert_eq!(id("/shop", "A234-1234").to_string(), "d991a91c-fc75-86a3-928e-cac0addacf84");
        assert_eq!(id("/shop", "A234-1234"), id("/shop", "A234-1234"));
        assert_ne!(id("/shop", "A234-1234"), id("/shop/2", "A234-1234"));
        assert_ne!(id("/shop", "A234-1234"), id("/shop", "A234-1235"));
        assert_ne!(id("/shop", "x"), id("/sho", "px"));
    }

    #[test]
    fn invalid_json_is_refused() {
        assert!(Json::from_text(r#"{"a":1}"#).is_ok());
        for wrong in ["", "{", "{} {}", "a"] {
            assert!(Json::from_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn subject_has_no_wildcards() {
        assert_eq!(event().full_subject("playhouse").unwrap(), "playhouse.match.made");
        for wrong in ["", ".", "a.", "a..b", "a b", "a.*", ">", "a\r\nPUB x", "ä"] {
            let event = Event { subject: wrong.to_owned(), ..event() };
            assert!(matches!(event.full_subject("p"), Err(Error::Event(_))), "{wrong}");
        }
    }

    #[test]
    fn decoder_survives_any_input() {
        let whole = event().encode().unwrap();
        let bare = Event { key: None, traceparent: None, ..event() }.encode().unwrap();
        testkit::fuzz("cloud-events", &[whole, bare], |input| {
            let Ok(event) = Event::decode("match.made", input, RECEIVED) else { return false };
            // A decoded event can be encoded, and decodes to the same event.
            let again = Event::decode("match.made", &event.encode().unwrap(), RECEIVED).unwrap();
            assert_eq!((again.id, &again.kind, &again.data), (event.id, &event.kind, &event.data));
            true
        });
    }
}
