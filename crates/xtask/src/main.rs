//! The commands that people and CI run on this repository.

mod bench;
mod fuzz;
mod fuzz_api;
mod install;
mod keycloak;
mod nats;
mod shell;
mod soak;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What people and CI run on this repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the tests need, then format, lint, document and test everything
    Test {
        /// Do not install anything
        #[arg(long)]
        no_install: bool,
    },
    /// Install what the tests need, and build the current NATS server for those on clusters
    Install,
    /// Run the suites that need a SQL server on one of your choice, beside MariaDB
    TestSql {
        /// A MySQL server program, of which the tests start their own
        #[arg(long, value_name = "FILE", required_unless_present = "dsn")]
        mysqld: Option<PathBuf>,
        /// A server that runs already: mysql://… or as MYSQL_DSN is written for Go's driver
        #[arg(long, conflicts_with = "mysqld")]
        dsn: Option<String>,
    },
    /// Run the tests on a real Keycloak; an error if Java or Maven cannot be had
    TestKeycloak,
    /// Run the fuzz targets, the parsers of what comes from the network; without arguments, list them
    Fuzz {
        target: Option<String>,
        /// How long each one runs
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
    },
    /// Run Schemathesis over the APIs: requests made up from their OpenAPI documents
    FuzzApi {
        /// A gateway that runs already; without it one is started
        #[arg(long, value_name = "URL", requires = "token")]
        base: Option<String>,
        /// A player's access token for it
        #[arg(long, requires = "base")]
        token: Option<String>,
        /// One of the APIs alone
        #[arg(long, conflicts_with = "base")]
        only: Option<fuzz_api::Api>,
        /// To repeat a run
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many requests to make up for each operation
        #[arg(long, default_value_t = 50)]
        examples: u32,
    },
    /// Run a fleet under load through many faults, for minutes
    Soak {
        #[command(subcommand)]
        name: soak::Soak,
    },
    /// Run a benchmark; without a name, list them
    Bench {
        name: Option<String>,
        /// Passed on to the benchmark
        #[arg(last = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test { no_install } => test::run(!no_install),
        Command::Install => install::run(),
        Command::TestSql { mysqld, dsn } => test::run_sql(mysqld.as_deref(), dsn.as_deref()),
        Command::TestKeycloak => keycloak::run(),
        Command::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Command::FuzzApi { base, token, only, seed, examples } => {
            let plan = fuzz_api::Plan { seed, examples };
            match base.zip(token) {
                Some((base, token)) => plan.run_at(&base, &token),
                None => plan.run(only),
            }
        }
        Command::Soak { name } => name.run(),
        Command::Bench { name, args } => bench::run(name.as_deref(), &args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
