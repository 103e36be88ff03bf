//! What stands in front of every route: the row of the table that it is in.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, RETRY_AFTER};
use ::http::{HeaderMap, HeaderName, HeaderValue};
use account::{Role, UserId};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base::Code;
use http_server::{Connection, Problem, client_address, counted_as};
use limits::{Begun, Check, Rate, Verdict};
use service::{Class, PlayerEvents, Row, SignedInPlayer, SignedInUser, Who};
use sessions::{Caller, NotAuthenticated, Proof, SecurityEvent};

use crate::Gateway;
use crate::clients::{self, Client};
use crate::config::LimitsConfig;
use crate::harden::secured;
use crate::http::brought_stream;

/// On every request that changes something and has a session: a page of another site cannot send it without being asked for
/// permission first.
pub(crate) const CSRF: HeaderName = HeaderName::from_static(CSRF_NAME);
pub(crate) const CSRF_NAME: &str = "x-playhouse-csrf";
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// How often a line of the audit log says of one address that it is beyond its limits.
const AUDIT_RATE: Rate = Rate::once_in(10);

/// The longest path and query.
const MAX_URI: usize = 8 * 1024;
/// The largest answer that fields are taken out of. Ours are smaller.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// The name of a class in headers and metrics, and its rate.
const fn policy(class: Class, limits: &LimitsConfig) -> Option<(&'static str, Rate)> {
    match class {
        Class::Page | Class::Issuer => None,
        Class::SignIn => Some(("sign_in", limits.sign_in)),
        Class::Read => Some(("read", limits.read)),
        Class::Write => Some(("write", limits.write)),
        Class::Stream => Some(("stream", limits.stream)),
    }
}

/// Where a request came from. Every request carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) Option<IpAddr>);

pub(crate) async fn guard(
    State((gateway, row)): State<(Gateway, Arc<Row>)>,
    request: Request,
    next: Next,
) -> Response {
    let answering = async {
        match gateway.admitted(&row, request).await {
            Ok((request, client, verdict)) => {
                let follower = Follower::of(&row, &request);
                let mut response = next.run(request).await;
                if let Some(Follower { caller, connection }) = follower
                    && let Some(events) = PlayerEvents::take(&mut response)
                {
                    response = brought_stream(&gateway, caller, &connection, events);
                }
                gateway.finished(&row, &client, &verdict, response).await
            }
            Err((response, verdict)) => limited(response, verdict.as_ref()),
        }
    };
    let answered = tokio::time::timeout(gateway.config.request_timeout + row.waits, answering).await;
    secured(answered.unwrap_or_else(|_| late()), gateway.is_https())
}

/// The caller of a route that a stream may come of, kept because the handler consumes the request.
struct Follower {
    caller: Caller,
    connection: Connection,
}

impl Follower {
    fn of(row: &Row, request: &Request) -> Option<Self> {
        let extensions = request.extensions();
        let (caller, connection) = (extensions.get::<Caller>()?, extensions.get::<Connection>()?);
        (row.class == Class::Stream).then(|| Self { caller: caller.clone(), connection: connection.clone() })
    }
}

type Admitted = (Request, Client, Verdict);
type Turned = (Response, Option<Verdict>);

