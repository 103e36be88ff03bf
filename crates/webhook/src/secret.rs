//! What requests are signed with.

use std::fmt;
use std::sync::Arc;

use ::config::{Rejected, Secret, Setting, Value};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};

pub(crate) const SYMMETRIC: &str = "whsec_";
const PRIVATE: &str = "whsk_";
pub(crate) const PUBLIC: &str = "whpk_";

/// How long a symmetric key is, in bytes.
pub(crate) const SYMMETRIC_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;
const SEED_LENGTH: usize = 32;

/// Written with padding; read with and without it.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One or several secrets, all of which sign: while a secret is exchanged, receivers know the old one or the new one.
#[derive(Clone)]
pub struct Secrets(Arc<[Key]>);

/// The text is not a secret. Says nothing of what it is instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    #[error("there is no secret")]
    None,
    #[error("a secret starts with {SYMMETRIC} or {PRIVATE}")]
    Prefix,
    #[error("what starts with {PUBLIC} is the public key: it verifies and cannot sign")]
    Public,
    #[error("what follows {SYMMETRIC} or {PRIVATE} must be base64")]
    Encoding,
    #[error(
        "what follows {SYMMETRIC} must be {} to {} bytes",
        SYMMETRIC_LENGTHS.start(),
        SYMMETRIC_LENGTHS.end()
    )]
    Length,
    #[error(
        "what follows {PRIVATE} must be an ed25519 key: a seed of {SEED_LENGTH} bytes, or seed and public key"
    )]
    Key,
}

enum Key {
    /// HMAC-SHA256.
    Symmetric(Box<hmac::Key>),
    Ed25519(Box<Ed25519KeyPair>),
}

impl Secrets {
    /// Reads secrets as Standard Webhooks writes them: `whsec_` (HMAC-SHA256) or `whsk_` (ed25519), and base64.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, BadSecret> {
        let keys: Arc<[Key]> = texts.into_iter().map(Key::read).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(BadSecret::None) } else { Ok(Self(keys)) }
    }

    /// One secret. A text without a prefix is a symmetric key as it stands, of any length.
    pub fn from_text(secret: &Secret) -> Result<Self, BadSecret> {
        let key = match secret.expose() {
            "" => return Err(BadSecret::None),
            text => match Key::read(text) {
                Err(BadSecret::Prefix) => Key::symmetric(text.as_bytes()),
                read => read?,
            },
        };
        Ok(Self(Arc::new([key])))
    }

    /// The value of `webhook-signature`: a signature per secret, separated by spaces.
    pub(crate) fn sign(&self, content: &[u8]) -> String {
        let signatures: Vec<String> = self.0.iter().map(|key| key.sign(content)).collect();
        signatures.join(" ")
    }
}

impl Key {
    fn read(text: &str) -> Result<Self, BadSecret> {
        let decoded = |encoded: &str| BASE64.decode(encoded).map_err(|_| BadSecret::Encoding);
        if let Some(encoded) = text.strip_prefix(SYMMETRIC) {
            let key = decoded(encoded)?;
            return if SYMMETRIC_LENGTHS.contains(&key.len()) {
                Ok(Self::symmetric(&key))
            } else {
                Err(BadSecret::Length)
            };
        }
        if let Some(encoded) = text.strip_prefix(PRIVATE) {
            let key = decoded(encoded)?;
            let pair = match key.split_at_checked(SEED_LENGTH) {
                Some((seed, [])) => Ed25519KeyPair::from_seed_unchecked(seed),
                Some((seed, public)) => Ed25519KeyPair::from_seed_and_public_key(seed, public),
                None => return Err(BadSecret::Key),
            };
            return pair.map(|pair| Self::Ed25519(Box::new(pair))).map_err(|_| BadSecret::Key);
        }
        Err(if text.starts_with(PUBLIC) { BadSecret::Public } else { BadSecret::Prefix })
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

/// A list of them, of which a message repeats nothing.
impl Setting for Secrets {
    fn expected() -> String {
        format!("a list of secrets, each {SYMMETRIC} or {PRIVATE} followed by base64")
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let texts: Vec<String> = Setting::parse(value)?;
        Self::new(texts.iter().map(String::as_str)).map_err(|error| Rejected::because(error.to_string()))
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

    fn bad(text: &str) -> BadSecret {
        Secrets::new([text]).unwrap_err()
    }

    fn raw(text: &str) -> Result<Secrets, BadSecret> {
        Secrets::from_text(&Secret::parse(&Value::Text(text.to_owned())).unwrap())
    }

    #[test]
    fn only_secrets_of_the_specified_form_are_read() {
        let of = |length: usize| format!("whsec_{}", BASE64.encode(vec![7; length]));
        for good in [24, 25, 32, 64] {
            assert!(Secrets::new([of(good).as_str()]).is_ok(), "{good}");
            assert!(Secrets::new([of(good).trim_end_matches('=')]).is_ok(), "without padding");
        }
        for wrong in [0, 1, 23, 65] {
            assert_eq!(bad(&of(wrong)), BadSecret::Length, "{wrong}");
        }
        assert_eq!(bad("whsec_not base64, I fear"), BadSecret::Encoding);
        assert_eq!(bad("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), BadSecret::Prefix);
        assert_eq!(bad(&format!("whpk_{SEED}")), BadSecret::Public);
        assert_eq!(bad(&format!("whsk_{}", BASE64.encode([7; 31]))), BadSecret::Key);
        assert_eq!(
            bad(&format!("whsk_{}", BASE64.encode([7; 64]))),
            BadSecret::Key,
            "halves that do not fit"
        );
        assert_eq!(Secrets::new([]).unwrap_err(), BadSecret::None);
    }

    #[test]
    fn a_private_key_may_come_with_its_public_one() {
        use aws_lc_rs::signature::KeyPair;
        let seed = BASE64.decode(SEED).unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let both = [seed.as_slice(), pair.public_key().as_ref()].concat();
        let both = Secrets::new([format!("whsk_{}", BASE64.encode(both)).as_str()]).unwrap();
        let alone = Secrets::new([format!("whsk_{SEED}").as_str()]).unwrap();
        assert_eq!(both.sign(b"x"), alone.sign(b"x"));
    }

    #[test]
    fn a_text_may_be_a_key_as_it_stands() {
        let key = "a text of twenty-four by";
        let encoded = format!("whsec_{}", BASE64.encode(key));
        assert_eq!(raw(key).unwrap().sign(b"x"), raw(&encoded).unwrap().sign(b"x"));
        assert!(raw("short").is_ok());
        assert_eq!(raw("").unwrap_err(), BadSecret::None);
        assert_eq!(raw("whsec_***").unwrap_err(), BadSecret::Encoding);
        assert_eq!(raw("whpk_x").unwrap_err(), BadSecret::Public);
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
