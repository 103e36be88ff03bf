//! The guard of every route. It enforces the route's row: callers, rate limits, client version and CSRF protection.

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
use http_server::{Connection, Problem, client_address, client_network};
use limits::{Check, KeyKind, LimitDecision, LimitState, PendingTake, Rate};
use service::{AllowedCallers, PlayerEvents, RateClass, Row, SignedInPlayer, SignedInUser};
use sessions::{Caller, NotAuthenticated, Proof, SecurityEvent};

use crate::Gateway;
use crate::clients::{self, Client};
use crate::config::LimitsConfig;
use crate::harden::with_security_headers;
use crate::http::service_stream;

/// Required on every request that changes something by session. A browser lets a page of another origin send it only after a
/// successful preflight request.
pub(crate) const CSRF: HeaderName = HeaderName::from_static(CSRF_NAME);
pub(crate) const CSRF_NAME: &str = "x-playhouse-csrf";
pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The policy that all requests from one address share.
pub(crate) const ADDRESS_POLICY: &str = "address";
/// How often one address is logged for exceeding its limits.
const AUDIT_RATE: Rate = Rate::once_in(10);

/// The longest path and query.
const MAX_URI: usize = 8 * 1024;
/// The largest response that fields can be removed from. All our responses are smaller.
const MAX_RESPONSE: usize = 4 * 1024 * 1024;

/// Returns the name of a class in headers and metrics, and its rate. Returns none for a class without a limit.
pub(crate) const fn policy(class: RateClass, limits: &LimitsConfig) -> Option<(&'static str, Rate)> {
    match class {
        RateClass::Page | RateClass::Issuer => None,
        RateClass::SignIn => Some(("sign_in", limits.sign_in)),
        RateClass::Read => Some(("read", limits.read)),
        RateClass::Write => Some(("write", limits.write)),
        RateClass::Stream => Some(("stream", limits.stream)),
    }
}

/// The client address of a request. Every request has it as an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) Option<IpAddr>);

/// Enforces the row of a route around its handler.
pub(crate) async fn guard(
    State((gateway, row)): State<(Gateway, Arc<Row>)>,
    request: Request,
    next: Next,
) -> Response {
    let answering = async {
        match gateway.admit(&row, request).await {
            Ok(Admitted { request, client, decision }) => {
                let stream_caller = StreamCaller::of(&row, &request);
                let mut response = next.run(request).await;
                if let Some(StreamCaller { caller, connection }) = stream_caller
                    && let Some(events) = PlayerEvents::take(&mut response)
                {
                    response = service_stream(&gateway, caller, &connection, events);
                }
                gateway.finish(&row, &client, &decision, response).await
            }
            Err(Refused { response, decision }) => with_limit_headers(response, decision.as_ref()),
        }
    };
    let answered = tokio::time::timeout(gateway.config.request_timeout + row.extra_timeout, answering).await;
    with_security_headers(answered.unwrap_or_else(|_| timed_out()), gateway.is_https())
}

/// The address of a client, and the key that its limits are counted under.
#[derive(Clone, Copy)]
pub(crate) struct ClientKey<'a> {
    pub(crate) address: Option<IpAddr>,
    pub(crate) key: &'a str,
}

/// The caller of a route that may return a stream. Copied before the handler consumes the request.
struct StreamCaller {
    caller: Caller,
    connection: Connection,
}

impl StreamCaller {
    fn of(row: &Row, request: &Request) -> Option<Self> {
        let extensions = request.extensions();
        let (caller, connection) = (extensions.get::<Caller>()?, extensions.get::<Connection>()?);
        (row.class == RateClass::Stream)
            .then(|| Self { caller: caller.clone(), connection: connection.clone() })
    }
}

/// A request that passed all checks before the handler.
struct Admitted {
    request: Request,
    client: Client,
    decision: LimitDecision,
}

/// The response to a refused request, and the state of its limits if they were checked.
struct Refused {
    response: Response,
    decision: Option<LimitDecision>,
}

impl Refused {
    fn new(response: impl IntoResponse, decision: Option<LimitDecision>) -> Self {
        Self { response: response.into_response(), decision }
    }
}

