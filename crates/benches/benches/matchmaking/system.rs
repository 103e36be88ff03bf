//! The compared systems: each has a frontend, engines and its own Redis.

use std::path::PathBuf;
use std::time::Duration;

use open_match_load::Target;
use redis::aio::MultiplexedConnection;
use testkit::{Redis, RunningProgram};

use crate::args::Args;
use crate::ours::{Ours, Support};
use crate::peer;

pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The compared systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SystemKind {
    MinimatchGrpc,
    MinimatchConnect,
    Playhouse,
}

/// The programs and servers that are available.
pub(crate) struct TestBed {
    peer: Option<PathBuf>,
    ours: Option<Ours>,
}

/// A running system. Dropping it stops it.
pub(crate) struct System {
    pub(crate) target: Target,
    pub(crate) frontend: RunningProgram,
    pub(crate) engines: Vec<RunningProgram>,
    support: Option<Support>,
    pub(crate) redis: Redis,
}

impl SystemKind {
    pub(crate) const ALL: [Self; 3] = [Self::MinimatchGrpc, Self::MinimatchConnect, Self::Playhouse];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MinimatchGrpc => "minimatch grpc-go",
            Self::MinimatchConnect => "minimatch connect",
            Self::Playhouse => "playhouse",
        }
    }

    /// Returns false for the second frontend of minimatch, which has the same engine as the first.
    pub(crate) const fn engine_differs(self) -> bool {
        !matches!(self, Self::MinimatchConnect)
    }
}

impl TestBed {
    pub(crate) async fn prepare(args: &Args) -> Self {
        let peer = if args.ours_only { None } else { peer::program() };
        let ours = if args.peer_only { None } else { Ours::prepare().await };
        Self { peer, ours }
    }

    pub(crate) fn kinds(&self) -> Vec<SystemKind> {
        SystemKind::ALL.into_iter().filter(|kind| self.has(*kind)).collect()
    }

    pub(crate) fn has(&self, kind: SystemKind) -> bool {
        match kind {
            SystemKind::Playhouse => self.ours.is_some(),
            _ => self.peer.is_some(),
        }
    }

    pub(crate) async fn start(&self, kind: SystemKind, engines: usize) -> System {
        let redis = Redis::private().await.unwrap();
        let support = match kind {
            SystemKind::Playhouse => Some(self.ours.as_ref().unwrap().support(&redis).await),
            _ => None,
        };
        let frontend = match kind {
            SystemKind::Playhouse => support.as_ref().unwrap().frontend(),
            SystemKind::MinimatchGrpc => peer::frontend(self.peer.as_ref().unwrap(), &redis, "grpc"),
            SystemKind::MinimatchConnect => peer::frontend(self.peer.as_ref().unwrap(), &redis, "connect"),
        };
        let ready = frontend.wait_for_line("\"open_match\":\"127.0.0.1:", START_TIMEOUT).await;
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
        // The pattern includes the start of the line, because log lines are JSON too.
        let ready = if system.support.is_some() { "{\"admin\":\"127.0.0.1:" } else { "{\"engine\":true}" };
        for engine in &system.engines[first..] {
            engine.wait_for_line(ready, START_TIMEOUT).await;
        }
    }
}

impl System {
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.redis.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}
