//! Benchmarks. Each prints a table and one summary line `NAME: ratio=…`, and writes `target/bench/NAME.json`.

use anyhow::{Result, bail};

use crate::install;
use crate::shell::{cargo, step};

/// A benchmark.
struct Bench {
    name: &'static str,
    /// The measured figures and the reference.
    what: &'static str,
    /// Whether it runs the release build of the product, which is built first.
    product: bool,
}

const BENCHES: [Bench; 11] = [
    Bench {
        name: "console",
        what: "time of every screen on 1,000,000 inbox rows, 1,000,000 events and 100,000 tickets, requests/s of players with 20 open consoles, compared with none",
        product: true,
    },
    Bench {
        name: "db",
        what: "transactions/s of the SQLite and MariaDB stores, compared with the plain driver",
        product: false,
    },
    Bench {
        name: "drops",
        what: "reservations/s on one hot drop, compared with a conditional UPDATE of one row, split counters and unit rows; the waiting room at 1,000,000 players",
        product: false,
    },
    Bench {
        name: "gateway",
        what: "requests/s of /v1/me with a bearer token, memory of an idle stream and of a stock stream, compared with an empty axum handler and axum's server-sent events",
        product: true,
    },
    Bench {
        name: "hierlock",
        what: "locks/s of three designs on MariaDB and rows provisioned/s, compared with single statements, SELECT 1 and a cross join",
        product: false,
    },
    Bench {
        name: "http",
        what: "memory of an idle stream without hyper, CPU of a request without the router, compared with axum's own server",
        product: false,
    },
    Bench {
        name: "matchmaking",
        what: "assigned tickets/s, latency, CPU and Redis commands, compared with minimatch",
        product: true,
    },
    Bench {
        name: "notify",
        what: "time from a grant to the player's stream, idle and at 2,000/s, intake/s, 10,000 idle streams, compared with bare clients",
        product: true,
    },
    Bench {
        name: "open-match",
        what: "time, CPU and Redis commands of QueryTickets at 100,000 tickets, compared with a scan of Redis; memory at 1,000,000; tickets/s and time to a match of a Director, its floor in Open Match, and the engine",
        product: true,
    },
    Bench {
        name: "outbox",
        what: "grants/s, events drained/s, time from commit to stream, cost of a claim, compared with bare MariaDB and JetStream",
        product: false,
    },
    Bench {
        name: "rules",
        what: "tickets/s matched and the time of a pass at 1,000 to 100,000 waiting tickets, compared with a naive quadratic matcher on the same pools; quality compared with grouping by arrival",
        product: false,
    },
];

pub(crate) fn run(name: Option<&str>, args: &[String]) -> Result<()> {
    let Some(name) = name else {
        for Bench { name, what, .. } in BENCHES {
            eprintln!("{name:<12} {what}");
        }
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        let names: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
        bail!("there is no benchmark {name:?}; choose one of: {}", names.join(", "));
    };
    install::run()?;
    if bench.product {
        step("build", &mut cargo(&["build", "--locked", "--release", "--bin", "playhouse"]))?;
    }
    let mut command = cargo(&["bench", "--locked", "--workspace", "--bench", name, "--"]);
    step(&format!("bench {name}"), command.args(args))
}
