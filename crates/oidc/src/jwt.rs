//! Parses signed JWTs in compact form.
//!
//! Nothing in a token is trusted before [`Jwt::claims`] has checked the signature.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use config::Choice;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::Algorithm;
use crate::error::TokenError;
use crate::keys::Key;

/// The largest accepted token. Real ones have 1 to 4 KiB.
const MAX_TOKEN: usize = 16 * 1024;

/// A token with a parsed header; its signature is not checked yet.
#[derive(Debug)]
pub(crate) struct Jwt<'a> {
    pub(crate) header: Header,
    pub(crate) algorithm: Algorithm,
    /// Header and payload, the signed bytes.
    message: &'a str,
    payload: &'a str,
    signature: &'a str,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Header {
    alg: String,
    pub(crate) kid: Option<String>,
    typ: Option<String>,
    /// Extensions that a verifier must understand. We support none.
    crit: Option<Value>,
}

impl Header {
    /// Returns `typ` in lower case, without the optional prefix of RFC 7515.
    pub(crate) fn kind(&self) -> Option<String> {
        let kind = self.typ.as_ref()?.to_ascii_lowercase();
        Some(kind.strip_prefix("application/").map(str::to_owned).unwrap_or(kind))
    }
}

impl<'a> Jwt<'a> {
    /// Parses a token. Refuses it if its algorithm is not in `accepted`.
    pub(crate) fn parse(token: &'a str, accepted: &[Algorithm]) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::TooLarge);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(TokenError::Malformed)?;
        if payload.contains('.') {
            return Err(TokenError::Malformed);
        }
        let header: Header = decode(header)?;
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let algorithm = accepted.iter().find(|algorithm| algorithm.word() == header.alg);
        let algorithm = *algorithm.ok_or(TokenError::WrongAlgorithm)?;
        Ok(Self { header, algorithm, message, payload, signature })
    }

    /// Checks the signature with this key and returns the claims.
    pub(crate) fn claims(&self, key: &Key) -> Result<Map<String, Value>, TokenError> {
        if !key.fits(self.algorithm) {
            return Err(TokenError::WrongAlgorithm);
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
            Ok(false) | Err(_) => Err(TokenError::BadSignature),
        }
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
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

    /// Fuzzes tokens built from the input as header and payload, and the raw input itself.
    #[test]
    fn no_token_makes_the_parser_panic() {
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
                    if let Ok(key) = keys.find(&jwt) {
                        assert!(jwt.claims(key).is_err(), "the signature is not valid");
                    }
                }
            }
            is_read
        });
    }
}
