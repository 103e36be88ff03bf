//! What is sent, and the headers that say who sent it.

use std::str::FromStr;

use base::Timestamp;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::secret::Secrets;

pub(crate) const ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

pub(crate) const MAX_ID: usize = 255;

/// By what receivers tell messages apart: the same however often a message is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(HeaderValue);

/// The text cannot be an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is 1 to {MAX_ID} visible characters of ASCII without a full stop")]
pub struct NotAnId;

/// What is sent.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub id: &'a Id,
    /// JSON.
    pub body: Bytes,
    /// The trace that this is a part of, as W3C writes it.
    pub traceparent: Option<&'a str>,
}

/// Full stops end the id in what is signed: with one in it, two messages could have one signature.
impl FromStr for Id {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let is_sound = (1..=MAX_ID).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
        let value = HeaderValue::from_str(text).map_err(|_| NotAnId)?;
        if is_sound { Ok(Self(value)) } else { Err(NotAnId) }
    }
}

/// The headers of a request that is sent at this time: who it is, when, and what proves it.
pub fn headers(id: &Id, at: Timestamp, body: &[u8], secrets: Option<&Secrets>) -> HeaderMap {
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

    /// With the id, the time and the body that the libraries of Standard Webhooks are tested with.
    fn signed(secrets: Option<&Secrets>) -> HeaderMap {
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek".parse().unwrap();
        headers(&id, Timestamp::from_millis(1_614_265_330_999), b"{\"test\": 2432232314}", secrets)
    }

    #[test]
    fn requests_are_signed_as_standard_webhooks_are() {
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
    fn without_a_secret_nothing_is_signed() {
        let headers = signed(None);
        assert_eq!(headers.len(), 2);
        assert!(!headers.contains_key(SIGNATURE));
    }

    #[test]
    fn an_id_ends_where_it_ends() {
        for good in ["a", "0198c0de-0000-7000-8000-000000000001", &"x".repeat(255)] {
            assert!(good.parse::<Id>().is_ok(), "{good}");
        }
        for wrong in ["", "a.b", "a b", "a\nb", "ä", &"x".repeat(256)] {
            assert_eq!(wrong.parse::<Id>(), Err(NotAnId), "{wrong}");
        }
    }
}
