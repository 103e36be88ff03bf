//! The secrets that sign requests.

use std::fmt;
use std::sync::Arc;

use ::config::{InvalidValue, Secret, Setting, Value};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};

pub(crate) const SYMMETRIC: &str = "whsec_";
const PRIVATE: &str = "whsk_";
pub(crate) const PUBLIC: &str = "whpk_";

/// The allowed lengths of a symmetric key, in bytes.
pub(crate) const SYMMETRIC_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;
const SEED_LENGTH: usize = 32;

/// Encodes with padding, decodes with and without.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One or more secrets. Each of them signs, so that a receiver can switch to a new secret at any time during a rotation.
#[derive(Clone)]
pub struct Secrets(Arc<[Key]>);

/// Why a text is not a secret. The message does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error("there is no secret")]
    None,
    #[error("a secret starts with {SYMMETRIC} or {PRIVATE}")]
    Prefix,
    #[error("a key that starts with {PUBLIC} is public: it can verify, but not sign")]
    Public,
    #[error("the part after {SYMMETRIC} or {PRIVATE} must be base64")]
    Encoding,
    #[error(
        "the part after {SYMMETRIC} must be {} to {} bytes",
        SYMMETRIC_LENGTHS.start(),
        SYMMETRIC_LENGTHS.end()
    )]
    Length,
    #[error(
        "the part after {PRIVATE} must be an ed25519 key: a seed of {SEED_LENGTH} bytes, or seed and public key"
    )]
    Key,
}

enum Key {
    /// HMAC-SHA256.
    Symmetric(Box<hmac::Key>),
    Ed25519(Box<Ed25519KeyPair>),
}

