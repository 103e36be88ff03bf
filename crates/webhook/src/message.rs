//! Messages, and the headers that sign them.

use std::str::FromStr;

use base::Timestamp;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::secret::Secrets;

pub(crate) const ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

pub(crate) const MAX_ID: usize = 255;

/// The id by which receivers dedupe messages. It is the same in all attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageId(HeaderValue);

/// The text is not a valid message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message id has 1 to {MAX_ID} visible ASCII characters and no full stop")]
pub struct InvalidMessageId;

/// A message to a destination.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub id: &'a MessageId,
    /// JSON.
    pub body: Bytes,
    /// The W3C trace context.
    pub traceparent: Option<&'a str>,
}

/// Rejects full stops: one separates the id from the timestamp in the signed content, so two messages could have the same signature.
impl FromStr for MessageId {
    type Err = InvalidMessageId;

    fn from_str(text: &str) -> Result<Self, InvalidMessageId> {
        let is_valid = (1..=MAX_ID).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
        let value = HeaderValue::from_str(text).map_err(|_| InvalidMessageId)?;
        if is_valid { Ok(Self(value)) } else { Err(InvalidMessageId) }
    }
}

/// Returns the headers of a request: the id, the timestamp, and a signature if there are secrets.
pub fn headers(id: &MessageId, at: Timestamp, body: &[u8], secrets: Option<&Secrets>) -> HeaderMap {
    let seconds = HeaderValue::from(at.as_millis().div_euclid(1_000));
    let mut headers = HeaderMap::with_capacity(3);
    if let Some(secrets) = secrets {
        let content = [id.0.as_bytes(), b".", seconds.as_bytes(), b".", body].concat();
        #[expect(clippy::expect_used, reason = "versions, commas, base64 and spaces")]
        let signature = HeaderValue::try_from(secrets.sign(&content)).expect("a signature is ASCII");
        headers.insert(SIGNATURE, signature);
    }
    headers.insert(ID, id.0.clone());
    headers.insert(TIMESTAMP, seconds);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMMETRIC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const PRIVATE: &str = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=";
    const V1: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const V1A: &str =
        "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag==";

    /// Signs the test vector of the Standard Webhooks libraries.
    fn signed(secrets: Option<&Secrets>) -> HeaderMap {
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek".parse().unwrap();
        headers(&id, Timestamp::from_millis(1_614_265_330_999), b"{\"test\": 2432232314}", secrets)
    }

    #[test]
    fn signature_matches_the_standard_webhooks_test_vector() {
        for (secrets, expected) in [
            (&[SYMMETRIC][..], V1.to_owned()),
            (&[PRIVATE], V1A.to_owned()),
            (&[PRIVATE, SYMMETRIC], format!("{V1A} {V1}")),
        ] {
            let headers = signed(Some(&Secrets::new(secrets.iter().copied()).unwrap()));
            assert_eq!(headers[SIGNATURE], expected);
            assert_eq!(headers[ID], "msg_p5jXN8AQM9LWM0D4loKWxJek");
            assert_eq!(headers[TIMESTAMP], "1614265330");
        }
    }

    #[test]
    fn request_without_secrets_has_no_signature() {
        let headers = signed(None);
        assert_eq!(headers.len(), 2);
        assert!(!headers.contains_key(SIGNATURE));
    }

    #[test]
    fn only_valid_message_ids_are_parsed() {
        for good in ["a", "0198c0de-0000-7000-8000-000000000001", &"x".repeat(255)] {
            assert!(good.parse::<MessageId>().is_ok(), "{good}");
        }
        for wrong in ["", "a.b", "a b", "a\nb", "ä", &"x".repeat(256)] {
            assert_eq!(wrong.parse::<MessageId>(), Err(InvalidMessageId), "{wrong}");
        }
    }
}
