//! Routes of the gateway and their callers.

use std::fmt;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use base::Code;
use base::id::Uuid;
use http::Method;
use http::request::Parts;
use http_server::Problem;

use crate::Provided;

/// A route of the gateway: its method and path, its allowed callers, and its limits.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub method: RouteMethod,
    pub path: &'static str,
    pub callers: AllowedCallers,
    pub class: RateClass,
    /// The largest body in bytes, if less than `gateway.max_body`. Routes that only read have no body.
    pub max_body: Option<usize>,
    /// How much longer than `gateway.request_timeout` a request may take. For long polls.
    pub extra_timeout: Duration,
}

/// The method of a route. CSRF protection, body limits and CORS depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteMethod {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// The callers that a route allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedCallers {
    Anyone,
    /// Every signed-in caller, including services.
    SignedIn,
    Player,
}

/// The rate limit that applies to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateClass {
    /// Only the limit per client address.
    Page,
    SignIn,
    Read,
    Write,
    Stream,
    /// No limit: the issuer must always be able to end sessions.
    Issuer,
}

/// A service's route of the gateway. The gateway's guard enforces the row before the handler runs.
#[derive(Clone)]
pub struct PlayerRoute {
    pub row: Row,
    pub handler: MethodRouter<Provided>,
}

impl PlayerRoute {
    /// Creates a route. The handler extracts what it uses with [`Open`](crate::Open), its caller with [`SignedInUser`], and a JSON
    /// body with [`http_server::JsonBody`], which enforces the limits of the row.
    pub fn new<H, T>(row: Row, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self { handler: on(row.method.filter(), handler), row }
    }
}

impl Row {
    pub const fn get(path: &'static str, callers: AllowedCallers, class: RateClass) -> Self {
        Self::new(RouteMethod::Get, path, callers, class)
    }

    pub const fn post(path: &'static str, callers: AllowedCallers, class: RateClass) -> Self {
        Self::new(RouteMethod::Post, path, callers, class)
    }

    pub const fn put(path: &'static str, callers: AllowedCallers, class: RateClass) -> Self {
        Self::new(RouteMethod::Put, path, callers, class)
    }

    pub const fn patch(path: &'static str, callers: AllowedCallers, class: RateClass) -> Self {
        Self::new(RouteMethod::Patch, path, callers, class)
    }

    pub const fn delete(path: &'static str, callers: AllowedCallers, class: RateClass) -> Self {
        Self::new(RouteMethod::Delete, path, callers, class)
    }

    pub const fn new(
        method: RouteMethod,
        path: &'static str,
        callers: AllowedCallers,
        class: RateClass,
    ) -> Self {
        Self { method, path, callers, class, max_body: None, extra_timeout: Duration::ZERO }
    }

    /// Limits the body to `bytes` if `gateway.max_body` is larger.
    pub const fn with_max_body(self, bytes: usize) -> Self {
        Self { max_body: Some(bytes), ..self }
    }

    /// Allows requests this much time in addition to `gateway.request_timeout`. For long polls.
    pub const fn with_extra_timeout(self, at_most: Duration) -> Self {
        Self { extra_timeout: at_most, ..self }
    }
}

impl RouteMethod {
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// Returns whether requests only read (RFC 9110, section 9.2.1). They need no CSRF protection and have no body.
    pub const fn is_safe(self) -> bool {
        matches!(self, Self::Get)
    }

    /// Returns the filter for this method. GET routes answer HEAD too.
    pub const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

impl From<RouteMethod> for Method {
    fn from(method: RouteMethod) -> Self {
        match method {
            RouteMethod::Get => Self::GET,
            RouteMethod::Post => Self::POST,
            RouteMethod::Put => Self::PUT,
            RouteMethod::Patch => Self::PATCH,
            RouteMethod::Delete => Self::DELETE,
        }
    }
}

/// Formats the method as in a request: `GET`.
impl fmt::Display for RouteMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Method::from(*self).as_str())
    }
}

impl fmt::Debug for PlayerRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlayerRoute").field(&self.row).finish()
    }
}

/// The caller of a gateway route that is not open to [anyone](AllowedCallers::Anyone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedInUser(pub Uuid);

impl<S: Sync> FromRequestParts<S> for SignedInUser {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().copied().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}

/// The player who calls, as the gateway's cache of users has them. May be as old as that cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedInPlayer {
    pub user: Uuid,
    /// Sorted by age, the oldest first.
    pub accounts: Vec<Uuid>,
    pub roles: Vec<&'static str>,
}

impl<S: Sync> FromRequestParts<S> for SignedInPlayer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}