impl Secrets {
    /// Parses secrets in the format of Standard Webhooks: `whsec_` (HMAC-SHA256) or `whsk_` (ed25519), followed by base64.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidSecret> {
        let keys: Arc<[Key]> = texts.into_iter().map(Key::parse).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(InvalidSecret::None) } else { Ok(Self(keys)) }
    }

    /// Parses one secret. The bytes of a text without a prefix are a symmetric key, of any length.
    pub fn from_text(secret: &Secret) -> Result<Self, InvalidSecret> {
        let key = match secret.expose() {
            "" => return Err(InvalidSecret::None),
            text => match Key::parse(text) {
                Err(InvalidSecret::Prefix) => Key::symmetric(text.as_bytes()),
                parsed => parsed?,
            },
        };
        Ok(Self(Arc::new([key])))
    }

    /// Returns the value of `webhook-signature`: one signature per secret, separated by spaces.
    pub(crate) fn sign(&self, content: &[u8]) -> String {
        let signatures: Vec<String> = self.0.iter().map(|key| key.sign(content)).collect();
        signatures.join(" ")
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let decoded = |encoded: &str| BASE64.decode(encoded).map_err(|_| InvalidSecret::Encoding);
        if let Some(encoded) = text.strip_prefix(SYMMETRIC) {
            let key = decoded(encoded)?;
            return if SYMMETRIC_LENGTHS.contains(&key.len()) {
                Ok(Self::symmetric(&key))
            } else {
                Err(InvalidSecret::Length)
            };
        }
        if let Some(encoded) = text.strip_prefix(PRIVATE) {
            let key = decoded(encoded)?;
            let pair = match key.split_at_checked(SEED_LENGTH) {
                Some((seed, [])) => Ed25519KeyPair::from_seed_unchecked(seed),
                Some((seed, public)) => Ed25519KeyPair::from_seed_and_public_key(seed, public),
                None => return Err(InvalidSecret::Key),
            };
            return pair.map(|pair| Self::Ed25519(Box::new(pair))).map_err(|_| InvalidSecret::Key);
        }
        Err(if text.starts_with(PUBLIC) { InvalidSecret::Public } else { InvalidSecret::Prefix })
    }

    fn symmetric(key: &[u8]) -> Self {
        Self::Symmetric(Box::new(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    fn sign(&self, content: &[u8]) -> String {
        match self {
            Self::Symmetric(key) => format!("v1,{}", BASE64.encode(hmac::sign(key, content))),
            Self::Ed25519(pair) => format!("v1a,{}", BASE64.encode(pair.sign(content))),
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.show())
    }
}

/// A list of secrets. Error messages do not contain them.
impl Setting for Secrets {
    fn expected() -> String {
        format!("a list of secrets, each {SYMMETRIC} or {PRIVATE} followed by base64")
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let texts: Vec<String> = Setting::parse(value)?;
        Self::new(texts.iter().map(String::as_str))
            .map_err(|error| InvalidValue::with_reason(error.to_string()))
    }

    fn show(&self) -> String {
        let hidden = vec!["\"***\""; self.0.len()];
        format!("[{}]", hidden.join(", "))
    }

    fn is_secret() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=";

    fn error(text: &str) -> InvalidSecret {
        Secrets::new([text]).unwrap_err()
    }

    fn raw(text: &str) -> Result<Secrets, InvalidSecret> {
        Secrets::from_text(&Secret::parse(&Value::Text(text.to_owned())).unwrap())
    }

    #[test]
    fn only_secrets_in_the_specified_format_are_parsed() {
        let of = |length: usize| format!("whsec_{}", BASE64.encode(vec![7; length]));
        for good in [24, 25, 32, 64] {
            assert!(Secrets::new([of(good).as_str()]).is_ok(), "{good}");
            assert!(Secrets::new([of(good).trim_end_matches('=')]).is_ok(), "without padding");
        }
        for wrong in [0, 1, 23, 65] {
            assert_eq!(error(&of(wrong)), InvalidSecret::Length, "{wrong}");
        }
        assert_eq!(error("whsec_not base64, I fear"), InvalidSecret::Encoding);
        assert_eq!(error("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), InvalidSecret::Prefix);
        assert_eq!(error(&format!("whpk_{SEED}")), InvalidSecret::Public);
        assert_eq!(error(&format!("whsk_{}", BASE64.encode([7; 31]))), InvalidSecret::Key);
        assert_eq!(
            error(&format!("whsk_{}", BASE64.encode([7; 64]))),
            InvalidSecret::Key,
            "seed and public key do not belong together"
        );
        assert_eq!(Secrets::new([]).unwrap_err(), InvalidSecret::None);
    }

    #[test]
    fn private_key_may_include_its_public_key() {
        use aws_lc_rs::signature::KeyPair;
        let seed = BASE64.decode(SEED).unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let both = [seed.as_slice(), pair.public_key().as_ref()].concat();
        let both = Secrets::new([format!("whsk_{}", BASE64.encode(both)).as_str()]).unwrap();
        let alone = Secrets::new([format!("whsk_{SEED}").as_str()]).unwrap();
        assert_eq!(both.sign(b"x"), alone.sign(b"x"));
    }

    #[test]
    fn text_without_prefix_is_a_symmetric_key() {
        let key = "a text of twenty-four by";
        let encoded = format!("whsec_{}", BASE64.encode(key));
        assert_eq!(raw(key).unwrap().sign(b"x"), raw(&encoded).unwrap().sign(b"x"));
        assert!(raw("short").is_ok());
        assert_eq!(raw("").unwrap_err(), InvalidSecret::None);
        assert_eq!(raw("whsec_***").unwrap_err(), InvalidSecret::Encoding);
        assert_eq!(raw("whpk_x").unwrap_err(), InvalidSecret::Public);
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = format!("whsk_{SEED}");
        let secrets = Secrets::parse(&Value::List(vec![Value::Text(text)])).unwrap();
        assert_eq!(secrets.show(), "[\"***\"]");
        assert_eq!(format!("{secrets:?}"), "Secrets([\"***\"])");
        let refused = Secrets::parse(&Value::Word("hush".to_owned())).unwrap_err();
        assert!(!refused.reason.unwrap().contains("hush"));
    }
}
