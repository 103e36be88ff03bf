//! A cluster of NATS servers with JetStream.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use serde_json::Value;

use crate::eventually::eventually;
use crate::nats_server::Nats;
use crate::port::free_port;
use crate::server::PORTS_TAKEN;
use crate::unique::unique;
use crate::{Error, http};

/// The smallest cluster that survives the loss of one server.
const SIZE: usize = 3;
/// How often the start is tried with other ports for the routes between the servers.
const ATTEMPTS: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(60);
/// A paused server accepts the connection and does not answer; a server under load answers late.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(5);
/// The account of all clients, including those without credentials.
const ACCOUNT: &str = "GAME";

/// A cluster of three NATS servers of the current version that only the caller uses.
///
/// A stream with three replicas survives the loss of one server. While two are down it stops, but loses nothing. Faults are applied
/// to single servers: see [`node`](Self::node).
#[derive(Debug)]
pub struct NatsCluster {
    nodes: Vec<Nats>,
    name: String,
    route_ports: Vec<u16>,
    max_file: Option<u64>,
}

impl NatsCluster {
    /// The user and the password of clients. Clients without credentials get the same account.
    pub const USER: (&str, &str) = ("game", "s3cret");

    /// Starts three servers and waits until they are [healthy](Self::wait_until_healthy).
    pub async fn start() -> Result<Self, Error> {
        let mut attempts = 1;
        let cluster = loop {
            match Self::try_start().await {
                // `Server::start_new` retries with other client ports, but not with other route ports.
                Err(Error::Failed(why)) if why.contains(PORTS_TAKEN) && attempts < ATTEMPTS => attempts += 1,
                started => break started?,
            }
        };
        cluster.wait_until_healthy().await;
        Ok(cluster)
    }

    async fn try_start() -> Result<Self, Error> {
        let ports: std::io::Result<Vec<u16>> = (0..SIZE).map(|_| free_port()).collect();
        let route_ports = ports.map_err(|error| Error::failed("a free port", error))?;
        let mut cluster = Self { nodes: Vec::new(), name: unique(), route_ports, max_file: None };
        let starting = (0..SIZE).map(|n| Nats::builder().current().settings(cluster.settings(n)).start());
        cluster.nodes = try_join_all(starting).await?;
        Ok(cluster)
    }

    /// Returns the seed list in the format of `bus.url`. The first seed has the credentials.
    pub fn url(&self) -> String {
        let (user, password) = Self::USER;
        let seeds: Vec<String> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        format!("nats://{user}:{password}@{}", seeds.join(",nats://"))
    }

