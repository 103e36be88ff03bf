//! Settings of the listeners.

use std::net::SocketAddr;
use std::time::Duration;

use config::{ByteSize, Reader, Section};
use http_server::{HostPattern, Limits};

/// The addresses and limits of the listeners. With port 0 the kernel chooses a port.
#[derive(Clone, Debug)]
pub struct Listen {
    pub gateway: SocketAddr,
    pub service_api: SocketAddr,
    pub admin: SocketAddr,
    pub open_match: SocketAddr,
    /// Further ports of Open Match. Empty unless they are configured.
    pub open_match_ports: Vec<OpenMatchPort>,
    /// Host names that the listeners answer to, in addition to IP addresses and names of private networks.
    pub allowed_hosts: Vec<HostPattern>,
    /// Origins of pages that may send changing requests to the admin API, the service API and Open Match.
    pub allowed_origins: Vec<String>,
    pub limits: Limits,
}

/// A service of Open Match that can have ports of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenMatchApi {
    Frontend,
    Backend,
    Query,
}

/// A port of one service of Open Match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMatchPort {
    /// The key in `[listen]`.
    pub name: &'static str,
    pub api: OpenMatchApi,
    pub address: SocketAddr,
}

/// The keys of Open Match's ports: two for each service, because Open Match has gRPC and REST on different ports.
const OPEN_MATCH_PORTS: [(&str, OpenMatchApi); 6] = [
    ("open_match_frontend", OpenMatchApi::Frontend),
    ("open_match_frontend_http", OpenMatchApi::Frontend),
    ("open_match_backend", OpenMatchApi::Backend),
    ("open_match_backend_http", OpenMatchApi::Backend),
    ("open_match_query", OpenMatchApi::Query),
    ("open_match_query_http", OpenMatchApi::Query),
];

impl Section for Listen {
    fn read(reader: &mut Reader<'_>) -> Self {
        let listen = Self {
            gateway: reader.get("gateway"),
            service_api: reader.get("service_api"),
            admin: reader.get("admin"),
            open_match: reader.get("open_match"),
            open_match_ports: OPEN_MATCH_PORTS
                .into_iter()
                .filter_map(|(name, api)| Some(OpenMatchPort { name, api, address: reader.optional(name)? }))
                .collect(),
            allowed_hosts: reader.get("allowed_hosts"),
            allowed_origins: reader.get("allowed_origins"),
            limits: limits(reader),
        };
        let fixed = [
            ("gateway", listen.gateway),
            ("service_api", listen.service_api),
            ("admin", listen.admin),
            ("open_match", listen.open_match),
        ];
        let ports = listen.open_match_ports.iter().map(|port| (port.name, port.address));
        let all: Vec<(&str, SocketAddr)> = fixed.into_iter().chain(ports).collect();
        for (at, (later, address)) in all.iter().enumerate() {
            let duplicate = all[..at].iter().find(|(_, other)| other == address && address.port() != 0);
            if let Some((earlier, _)) = duplicate {
                reader.check(&[later, earlier], false, || {
                    format!("{later} and {earlier} have the same address")
                });
            }
        }
        listen
    }
}

/// Reads the limits that apply to every listener.
fn limits(reader: &mut Reader<'_>) -> Limits {
    let ByteSize(max_head) = reader.get_within("max_head", ByteSize(8 << 10)..=ByteSize(1 << 20));
    Limits {
        header_timeout: reader
            .get_within("header_timeout", Duration::from_millis(100)..=Duration::from_secs(300)),
        write_timeout: reader
            .get_within("write_timeout", Duration::from_millis(100)..=Duration::from_secs(3600)),
        max_head: u32::try_from(max_head).unwrap_or(u32::MAX),
        max_streams: reader.get_within("max_streams", 1..=1_000_000),
        public_max_streams: reader.get_within("gateway_max_streams", 1..=1_000_000),
        idle_grace: reader.get_within("idle_grace", Duration::ZERO..=Duration::from_secs(60)),
        max_connections: reader.get_within("max_connections", 1..=10_000_000),
        max_connections_per_address: reader.get("max_connections_per_address"),
        trusted_proxies: reader.get("trusted_proxies"),
    }
}
