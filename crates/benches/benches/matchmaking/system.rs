//! The systems that are compared: a frontend, engines and a Redis of their own.

use std::path::PathBuf;
use std::time::Duration;

use open_match_load::Target;
use redis::aio::MultiplexedConnection;
use testkit::{Redis, Running};

use crate::args::Args;
use crate::ours::{Ours, Support};
use crate::peer;

pub(crate) const START: Duration = Duration::from_secs(60);

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    MinimatchGrpc,
    MinimatchConnect,
    Playhouse,
}

/// What can be started here.
pub(crate) struct Stage {
    peer: Option<PathBuf>,
    ours: Option<Ours>,
}

/// A system that runs. Dropping it stops it.
pub(crate) struct System {
    pub(crate) target: Target,
    pub(crate) frontend: Running,
    pub(crate) engines: Vec<Running>,
    support: Option<Support>,
    pub(crate) redis: Redis,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::MinimatchGrpc, Self::MinimatchConnect, Self::Playhouse];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MinimatchGrpc => "minimatch grpc-go",
            Self::MinimatchConnect => "minimatch connect",
            Self::Playhouse => "playhouse",
        }
    }

    /// Both frontends of minimatch have the same backend.
    pub(crate) const fn engine_differs(self) -> bool {
        !matches!(self, Self::MinimatchConnect)
    }
}

impl Stage {
    pub(crate) async fn prepare(args: &Args) -> Self {
        let peer = if args.ours_only { None } else { peer::program() };
        let ours = if args.peer_only { None } else { Ours::prepare().await };
        Self { peer, ours }
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| self.has(*kind)).collect()
    }

    pub(crate) fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Playhouse => self.ours.is_some(),
            _ => self.peer.is_some(),
        }
    }

    pub(crate) async fn start(&self, kind: Kind, engines: usize) -> System {
        let redis = Redis::private().await.unwrap();
        let support = match kind {
            Kind::Playhouse => Some(self.ours.as_ref().unwrap().support(&redis).await),
            _ => None,
        };
        let frontend = match kind {
            Kind::Playhouse => support.as_ref().unwrap().frontend(),
            Kind::MinimatchGrpc => peer::frontend(self.peer.as_ref().unwrap(), &redis, "grpc"),
            Kind::MinimatchConnect => peer::frontend(self.peer.as_ref().unwrap(), &redis, "connect"),
        };
        let ready = frontend.wait_for_line("\"open_match\":\"127.0.0.1:", START).await;
        let addresses: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let target = format!("http://{}", addresses["open_match"].as_str().unwrap()).parse().unwrap();
        let mut system = System { target, frontend, engines: Vec::new(), support, redis };
        self.add_engines(&mut system, engines).await;
        system
    }

    pub(crate) async fn add_engines(&self, system: &mut System, count: usize) {
        let first = system.engines.len();
        for _ in 0..count {
            system.engines.push(match &system.support {
                Some(support) => support.engine(),
                None => peer::backend(self.peer.as_ref().unwrap(), &system.redis),
            });
        }
        // The whole beginning of the line: logs are JSON, too.
        let ready = if system.support.is_some() { "{\"admin\":\"127.0.0.1:" } else { "{\"engine\":true}" };
        for engine in &system.engines[first..] {
            engine.wait_for_line(ready, START).await;
        }
    }
}

impl System {
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.redis.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}
