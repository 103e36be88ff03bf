//! The table of routes, and the router that is built from it.

mod client_assets;
mod client_config;
mod docs;
mod home;
mod lobby;
mod me;
mod notifications;
mod pages;
mod parties;
mod sign_in;
mod stream;
mod tickets;

use std::collections::{BTreeSet, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use ::http::header::HOST;
use ::http::request::Parts;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Request};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, on};
use axum::{Extension, Router};
use base::Code;
use base::error::{Coded, chain};
use http_server::{BodyTimeout, Problem};
use service::{AllowedCallers, RateClass, RouteMethod, Row};
use sessions::CALLBACK;
use url::Url;
use utoipa::OpenApi;

use crate::config::Config;
use crate::guard::guard;
use crate::harden::with_cors;
use crate::{Gateway, ServiceRoutes};

pub(crate) use docs::{Description, LazyDescription};
pub(crate) use stream::{HEARTBEAT, service_stream};

/// The path of the builtin issuer.
pub(crate) const ISSUER: &str = "/issuer";
const BACK_CHANNEL: &str = "/logout/backchannel";
const TICKET: &str = "/v1/matchmaking/tickets/{ticket_id}";
const PARTIES: &str = "/v1/parties";
/// How many items a list returns by default.
const DEFAULT_LIMIT: u32 = 100;
/// The most items that a list returns.
const MAX_LIMIT: u32 = 1_000;

/// Matches every path that no row has.
const ANY_PATH: &str = "/{*path}";

/// The OpenAPI description of the gateway's own routes.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(
        me::me,
        me::accounts,
        me::entitlements,
        home::home,
        tickets::create,
        tickets::list,
        tickets::show,
        tickets::cancel,
        tickets::accept,
        tickets::decline,
        parties::mine,
        parties::create,
        parties::join,
        parties::invite,
        parties::accept,
        parties::decline,
        parties::leave,
        parties::kick,
        parties::hand_over,
        parties::set_fields,
        parties::queue,
        parties::cancel,
        stream::follow,
        stream::stream,
        stream::events,
        notifications::list,
        notifications::counts,
        notifications::show,
        notifications::mark,
        client_config::client_config
    ),
    tags(
        (name = "client", description = "The configuration that a client reads first"),
        (name = "player", description = "The signed-in player: accounts, entitlements, inbox and stream"),
        (name = "matchmaking", description = "Finding a match"),
        (name = "parties", description = "Queueing together")
    )
)]
pub(crate) struct Api;

struct Table(Vec<(Row, MethodRouter<Gateway>)>);

impl Table {
    fn row<H, T>(mut self, row: Row, handler: H) -> Self
    where
        H: Handler<T, Gateway>,
        T: 'static,
    {
        self.0.push((row, on(row.method.filter(), handler)));
        self
    }
}

/// Returns the gateway's own routes, without those of the builtin issuer.
fn table() -> Table {
    use AllowedCallers::{Anyone, Player, SignedIn};
    use RateClass::{Issuer, Page, Read, SignIn, Stream, Write};
    const NOTIFICATION: &str = "/v1/notifications/{notification_id}";
    const TICKETS: &str = "/v1/matchmaking/tickets";
    const TICKET_ACCEPT: &str = "/v1/matchmaking/tickets/{ticket_id}/accept";
    const TICKET_DECLINE: &str = "/v1/matchmaking/tickets/{ticket_id}/decline";
    const TICKET_STREAM: &str = "/v1/matchmaking/tickets/{ticket_id}/stream";
    Table(Vec::new())
        .row(Row::get("/", Anyone, Page), pages::index)
        .row(Row::get("/assets/{file}", Anyone, Page), pages::asset)
        .row(Row::get("/assets/client/{file}", Anyone, Page), client_assets::file)
        .row(Row::get("/play", Anyone, Page), lobby::page)
        .row(Row::get("/play/{file}", Anyone, Page), lobby::file)
        .row(Row::get("/docs", Anyone, Page), pages::docs)
        .row(Row::get("/openapi.json", Anyone, Page), pages::openapi)
        .row(Row::get("/healthz", Anyone, Page), pages::health)
        .row(Row::get("/login", Anyone, SignIn), sign_in::login)
        .row(Row::get(CALLBACK, Anyone, SignIn), sign_in::callback)
        .row(Row::get("/logout", Anyone, SignIn), sign_in::logout)
        .row(Row::post(BACK_CHANNEL, Anyone, Issuer), sign_in::back_channel)
        .row(Row::get("/v1/client-config", Anyone, Read), client_config::client_config)
        .row(Row::get("/v1/me", SignedIn, Read), me::me)
        .row(Row::get("/v1/home", Player, Read), home::home)
        .row(Row::get("/v1/accounts", Player, Read), me::accounts)
        .row(Row::get("/v1/entitlements", Player, Read), me::entitlements)
        .row(Row::get("/v1/stream", Player, Stream), stream::stream)
        .row(Row::get("/v1/events", Player, Read).with_extra_timeout(stream::MAX_WAIT), stream::events)
        .row(Row::get("/v1/notifications", Player, Read), notifications::list)
        .row(Row::get("/v1/notifications/counts", Player, Read), notifications::counts)
        .row(Row::post("/v1/notifications/mark", Player, Write), notifications::mark)
        .row(Row::get(NOTIFICATION, Player, Read), notifications::show)
        .row(Row::get(TICKETS, Player, Read), tickets::list)
        .row(Row::post(TICKETS, Player, Write), tickets::create)
        .row(Row::get(TICKET, Player, Read), tickets::show)
        .row(Row::delete(TICKET, Player, Write), tickets::cancel)
        .row(Row::post(TICKET_ACCEPT, Player, Write), tickets::accept)
        .row(Row::post(TICKET_DECLINE, Player, Write), tickets::decline)
        .row(Row::get(TICKET_STREAM, Player, Stream), stream::follow)
        .row(Row::get(PARTIES, Player, Read), parties::mine)
        .row(Row::post(PARTIES, Player, Write), parties::create)
        .row(Row::post("/v1/parties/join", Player, Write), parties::join)
        .row(Row::post("/v1/parties/invitations", Player, Write), parties::invite)
        .row(Row::post("/v1/parties/invitations/{party_id}/accept", Player, Write), parties::accept)
        .row(Row::post("/v1/parties/invitations/{party_id}/decline", Player, Write), parties::decline)
        .row(Row::post("/v1/parties/leave", Player, Write), parties::leave)
        .row(Row::post("/v1/parties/kick", Player, Write), parties::kick)
        .row(Row::post("/v1/parties/leader", Player, Write), parties::hand_over)
        .row(Row::post("/v1/parties/member", Player, Write), parties::set_fields)
        .row(Row::post("/v1/parties/ticket", Player, Write), parties::queue)
        .row(Row::delete("/v1/parties/ticket", Player, Write), parties::cancel)
}

