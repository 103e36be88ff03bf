//! Tokens that must not be logged, PKCE, and random values that must not be guessable.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A token of the issuer. `Debug` prints `***`; only [`expose`](Self::expose) returns the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Token {
    fn from(token: String) -> Self {
        Self(token)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Proves that the client that redeems a code is the one that requested it (RFC 7636, S256).
#[derive(Clone)]
pub struct Pkce {
    /// Kept secret until the code is redeemed.
    pub verifier: String,
    /// Sent through the browser.
    pub challenge: String,
}

impl Pkce {
    pub fn generate() -> Self {
        Self::from_verifier(random_token())
    }

    pub fn from_verifier(verifier: String) -> Self {
        let challenge = URL_SAFE_NO_PAD.encode(sha256(verifier.as_bytes()));
        Self { verifier, challenge }
    }
}

impl fmt::Debug for Pkce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pkce").finish_non_exhaustive()
    }
}

/// Returns 256 random bits in base64url, for states, nonces, verifiers and session ids.
///
/// # Panics
/// If the system has no randomness: no token would be safe then.
pub fn random_token() -> String {
    let mut bytes = [0; 32];
    #[expect(clippy::expect_used, reason = "see # Panics")]
    rand::fill(&mut bytes).expect("the system provides random numbers");
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_matches_the_example_of_rfc_7636() {
        let pkce = Pkce::from_verifier("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned());
        assert_eq!(pkce.challenge, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }

    #[test]
    fn random_tokens_have_256_bits_and_differ() {
        let (one, other) = (random_token(), random_token());
        assert_ne!(one, other);
        assert_eq!(URL_SAFE_NO_PAD.decode(one).unwrap().len(), 32);
        assert_eq!(other.len(), 43);
    }

    #[test]
    fn debug_output_has_no_token() {
        let token = Token::from("hush".to_owned());
        assert_eq!(format!("{token:?} {token:#?}"), "*** ***");
        assert_eq!(token.expose(), "hush");
        let pkce = Pkce::from_verifier("hush".to_owned());
        let shown = format!("{pkce:?}");
        assert!(!shown.contains("hush") && !shown.contains(&pkce.challenge));
    }
}
