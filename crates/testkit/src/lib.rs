//! Real servers, faults and deadlines for tests and benchmarks.
//!
//! | what | where |
//! |---|---|
//! | MariaDB, MySQL, Redis, NATS with JetStream, started in a fraction of a second | [`SqlServer`], [`Redis`], [`Nats`] |
//! | three NATS servers in a cluster, and who of them leads | [`NatsCluster`] |
//! | a file or a database for one test, and a suite over all of them | [`SqlPlace`], [`on_all_stores!`] |
//! | a room of one's own on a shared server | [`Database`], [`Keyspace`], [`Streams`] |
//! | a server that is stopped, killed, paused, started again | the methods of [`Server`] |
//! | an identity provider, its keys, its moods and its sessions | [`OidcProvider`], [`Keycloak`] |
//! | an issuer of tokens that no provider would sign | [`issuer`] |
//! | a receiver that verifies webhooks | [`StandardWebhooks`] |
//! | a browser, and TLS for it | [`Browser`], [`TlsProxy`] |
//! | a network that is slow, thin, dead or silent | [`Proxy`] |
//! | a server that seems to be another one | [`Rewriter`] |
//! | an HTTP/2 client that opens no window, or sends floods | [`raw_http2::RawHttp2`] |
//! | a Redis whose scripts reach only the keys that they declare | [`DeclaredKeys`] |
//! | a real program with its output, signals and exit status | [`Program`] |
//! | waiting without guessing how long | [`eventually`] |
//! | random choices that can be repeated | [`Seed`] |
//! | inputs that nobody would send on purpose | [`fuzz`] |
//! | what to do if a server is not installed | [`need!`] |
//! | the report of a benchmark | [`bench::Report`] |
//!
//! ```no_run
//! # async fn test() {
//! let sql = testkit::need!(testkit::SqlServer::shared().await);
//! let database = sql.database().await;
//! // … connect to database.url()
//! # }
//! ```
//!
//! # Invariants
//! - Nothing outlives the test process, however it ends: no server, no program, no folder. A
//!   [guard](guard_pid) is told about each of them before it exists. Rooms on *external* servers are
//!   the exception: they are cleaned up on drop, so a kill leaves them behind.
//! - Nothing depends on the thread or the runtime that happened to start a server: each test has its own
//!   runtime, and the shared servers live as long as the process.
//! - A shared server cannot be broken: faults take `&mut self`, and the shared ones are `&'static`.
//! - A server that answers is the one that was started, not a stranger at the same port.
//! - A server that is started again has its old port and its old data.
//!
//! # Environment
//! - `MYSQL_DSN`, `REDIS_URL`, `NATS_URL`: servers that already run, to be used as the shared ones.
//! - `TESTKIT_MYSQLD`: a MySQL server program that is not on the PATH.
//! - `XDG_CACHE_HOME`, or else `HOME`: where `cargo xtask install` keeps the current NATS server.
//! - `SEED`: the [seed](Seed) of an earlier run, to repeat its random choices.
//! - `FUZZ_SECONDS`: how long each target of [`fuzz`] runs; a second without it.
//! - `CI`: a missing server fails the test instead of skipping it.
//!
//! The kit needs Linux: it leans on process groups, `waitid` and, where it exists, `/dev/shm`.

pub mod bench;
mod browser;
mod cache;
mod declared_keys;
mod error;
mod eventually;
mod external;
mod folder;
mod fuzz;
mod guard;
mod http;
mod installed;
pub mod issuer;
mod keycloak;
mod nats_cluster;
mod nats_server;
mod need;
mod npm;
mod oidc_provider;
mod payment_provider;
mod port;
mod process;
mod program;
mod proxy;
pub mod raw_http2;
mod redis_server;
mod rewriter;
mod seed;
mod server;
mod sql_place;
mod sql_server;
mod standard_webhooks;
mod tls_proxy;
mod unique;

pub use browser::{Browser, BrowserBuilder, Cookie};
pub use declared_keys::DeclaredKeys;
pub use error::Error;
pub use eventually::{Observation, eventually};
pub use folder::{Folder, target};
pub use fuzz::fuzz;
pub use guard::pid as guard_pid;
pub use keycloak::{Keycloak, KeycloakKind, RealmSettings};
pub use nats_cluster::NatsCluster;
pub use nats_server::{Nats, NatsBuilder, NatsKind, Streams};
#[doc(hidden)]
pub use need::or_skip;
pub use npm::node;
pub use oidc_provider::{Clients, OidcProvider, OidcProviderKind, Uris};
pub use payment_provider::{Payment, PaymentProvider, PaymentWebhook};
pub use port::free_port;
pub use program::{Line, Program, Running, Stream};
pub use proxy::{Bytes, Proxy};
pub use redis_server::{Keyspace, Redis, RedisBuilder, RedisKind};
pub use rewriter::Rewriter;
pub use seed::Seed;
pub use server::Server;
pub use sql_place::SqlPlace;
pub use sql_server::{Database, Flavour, SqlBuilder, SqlKind, SqlServer};
pub use standard_webhooks::{SignedRequest, StandardWebhooks};
pub use tls_proxy::TlsProxy;