    /// Returns the `nats://…` URLs of all servers, without credentials.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Nats::url).collect()
    }

    /// Returns one of the servers, to kill, pause, resume or restart it.
    pub fn node(&mut self, n: usize) -> &mut Nats {
        &mut self.nodes[n]
    }

    /// Restarts all stopped or killed servers at the same time, and waits until they are ready.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        let stopped = self.nodes.iter_mut().filter(|node| node.pid().is_none());
        try_join_all(stopped.map(Nats::start_again)).await.map(drop)
    }

    /// Returns the `nats://…` URL of one server.
    pub fn url_of(&self, n: usize) -> String {
        self.nodes[n].url()
    }

    /// Returns the number of the server that leads a replicated stream, or `None` while there is no leader.
    pub async fn leader_of(&self, stream: &str) -> Option<usize> {
        let states = join_all(self.nodes.iter().map(|node| stream_state(node, stream))).await;
        // Only a server's report about itself counts, because the others may report a leader that is gone. A server that has just started
        // claims to lead every stream, but lists no replicas.
        let leads =
            |node: &Nats, group: &Value| group["leader"] == *node.name() && group["replicas"].is_array();
        let mut states = self.nodes.iter().zip(states);
        states.position(|(node, state)| state.is_some_and(|state| leads(node, &state["cluster"])))
    }

    /// Waits until every server is up, all know the leader of the cluster, and every replica of every stream has caught up.
    ///
    /// # Panics
    /// If that takes more than a minute. The message says what is missing.
    pub async fn wait_until_healthy(&self) {
        eventually("the NATS cluster is healthy", TIMEOUT, async || {
            for (n, node) in self.nodes.iter().enumerate() {
                let unhealthy = |what: &Value| Err(format!("server {n}: {what}"));
                match monitor(node, "healthz").await {
                    Ok(health) if health["status"] == "ok" => {}
                    Ok(health) => return unhealthy(&health),
                    Err(error) => return unhealthy(&error.into()),
                }
                let state = monitor(node, "jsz?accounts=true&streams=true").await.unwrap_or_default();
                if state["meta_cluster"]["leader"].as_str().is_none_or(str::is_empty) {
                    return unhealthy(&"no leader of the cluster is known".into());
                }
                // Only leaders know the progress of the other replicas.
                let meta = &state["meta_cluster"];
                let led = streams(&state).map(|stream| &stream["cluster"]);
                let led = led.chain([meta]).filter(|group| group["leader"] == *node.name());
                let mut replicas = led.filter_map(|group| group["replicas"].as_array()).flatten();
                if let Some(late) =
                    replicas.find(|replica| replica["current"] != true || replica["offline"] == true)
                {
                    return unhealthy(late);
                }
            }
            Ok(())
        })
        .await;
    }

    /// Limits the bytes that the clients' account may store, counted over all replicas; `None` removes the limit. When this returns,
    /// running servers apply the limit. Stopped servers apply it when they start.
    pub async fn limit_storage(&mut self, max_file: Option<u64>) -> Result<(), Error> {
        self.max_file = max_file;
        for n in 0..self.nodes.len() {
            let settings = self.settings(n);
            self.nodes[n].reload(settings)?;
        }
        let expected = max_file.unwrap_or(u64::MAX);
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            eventually("the storage limit is in effect", TIMEOUT, async || {
                let state = monitor(node, "jsz?accounts=true").await?;
                let account = accounts(&state).find(|account| account["name"] == ACCOUNT);
                match account.map(|account| &account["reserved_storage"]) {
                    Some(limit) if limit.as_u64() == Some(expected) => Ok(()),
                    limit => Err(format!("{limit:?}, not {expected}")),
                }
            })
            .await;
        }
        Ok(())
    }

    /// Returns the cluster and account settings of server `n`.
    fn settings(&self, n: usize) -> String {
        let (name, (user, password)) = (&self.name, Self::USER);
        let routes: Vec<String> =
            self.route_ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let routes = routes.join(", ");
        let jetstream =
            self.max_file.map_or_else(|| "enabled".to_owned(), |bytes| format!("{{ max_file: {bytes} }}"));
        format!(
            "cluster {{ name: {name}, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n\
             accounts {{\n\
             SYS {{ users: [{{ user: system, password: \"{password}\" }}] }}\n\
             {ACCOUNT} {{ jetstream: {jetstream}, users: [{{ user: {user}, password: \"{password}\" }}] }}\n\
             }}\n\
             system_account: SYS\nno_auth_user: {user}\n",
            port = self.route_ports[n],
        )
    }
}

/// Requests a page of a server's monitor. Accepts responses with an error status.
async fn monitor(node: &Nats, path: &str) -> Result<Value, String> {
    let url = node.monitor_url().ok_or("an external server has no known monitor")?;
    let request = http::client().get(format!("{url}/{path}")).timeout(MONITOR_TIMEOUT);
    http::request_json(request).await.map(|(_, answer)| answer)
}

async fn stream_state(node: &Nats, stream: &str) -> Option<Value> {
    node.pid()?;
    let state = monitor(node, "jsz?accounts=true&streams=true").await.ok()?;
    streams(&state).find(|found| found["name"] == stream).cloned()
}

fn accounts(state: &Value) -> impl Iterator<Item = &Value> {
    state["account_details"].as_array().into_iter().flatten()
}

fn streams(state: &Value) -> impl Iterator<Item = &Value> {
    accounts(state).filter_map(|account| account["stream_detail"].as_array()).flatten()
}
