//! The commands for developers and CI.

mod bench;
mod clients;
mod dev;
mod fuzz;
mod fuzz_api;
mod go;
mod install;
mod java;
mod keycloak;
mod nats;
mod python;
mod shell;
mod soak;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Commands for developers and CI
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the tests need, then check formatting, lints and documentation, and run all tests
    Test {
        /// Do not install anything
        #[arg(long)]
        no_install: bool,
    },
    /// Install what the tests need, and build the current NATS server for the cluster tests
    Install,
    /// Run the SQL test suites on a server of your choice, in addition to MariaDB
    TestSql {
        /// The MySQL server program that the tests start
        #[arg(long, value_name = "FILE", required_unless_present = "dsn")]
        mysqld: Option<PathBuf>,
        /// A running server: a mysql:// URL or a DSN of Go's MySQL driver
        #[arg(long, conflicts_with = "mysqld")]
        dsn: Option<String>,
    },
    /// Run the tests on a real Keycloak; fails if Java or Maven cannot be installed
    TestKeycloak,
    /// Generate clients of the service API in Go, Java and Python, and run them; fails if the tools cannot be installed
    TestClients,
    /// Run the fuzz targets, which are the parsers of network data; without arguments, list them
    Fuzz {
        /// The target; all of them if omitted
        target: Option<String>,
        /// How long each target runs
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
    },
    /// Run Schemathesis on the APIs: it generates requests from their OpenAPI documents
    FuzzApi {
        /// A running gateway; without it the command starts one
        #[arg(long, value_name = "URL", requires = "token")]
        base: Option<String>,
        /// A player's access token for the running gateway
        #[arg(long, requires = "base")]
        token: Option<String>,
        /// Test only this API
        #[arg(long, conflicts_with = "base")]
        only: Option<fuzz_api::Api>,
        /// The seed; the same seed repeats a run
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many requests to generate for each operation
        #[arg(long, default_value_t = 50)]
        examples: u32,
    },
    /// Run a fleet under load through many faults; takes minutes
    Soak {
        #[command(subcommand)]
        name: soak::Soak,
    },
    /// Run a benchmark; without a name, list them
    Bench {
        /// The benchmark
        name: Option<String>,
        /// Arguments of the benchmark
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
        Command::TestClients => clients::run(),
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
