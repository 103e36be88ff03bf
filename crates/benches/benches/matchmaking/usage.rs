//! What the servers use: processor time, and commands of Redis.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use benches::Usage;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};

use crate::system::System;

/// Processor time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) frontend: Duration,
    pub(crate) engine: Duration,
    pub(crate) redis: Duration,
}

impl Cpu {
    pub(crate) fn of(system: &System) -> Self {
        Self {
            frontend: Usage::of(system.frontend.pid()).cpu,
            engine: system.engines.iter().map(|engine| Usage::of(engine.pid()).cpu).sum(),
            redis: Usage::of(system.redis.pid().unwrap()).cpu,
        }
    }

    /// What was used since then.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            frontend: self.frontend - before.frontend,
            engine: self.engine - before.engine,
            redis: self.redis - before.redis,
        }
    }

    pub(crate) fn total(self) -> Duration {
        self.frontend + self.engine + self.redis
    }
}

/// Commands that Redis has run since it was started, those inside scripts included.
pub(crate) async fn commands_so_far(redis: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query_async(redis).await.unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().trim().parse().unwrap()
}

/// Listens to every command.
pub(crate) struct Monitor {
    counts: Rc<Counts>,
    listener: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    by_clients: Cell<u64>,
    by_scripts: Cell<u64>,
}

impl Monitor {
    pub(crate) async fn start(system: &System) -> Self {
        let mut socket = TcpStream::connect(system.redis.addr()).await.unwrap();
        socket.write_all(b"MONITOR\r\n").await.unwrap();
        let mut lines = BufReader::with_capacity(1 << 20, socket);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).await.unwrap();
        assert_eq!(line, b"+OK\r\n");
        let counts = Rc::<Counts>::default();
        let counting = Rc::clone(&counts);
        let listener = spawn_local(async move {
            loop {
                line.clear();
                if lines.read_until(b'\n', &mut line).await.unwrap() == 0 {
                    return;
                }
                // +1731640000.123456 [0 127.0.0.1:4242] "SET" … or [0 lua]
                let from = line.split(|byte| *byte == b']').next().unwrap();
                let count = if from.ends_with(b" lua") { &counting.by_scripts } else { &counting.by_clients };
                count.set(count.get() + 1);
            }
        });
        Self { counts, listener }
    }

    /// Commands that clients have sent, and commands that scripts have called.
    pub(crate) fn finish(self) -> (u64, u64) {
        self.listener.abort();
        (self.counts.by_clients.get(), self.counts.by_scripts.get())
    }
}
