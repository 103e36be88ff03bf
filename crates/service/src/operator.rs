//! Routes of the admin API, and the operators who call them.

use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::handler::Handler;
use axum::routing::{MethodRouter, on};
use base::Code;
use futures::future::BoxFuture;
use http::request::Parts;
use http_server::Problem;

use crate::{Provided, RouteMethod};

/// What a caller of a route of the admin API needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing. For probes, which change nothing and have no personal data.
    Open,
    /// To be an operator.
    Read,
    /// To be an operator who is not read-only. Every such request is in the audit log.
    Change,
}

/// A route of the admin API: what it is, and what its callers need. The method and the access always fit: only what is read is a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorRow {
    method: RouteMethod,
    path: &'static str,
    access: Access,
}

impl OperatorRow {
    pub const fn method(&self) -> RouteMethod {
        self.method
    }

    pub const fn path(&self) -> &'static str {
        self.path
    }

    pub const fn access(&self) -> Access {
        self.access
    }
}

/// A route that a service brings to the admin API. The guard enforces the row before the handler runs.
#[derive(Clone)]
pub struct OperatorRoute {
    pub row: OperatorRow,
    pub handler: MethodRouter<Provided>,
}

impl OperatorRoute {
    /// A route that operators read by. The handler takes what it uses with [`Open`](crate::Open), and its caller with [`Operator`].
    pub fn get<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Get, path, Access::Read, handler)
    }

    /// A route that operators change something by.
    pub fn post<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Post, path, Access::Change, handler)
    }

    /// A route that operators change something by.
    pub fn put<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Put, path, Access::Change, handler)
    }

    /// A route that operators remove something by.
    pub fn delete<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Delete, path, Access::Change, handler)
    }

    /// A route for probes, which is for anyone unless the configuration wants operators.
    pub fn probe(path: &'static str, who: ProbedBy, handler: MethodRouter) -> Self {
        let access = match who {
            ProbedBy::Anyone => Access::Open,
            ProbedBy::Operators => Access::Read,
        };
        Self { row: OperatorRow { method: RouteMethod::Get, path, access }, handler: handler.with_state(()) }
    }

    fn new<H, T>(method: RouteMethod, path: &'static str, access: Access, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self { row: OperatorRow { method, path, access }, handler: on(method.filter(), handler) }
    }
}

impl fmt::Debug for OperatorRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OperatorRoute").field(&self.row).finish()
    }
}

/// Who may read health, readiness or metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbedBy {
    Anyone,
    Operators,
}

impl config::Choice for ProbedBy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("anyone", Self::Anyone), ("operators", Self::Operators)];
}

/// The operator who calls a route of the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    pub name: String,
    pub proof: Proof,
    /// Whether they may only read.
    pub read_only: bool,
}

/// How a caller has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By a token whose hash is in the configuration.
    ConfiguredToken,
    /// By an access token of the issuer, which knows them as this subject.
    IssuedToken { subject: String },
}

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}

/// Who sent an access token of the issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenHolder {
    Operator(Operator),
    /// A user of the issuer who is not an operator, by name.
    SomebodyElse(Operator),
}

/// Finds operators by access tokens of the issuer.
pub trait VouchForOperators: fmt::Debug + Send + Sync {
    /// Returns none if the token is not the issuer's or no longer valid, and a problem if the token cannot be checked now.
    fn holder<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<TokenHolder>, Problem>>;
}

/// What the issuer vouches for, as one service provides it to the admin API.
#[derive(Clone, Debug)]
pub struct IssuedOperators(pub Option<Arc<dyn VouchForOperators>>);
