//! Who calls the service API, and what they may do there.

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
use config::{Rejected, Setting, Value};
use futures::future::BoxFuture;
use sha2::{Digest, Sha256};

use super::Problem;

/// Something that a caller of the service API may be allowed to do. The service whose routes ask for it declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right(&'static str);

impl Right {
    /// To look things up, in any service.
    pub const READ: Self = Self::new("read");
    /// To decide over users, in any service: to ban and erase them.
    pub const OPERATOR: Self = Self::new("operator");

    /// The word is what `services.NAME.may` and the issuer's tokens call it.
    pub const fn new(word: &'static str) -> Self {
        Self(word)
    }

    pub const fn word(self) -> &'static str {
        self.0
    }
}

/// The SHA-256 of a token: what is configured, so that a file that is read by others gives nothing away.
///
/// A plain digest will do, for tokens are random and long: there is nothing to guess.
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
        "the SHA-256 of a token in 64 hexadecimal digits; `playhouse token` makes a token and tells its hash"
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        String::parse(value)?.parse().map_err(|()| Rejected::because("it is not 64 hexadecimal digits"))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A caller of the service API that the configuration names, with its token and its rights.
#[derive(Clone, Debug)]
pub struct ConfiguredCaller {
    pub token_hash: TokenHash,
    pub may: Vec<Right>,
}

/// Who called. Every request to the service API carries one.
#[derive(Clone, Debug)]
pub struct Caller {
    name: Arc<str>,
    may: Arc<[Right]>,
}

impl Caller {
    pub fn new(name: &str, may: &[Right]) -> Self {
        Self { name: name.into(), may: may.into() }
    }

    /// The name that the configuration gives them.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Refuses a caller who may not do this.
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

/// Says who calls by a token that the configuration does not know: an issuer's.
pub trait Vouch: fmt::Debug + Send + Sync {
    /// Nobody, if the token is no good here; a problem, if that cannot be told.
    fn caller<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, Problem>>;
}

/// Lets in those who show the token of a service.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    configured: Arc<HashMap<TokenHash, Caller>>,
    vouch: Option<Arc<dyn Vouch>>,
}

impl Credentials {
    pub fn new<'a>(callers: impl IntoIterator<Item = (&'a str, &'a ConfiguredCaller)>) -> Self {
        let by_token =
            |(name, caller): (&str, &ConfiguredCaller)| (caller.token_hash, Caller::new(name, &caller.may));
        Self { configured: Arc::new(callers.into_iter().map(by_token).collect()), vouch: None }
    }

    /// Lets in those as well whom somebody else vouches for.
    pub fn or(self, vouch: Option<Arc<dyn Vouch>>) -> Self {
        Self { vouch, ..self }
    }

    /// Refuses every request to these routes that does not say who it is from.
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
                    Ok(None) => unknown(),
                    Err(problem) => problem.into_response(),
                }
            }
        }))
    }

    async fn caller(&self, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        let Some(token) = bearer_token(headers) else { return Ok(None) };
        // Looked up by its hash, so how long it takes says nothing of the token.
        match (self.configured.get(&TokenHash::of(token)), &self.vouch) {
            (Some(caller), _) => Ok(Some(caller.clone())),
            (None, Some(vouch)) => vouch.caller(token).await,
            (None, None) => Ok(None),
        }
    }
}

/// The token that a request carries: `Authorization: Bearer TOKEN`.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn unknown() -> Response {
    let detail = "Send the token of a service: `Authorization: Bearer TOKEN`.";
    let mut response = Problem::new(Code::Unauthenticated).detail(detail).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        let hash = TokenHash::of("secret");
        assert_eq!(hash.to_string(), "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        for wrong in ["", "2bb8", &"g".repeat(64), &"ä".repeat(32)] {
            assert_eq!(wrong.parse::<TokenHash>(), Err(()), "{wrong}");
        }
    }

    #[tokio::test]
    async fn the_token_tells_who_calls() {
        let shop = ConfiguredCaller { token_hash: TokenHash::of("secret"), may: vec![Right::READ] };
        let credentials = Credentials::new([("shop", &shop)]);
        let ask = async |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            credentials.caller(&headers).await.unwrap()
        };
        let caller = ask("Bearer secret").await.unwrap();
        assert_eq!(caller.name(), "shop");
        assert!(caller.require(Right::READ).is_ok() && caller.require(Right::OPERATOR).is_err());
        assert!(ask("bearer  secret ").await.is_some());
        for wrong in ["Bearer", "Bearer ", "Bearer Secret", "Basic secret", "secret"] {
            assert!(ask(wrong).await.is_none(), "{wrong}");
        }
        assert!(credentials.caller(&HeaderMap::new()).await.unwrap().is_none());
    }
}
