//! `open-match-load` measures how many players an Open Match frontend serves, and how fast.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use open_match_load::{Options, Target};

/// Generate load on an Open Match frontend (gRPC without TLS) and check its assignments
///
/// Each player creates a ticket and watches it until the first assignment. The engine must make matches of two, each
/// with its own connection.
#[derive(Debug, Parser)]
#[command(name = "open-match-load", version)]
struct Cli {
    /// The URL of the frontend
    #[arg(long, default_value = "http://127.0.0.1:50504")]
    url: Target,
    /// Players per second
    #[arg(long, default_value_t = 1000.0, conflicts_with_all = ["closed", "idle"])]
    rate: f64,
    /// Instead of a rate: keep this many players active; each starts over once it is assigned
    #[arg(long, value_name = "PLAYERS", conflicts_with = "idle")]
    closed: Option<usize>,
    /// Instead of a rate: open this many watches of tickets that no engine matches
    #[arg(long, value_name = "WATCHERS")]
    idle: Option<usize>,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds to run before the measurement
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
    /// Connections that the players share; with 0 each player opens its own
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Seconds that a player waits for an assignment
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match open_match_load::run(work(&cli)).map_err(Into::into).flatten() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every player was served correctly.
#[expect(clippy::print_stdout, reason = "the report is the output of the program")]
async fn work(cli: &Cli) -> Result<bool> {
    let options = Options {
        connections: (cli.connections > 0).then_some(cli.connections),
        timeout: Duration::try_from_secs_f64(cli.timeout)?,
        ..Options::default()
    };
    let (warm_up, seconds) =
        (Duration::try_from_secs_f64(cli.warm_up)?, Duration::try_from_secs_f64(cli.seconds)?);
    if let Some(count) = cli.idle {
        let idle = open_match_load::idle(&cli.url, &options, count).await?;
        tokio::time::sleep(seconds).await;
        let errors = idle.errors();
        println!("{} of {count} still watching", idle.waiting());
        for error in errors.iter().take(10) {
            println!("  {error}");
        }
        return Ok(errors.is_empty());
    }
    let report = match cli.closed {
        Some(count) => open_match_load::closed_loop(&cli.url, &options, count, warm_up, seconds).await?,
        None => open_match_load::open_loop(&cli.url, &options, cli.rate, warm_up, seconds).await?,
    };
    println!("{report}");
    Ok(report.is_flawless())
}
