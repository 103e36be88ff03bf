//! Verifies requests that others have signed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::config::{InvalidValue, Setting, Value};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base::Timestamp;
use base64::Engine;
use http::{HeaderMap, HeaderName};

use crate::message::{ID, SIGNATURE, TIMESTAMP};
use crate::secret::{BASE64, PUBLIC, SYMMETRIC, SYMMETRIC_LENGTHS};

/// How many signatures of a request are checked: more than a sender has keys during a rotation.
const MAX_SIGNATURES: usize = 16;
const PUBLIC_LENGTH: usize = 32;

/// The keys of a sender. Each of them is accepted, so that the sender can switch to a new key at any time during a rotation.
#[derive(Clone)]
pub struct Verifier {
    keys: Arc<[Key]>,
}

enum Key {
    /// HMAC-SHA256.
    Symmetric(Box<hmac::Key>),
    Ed25519(Vec<u8>),
}

/// Why a text is not a key. The message does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVerifierKey {
    #[error("there is no key")]
    None,
    #[error("a key starts with {SYMMETRIC} or {PUBLIC}")]
    Prefix,
    #[error("the part after {SYMMETRIC} or {PUBLIC} must be base64")]
    Encoding,
    #[error(
        "the part after {SYMMETRIC} must be {} to {} bytes, the part after {PUBLIC} {PUBLIC_LENGTH}",
        SYMMETRIC_LENGTHS.start(),
        SYMMETRIC_LENGTHS.end()
    )]
    Length,
}

/// Why a request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the header {0} is missing or cannot be read")]
    Header(&'static str),
    /// A replayed request, or a wrong clock.
    #[error("webhook-timestamp is too far from the present time")]
    Time,
    #[error("no signature matches")]
    Signature,
}

/// A request whose signature is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedRequest {
    /// The message id. It is the same in all attempts of the sender.
    pub id: String,
    /// When this attempt was sent, to the second.
    pub sent_at: Timestamp,
}

impl Verifier {
    /// Parses keys in the format of Standard Webhooks: `whsec_` (HMAC-SHA256) or `whpk_` (an ed25519 public key), followed by base64.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidVerifierKey> {
        let keys: Arc<[Key]> = texts.into_iter().map(Key::parse).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(InvalidVerifierKey::None) } else { Ok(Self { keys }) }
    }

    /// Verifies that one of the keys has signed the request, at most `tolerance` from `now` in either direction.
    pub fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
        tolerance: Duration,
    ) -> Result<VerifiedRequest, VerifyError> {
        let text = |name: &HeaderName, shown| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.filter(|value| !value.is_empty()).ok_or(VerifyError::Header(shown))
        };
        let id = text(&ID, "webhook-id")?;
        // A full stop separates the id from the timestamp in the signed content.
        if id.contains('.') || id.len() > crate::message::MAX_ID {
            return Err(VerifyError::Header("webhook-id"));
        }
        let seconds = text(&TIMESTAMP, "webhook-timestamp")?;
        let signatures = text(&SIGNATURE, "webhook-signature")?;
        let unreadable = VerifyError::Header("webhook-timestamp");
        let number: i64 = seconds.parse().map_err(|_| unreadable)?;
        let sent_at = Timestamp::from_millis(number.checked_mul(1_000).ok_or(unreadable)?);
        let content = [id.as_bytes(), b".", seconds.as_bytes(), b".", body].concat();
        let is_signed = signatures
            .split(' ')
            .take(MAX_SIGNATURES)
            .any(|signature| self.keys.iter().any(|key| key.matches(signature, &content)));
        if !is_signed {
            return Err(VerifyError::Signature);
        }
        // After the signature, so that a caller without a key learns nothing about our clock.
        if sent_at.distance(now) > tolerance {
            return Err(VerifyError::Time);
        }
        Ok(VerifiedRequest { id: id.to_owned(), sent_at })
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, InvalidVerifierKey> {
        let decoded = |encoded: &str| BASE64.decode(encoded).map_err(|_| InvalidVerifierKey::Encoding);
        if let Some(encoded) = text.strip_prefix(SYMMETRIC) {
            let key = decoded(encoded)?;
            if !SYMMETRIC_LENGTHS.contains(&key.len()) {
                return Err(InvalidVerifierKey::Length);
            }
            return Ok(Self::Symmetric(Box::new(hmac::Key::new(hmac::HMAC_SHA256, &key))));
        }
        let Some(encoded) = text.strip_prefix(PUBLIC) else { return Err(InvalidVerifierKey::Prefix) };
        let key = decoded(encoded)?;
        if key.len() == PUBLIC_LENGTH { Ok(Self::Ed25519(key)) } else { Err(InvalidVerifierKey::Length) }
    }

    /// Checks a signature in constant time.
    fn matches(&self, signature: &str, content: &[u8]) -> bool {
        let decoded = |prefix: &str| BASE64.decode(signature.strip_prefix(prefix)?).ok();
        match self {
            Self::Symmetric(key) => {
                decoded("v1,").is_some_and(|found| hmac::verify(key, content, &found).is_ok())
            }
            Self::Ed25519(key) => decoded("v1a,")
                .is_some_and(|found| UnparsedPublicKey::new(&ED25519, key).verify(content, &found).is_ok()),
        }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({})", self.show())
    }
}

