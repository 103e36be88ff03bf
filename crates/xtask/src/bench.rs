//! Benchmarks: each prints a table, writes `target/bench/NAME.json` and ends with one line `NAME: ratio=…`.

use anyhow::{Result, bail};

use crate::install;
use crate::shell::{cargo, step};

/// Name, crate, what is compared.
const BENCHES: [(&str, &str, &str); 1] =
    [("db", "db", "transactions/s of our SQLite and MariaDB stores, against the plain driver")];

pub(crate) fn run(name: Option<&str>, args: &[String]) -> Result<()> {
    let Some(name) = name else {
        for (name, _, what) in BENCHES {
            eprintln!("{name:<12} {what}");
        }
        return Ok(());
    };
    let Some((_, package, _)) = BENCHES.iter().find(|(known, _, _)| *known == name) else {
        let names: Vec<&str> = BENCHES.iter().map(|(name, _, _)| *name).collect();
        bail!("there is no benchmark {name:?}; there are: {}", names.join(", "));
    };
    install::run()?;
    let mut command = cargo(&["bench", "--locked", "--package", package, "--bench", name, "--"]);
    step(&format!("bench {name}"), command.args(args))
}
