//! Resources that the servers use: processor time and Redis commands.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use benches::Usage;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};

use crate::system::System;

/// The processor time of the servers.
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

    /// Returns the difference to an earlier reading.
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

/// Returns how many commands Redis has run since its start, including those inside scripts.
pub(crate) async fn commands_so_far(redis: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query_async(redis).await.unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().trim().parse().unwrap()
}

/// Counts Redis commands by MONITOR.
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

    /// Returns the numbers of commands that clients sent and that scripts called.
    pub(crate) fn finish(self) -> (u64, u64) {
        self.listener.abort();
        (self.counts.by_clients.get(), self.counts.by_scripts.get())
    }
}
