//! The doors of the process.

use std::io;
use std::net::SocketAddr;

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use crate::{Role, Settings, VERSION};

/// The sockets that this process listens on, bound before anything else is done.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) admin: TcpListener,
    pub(crate) roles: Vec<RoleSocket>,
}

/// A listener that belongs to a role.
#[derive(Debug)]
pub(crate) struct RoleSocket {
    pub(crate) name: &'static str,
    pub(crate) listener: TcpListener,
}

/// One or more addresses cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen: {}. Is another playhouse running? Choose another port, or 0 for any", .0.join("; "))]
pub(crate) struct BindError(Vec<String>);

impl Role {
    /// The listeners of the role, by their key in `[listen]`.
    const fn listeners(self) -> &'static [&'static str] {
        match self {
            Self::Gateway => &["gateway", "internal"],
            Self::MatchmakingFrontend => &["open_match"],
        }
    }
}

impl Sockets {
    /// Binds all or none, and names every address that is taken.
    pub(crate) async fn bind(settings: &Settings) -> Result<Self, BindError> {
        let listen = &settings.listen;
        let address = |name: &str| match name {
            "gateway" => listen.gateway,
            "internal" => listen.internal,
            "open_match" => listen.open_match,
            _ => listen.admin,
        };
        let mut failed = Vec::new();
        let mut bind = async |name: &'static str| {
            let address = address(name);
            let bound = TcpListener::bind(address).await;
            bound.map_err(|error| failed.push(format!("listen.{name} = {address}: {error}"))).ok()
        };
        let admin = bind("admin").await;
        let mut roles = Vec::new();
        for name in settings.roles.iter().flat_map(Role::listeners) {
            if let Some(listener) = bind(name).await {
                roles.push(RoleSocket { name, listener });
            }
        }
        match admin {
            Some(admin) if failed.is_empty() => Ok(Self { admin, roles }),
            _ => Err(BindError(failed)),
        }
    }

    pub(crate) fn addresses(&self) -> io::Result<Addresses> {
        let mut addresses = Vec::new();
        for socket in &self.roles {
            addresses.push((socket.name, socket.listener.local_addr()?));
        }
        addresses.push(("admin", self.admin.local_addr()?));
        Ok(Addresses(addresses))
    }
}

/// Where the process can be reached, the real ports included.
#[derive(Debug)]
pub(crate) struct Addresses(Vec<(&'static str, SocketAddr)>);

impl Addresses {
    pub(crate) fn get(&self, name: &str) -> Option<SocketAddr> {
        self.0.iter().find(|(listener, _)| *listener == name).map(|(_, address)| *address)
    }

    /// One line, for scripts.
    pub(crate) fn to_json(&self) -> String {
        let addresses: Map<String, Value> =
            self.0.iter().map(|(name, address)| ((*name).to_owned(), json!(address.to_string()))).collect();
        Value::Object(addresses).to_string()
    }

    /// For people: name, address, what it is for.
    pub(crate) fn with_purpose(&self) -> impl Iterator<Item = (&'static str, SocketAddr, &'static str)> {
        self.0.iter().map(|(name, address)| match *name {
            "gateway" => ("Gateway", *address, "players and web pages"),
            "internal" => ("Service API", *address, "purchases, game servers"),
            "open_match" => ("Open Match", *address, "matchmaking clients, gRPC"),
            _ => ("Admin", *address, "health, readiness, metrics"),
        })
    }
}

/// What every public listener answers, whatever else it serves.
pub(crate) fn common_routes() -> Router {
    Router::new()
        .route("/", get(async || Json(json!({ "name": "playhouse", "version": VERSION }))))
        .route("/healthz", get(async || Json(json!({ "alive": true }))))
}