impl Gateway {
    /// Checks a request against its row.
    async fn admit(&self, row: &Row, mut request: Request) -> Result<Admitted, Refused> {
        let uri = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
        if uri > MAX_URI {
            let detail = format!("The path and the query together may have at most {MAX_URI} characters.");
            return Err(Refused::new(Problem::new(Code::UriTooLong).detail(detail), None));
        }
        let address = self.address(&request);
        request.extensions_mut().insert(Address(address));
        let key = limit_key(address);
        let client_key = ClientKey { address, key: &key };
        // Before a token is verified or a session is read, so that an address over its limit costs almost nothing.
        let pending = self
            .begin_take(row, &key)
            .map_err(|decision| self.refuse(row.path, client_key, None, decision))?;
        let caller = match row.callers {
            AllowedCallers::Anyone => Err(NotAuthenticated::NoCredentials),
            AllowedCallers::SignedIn | AllowedCallers::Player => {
                self.sessions.caller(request.headers()).await
            }
        };
        let decision = self.take(row, pending, &key, caller.as_ref().ok()).await;
        if !decision.allowed {
            let user = caller.as_ref().ok().map(Caller::user);
            return Err(self.refuse(row.path, client_key, user, decision));
        }
        let refused = |problem: Problem| Refused::new(problem, Some(decision.clone()));
        let client = self.clients.client(request.headers()).map_err(refused)?;
        if row.callers != AllowedCallers::Anyone {
            self.clients.check_version(&client).map_err(refused)?;
            let caller = caller.map_err(|error| {
                if let Some(reason) = error.refusal() {
                    self.audit().record(SecurityEvent::TokenRefused, address, None, &reason);
                }
                Refused::new(error, Some(decision.clone()))
            })?;
            self.check_role(row, &caller, address).map_err(refused)?;
            self.check_csrf(row, &caller, request.headers(), address).map_err(refused)?;
            // For the handlers of services, which identify users by their ids.
            request.extensions_mut().insert(SignedInUser(*caller.user().as_uuid()));
            request.extensions_mut().insert(signed_in_player(&caller));
            request.extensions_mut().insert(caller);
        }
        request.extensions_mut().insert(client.clone());
        Ok(Admitted { request, client, decision })
    }

    /// Returns the address of the client, behind trusted proxies.
    pub(crate) fn address(&self, request: &Request) -> Option<IpAddr> {
        let connection = request.extensions().get::<Connection>()?;
        Some(client_address(request.headers(), connection.peer().ip(), &self.trusted_proxies))
    }

    /// Takes from the limit of the address. Returns none for the issuer, which has no limit.
    fn begin_take<'a>(&'a self, row: &Row, key: &'a str) -> Result<Option<PendingTake<'a>>, LimitDecision> {
        if row.class == RateClass::Issuer {
            return Ok(None);
        }
        self.limits.begin(self.address_check(key)).map(Some)
    }

    pub(crate) fn address_check<'a>(&self, key: &'a str) -> Check<'a> {
        Check { policy: ADDRESS_POLICY, kind: KeyKind::Address, key, rate: self.config.limits.address }
    }

    /// Takes from the limit of the route's class: per player, or per address if the caller is not signed in.
    async fn take(
        &self,
        row: &Row,
        pending: Option<PendingTake<'_>>,
        address_key: &str,
        caller: Option<&Caller>,
    ) -> LimitDecision {
        let Some(pending) = pending else { return self.limits.take(&[]).await };
        let user = caller.map(|caller| caller.user().to_string());
        let (kind, key) =
            user.as_deref().map_or((KeyKind::Address, address_key), |user| (KeyKind::User, user));
        let class_check =
            policy(row.class, &self.config.limits).map(|(policy, rate)| Check { policy, kind, key, rate });
        pending.take(class_check.as_slice()).await
    }

    /// Refuses a request over its limit, and records the refusal.
    fn refuse(
        &self,
        path: &str,
        client: ClientKey<'_>,
        user: Option<UserId>,
        decision: LimitDecision,
    ) -> Refused {
        self.record_refusal(path, client, user);
        Refused::new(rate_limited(), Some(decision))
    }

    /// Counts a refusal. Logs one address only at [`AUDIT_RATE`].
    pub(crate) fn record_refusal(&self, path: &str, client: ClientKey<'_>, user: Option<UserId>) {
        let ClientKey { address, key } = client;
        let kind = KeyKind::Address;
        if self.limits.take_local(Check { policy: "audit", kind, key, rate: AUDIT_RATE }) {
            self.audit().record(SecurityEvent::RateLimited, address, user, path);
        } else {
            self.audit().count(SecurityEvent::RateLimited);
        }
    }

    /// Counts a refused back-channel logout from an address. Returns whether it should be logged.
    pub(crate) async fn should_log_refusal(&self, address: Option<IpAddr>) -> bool {
        let (kind, key) = (KeyKind::Address, limit_key(address));
        self.limits
            .take(&[Check { policy: "refused", kind, key: &key, rate: self.config.limits.sign_in }])
            .await
            .allowed
    }

    fn check_role(&self, row: &Row, caller: &Caller, address: Option<IpAddr>) -> Result<(), Problem> {
        if row.callers != AllowedCallers::Player || caller.has(Role::Player) {
            return Ok(());
        }
        self.audit().record(SecurityEvent::RoleRefused, address, Some(caller.user()), row.path);
        Err(Problem::new(Code::PermissionDenied)
            .detail("This route is for players; services use the service API."))
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
            "Pages of this origin may not send changes; allow it in `gateway.cors_origins`.".to_owned()
        } else {
            return Ok(());
        };
        self.audit().record(SecurityEvent::CsrfRefused, address, Some(caller.user()), row.path);
        Err(Problem::new(Code::PermissionDenied).detail(detail))
    }

    /// Returns whether the request comes from our own page, an allowed origin, or a client that sends no origin.
    fn is_known_origin(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(ORIGIN) else { return true };
        let origin = origin.to_str().unwrap_or_default();
        origin == self.origin.as_str()
            || self.config.cors_origins.iter().any(|known| known.as_str() == origin)
    }

    /// Removes hidden fields from a response and adds the headers of the limits.
    async fn finish(
        &self,
        row: &Row,
        client: &Client,
        decision: &LimitDecision,
        response: Response,
    ) -> Response {
        let mut hidden = self.clients.hidden(client, row.path).peekable();
        let response =
            if hidden.peek().is_some() { without_fields(hidden, response).await } else { response };
        with_limit_headers(response, Some(decision))
    }
}