/// A list of keys. Error messages do not contain them.
impl Setting for Verifier {
    fn expected() -> String {
        format!("a list of keys, each {SYMMETRIC} or {PUBLIC} followed by base64")
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let texts: Vec<String> = Setting::parse(value)?;
        Self::new(texts.iter().map(String::as_str))
            .map_err(|error| InvalidValue::with_reason(error.to_string()))
    }

    fn show(&self) -> String {
        let hidden = vec!["\"***\""; self.keys.len()];
        format!("[{}]", hidden.join(", "))
    }

    fn is_secret() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    use http::HeaderValue;

    use super::*;
    use crate::{Secrets, headers};

    const NEW: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx";
    const SEED: &str = "VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=";
    const BODY: &[u8] = b"{\"test\": 2432232314}";
    const SENT: Timestamp = Timestamp::from_millis(1_614_265_330_000);
    const MINUTES: Duration = Duration::from_secs(300);

    fn signed(secrets: &[&str]) -> HeaderMap {
        let secrets = Secrets::new(secrets.iter().copied()).unwrap();
        headers(&"msg_1".parse().unwrap(), SENT, BODY, Some(&secrets))
    }

    fn verify(keys: &[&str], headers: &HeaderMap) -> Result<VerifiedRequest, VerifyError> {
        Verifier::new(keys.iter().copied()).unwrap().verify(headers, BODY, SENT, MINUTES)
    }

    fn public() -> String {
        let pair = Ed25519KeyPair::from_seed_unchecked(&BASE64.decode(SEED).unwrap()).unwrap();
        format!("whpk_{}", BASE64.encode(pair.public_key()))
    }

