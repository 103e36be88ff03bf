//! Authenticates and authorises callers of the admin API, and records their changes in the audit log.

use std::collections::HashSet;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::sync::Arc;

use ::config::Network;
use ::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use ::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method};
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Redirect, Response};
use base::Code;
use base::error::{Coded, chain};
use base::id::RequestId;
use http_server::{Caller, Connection, Problem, TokenHash, bearer_token, client_address, cookie};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use runtime::fault;
use service::{
    Access, Credential, DryRun, IssuerOperators, Operator, OperatorRoute, OperatorRow, Provided, RouteMethod,
    TokenHolder,
};
use tracing::{Instrument, Span};

use crate::audit_log::{Actor, Attempt, AuditLog};
use crate::config::Config;
use crate::sessions::{COOKIE, ConfiguredOperators, ConsoleSessions, configured_operators};

/// The header with the reason for a change.
const NOTE: HeaderName = HeaderName::from_static("x-audit-note");

/// The content security policy of answers that are not pages.
const NOTHING: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

pub(crate) const ADMIN: &str = "admin";
const SERVICE_API: &str = "service_api";

/// Enforces the access rules of the admin API. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Guard {
    configured: ConfiguredOperators,
    trusted: Arc<[Network]>,
    provided: Provided,
}

impl Guard {
    /// Creates a guard with the configured operators. It takes the audit log and the issuer's verifier from `provided` once they are there.
    pub fn new(config: &Config, trusted: &[Network], provided: Provided) -> Self {
        Self { configured: configured_operators(config), trusted: trusted.into(), provided }
    }

    /// Builds the router of the admin API, with every route behind the access rule of its row.
    pub fn router(&self, routes: Vec<OperatorRoute>) -> Router {
        let router = routes.into_iter().fold(Router::new(), |router, OperatorRoute { row, handler, .. }| {
            let guard = self.clone();
            let enforce =
                from_fn(move |request: Request, next: Next| guard.clone().enforce(row, request, next));
            router.route(row.path(), handler.route_layer(enforce))
        });
        router.with_state(self.provided.clone())
    }

    /// Records requests of services to these routes in the audit log. The callers are already authenticated.
    pub fn audit_services(&self, audited: Vec<(RouteMethod, String)>, routes: Router) -> Router {
        let audited = audited.into_iter().map(|(method, path)| (Method::from(method), path));
        let audited: Arc<HashSet<(Method, String)>> = Arc::new(audited.collect());
        let guard = self.clone();
        routes.layer(from_fn(move |request: Request, next: Next| {
            let (guard, audited) = (guard.clone(), audited.clone());
            async move {
                let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
                let caller = request.extensions().get::<Caller>().cloned();
                match (path.map(|path| (request.method().clone(), path)), caller) {
                    (Some(route), Some(caller)) if audited.contains(&route) => {
                        let actor = Actor::service(&caller);
                        let attempt = guard.attempt(SERVICE_API, &route.1, actor, &request);
                        guard.run_audited(attempt, request, next).await
                    }
                    _ => next.run(request).await,
                }
            }
        }))
    }

    async fn enforce(self, row: OperatorRow, mut request: Request, next: Next) -> Response {
        if row.credential() == Credential::ConsoleSession {
            return with_page_headers(self.enforce_console(row, request, next).await);
        }
        if row.access() == Access::Open {
            return next.run(request).await;
        }
        let holder = match request.extensions_mut().remove::<Operator>() {
            // A form of the console: the operator was authenticated by the session.
            Some(operator) => Ok(Some(TokenHolder::Operator(operator))),
            None => self.holder(request.headers()).await,
        };
        let operator = match holder {
            Ok(Some(TokenHolder::Operator(operator))) => operator,
            Ok(Some(TokenHolder::OtherUser(user))) => {
                let detail = format!("The user {:?} is not an operator.", user.name);
                let attempt = self.attempt(ADMIN, row.path(), Actor::user(&user), &request);
                return self.refuse(attempt, detail).await;
            }
            Ok(None) => return unauthenticated(),
            Err(problem) => return problem.into_response(),
        };
        if row.access() == Access::Read {
            request.extensions_mut().insert(operator);
            return next.run(request).await;
        }
        let attempt = self.attempt(ADMIN, row.path(), Actor::operator(&operator), &request);
        if operator.read_only {
            let detail = format!("The operator {:?} is read-only.", operator.name);
            return self.refuse(attempt, detail).await;
        }
        request.extensions_mut().insert(operator);
        self.run_audited(attempt, request, next).await
    }

    /// Serves a page of the console. Refuses forms of other sites, also to the sign-in: an operator would work in the name of another
    /// one without noticing.
    async fn enforce_console(self, row: OperatorRow, request: Request, next: Next) -> Response {
        if !request.method().is_safe() && is_from_another_site(request.headers()) {
            return Problem::new(Code::PermissionDenied)
                .cause("foreign-origin")
                .detail("Another site sent this form. Open the console and use its own.")
                .into_response();
        }
        match row.access() {
            Access::Open => next.run(request).await,
            Access::Read | Access::Change => self.enforce_session(request, next).await,
        }
    }

    /// Serves a page to the operator of the session. Sends a browser without a session to the sign-in.
    async fn enforce_session(self, mut request: Request, next: Next) -> Response {
        let Some(sessions) = self.provided.find::<ConsoleSessions>() else {
            return Problem::new(Code::Unavailable)
                .detail("This process is still starting; try again.")
                .into_response();
        };
        let found = match cookie(request.headers(), COOKIE) {
            Some(secret) => sessions.find(secret).await,
            None => Ok(None),
        };
        match found {
            Ok(Some(operator)) => {
                request.extensions_mut().insert(operator);
                next.run(request).await
            }
            Ok(None) => to_sign_in(&request),
            Err(error) => {
                tracing::warn!(cause = chain(&error), outage = "db", "cannot read a session of the console");
                let detail = "The database does not answer, so your session cannot be checked. Run `playhouse doctor`.";
                Problem::new(error.code()).detail(detail).into_response()
            }
        }
    }