/// Paths without a limit per address: calls from the issuer, and the builtin issuer.
pub(crate) const UNLIMITED: [&str; 2] = [BACK_CHANNEL, ISSUER];

/// Returns the rows of the gateway's own routes.
pub fn rows() -> Vec<Row> {
    table().0.into_iter().map(|(row, _)| row).collect()
}

/// Builds the router from the table and the player routes of services. Each route is behind its guard.
pub(crate) fn routes(gateway: &Gateway, services: ServiceRoutes, issuer: Option<(&str, Router)>) -> Router {
    let guarded = |row: Row| from_fn_with_state((gateway.clone(), Arc::new(row)), guard);
    // Requests for unknown paths and methods are limited too, and their responses get the same security headers.
    let open = |path| guarded(Row::get(path, AllowedCallers::Anyone, RateClass::Page));
    let mut paths = HashSet::new();
    let ServiceRoutes { routes, provided } = services;
    let service_rows =
        routes.into_iter().map(|route| (route.row, route.handler.with_state(provided.clone())));
    let rows: Vec<(Row, MethodRouter<Gateway>)> = table().0.into_iter().chain(service_rows).collect();
    let methods: BTreeSet<RouteMethod> = rows.iter().map(|(row, _)| row.method).collect();
    let mut routes = rows.into_iter().fold(Router::new(), |routes, (row, handler)| {
        let path = row.path;
        let handler = with_body_limits(&row, &gateway.config, handler).route_layer(guarded(row));
        // One fallback for all methods of a path.
        let is_first = paths.insert(path);
        routes.route(path, if is_first { handler.fallback(wrong_method.layer(open(path))) } else { handler })
    });
    routes = routes.route(ANY_PATH, any(not_found.layer(open(ANY_PATH))));
    if let Some((path, issuer)) = issuer {
        let issuer = issuer.fallback(not_found).method_not_allowed_fallback(wrong_method);
        let issuer =
            issuer.layer(DefaultBodyLimit::max(gateway.config.max_body)).layer(from_fn(only_loopback));
        // No limit: the gateway calls it too, from the same address as every browser on this machine.
        let row = Row::get("/issuer", AllowedCallers::Anyone, RateClass::Issuer);
        routes = routes.nest_service(path, issuer.layer(guarded(row)));
    }
    let routes = routes.with_state(gateway.clone());
    with_cors(&gateway.config.cors_origins, &methods, routes, gateway.is_https())
}

/// Limits the size and duration of request bodies, on routes that may have one.
fn with_body_limits(row: &Row, config: &Config, handler: MethodRouter<Gateway>) -> MethodRouter<Gateway> {
    if row.method.is_safe() {
        return handler;
    }
    let max_body = row.max_body.map_or(config.max_body, |own| own.min(config.max_body));
    // Shorter than the timeout of the request: a slow client gets 408, not 504.
    let timeout = BodyTimeout(config.request_timeout / 2);
    handler.layer::<_, Infallible>(DefaultBodyLimit::max(max_body)).layer(Extension(timeout))
}

/// Hides the builtin issuer from requests with another host than loopback: through a proxy, or by DNS rebinding.
async fn only_loopback(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let url = host.and_then(|host| Url::parse(&format!("http://{host}")).ok());
    if url.is_some_and(|url| oidc::is_loopback(&url)) {
        return next.run(request).await;
    }
    not_found().await.into_response()
}

async fn not_found() -> Problem {
    Problem::new(Code::NotFound).detail("There is nothing at this address.")
}

async fn wrong_method() -> Problem {
    Problem::new(Code::MethodNotAllowed).detail("The header `Allow` lists the methods of this address.")
}

/// The only parameter of a path.
struct Segment(String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let unreadable = |_| Problem::new(Code::InvalidArgument).detail("The path is not valid UTF-8.");
        let Path(text) = Path::from_request_parts(parts, state).await.map_err(unreadable)?;
        Ok(Self(text))
    }
}

/// Returns the problem for a failed call to a service. The cause is only logged.
fn failed<E: Coded + 'static>(service: &'static str, error: &E) -> Problem {
    let problem = Problem::new(error.code());
    match error.code() {
        Code::Internal => {
            tracing::error!(service, cause = chain(error), "a call to a service failed");
            problem
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(outage = service, service, cause = chain(error), "a service does not answer");
            problem.detail(format!("The {service} service does not answer; try again."))
        }
        _ => problem.detail(error.to_string()),
    }
}
