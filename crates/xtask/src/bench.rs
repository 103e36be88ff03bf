//! Benchmarks: each prints a table, writes `target/bench/NAME.json` and ends with one line `NAME: ratio=…`.

use anyhow::{Result, bail};

use crate::install;
use crate::shell::{cargo, step};

/// A benchmark.
struct Bench {
    name: &'static str,
    /// What is compared.
    what: &'static str,
    /// Whether it runs the product itself, which is built first, as it is shipped.
    product: bool,
}

const BENCHES: [Bench; 8] = [
    Bench {
        name: "db",
        what: "transactions/s of our SQLite and MariaDB stores, against the plain driver",
        product: false,
    },
    Bench {
        name: "drops",
        what: "reserves/s on one hot item of a drop, against a conditional UPDATE of one row, split counters and unit rows; the waiting room at 1,000,000 players",
        product: false,
    },
    Bench {
        name: "gateway",
        what: "requests/s of /v1/me with a bearer token, memory of an idle stream and of a stock stream, against an empty axum handler and its server-sent events",
        product: true,
    },
    Bench {
        name: "hierlock",
        what: "locks/s on MariaDB, three designs, rows made/s, against the plain way, SELECT 1 and a cross join",
        product: false,
    },
    Bench {
        name: "http",
        what: "memory of an idle stream past hyper, CPU of a request past the router, against axum's own server",
        product: false,
    },
    Bench {
        name: "matchmaking",
        what: "assigned tickets/s, waiting times, CPU and Redis commands, against minimatch",
        product: true,
    },
    Bench {
        name: "notify",
        what: "time from a grant to the player's stream, idle and at 2,000/s, intake/s, 10,000 idle streams, against bare clients",
        product: true,
    },
    Bench {
        name: "outbox",
        what: "grants/s, events drained/s, time from commit to stream, cost of a claim, against bare MariaDB and JetStream",
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
        bail!("there is no benchmark {name:?}; there are: {}", names.join(", "));
    };
    install::run()?;
    if bench.product {
        step("build", &mut cargo(&["build", "--locked", "--release", "--bin", "playhouse"]))?;
    }
    let mut command = cargo(&["bench", "--locked", "--workspace", "--bench", name, "--"]);
    step(&format!("bench {name}"), command.args(args))
}
