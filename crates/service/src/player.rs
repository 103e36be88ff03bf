//! Routes of the gateway, and who calls them.

use std::fmt;

use axum::extract::FromRequestParts;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use base::Code;
use base::id::Uuid;
use http::Method;
use http::request::Parts;
use http_server::Problem;

use crate::Provided;

/// A route of the gateway: what it is, who may call it, and which limit it falls under.
#[derive(Clone, Debug)]
pub struct Row {
    pub method: Method,
    pub path: &'static str,
    pub who: Who,
    pub class: Class,
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Anyone,
    /// Every signed-in caller, services included.
    SignedIn,
    Player,
}

/// Which limit a route falls under.
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

/// A route that a service brings to the gateway. The gateway's guard does what the row says before the handler runs.
#[derive(Clone)]
pub struct PlayerRoute {
    pub row: Row,
    pub handler: MethodRouter<Provided>,
}

impl PlayerRoute {
    /// A handler asks for what it uses with [`Open`](crate::Open), and for its caller with [`SignedInUser`].
    pub fn new<H, T>(row: Row, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self { handler: on(filter(&row.method), handler), row }
    }
}

impl Row {
    pub const fn new(method: Method, path: &'static str, who: Who, class: Class) -> Self {
        Self { method, path, who, class }
    }
}

/// The filter of a method that axum knows. All that routes are made for are known.
fn filter(method: &Method) -> MethodFilter {
    MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::GET)
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