    /// Returns the holder of the token. Returns none if there is no token or it is unknown.
    async fn holder(&self, headers: &HeaderMap) -> Result<Option<TokenHolder>, Problem> {
        let Some(token) = bearer_token(headers) else { return Ok(None) };
        // A lookup by hash takes the same time for any wrong token, so its timing reveals nothing.
        if let Some(operator) = self.configured.get(&TokenHash::of(token)) {
            return Ok(Some(TokenHolder::Operator(operator.clone())));
        }
        match self.provided.find::<IssuerOperators>() {
            Some(IssuerOperators(Some(issuer))) => issuer.holder(token).await,
            Some(IssuerOperators(None)) => Ok(None),
            // Not a JWT, so it cannot be the issuer's: no need to wait until the service is open.
            None if !token.contains('.') => Ok(None),
            None => Err(Problem::new(Code::Unavailable).detail("This process is still starting; try again.")),
        }
    }

    fn attempt(&self, listener: &'static str, path: &str, actor: Actor, request: &Request) -> Attempt {
        let (headers, extensions) = (request.headers(), request.extensions());
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        Attempt {
            listener,
            actor,
            action: format!("{} {path}", request.method()),
            target: target.to_owned(),
            address: address(headers, extensions, &self.trusted),
            request_id: extensions.get::<RequestId>().map(|id| id.as_str().to_owned()),
            note: headers.get(NOTE).map(|note| String::from_utf8_lossy(note.as_bytes()).into_owned()),
        }
    }

    /// Refuses an attempt and records it.
    async fn refuse(&self, attempt: Attempt, detail: String) -> Response {
        let problem = Problem::new(Code::PermissionDenied).detail(detail);
        let recorded = match self.provided.find::<AuditLog>() {
            Some(log) => log.record_refusal(&attempt, Code::PermissionDenied.http_status()).await.map(drop),
            None => Ok(()),
        };
        if let Err(error) = recorded {
            tracing::warn!(
                cause = chain(&error),
                actor = attempt.actor.name,
                action = attempt.action,
                "cannot record a refused attempt in the audit log"
            );
        }
        problem.into_response()
    }

    /// Records a change, runs it, and records its outcome. Continues if the caller disconnects, so that the outcome is always recorded.
    async fn run_audited(self, attempt: Attempt, request: Request, next: Next) -> Response {
        let Some(log) = self.provided.find::<AuditLog>() else {
            return Problem::new(Code::Unavailable)
                .detail("This process is still starting; try again.")
                .into_response();
        };
        let entry = match log.begin(&attempt).await {
            Ok(entry) => entry,
            Err(error) => {
                tracing::error!(
                    cause = chain(&error),
                    "refused a change because the audit log cannot be written"
                );
                let detail = "Nothing was changed, because the audit log cannot be written. Try again when the database is reachable.";
                return Problem::new(error.code()).detail(detail).into_response();
            }
        };
        fault::point("audit.begun");
        let change = async move {
            let response = entry.marking(next.run(request)).await;
            fault::point("audit.outcome");
            let status = response.status().as_u16();
            let is_dry_run = response.extensions().get::<DryRun>().is_some();
            if let Err(error) = log.finish(&entry, status, is_dry_run).await {
                tracing::error!(
                    cause = chain(&error),
                    status,
                    "cannot record the outcome of a change in the audit log"
                );
            }
            response
        };
        match tokio::spawn(change.instrument(Span::current())).await {
            Ok(response) => response,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Problem::new(Code::Unavailable)
                    .detail("This process is stopping; try again.")
                    .into_response(),
            },
        }
    }
}

/// Returns the address of the client, behind trusted proxies.
pub(crate) fn address(headers: &HeaderMap, extensions: &Extensions, trusted: &[Network]) -> Option<IpAddr> {
    let peer = extensions.get::<Connection>().map(|connection| connection.peer().ip());
    peer.map(|peer| client_address(headers, peer, trusted))
}

/// Adds the headers that every answer below `/console` has, also refusals and errors: nothing is framed, kept or run. Pages set their
/// own policy.
fn with_page_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NOTHING);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("same-origin"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

/// Returns whether the browser says that a page of another site sent the request.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

/// Sends the caller to the sign-in page, which leads back to the requested one. A request for anything but a page, such as the stream of
/// live updates, gets 401.
fn to_sign_in(request: &Request) -> Response {
    let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("*/*");
    if !accepts.contains("text/html") && !accepts.contains("*/*") {
        return Problem::new(Code::Unauthenticated).detail("Sign in at /console/sign-in.").into_response();
    }
    let target = request.uri().path_and_query().map_or("/console", |target| target.as_str());
    // A form cannot be sent again after the sign-in.
    let target = if request.method().is_safe() { target } else { "/console" };
    let sign_in =
        format!("/console/sign-in?return_to={}", percent_encode(target.as_bytes(), NON_ALPHANUMERIC));
    Redirect::to(&sign_in).into_response()
}

fn unauthenticated() -> Response {
    let detail = "Send the token of an operator: `Authorization: Bearer TOKEN`. `playhouse` takes it from PLAYHOUSE_OPERATOR_TOKEN \
                  or from the file of --operator-token-file; `playhouse token --operator NAME` creates one.";
    let mut response = Problem::new(Code::Unauthenticated).detail(detail).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
