//! Routes of the gateway, and who calls them.

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

/// A route of the gateway: what it is, who may call it, and which limits it falls under.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub method: RouteMethod,
    pub path: &'static str,
    pub who: Who,
    pub class: Class,
    /// The largest body in bytes, where `gateway.max_body` is too much. Routes that only read have no body.
    pub max_body: Option<usize>,
    /// How much longer than `gateway.request_timeout` a request may take, because it waits for something to happen.
    pub waits: Duration,
}

/// The method of a route. Everything that depends on the method follows from here: CSRF protection, limits of bodies, CORS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteMethod {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Anyone,
    /// Every signed-in caller, services included.
    SignedIn,
    Player,
}

/// Which rate limit a route falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The limit of its address alone.
    Page,
    SignIn,
    Read,
    Write,
    Stream,
    /// None at all: the issuer must not be kept from ending sessions.
    Issuer,
}

/// A route that a service brings to the gateway. The gateway's guard enforces the row before the handler runs.
#[derive(Clone)]
pub struct PlayerRoute {
    pub row: Row,
    pub handler: MethodRouter<Provided>,
}

impl PlayerRoute {
    /// Makes a route of a handler. It extracts what it uses with [`Open`](crate::Open), its caller with [`SignedInUser`], and a JSON
    /// body with [`http_server::Body`], which keeps the limits of the row.
    pub fn new<H, T>(row: Row, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self { handler: on(row.method.filter(), handler), row }
    }
}

impl Row {
    pub const fn get(path: &'static str, who: Who, class: Class) -> Self {
        Self::new(RouteMethod::Get, path, who, class)
    }

    pub const fn post(path: &'static str, who: Who, class: Class) -> Self {
        Self::new(RouteMethod::Post, path, who, class)
    }

    pub const fn put(path: &'static str, who: Who, class: Class) -> Self {
        Self::new(RouteMethod::Put, path, who, class)
    }

    pub const fn patch(path: &'static str, who: Who, class: Class) -> Self {
        Self::new(RouteMethod::Patch, path, who, class)
    }

    pub const fn delete(path: &'static str, who: Who, class: Class) -> Self {
        Self::new(RouteMethod::Delete, path, who, class)
    }

    pub const fn new(method: RouteMethod, path: &'static str, who: Who, class: Class) -> Self {
        Self { method, path, who, class, max_body: None, waits: Duration::ZERO }
    }

    /// Limits the body to `bytes`, if `gateway.max_body` is more.
    pub const fn with_max_body(self, bytes: usize) -> Self {
        Self { max_body: Some(bytes), ..self }
    }

    /// Lets requests wait for so long, beside `gateway.request_timeout`: for long polls.
    pub const fn that_waits(self, at_most: Duration) -> Self {
        Self { waits: at_most, ..self }
    }
}

impl RouteMethod {
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// Whether requests only read (RFC 9110, 9.2.1). They need no protection from forgery, and have no body.
    pub const fn is_safe(self) -> bool {
        matches!(self, Self::Get)
    }

    /// The filter that lets this method through. Routes of GET answer HEAD too.
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

/// As it is written in a request: `GET`.
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

/// The user who calls a route of the gateway that is not for [anyone](Who::Anyone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedInUser(pub Uuid);

impl<S: Sync> FromRequestParts<S> for SignedInUser {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().copied().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}

/// What the gateway knows of the player who calls: as old as its cache of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedInPlayer {
    pub user: Uuid,
    /// The oldest first.
    pub accounts: Vec<Uuid>,
    pub roles: Vec<&'static str>,
}

impl<S: Sync> FromRequestParts<S> for SignedInPlayer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}