impl Gateway {
    /// Lets a request in, or says why not.
    async fn admitted(&self, row: &Row, mut request: Request) -> Result<Admitted, Turned> {
        let turned = |problem: Problem| (problem.into_response(), None);
        let uri = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
        if uri > MAX_URI {
            let detail = format!("The path and the query may have {MAX_URI} characters.");
            return Err(turned(Problem::new(Code::UriTooLong).detail(detail)));
        }
        let address = self.address(&request);
        request.extensions_mut().insert(Address(address));
        let from = address.map(|address| counted_as(address).to_string()).unwrap_or_default();
        // Before a token is checked or a session read: an address beyond its limit costs next to nothing.
        let begun = self.begin(row, &from).map_err(|verdict| self.refused(row, address, None, verdict))?;
        let caller = match row.who {
            Who::Anyone => Err(NotAuthenticated::NoCredentials),
            Who::SignedIn | Who::Player => self.sessions.caller(request.headers()).await,
        };
        let verdict = self.take(row, begun, &from, caller.as_ref().ok()).await;
        if !verdict.allowed {
            let user = caller.as_ref().ok().map(Caller::user);
            return Err(self.refused(row, address, user, verdict));
        }
        let refused = |problem: Problem| (problem.into_response(), Some(verdict.clone()));
        let client = self.clients.client(request.headers()).map_err(refused)?;
        if row.who != Who::Anyone {
            self.clients.check_version(&client).map_err(refused)?;
            let caller = caller.map_err(|nobody| {
                if let Some(why) = nobody.refusal() {
                    self.audit().note(SecurityEvent::TokenRefused, address, None, &why);
                }
                (nobody.into_response(), Some(verdict.clone()))
            })?;
            self.check_role(row, &caller, address).map_err(refused)?;
            self.check_csrf(row, &caller, request.headers(), address).map_err(refused)?;
            // For the handlers of services, which know users by their ids.
            request.extensions_mut().insert(SignedInUser(*caller.user().as_uuid()));
            request.extensions_mut().insert(signed_in_player(&caller));
            request.extensions_mut().insert(caller);
        }
        request.extensions_mut().insert(client.clone());
        Ok((request, client, verdict))
    }

    /// Who sent the request, proxies that we trust left out.
    fn address(&self, request: &Request) -> Option<IpAddr> {
        let connection = request.extensions().get::<Connection>()?;
        Some(client_address(request.headers(), connection.peer().ip(), &self.trusted))
    }

    /// Takes from the limit of the address. The issuer has none.
    fn begin<'a>(&'a self, row: &Row, from: &'a str) -> Result<Option<Begun<'a>>, Verdict> {
        if row.class == Class::Issuer {
            return Ok(None);
        }
        let of_address = Check { policy: "address", key: from, rate: self.config.limits.address };
        self.limits.begin(of_address).map(Some)
    }

    /// Takes from the limit of the class: the player's, or that of the address where nobody is signed in.
    async fn take(
        &self,
        row: &Row,
        begun: Option<Begun<'_>>,
        from: &str,
        caller: Option<&Caller>,
    ) -> Verdict {
        let Some(begun) = begun else { return self.limits.take(&[]).await };
        let user = caller.map(|caller| caller.user().to_string());
        let of_class = policy(row.class, &self.config.limits).map(|(policy, rate)| Check {
            policy,
            key: user.as_deref().unwrap_or(from),
            rate,
        });
        begun.take(of_class.as_slice()).await
    }

    /// The answer to a request beyond a limit. Every one is counted; of those from one address, one in a while is logged.
    fn refused(&self, row: &Row, address: Option<IpAddr>, user: Option<UserId>, verdict: Verdict) -> Turned {
        let from = address.map(|address| counted_as(address).to_string()).unwrap_or_default();
        if self.limits.take_here(Check { policy: "audit", key: &from, rate: AUDIT_RATE }) {
            self.audit().note(SecurityEvent::RateLimited, address, user, row.path);
        } else {
            self.audit().count(SecurityEvent::RateLimited);
        }
        let detail = "Slow down: `Retry-After` says when to come back.";
        (Problem::new(Code::RateLimited).detail(detail).into_response(), Some(verdict))
    }

    /// Counts something that the address should not do often. Whether it may be heard of.
    pub(crate) async fn is_rare(&self, address: Option<IpAddr>) -> bool {
        let key = address.map(|address| counted_as(address).to_string()).unwrap_or_default();
        self.limits
            .take(&[Check { policy: "refused", key: &key, rate: self.config.limits.sign_in }])
            .await
            .allowed
    }

