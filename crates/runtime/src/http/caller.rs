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
use config::{Choice, Reader, Rejected, Section, Setting, Value};
use sha2::{Digest, Sha256};

use super::Problem;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Look things up.
    Read,
    /// Sign users in; link identities; make accounts.
    Accounts,
    /// Grant and revoke.
    Entitlements,
    /// Ban and erase users.
    Operator,
}

impl Right {
    pub const ALL: [Self; 4] = [Self::Read, Self::Accounts, Self::Entitlements, Self::Operator];
}

impl Choice for Right {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("read", Self::Read),
        ("accounts", Self::Accounts),
        ("entitlements", Self::Entitlements),
        ("operator", Self::Operator),
    ];
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

/// A service that may call.
#[derive(Clone, Debug)]
pub struct Service {
    pub token_hash: TokenHash,
    pub may: Vec<Right>,
}

impl Section for Service {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { token_hash: reader.required("token_hash"), may: reader.get("may") }
    }
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

/// Lets in those who show the token of a service.
#[derive(Clone, Debug, Default)]
pub struct Credentials(Arc<HashMap<TokenHash, Caller>>);

impl Credentials {
    pub fn new<'a>(services: impl IntoIterator<Item = (&'a str, &'a Service)>) -> Self {
        let caller =
            |(name, service): (&str, &Service)| (service.token_hash, Caller::new(name, &service.may));
        Self(Arc::new(services.into_iter().map(caller).collect()))
    }

    /// Refuses every request to these routes that does not say who it is from.
    pub fn guard(&self, routes: Router) -> Router {
        let credentials = self.clone();
        routes.layer(middleware::from_fn(move |mut request: Request, next: Next| {
            let caller = credentials.caller(request.headers());
            async move {
                match caller {
                    Some(caller) => {
                        request.extensions_mut().insert(caller);
                        next.run(request).await
                    }
                    None => unknown(),
                }
            }
        }))
    }

    fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = header.split_once(' ')?;
        // Looked up by its hash, so how long it takes says nothing of the token.
        let hash = scheme.eq_ignore_ascii_case("bearer").then(|| TokenHash::of(token.trim()))?;
        self.0.get(&hash).cloned()
    }
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

    #[test]
    fn the_token_tells_who_calls() {
        let service = Service { token_hash: TokenHash::of("secret"), may: vec![Right::Read] };
        let credentials = Credentials::new([("shop", &service)]);
        let ask = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            credentials.caller(&headers)
        };
        let caller = ask("Bearer secret").unwrap();
        assert_eq!(caller.name(), "shop");
        assert!(caller.require(Right::Read).is_ok() && caller.require(Right::Operator).is_err());
        assert!(ask("bearer  secret ").is_some());
        for wrong in ["Bearer", "Bearer ", "Bearer Secret", "Basic secret", "secret"] {
            assert!(ask(wrong).is_none(), "{wrong}");
        }
        assert!(credentials.caller(&HeaderMap::new()).is_none());
    }
}