/// Returns the key that the limits of an address are counted under.
pub(crate) fn limit_key(address: Option<IpAddr>) -> String {
    address.map(|address| client_network(address).to_string()).unwrap_or_default()
}

/// Describes a caller to the handlers and home parts of services.
pub(crate) fn signed_in_player(caller: &Caller) -> SignedInPlayer {
    SignedInPlayer {
        user: *caller.user().as_uuid(),
        accounts: caller.known.accounts.iter().map(|account| *account.id.as_uuid()).collect(),
        roles: caller.known.user.roles.iter().map(|role| role.word()).collect(),
    }
}

/// Removes the fields that the client does not see from a JSON response.
async fn without_fields<'a>(
    hidden: impl Iterator<Item = &'a clients::HiddenField>,
    response: Response,
) -> Response {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !is_json {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_RESPONSE).await;
    let Some(mut document) = bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) else {
        tracing::error!("cannot hide fields: the response is too large or not valid JSON");
        return Problem::new(Code::Internal).into_response();
    };
    clients::hide(hidden, &mut document);
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Body::from(document.to_string()))
}

fn timed_out() -> Response {
    Problem::new(Code::Timeout).detail("The request took too long; try again.").into_response()
}

/// Adds the headers that report the limits and what remains of them.
fn with_limit_headers(mut response: Response, decision: Option<&LimitDecision>) -> Response {
    let Some(decision) = decision.filter(|decision| !decision.states.is_empty()) else { return response };
    let (mut policies, mut remainders) = (String::with_capacity(64), String::with_capacity(64));
    for state in &decision.states {
        push_policy(&mut policies, state.policy, state.quota, state.window);
        push_remainder(&mut remainders, state);
    }
    let headers = response.headers_mut();
    for (name, text) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, remainders)] {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
    if let Some(wait) = decision.retry_after() {
        headers.insert(RETRY_AFTER, retry_after(wait));
    }
    response
}

/// Adds an item of the header `RateLimit-Policy`. Without `format!`, which costs more than a rate limit.
pub(crate) fn push_policy(to: &mut String, policy: &str, quota: u64, window: Duration) {
    push_item(to, policy, [(";q=", quota), (";w=", seconds(window))]);
}

/// Adds an item of the header `RateLimit`.
pub(crate) fn push_remainder(to: &mut String, state: &LimitState) {
    push_item(to, state.policy, [(";r=", state.remaining), (";t=", seconds(state.reset))]);
}

fn push_item(to: &mut String, policy: &str, parameters: [(&str, u64); 2]) {
    if !to.is_empty() {
        to.push_str(", ");
    }
    to.push('"');
    to.push_str(policy);
    to.push('"');
    for (name, value) in parameters {
        to.push_str(name);
        to.push_str(&value.to_string());
    }
}

/// Returns the value of `Retry-After`.
pub(crate) fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds(wait).max(1))
}

/// Returns the problem of a request over its limit.
pub(crate) fn rate_limited() -> Problem {
    Problem::new(Code::RateLimited).detail("Too many requests: `Retry-After` says when to try again.")
}

/// Rounds up to whole seconds.
const fn seconds(time: Duration) -> u64 {
    time.as_secs() + (time.subsec_nanos() > 0) as u64
}
