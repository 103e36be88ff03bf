//! Routes of the admin API and their callers.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::handler::Handler;
use axum::routing::{MethodRouter, on};
use base::Code;
use futures::future::BoxFuture;
use http::request::Parts;
use http_server::Problem;
use screens::Operation;

use crate::{Provided, RouteMethod};

/// What a caller needs to call a route of the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing. For probes, which change nothing and return no personal data.
    Open,
    /// The token of an operator.
    Read,
    /// The token of an operator who is not read-only. Every such request is recorded in the audit log.
    Change,
}

/// Marks the response to a dry run, as an extension: nothing was changed, and the audit log says so.
#[derive(Clone, Copy, Debug)]
pub struct DryRun;

/// A route of the admin API and the access that its callers need. The constructors keep method and access consistent: only GET routes
/// have [`Access::Read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorRow {
    method: RouteMethod,
    path: &'static str,
    access: Access,
    credential: Credential,
}

/// How callers of a route prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// By a bearer token: programs, and the commands of `playhouse`.
    Token,
    /// By the session cookie of the console. A browser that is not signed in is sent to the sign-in page.
    ConsoleSession,
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

    pub const fn credential(&self) -> Credential {
        self.credential
    }
}

/// A service's route of the admin API. The guard enforces the row before the handler runs.
#[derive(Clone)]
pub struct OperatorRoute {
    pub row: OperatorRow,
    pub handler: MethodRouter<Provided>,
    /// How the console offers it. Every route that changes something has one, or a reason in the console's tests.
    pub operation: Option<Operation>,
}

impl OperatorRoute {
    /// Creates a route that reads. The handler extracts what it uses with [`Open`](crate::Open), and its caller with [`Operator`].
    pub fn get<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Get, path, Access::Read, handler)
    }

    /// Creates a route that changes something.
    pub fn post<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Post, path, Access::Change, handler)
    }

    /// Creates a route that changes something.
    pub fn put<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Put, path, Access::Change, handler)
    }

    /// Creates a route that removes something.
    pub fn delete<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::new(RouteMethod::Delete, path, Access::Change, handler)
    }

    /// Creates a route for probes. `access` comes from the configuration.
    pub fn probe(path: &'static str, access: ProbeAccess, handler: MethodRouter) -> Self {
        let access = match access {
            ProbeAccess::Anyone => Access::Open,
            ProbeAccess::Operators => Access::Read,
        };
        let row = OperatorRow { method: RouteMethod::Get, path, access, credential: Credential::Token };
        Self { row, handler: handler.with_state(()), operation: None }
    }

    /// Creates a page of the console. It is served to operators who are signed in at the console.
    pub fn page<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::console(RouteMethod::Get, path, Access::Read, handler)
    }

    /// Creates a page of the console that anyone may load: the sign-in and its assets.
    pub fn public_page<H, T>(method: RouteMethod, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::console(method, path, Access::Open, handler)
    }

    /// Creates the route that a form of the console posts to. It changes nothing by itself: it calls a route of the admin API, which is
    /// guarded and recorded.
    pub fn form<H, T>(path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        Self::console(RouteMethod::Post, path, Access::Read, handler)
    }

    fn console<H, T>(method: RouteMethod, path: &'static str, access: Access, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        let mut route = Self::new(method, path, access, handler);
        route.row.credential = Credential::ConsoleSession;
        route
    }

    /// Declares how the console offers this route.
    pub const fn operation(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    fn new<H, T>(method: RouteMethod, path: &'static str, access: Access, handler: H) -> Self
    where
        H: Handler<T, Provided>,
        T: 'static,
    {
        let row = OperatorRow { method, path, access, credential: Credential::Token };
        Self { row, handler: on(method.filter(), handler), operation: None }
    }
}

impl fmt::Debug for OperatorRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OperatorRoute").field(&self.row).finish()
    }
}

/// Callers that may read health, readiness or metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAccess {
    Anyone,
    Operators,
}

impl config::Choice for ProbeAccess {
    const WORDS: &'static [(&'static str, Self)] =
        &[("anyone", Self::Anyone), ("operators", Self::Operators)];
}

/// The operator who calls a route of the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    pub name: String,
    pub proof: Proof,
    /// Whether the operator may only read.
    pub read_only: bool,
}

impl Operator {
    /// Returns the subject at the issuer, of an operator that the issuer authenticated.
    pub fn subject(&self) -> Option<&str> {
        match &self.proof {
            Proof::IssuedToken { subject } => Some(subject),
            Proof::ConfiguredToken => None,
        }
    }
}

/// How a caller was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By a token whose hash is in the configuration.
    ConfiguredToken,
    /// By an access token of the issuer, with this subject.
    IssuedToken { subject: String },
}

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::new(Code::Unauthenticated))
    }
}

/// The router of the admin API, for the console: its forms call the routes of the API within the process, with the operator who is
/// signed in as an extension of the request.
#[derive(Clone, Debug)]
pub struct AdminApi(pub Router);

/// The holder of an access token of the issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenHolder {
    Operator(Operator),
    /// A user of the issuer who is not an operator.
    OtherUser(Operator),
}

/// Verifies access tokens of the issuer.
pub trait OperatorVerifier: fmt::Debug + Send + Sync {
    /// Returns the holder of a token. Returns none if the token is not the issuer's or has expired, and a problem if it cannot be
    /// checked now.
    fn holder<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<TokenHolder>, Problem>>;
}

/// The verifier of operator tokens that a service provides to the admin API. None if no issuer is configured.
#[derive(Clone, Debug)]
pub struct IssuerOperators(pub Option<Arc<dyn OperatorVerifier>>);
