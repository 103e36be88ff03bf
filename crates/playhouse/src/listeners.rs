//! The doors of the process.

use std::io;
use std::net::SocketAddr;

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use url::Url;

use service::{Listen, Role};

use crate::{Settings, VERSION};

/// A door of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Gateway,
    Internal,
    OpenMatch,
    Admin,
}

impl Listener {
    /// Its key in `[listen]`, also its name in metrics and for scripts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Internal => "internal",
            Self::OpenMatch => "open_match",
            Self::Admin => "admin",
        }
    }

    /// For people: what it is called, and whom it is for.
    const fn title_and_purpose(self) -> (&'static str, &'static str) {
        match self {
            Self::Gateway => ("Gateway", "players and web pages"),
            Self::Internal => ("Service API", "purchases, game servers"),
            Self::OpenMatch => ("Open Match", "matchmaking: gRPC, Connect, REST"),
            Self::Admin => ("Admin", "operators, health, metrics"),
        }
    }

    const fn address(self, listen: &Listen) -> SocketAddr {
        match self {
            Self::Gateway => listen.gateway,
            Self::Internal => listen.internal,
            Self::OpenMatch => listen.open_match,
            Self::Admin => listen.admin,
        }
    }

    /// Whether clients connect to processes with this role.
    pub(crate) const fn takes_requests(role: Role) -> bool {
        !Self::of_role(role).is_empty()
    }

    const fn of_role(role: Role) -> &'static [Self] {
        match role {
            Role::Gateway => &[Self::Gateway],
            Role::ServiceApi => &[Self::Internal],
            Role::MatchmakingFrontend => &[Self::OpenMatch],
            Role::MatchmakingEngine | Role::OutboxRelay | Role::Notifier => &[],
        }
    }
}

/// The sockets that this process listens on, bound before anything else is done.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) admin: TcpListener,
    /// In the order of the roles.
    pub(crate) roles: Vec<(Listener, TcpListener)>,
}

/// One or more addresses cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen: {}. Is another playhouse running? Choose another port, or 0 for any", .0.join("; "))]
pub(crate) struct BindError(Vec<String>);

impl Sockets {
    /// Binds all or none, and names every address that is taken.
    pub(crate) async fn bind(settings: &Settings) -> Result<Self, BindError> {
        let mut failed = Vec::new();
        let mut bind = async |listener: Listener| {
            let address = listener.address(&settings.shared.listen);
            let bound = TcpListener::bind(address).await;
            bound
                .map_err(|error| failed.push(format!("listen.{} = {address}: {error}", listener.name())))
                .ok()
        };
        let admin = bind(Listener::Admin).await;
        let mut roles = Vec::new();
        for listener in settings.shared.roles.iter().flat_map(Listener::of_role) {
            roles.extend(bind(*listener).await.map(|socket| (*listener, socket)));
        }
        match admin {
            Some(admin) if failed.is_empty() => Ok(Self { admin, roles }),
            _ => Err(BindError(failed)),
        }
    }

    /// Where one of them is, as a URL.
    pub(crate) fn url(&self, wanted: Listener) -> Option<Url> {
        let (_, socket) = self.roles.iter().find(|(listener, _)| *listener == wanted)?;
        Url::parse(&format!("http://{}", socket.local_addr().ok()?)).ok()
    }

    pub(crate) fn addresses(&self) -> io::Result<Addresses> {
        let roles = self.roles.iter().map(|(listener, socket)| (*listener, socket));
        let all = roles.chain([(Listener::Admin, &self.admin)]);
        all.map(|(listener, socket)| Ok((listener, socket.local_addr()?)))
            .collect::<io::Result<_>>()
            .map(Addresses)
    }
}

/// Tokens that `playhouse dev` makes for trying things.
#[derive(Clone, Debug)]
pub(crate) struct DevTokens {
    /// For the service API, unless services are configured.
    pub(crate) service: Option<String>,
    /// For the admin API.
    pub(crate) operator: String,
}

/// Where the process can be reached, the real ports included.
#[derive(Debug)]
pub(crate) struct Addresses(Vec<(Listener, SocketAddr)>);

impl Addresses {
    /// One line, for scripts: with tokens, if there are some to try with.
    pub(crate) fn to_json(&self, tokens: Option<&DevTokens>) -> String {
        let addresses = self.0.iter().map(|(listener, address)| (listener.name(), address.to_string()));
        let service = tokens.and_then(|tokens| tokens.service.clone()).map(|token| ("service_token", token));
        let operator = tokens.map(|tokens| ("operator_token", tokens.operator.clone()));
        let addresses = addresses.chain(service).chain(operator);
        let addresses: Map<String, Value> =
            addresses.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        Value::Object(addresses).to_string()
    }

    /// A table and something to try, for people: with a service's token, if there is one to try with.
    pub(crate) fn to_text(&self, token: Option<&str>) -> String {
        let mut lines = Vec::new();
        for (listener, address) in &self.0 {
            let (title, purpose) = listener.title_and_purpose();
            lines.push(format!("  {title:<12} {:<24} {purpose}", format!("http://{address}")));
        }
        let at = |wanted| self.0.iter().find(|(listener, _)| *listener == wanted).map(|(_, address)| address);
        lines.push("\nTry:".to_owned());
        if let (Some(gateway), Some(admin)) = (at(Listener::Gateway), at(Listener::Admin)) {
            lines.push(format!(
                "  http://{gateway} in a browser: sign in as anybody, find a match, buy in the demo drop"
            ));
            // As it was started: it need not be on anybody's path.
            let program = std::env::args().next().unwrap_or_else(|| "playhouse".to_owned());
            lines.push(format!(
                "  curl http://{gateway}/v1/home \\\n    -H \"authorization: Bearer $({program} token --user ada --admin {admin})\"    \
                 what a player sees first"
            ));
        }
        if let Some(open_match) = at(Listener::OpenMatch) {
            lines.push(format!(
                "  curl http://{open_match}/v1/frontendservice/tickets -d '{{\"ticket\":{{}}}}'    twice, and two players meet"
            ));
        }
        if let (Some(internal), Some(token)) = (at(Listener::Internal), token) {
            lines.push(format!(
                "  curl http://{internal}/internal/v1/sign-ins -H 'authorization: Bearer {token}' \\\n    -H 'content-type: application/json' -d '{{\"issuer\":\"demo\",\"subject\":\"ada\"}}'    a first user"
            ));
            // Each time under a key of its own, else nobody would be told twice.
            lines.push(format!(
                "  curl http://{internal}/internal/v1/notifications -H 'authorization: Bearer {token}' \\\n    -H \"idempotency-key: $RANDOM\" -H 'content-type: application/json' \\\n    -d '{{\"to\":{{\"all\":true}},\"texts\":{{\"en\":{{\"title\":\"Hello\"}}}}}}'    every player's page shows it"
            ));
        }
        if let Some(admin) = at(Listener::Admin) {
            lines.push(format!("  curl http://{admin}/readyz     which part is ready"));
            lines.push(format!("  curl http://{admin}/metrics    what it counts"));
        }
        lines.join("\n")
    }
}

/// What every public listener answers, whatever else it serves.
pub(crate) fn common_routes() -> Router {
    Router::new()
        .route("/", get(async || Json(json!({ "name": "playhouse", "version": VERSION }))))
        .route("/healthz", get(async || Json(json!({ "alive": true }))))
}
