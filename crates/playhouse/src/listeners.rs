//! The listeners of a process.

use std::io;
use std::net::SocketAddr;

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tokio::net::{TcpListener, TcpSocket};
use url::Url;

use service::{Listen, OpenMatchPort, Role};

use crate::{Settings, VERSION};

/// A listener of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Gateway,
    ServiceApi,
    OpenMatch,
    /// One service of Open Match.
    OpenMatchPort(OpenMatchPort),
    Admin,
}

impl Listener {
    /// Returns its key in `[listen]`, which is also its name in metrics, in the audit log and for scripts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::ServiceApi => "service_api",
            Self::OpenMatch => "open_match",
            Self::OpenMatchPort(port) => port.name,
            Self::Admin => "admin",
        }
    }

    const fn address(self, listen: &Listen) -> SocketAddr {
        match self {
            Self::Gateway => listen.gateway,
            Self::ServiceApi => listen.service_api,
            Self::OpenMatch => listen.open_match,
            Self::OpenMatchPort(port) => port.address,
            Self::Admin => listen.admin,
        }
    }

    /// Returns whether clients connect to processes with this role.
    pub(crate) const fn takes_requests(role: Role) -> bool {
        !Self::of_role(role).is_empty()
    }

    const fn of_role(role: Role) -> &'static [Self] {
        match role {
            Role::Gateway => &[Self::Gateway],
            Role::ServiceApi => &[Self::ServiceApi],
            Role::MatchmakingFrontend => &[Self::OpenMatch],
            Role::MatchmakingEngine | Role::OutboxRelay | Role::Notifier => &[],
        }
    }
}

/// The sockets that this process listens on. They are bound before anything else starts.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) admin: TcpListener,
    /// In the order of the roles.
    pub(crate) roles: Vec<(Listener, TcpListener)>,
}

/// One or more addresses cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen: {}. Is another playhouse running? Choose another port, or 0 for any free one", .0.join("; "))]
pub(crate) struct BindError(Vec<String>);

impl Sockets {
    /// Binds all sockets. Fails with every address that is taken, not only the first.
    pub(crate) async fn bind(settings: &Settings) -> Result<Self, BindError> {
        let mut failed = Vec::new();
        let mut bind = async |listener: Listener| {
            let address = listener.address(&settings.shared.listen);
            let bound = bind_socket(address, settings.shared.listen.limits.max_connections);
            bound
                .map_err(|error| failed.push(format!("listen.{} = {address}: {error}", listener.name())))
                .ok()
        };
        let admin = bind(Listener::Admin).await;
        let mut roles = Vec::new();
        let own = settings.shared.roles.iter().flat_map(Listener::of_role).copied();
        let ports = settings.shared.listen.open_match_ports.iter().copied().map(Listener::OpenMatchPort);
        let has_ports = settings.shared.roles.contains(Role::MatchmakingFrontend);
        for listener in own.chain(ports.filter(|_| has_ports)) {
            roles.extend(bind(listener).await.map(|socket| (listener, socket)));
        }
        match admin {
            Some(admin) if failed.is_empty() => Ok(Self { admin, roles }),
            _ => Err(BindError(failed)),
        }
    }

    /// Returns the URL of one listener.
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

/// Binds an address. The kernel keeps up to `backlog` connections that are not accepted yet; its own limit is `net.core.somaxconn`.
///
/// `TcpListener::bind` keeps only 128. When a thousand players connect at once, the others are lost: they connect, and get no answer.
fn bind_socket(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted process can bind while connections of the previous one are still being closed.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

/// The tokens that `playhouse dev` creates for trying things out.
#[derive(Clone, Debug)]
pub(crate) struct DevTokens {
    /// The token for the service API. None if the configuration names services.
    pub(crate) service: Option<String>,
    /// The token for the admin API.
    pub(crate) operator: String,
}

/// The addresses that the process is bound to, with the real ports.
#[derive(Debug)]
pub(crate) struct Addresses(Vec<(Listener, SocketAddr)>);

impl Addresses {
    /// Returns one line of JSON for scripts, with the tokens of `playhouse dev`.
    pub(crate) fn to_json(&self, tokens: Option<&DevTokens>) -> String {
        let addresses = self.0.iter().map(|(listener, address)| (listener.name(), address.to_string()));
        let service = tokens.and_then(|tokens| tokens.service.clone()).map(|token| ("service_token", token));
        let operator = tokens.map(|tokens| ("operator_token", tokens.operator.clone()));
        let addresses = addresses.chain(service).chain(operator);
        let addresses: Map<String, Value> =
            addresses.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        Value::Object(addresses).to_string()
    }

    /// Returns the URL of a listener.
    pub(crate) fn url(&self, wanted: Listener) -> Option<String> {
        let (_, address) = self.0.iter().find(|(listener, _)| *listener == wanted)?;
        Some(format!("http://{address}"))
    }

    /// Returns three links for people, and a command that can be pasted into a shell as it is.
    pub(crate) fn to_text(&self) -> String {
        let link = |title: &str, listener, path: &str, purpose: &str| {
            let url = format!("{}{path}", self.url(listener)?);
            Some(format!("  {title:<10} {url:<32} {purpose}"))
        };
        let links = [
            link(
                "Game page",
                Listener::Gateway,
                "/play",
                "sign in under any name, play a match, buy in the demo drop",
            ),
            link("Console", Listener::Admin, "/console", "see what happens, and repair it"),
            link("API docs", Listener::Gateway, "/docs", "the API for game clients and web pages"),
        ];
        let mut lines: Vec<String> = links.into_iter().flatten().collect();
        // As this process was started: the program need not be on the PATH.
        let program = std::env::args().next().unwrap_or_else(|| "playhouse".to_owned());
        if let Some((_, admin)) = self.0.iter().find(|(listener, _)| *listener == Listener::Admin) {
            lines.push(format!("\nTry:\n  {program} status --admin {admin}"));
        }
        lines.join("\n")
    }
}

/// Returns the routes that every public listener has.
pub(crate) fn common_routes() -> Router {
    Router::new()
        .route("/", get(async || Json(json!({ "name": "playhouse", "version": VERSION }))))
        .route("/healthz", get(async || Json(json!({ "alive": true }))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn burst_of_connections_waits_to_be_accepted() {
        let listener = bind_socket("127.0.0.1:0".parse().unwrap(), 20_000).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        for number in 0..1_000 {
            let connected = timeout(Duration::from_secs(5), TcpStream::connect(address)).await;
            waiting.push(connected.unwrap_or_else(|_| panic!("connection {number} was lost")).unwrap());
        }
    }
}