    fn check_role(&self, row: &Row, caller: &Caller, address: Option<IpAddr>) -> Result<(), Problem> {
        if row.who != Who::Player || caller.has(Role::Player) {
            return Ok(());
        }
        self.audit().note(SecurityEvent::RoleRefused, address, Some(caller.user()), row.path);
        Err(Problem::new(Code::PermissionDenied)
            .detail("This is for players; services have an API of their own."))
    }

    fn check_csrf(
        &self,
        row: &Row,
        caller: &Caller,
        headers: &HeaderMap,
        address: Option<IpAddr>,
    ) -> Result<(), Problem> {
        if row.method.is_safe() || matches!(caller.proof, Proof::Token { .. }) {
            return Ok(());
        }
        let detail = if !headers.contains_key(&CSRF) {
            format!("Send the header `{CSRF}: 1` with every request that changes something.")
        } else if !self.is_known_origin(headers) {
            "Pages of this origin may not do that: gateway.cors_origins has those that may.".to_owned()
        } else {
            return Ok(());
        };
        self.audit().note(SecurityEvent::CsrfRefused, address, Some(caller.user()), row.path);
        Err(Problem::new(Code::PermissionDenied).detail(detail))
    }

    /// Whether the page that sends this is ours, or one that may call. What is no page says nothing.
    fn is_known_origin(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(ORIGIN) else { return true };
        let origin = origin.to_str().unwrap_or_default();
        origin == self.origin.as_str()
            || self.config.cors_origins.iter().any(|known| known.as_str() == origin)
    }

    async fn finished(&self, row: &Row, client: &Client, verdict: &Verdict, response: Response) -> Response {
        let mut hidden = self.clients.hidden(client, row.path).peekable();
        let response = if hidden.peek().is_some() { without(hidden, response).await } else { response };
        limited(response, Some(verdict))
    }
}

/// What handlers and parts of services may know of a caller.
pub(crate) fn signed_in_player(caller: &Caller) -> SignedInPlayer {
    SignedInPlayer {
        user: *caller.user().as_uuid(),
        accounts: caller.known.accounts.iter().map(|account| *account.id.as_uuid()).collect(),
        roles: caller.known.user.roles.iter().map(|role| role.word()).collect(),
    }
}

/// The answer without the fields that the client does not see.
async fn without<'a>(hidden: impl Iterator<Item = &'a clients::HiddenField>, response: Response) -> Response {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !is_json {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_ANSWER).await;
    let Some(mut answer) = bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) else {
        tracing::error!("an answer of ours is too large to take fields out of it");
        return Problem::new(Code::Internal).into_response();
    };
    clients::hide(hidden, &mut answer);
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Body::from(answer.to_string()))
}

fn late() -> Response {
    Problem::new(Code::Timeout).detail("The answer took too long; try again.").into_response()
}

/// Says in headers what the limits are, and what is left.
fn limited(mut response: Response, verdict: Option<&Verdict>) -> Response {
    let Some(verdict) = verdict.filter(|verdict| !verdict.states.is_empty()) else { return response };
    let (mut policies, mut left) = (String::with_capacity(64), String::with_capacity(64));
    for (at, state) in verdict.states.iter().enumerate() {
        let limits::State { policy, quota, window, remaining, reset, .. } = state;
        let comma = if at == 0 { "" } else { ", " };
        let (window, reset) = (seconds(*window), seconds(*reset));
        // Nothing can go wrong with a text.
        let _ = write!(policies, "{comma}\"{policy}\";q={quota};w={window}");
        let _ = write!(left, "{comma}\"{policy}\";r={remaining};t={reset}");
    }
    let wait = verdict.retry_after().map(|wait| seconds(wait).max(1).to_string());
    let texts = [(RATE_LIMIT_POLICY, Some(policies)), (RATE_LIMIT, Some(left)), (RETRY_AFTER, wait)];
    for (name, text) in texts {
        if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Whole seconds, those that have begun included.
const fn seconds(time: Duration) -> u64 {
    time.as_secs() + (time.subsec_nanos() > 0) as u64
}
