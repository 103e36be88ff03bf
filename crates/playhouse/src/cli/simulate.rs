//! Arguments of `playhouse simulate`.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigArgs, OperatorArgs, key_and_value};

/// Simulate thousands of players against a running instance, and check what they see
///
/// Players arrive, sign in, join a limited drop, buy, look for matches, receive notifications on one or two devices, go away and come back.
/// At the end everything that they saw is compared with what the instance says. Exits with 1 if a promise is broken, and names the players,
/// tickets, orders and notifications.
///
/// Runs against a running `playhouse dev` on this machine, or against the instance of --gateway and --admin. It creates players and a drop
/// there, so do not point it at an instance that real players use. With --processes it starts its own processes on the stores of --config.
///
/// Ctrl-C or SIGTERM ends the run: players stop where they are, what they saw is checked, and the processes of --processes end. A second
/// signal stops at once.
///
/// Exit codes: 0 all checks passed, 1 a promise is broken or the run failed, 2 wrong command line or scenario, 3 stopped by a signal, and
/// what was checked holds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse simulate                                          2,000 players against `playhouse dev`
  playhouse simulate --players 500 --html report.html
  playhouse simulate --scenario flash-sale --with drop.stock=50
  playhouse simulate --scenario my.toml --seed 7 --json report.json
  playhouse simulate --processes 3 --config fleet.toml --faults
  playhouse simulate --print launch-day > my.toml             a file to start from")]
pub struct Simulate {
    /// How many players take part; the same as --with players=N
    #[arg(long, value_name = "COUNT")]
    pub players: Option<u32>,
    /// The name of a scenario (see --list), or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "launch-day")]
    pub scenario: String,
    /// Set one key of the scenario; can be repeated
    #[arg(long = "with", value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub with: Vec<(String, String)>,
    /// The seed that decides what every player does; the report prints it [default: random]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as one HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The address of a gateway; can be repeated [default: listen.gateway]
    #[arg(long, value_name = "URL")]
    pub gateway: Vec<String>,
    /// The address of a process's admin API [default: listen.admin]
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// A file with an access token per line, one for each player, if the issuer is not the builtin one
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// A file with the secret of drops.payments.secrets (whsec_…): players pay by signed webhooks
    #[arg(long, value_name = "FILE")]
    pub payment_secret_file: Option<PathBuf>,
    /// Start this many processes on the stores of --config, and stop them afterwards
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["gateway", "admin", "tokens", "payment_secret_file"])]
    pub processes: Option<u8>,
    /// Kill (-9) and restart the started processes, one at a time
    #[arg(long, requires = "processes")]
    pub faults: bool,
    /// List the scenarios
    #[arg(long, conflicts_with = "print")]
    pub list: bool,
    /// Print a scenario with all its keys
    #[arg(long, value_name = "NAME")]
    pub print: Option<String>,
    #[command(flatten)]
    pub operator: OperatorArgs,
    #[command(flatten)]
    pub from: ConfigArgs,
}
