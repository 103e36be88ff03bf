//! A signed JWT in compact form, taken apart.
//!
//! Nothing in here is believed before [`Jwt::claims`] has checked the signature.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use config::Choice;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::Algorithm;
use crate::error::Refused;
use crate::keys::Key;

/// Larger tokens are not looked at. Real ones have 1 to 4 KiB.
const MAX_TOKEN: usize = 16 * 1024;

/// A token whose parts were found and whose header was read.
#[derive(Debug)]
pub(crate) struct Jwt<'a> {
    pub(crate) header: Header,
    pub(crate) algorithm: Algorithm,
    /// Header and payload as they were signed.
    message: &'a str,
    payload: &'a str,
    signature: &'a str,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Header {
    alg: String,
    pub(crate) kid: Option<String>,
    typ: Option<String>,
    /// Extensions that have to be understood. We understand none.
    crit: Option<Value>,
}

impl Header {
    /// The type in lower case, without the prefix that RFC 7515 lets one leave out.
    pub(crate) fn kind(&self) -> Option<String> {
        let kind = self.typ.as_ref()?.to_ascii_lowercase();
        Some(kind.strip_prefix("application/").map(str::to_owned).unwrap_or(kind))
    }
}

impl<'a> Jwt<'a> {
    /// Takes a token apart. Its algorithm has to be one of those that are `accepted`.
    pub(crate) fn parse(token: &'a str, accepted: &[Algorithm]) -> Result<Self, Refused> {
        if token.len() > MAX_TOKEN {
            return Err(Refused::TooLarge);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(Refused::Malformed)?;
        if payload.contains('.') {
            return Err(Refused::Malformed);
        }
        let header: Header = decode(header)?;
        if header.crit.is_some() {
            return Err(Refused::Malformed);
        }
        let algorithm = accepted.iter().find(|algorithm| algorithm.word() == header.alg);
        let algorithm = *algorithm.ok_or(Refused::WrongAlgorithm)?;
        Ok(Self { header, algorithm, message, payload, signature })
    }

    /// What the token says, if this key signed it.
    pub(crate) fn claims(&self, key: &Key) -> Result<Map<String, Value>, Refused> {
        if !key.fits(self.algorithm) {
            return Err(Refused::WrongAlgorithm);
        }
        let message = self.message.as_bytes();
        let is_signed = jsonwebtoken::crypto::verify(
            self.signature,
            message,
            key.decoding(),
            signed_with(self.algorithm),
        );
        match is_signed {
            Ok(true) => decode(self.payload),
            Ok(false) | Err(_) => Err(Refused::BadSignature),
        }
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Refused> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Refused::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| Refused::Malformed)
}

const fn signed_with(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    use jsonwebtoken::Algorithm as Theirs;
    match algorithm {
        Algorithm::Rs256 => Theirs::RS256,
        Algorithm::Rs384 => Theirs::RS384,
        Algorithm::Rs512 => Theirs::RS512,
        Algorithm::Ps256 => Theirs::PS256,
        Algorithm::Ps384 => Theirs::PS384,
        Algorithm::Ps512 => Theirs::PS512,
        Algorithm::Es256 => Theirs::ES256,
        Algorithm::Es384 => Theirs::ES384,
        Algorithm::EdDsa => Theirs::EdDSA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;

    /// Tokens whose header and payload are whatever the input says, and tokens that are the input.
    #[test]
    fn no_token_breaks_its_reading() {
        const KEY: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"one","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
        let keys = Keys::parse(KEY.as_bytes()).unwrap();
        let accepted = [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];
        let samples = [
            r#"{"alg":"ES256","kid":"one","typ":"at+jwt"}|{"iss":"https://id","sub":"ada","aud":["playhouse"],"exp":1772366400}|AAAA"#,
            r#"{"alg":"RS256","typ":"application/logout+jwt","crit":["b64"]}|{"events":{"http://schemas.openid.net/event/backchannel-logout":{}}}|"#,
            "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGEifQ.AAAA",
        ];
        testkit::fuzz("jwt", &samples, |input| {
            let mut parts = input.split(|byte| *byte == b'|').map(|part| URL_SAFE_NO_PAD.encode(part));
            let built: Vec<String> = parts.by_ref().take(3).collect();
            let plain = String::from_utf8_lossy(input);
            let mut is_read = false;
            for token in [built.join(".").as_str(), &plain] {
                if let Ok(jwt) = Jwt::parse(token, &accepted) {
                    is_read = true;
                    jwt.header.kind();
                    if let Ok(key) = keys.of(&jwt) {
                        assert!(jwt.claims(key).is_err(), "nobody signed it");
                    }
                }
            }
            is_read
        });
    }
}
