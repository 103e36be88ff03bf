//! Real servers, faults and deadlines for tests and benchmarks.
//!
//! | what | where |
//! |---|---|
//! | MariaDB, MySQL, Redis, NATS with JetStream, started in a fraction of a second | [`SqlServer`], [`Redis`], [`Nats`] |
//! | a cluster of three NATS servers, and which of them leads | [`NatsCluster`] |
//! | a SQL database for one test, and a suite over all stores | [`TestDatabase`], [`on_all_stores!`] |
//! | a namespace for one test on a shared server | [`Database`], [`RedisNamespace`], [`NatsNamespace`] |
//! | stopping, killing, pausing and restarting a server | the methods of [`Server`] |
//! | an identity provider with keys, sessions and faults | [`OidcProvider`], [`Keycloak`] |
//! | an issuer that signs any token, including wrong ones | [`issuer`] |
//! | an independent verifier of signed webhooks | [`StandardWebhooks`] |
//! | a browser, and TLS for it | [`Browser`], [`TlsProxy`] |
//! | Node.js 20, npm and TypeScript | [`JavaScript`] |
//! | a network that is slow, narrow, cut or silent | [`FaultProxy`] |
//! | a server that poses as another version or product | [`Rewriter`] |
//! | an HTTP/2 client that breaks the rules: no window, floods of frames | [`raw_http2::RawHttp2`] |
//! | a Redis whose scripts can access only the keys that they declare | [`DeclaredKeysProxy`] |
//! | a program under test: its output, signals and exit status | [`Program`] |
//! | polling with a deadline | [`eventually`] |
//! | reproducible random choices | [`Seed`] |
//! | malformed inputs for parsers | [`fuzz`] |
//! | skipping a test whose server is not installed | [`need!`] |
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
//! - No server, program or folder outlives the test process, even if the process is killed. Each is registered with a
//!   [guard](guard_pid) before it exists. Namespaces on *external* servers are the exception: they are removed on drop, so
//!   a killed test leaves them behind.
//! - A server does not depend on the thread or runtime that started it: each test has its own runtime, and shared servers
//!   live as long as the process.
//! - A test cannot break a shared server: faults need `&mut self`, and shared servers are `&'static`.
//! - A server that answers is the one that was started, not another one at the same port.
//! - A restarted server keeps its port and its data.
//!
//! # Environment
//! - `MYSQL_DSN`, `REDIS_URL`, `NATS_URL`: running servers to use as the shared ones.
//! - `TESTKIT_MYSQLD`: the path of a MySQL server program that is not on the PATH.
//! - `XDG_CACHE_HOME`, or else `HOME`: the folder where `cargo xtask install` keeps the current NATS server.
//! - `SEED`: the [seed](Seed) of an earlier run, to repeat its random choices.
//! - `FUZZ_SECONDS`: how long each target of [`fuzz`] runs; one second by default.
//! - `CI`: a missing server fails the test instead of skipping it.
//!
//! The test kit needs Linux: it uses process groups, `waitid` and, if present, `/dev/shm`.

mod axe;
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
mod javascript;
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
mod sql_server;
mod standard_webhooks;
mod test_database;
mod tls_proxy;
mod unique;

pub use axe::Axe;
pub use browser::{Browser, BrowserBuilder, Cookie};
pub use declared_keys::DeclaredKeysProxy;
pub use error::Error;
pub use eventually::{Observation, eventually};
pub use folder::{Folder, target_dir};
pub use fuzz::fuzz;
pub use guard::pid as guard_pid;
pub use javascript::JavaScript;
pub use keycloak::{Keycloak, KeycloakKind, RealmSettings};
pub use nats_cluster::NatsCluster;
pub use nats_server::{Nats, NatsBuilder, NatsKind, NatsNamespace};
#[doc(hidden)]
pub use need::or_skip;
pub use npm::node;
pub use oidc_provider::{ClientUris, OidcClients, OidcProvider, OidcProviderKind};
pub use payment_provider::{Payment, PaymentProvider, PaymentWebhook};
pub use port::free_port;
pub use program::{OutputLine, OutputStream, Program, RunningProgram};
pub use proxy::{ByteCounts, FaultProxy};
pub use redis_server::{Redis, RedisBuilder, RedisKind, RedisNamespace};
pub use rewriter::Rewriter;
pub use seed::Seed;
pub use server::Server;
pub use sql_server::{Database, Flavour, SqlBuilder, SqlKind, SqlServer};
pub use standard_webhooks::{SignedRequest, StandardWebhooks};
pub use test_database::TestDatabase;
pub use tls_proxy::TlsProxy;