    #[test]
    fn test_vector_of_the_specification_is_verified() {
        let verifier = Verifier::new([NEW]).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(ID, HeaderValue::from_static("msg_p5jXN8AQM9LWM0D4loKWxJek"));
        headers.insert(TIMESTAMP, HeaderValue::from_static("1614265330"));
        headers
            .insert(SIGNATURE, HeaderValue::from_static("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
        let verified = verifier.verify(&headers, BODY, SENT, MINUTES).unwrap();
        assert_eq!((verified.id.as_str(), verified.sent_at), ("msg_p5jXN8AQM9LWM0D4loKWxJek", SENT));
    }

    #[test]
    fn keys_can_be_rotated_on_either_side() {
        let private = format!("whsk_{SEED}");
        for (secrets, keys) in [
            (&[OLD][..], &[NEW, OLD][..]),
            (&[NEW, OLD], &[OLD]),
            (&[private.as_str()], &[NEW, public().as_str()]),
            (&[OLD, &private], &[NEW, public().as_str()]),
        ] {
            assert!(verify(keys, &signed(secrets)).is_ok(), "{keys:?}");
        }
        assert_eq!(verify(&[NEW], &signed(&[OLD])), Err(VerifyError::Signature));
        assert_eq!(verify(&[NEW], &signed(&[&private])), Err(VerifyError::Signature));
    }

    #[test]
    fn tampered_request_is_refused() {
        let verifier = Verifier::new([NEW]).unwrap();
        let good = signed(&[NEW]);
        let refused =
            |headers: &HeaderMap, body: &[u8]| verifier.verify(headers, body, SENT, MINUTES).unwrap_err();
        assert_eq!(refused(&good, b"{\"test\": 2432232315}"), VerifyError::Signature);
        for (name, value) in
            [(ID, "msg_2"), (TIMESTAMP, "1614265331"), (SIGNATURE, "v1,AAAA"), (SIGNATURE, "x")]
        {
            let mut changed = good.clone();
            changed.insert(name, HeaderValue::from_static(value));
            assert_eq!(refused(&changed, BODY), VerifyError::Signature, "{value}");
        }
        for (name, value) in
            [(ID, "msg.1"), (ID, ""), (TIMESTAMP, "soon"), (TIMESTAMP, "9223372036854775807")]
        {
            let mut changed = good.clone();
            changed.insert(name, HeaderValue::from_static(value));
            assert!(matches!(refused(&changed, BODY), VerifyError::Header(_)), "{value}");
        }
        for name in [ID, TIMESTAMP, SIGNATURE] {
            let mut without = good.clone();
            without.remove(name);
            assert!(matches!(refused(&without, BODY), VerifyError::Header(_)));
        }
    }

    #[test]
    fn request_outside_the_time_tolerance_is_refused() {
        let verifier = Verifier::new([NEW]).unwrap();
        let at = |millis: i64| {
            let now = Timestamp::from_millis(SENT.as_millis() + millis);
            verifier.verify(&signed(&[NEW]), BODY, now, MINUTES).map(drop)
        };
        assert_eq!([at(300_000), at(-300_000)], [Ok(()), Ok(())]);
        assert_eq!([at(300_001), at(-300_001)], [Err(VerifyError::Time), Err(VerifyError::Time)]);
    }

    #[test]
    fn only_keys_in_the_specified_format_are_parsed_and_none_is_shown() {
        let error = |text: &str| Verifier::new([text]).unwrap_err();
        assert_eq!(error("secret"), InvalidVerifierKey::Prefix);
        assert_eq!(error("whsec_not base64"), InvalidVerifierKey::Encoding);
        assert_eq!(error("whsec_AAAA"), InvalidVerifierKey::Length);
        assert_eq!(error("whpk_AAAA"), InvalidVerifierKey::Length);
        assert_eq!(Verifier::new([]).unwrap_err(), InvalidVerifierKey::None);
        let shown = format!("{:?}", Verifier::new([NEW]).unwrap());
        assert_eq!(shown, "Verifier([\"***\"])");
    }

    #[test]
    fn verifier_survives_any_request() {
        let headers = signed(&[NEW]);
        let lines = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| {
            let value = headers[name].to_str().unwrap();
            format!("{name}: {value}\n")
        });
        let sample = lines.concat();
        let twice = format!("{sample}webhook-signature: v1,g0hM9SsE v1a,AAAA v2,x\n\nbody");
        let verifier = Verifier::new([NEW, &public()]).unwrap();
        testkit::fuzz("webhook-signatures", &[sample, twice], |input| {
            let (head, body) = match input.windows(2).position(|pair| pair == b"\n\n") {
                Some(at) => (&input[..at], &input[at + 2..]),
                None => (input, BODY),
            };
            let mut headers = HeaderMap::new();
            for line in head.split(|byte| *byte == b'\n') {
                let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
                let name = HeaderName::from_bytes(&line[..at]);
                let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii());
                if let (Ok(name), Ok(value)) = (name, value) {
                    headers.append(name, value);
                }
            }
            verifier.verify(&headers, body, SENT, MINUTES).is_ok()
        });
    }

    #[test]
    fn key_parser_survives_any_text() {
        testkit::fuzz("webhook-keys", &[NEW.to_owned(), public()], |input| {
            std::str::from_utf8(input)
                .is_ok_and(|text| Verifier::new([text]).is_ok() | Secrets::new([text]).is_ok())
        });
    }
}
