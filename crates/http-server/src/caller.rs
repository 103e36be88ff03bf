//! The callers of the service API and their rights.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue};
use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::Code;
use config::{InvalidValue, Setting, Value};
use futures::future::BoxFuture;
use sha2::{Digest, Sha256};

use super::Problem;

/// A right of a caller of the service API. The service whose routes require it declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right(&'static str);

impl Right {
    /// Read data of any service.
    pub const READ: Self = Self::new("read");
    /// Ban and erase users.
    pub const OPERATOR: Self = Self::new("operator");

    /// Creates a right. `word` is its name in `services.NAME.may` and in the issuer's tokens.
    pub const fn new(word: &'static str) -> Self {
        Self(word)
    }

    pub const fn word(self) -> &'static str {
        self.0
    }
}

/// The SHA-256 of a token. The configuration contains the hash, so a leaked file does not leak the token.
///
/// A plain digest is enough: tokens are long and random, so they cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenHash({self})")
    }
}

impl FromStr for TokenHash {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 32];
        let is_hex = text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit());
        for (at, byte) in bytes.iter_mut().enumerate().filter(|_| is_hex) {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(drop)?;
        }
        if is_hex { Ok(Self(bytes)) } else { Err(()) }
    }
}

impl Setting for TokenHash {
    fn expected() -> String {
        "the SHA-256 of a token in 64 hexadecimal digits; `playhouse token` creates a token and prints its hash"
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value)?
            .parse()
            .map_err(|()| InvalidValue::with_reason("it is not 64 hexadecimal digits"))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A caller of the service API in the configuration: its token and its rights.
#[derive(Clone, Debug)]
pub struct ConfiguredCaller {
    pub token_hash: TokenHash,
    pub may: Vec<Right>,
}

/// The caller of a request to the service API. The guard attaches it to the request; handlers extract it.
#[derive(Clone, Debug)]
pub struct Caller {
    name: Arc<str>,
    may: Arc<[Right]>,
}

impl Caller {
    pub fn new(name: &str, may: &[Right]) -> Self {
        Self { name: name.into(), may: may.into() }
    }

    /// Returns the name from the configuration, or the issuer's name of the client.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fails if the caller lacks the right.
    pub fn require(&self, right: Right) -> Result<(), Problem> {
        if self.may.contains(&right) {
            return Ok(());
        }
        let detail =
            format!("The service {:?} lacks the right {:?}: add it to `may`.", self.name, right.word());
        Err(Problem::new(Code::PermissionDenied).detail(detail))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}

/// Verifies tokens of an issuer, which the configuration does not contain.
pub trait CallerVerifier: fmt::Debug + Send + Sync {
    /// Returns the caller, or none if the token is not valid. Fails if the token cannot be verified.
    fn caller<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, Problem>>;
}

/// Authenticates callers of the service API by their tokens.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    configured: Arc<HashMap<TokenHash, Caller>>,
    verifier: Option<Arc<dyn CallerVerifier>>,
}

impl Credentials {
    pub fn new<'a>(callers: impl IntoIterator<Item = (&'a str, &'a ConfiguredCaller)>) -> Self {
        let by_token =
            |(name, caller): (&str, &ConfiguredCaller)| (caller.token_hash, Caller::new(name, &caller.may));
        Self { configured: Arc::new(callers.into_iter().map(by_token).collect()), verifier: None }
    }

    /// Also accepts tokens that the verifier accepts.
    pub fn with_verifier(self, verifier: Option<Arc<dyn CallerVerifier>>) -> Self {
        Self { verifier, ..self }
    }

    /// Refuses every request to these routes without a valid token.
    pub fn guard(&self, routes: Router) -> Router {
        let credentials = self.clone();
        routes.layer(middleware::from_fn(move |mut request: Request, next: Next| {
            let credentials = credentials.clone();
            async move {
                match credentials.caller(request.headers()).await {
                    Ok(Some(caller)) => {
                        request.extensions_mut().insert(caller);
                        next.run(request).await
                    }
                    Ok(None) => unauthenticated(),
                    Err(problem) => problem.into_response(),
                }
            }
        }))
    }

    async fn caller(&self, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        let Some(token) = bearer_token(headers) else { return Ok(None) };
        // Looked up by its hash, so the time that it takes does not depend on the token.
        match (self.configured.get(&TokenHash::of(token)), &self.verifier) {
            (Some(caller), _) => Ok(Some(caller.clone())),
            (None, Some(verifier)) => verifier.caller(token).await,
            (None, None) => Ok(None),
        }
    }
}

/// Returns the token of a request: `Authorization: Bearer TOKEN`.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn unauthenticated() -> Response {
    let detail = "Send the token of a service: `Authorization: Bearer TOKEN`.";
    let mut response = Problem::new(Code::Unauthenticated).detail(detail).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_hash_parses_its_own_text() {
        let hash = TokenHash::of("secret");
        assert_eq!(hash.to_string(), "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        for wrong in ["", "2bb8", &"g".repeat(64), &"ä".repeat(32)] {
            assert_eq!(wrong.parse::<TokenHash>(), Err(()), "{wrong}");
        }
    }

    #[tokio::test]
    async fn token_identifies_the_caller() {
        let shop = ConfiguredCaller { token_hash: TokenHash::of("secret"), may: vec![Right::READ] };
        let credentials = Credentials::new([("shop", &shop)]);
        let caller_of = async |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            credentials.caller(&headers).await.unwrap()
        };
        let caller = caller_of("Bearer secret").await.unwrap();
        assert_eq!(caller.name(), "shop");
        assert!(caller.require(Right::READ).is_ok() && caller.require(Right::OPERATOR).is_err());
        assert!(caller_of("bearer  secret ").await.is_some());
        for wrong in ["Bearer", "Bearer ", "Bearer Secret", "Basic secret", "secret"] {
            assert!(caller_of(wrong).await.is_none(), "{wrong}");
        }
        assert!(credentials.caller(&HeaderMap::new()).await.unwrap().is_none());
    }
}
