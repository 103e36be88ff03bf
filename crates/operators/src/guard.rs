//! Who may call a route of the admin API, and what is written down of it.

use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::Arc;

use ::config::Network;
use ::http::header::WWW_AUTHENTICATE;
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use base::Code;
use base::error::{Coded, chain};
use base::id::RequestId;
use http_server::{Caller, Connection, Problem, TokenHash, bearer_token, client_address};
use runtime::fault;
use service::{
    Access, IssuedOperators, Operator, OperatorRoute, OperatorRow, Proof, Provided, RouteMethod, TokenHolder,
};
use tracing::{Instrument, Span};

use crate::audit_log::{Actor, Attempt, AuditLog};
use crate::config::Config;

/// The header in which a caller says why.
const NOTE: HeaderName = HeaderName::from_static("x-audit-note");

const ADMIN: &str = "admin";
const SERVICE_API: &str = "internal";

/// Enforces the rows of the admin API. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Guard {
    configured: Arc<HashMap<TokenHash, Operator>>,
    trusted: Arc<[Network]>,
    provided: Provided,
}

impl Guard {
    /// A guard who knows the configured operators. It finds the audit log and the issuer's operators in `provided`, once they are there.
    pub fn new(config: &Config, trusted: &[Network], provided: Provided) -> Self {
        let operators = config.operators.iter().map(|(name, operator)| {
            let known =
                Operator { name: name.clone(), proof: Proof::ConfiguredToken, read_only: operator.read_only };
            (operator.token_hash, known)
        });
        Self { configured: Arc::new(operators.collect()), trusted: trusted.into(), provided }
    }

    /// Builds the router of the admin API: every route behind what its row says.
    pub fn router(&self, routes: Vec<OperatorRoute>) -> Router {
        let router = routes.into_iter().fold(Router::new(), |router, OperatorRoute { row, handler }| {
            let guard = self.clone();
            let enforce =
                from_fn(move |request: Request, next: Next| guard.clone().enforce(row, request, next));
            router.route(row.path(), handler.route_layer(enforce))
        });
        router.with_state(self.provided.clone())
    }

    /// Writes the requests of services to these routes into the audit log. The callers have shown who they are.
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
                        guard.audited(attempt, request, next).await
                    }
                    _ => next.run(request).await,
                }
            }
        }))
    }

    async fn enforce(self, row: OperatorRow, mut request: Request, next: Next) -> Response {
        if row.access() == Access::Open {
            return next.run(request).await;
        }
        let operator = match self.holder(request.headers()).await {
            Ok(Some(TokenHolder::Operator(operator))) => operator,
            Ok(Some(TokenHolder::SomebodyElse(somebody))) => {
                let detail = format!("{:?} is known to the issuer, but is no operator.", somebody.name);
                let attempt = self.attempt(ADMIN, row.path(), Actor::somebody(&somebody), &request);
                return self.refused(attempt, detail).await;
            }
            Ok(None) => return stranger(),
            Err(problem) => return problem.into_response(),
        };
        if row.access() == Access::Read {
            request.extensions_mut().insert(operator);
            return next.run(request).await;
        }
        let attempt = self.attempt(ADMIN, row.path(), Actor::operator(&operator), &request);
        if operator.read_only {
            let detail = format!("The operator {:?} may read, and change nothing.", operator.name);
            return self.refused(attempt, detail).await;
        }
        request.extensions_mut().insert(operator);
        self.audited(attempt, request, next).await
    }

    /// Finds who sent a token: none if nobody knows it.
    async fn holder(&self, headers: &HeaderMap) -> Result<Option<TokenHolder>, Problem> {
        let Some(token) = bearer_token(headers) else { return Ok(None) };
        // Looked up by its hash, so the time it takes says nothing of the token.
        if let Some(operator) = self.configured.get(&TokenHash::of(token)) {
            return Ok(Some(TokenHolder::Operator(operator.clone())));
        }
        match self.provided.find::<IssuedOperators>() {
            Some(IssuedOperators(Some(issuer))) => issuer.holder(token).await,
            Some(IssuedOperators(None)) => Ok(None),
            // A token of ours looks different from the issuer's: it need not wait for the start.
            None if !token.contains('.') => Ok(None),
            None => Err(Problem::new(Code::Unavailable).detail("This process is still starting; try again.")),
        }
    }

    fn attempt(&self, listener: &'static str, path: &str, actor: Actor, request: &Request) -> Attempt {
        let (headers, extensions) = (request.headers(), request.extensions());
        let peer = extensions.get::<Connection>().map(|connection| connection.peer().ip());
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        Attempt {
            listener,
            actor,
            action: format!("{} {path}", request.method()),
            target: target.to_owned(),
            address: peer.map(|peer| client_address(headers, peer, &self.trusted)),
            request_id: extensions.get::<RequestId>().map(|id| id.as_str().to_owned()),
            note: headers.get(NOTE).map(|note| String::from_utf8_lossy(note.as_bytes()).into_owned()),
        }
    }

    /// Refuses an attempt and writes it down.
    async fn refused(&self, attempt: Attempt, detail: String) -> Response {
        let problem = Problem::new(Code::PermissionDenied).detail(detail);
        let entered = match self.provided.find::<AuditLog>() {
            Some(log) => log.refused(&attempt, Code::PermissionDenied.http_status()).await.map(drop),
            None => Ok(()),
        };
        if let Err(error) = entered {
            tracing::warn!(
                cause = chain(&error),
                actor = attempt.actor.name,
                action = attempt.action,
                "a refused attempt is not in the audit log"
            );
        }
        problem.into_response()
    }

    /// Runs a change between its two entries. It goes on when the caller hangs up, so that its outcome is known.
    async fn audited(self, attempt: Attempt, request: Request, next: Next) -> Response {
        let Some(log) = self.provided.find::<AuditLog>() else {
            return Problem::new(Code::Unavailable)
                .detail("This process is still starting; try again.")
                .into_response();
        };
        let entry = match log.begin(&attempt).await {
            Ok(entry) => entry,
            Err(error) => {
                tracing::error!(cause = chain(&error), "a change is refused, because it cannot be entered");
                let detail = "The audit log cannot be written, so nothing was changed. Try again when the database is back.";
                return Problem::new(error.code()).detail(detail).into_response();
            }
        };
        fault::point("audit.begun");
        let change = async move {
            let response = entry.marking(next.run(request)).await;
            fault::point("audit.outcome");
            let status = response.status().as_u16();
            if let Err(error) = log.finish(&entry, status).await {
                tracing::error!(
                    cause = chain(&error),
                    status,
                    "the outcome of a change is not in the audit log"
                );
            }
            response
        };
        match tokio::spawn(change.instrument(Span::current())).await {
            Ok(response) => response,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Problem::new(Code::Unavailable).detail("The process stops.").into_response(),
            },
        }
    }
}

fn stranger() -> Response {
    let detail = "Send the token of an operator: `Authorization: Bearer TOKEN`. `playhouse` finds it in PLAYHOUSE_OPERATOR_TOKEN or in \
                  the file of --operator-token-file; `playhouse token --operator NAME` makes one.";
    let mut response = Problem::new(Code::Unauthenticated).detail(detail).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
