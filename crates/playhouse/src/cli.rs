//! The command line.

mod audit_log;
mod drops;
mod notifications;
mod players;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use http_server::Right;

use crate::services::SERVICES;

pub(crate) use audit_log::{AuditLog, AuditLogCommand, WhichEntries};
pub(crate) use drops::{CreateDrop, Drops, DropsCommand, Switch, WhichDrop};
pub(crate) use notifications::{
    Broadcasts, BroadcastsCommand, Chosen, Dlq, DlqCommand, Fits, Webhooks, WebhooksCommand,
};
pub(crate) use players::{Entitlements, EntitlementsCommand, Users, UsersCommand};

/// The backend that an online game needs around its game servers.
///
/// On a laptop it runs whole and by itself: `playhouse dev`. In a fleet the same program runs on MySQL or MariaDB, Redis and
/// NATS: `playhouse serve --config FILE`.
#[derive(Debug, Parser)]
#[command(name = "playhouse", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Dev(Dev),
    Serve(Serve),
    Migrate(Migrate),
    Config(Config),
    Doctor(Doctor),
    Status(Status),
    Locks(Locks),
    Outbox(Outbox),
    Dlq(Dlq),
    Webhooks(Webhooks),
    Broadcasts(Broadcasts),
    Drops(Drops),
    Users(Users),
    Entitlements(Entitlements),
    Tickets(Tickets),
    Allocations(Allocations),
    AuditLog(AuditLog),
    Token(Token),
    Completions(Completions),
}

/// Run everything in one process, with embedded stores
///
/// Needs no servers and no configuration. Data is kept in a folder; Ctrl-C stops the process and leaves the data as it is.
/// Pending migrations are run by themselves.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse dev                        data in ./playhouse-data
  playhouse dev --ephemeral            data in a temporary folder, removed at the end
  playhouse dev --gateway-port 9080    another port, should 8080 be taken")]
pub struct Dev {
    /// The folder that keeps the data
    #[arg(long, value_name = "DIR", default_value = "playhouse-data", conflicts_with = "ephemeral")]
    pub data: PathBuf,
    /// Keep nothing: use a temporary folder and remove it at the end
    #[arg(long)]
    pub ephemeral: bool,
    /// Port for players and web pages; 0 lets the system choose [default: 8080]
    #[arg(long, value_name = "PORT")]
    pub gateway_port: Option<u16>,
    /// Port for other services [default: 8081]
    #[arg(long, value_name = "PORT")]
    pub internal_port: Option<u16>,
    /// Port for operators, health, readiness and metrics [default: 8082]
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// Port for Open Match clients [default: 50504]
    #[arg(long, value_name = "PORT")]
    pub open_match_port: Option<u16>,
    #[command(flatten)]
    pub print: PrintAddresses,
    #[command(flatten)]
    pub set: Set,
}

/// Run the roles of a process as the configuration says
///
/// A process refuses to start while migrations are pending (see `playhouse migrate` and db.migrate). SIGTERM or Ctrl-C
/// drains: nothing new is accepted, open requests are finished, leases and tickets are released, all within lifecycle.grace. A
/// second signal stops at once.
///
/// Exit codes: 0 stopped cleanly, 1 failed, 2 wrong command line or configuration, 3 stopped, but something had to be cut off.
#[derive(Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    pub from: From,
    /// The roles to play, separated by commas; the same as --set process.roles=…
    #[arg(long, value_name = "ROLES")]
    pub roles: Option<String>,
    #[command(flatten)]
    pub print: PrintAddresses,
}

/// Bring the database up to date
///
/// Runs every pending migration once, in order. Any number of processes may do so at the same time: one works, the others
/// wait. One that was killed half-way is taken up by the next run.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Only show what would be done; exits with 1 if anything is pending
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub from: From,
}

/// Print every setting with its meaning and default, as a TOML file to start from
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse config > playhouse.toml
  playhouse config --effective --config playhouse.toml")]
pub struct Config {
    /// Print what is in force instead, and where each value comes from; secrets are not shown
    #[arg(long)]
    pub effective: bool,
    #[command(flatten)]
    pub from: From,
}

/// Check each store and say what to do
///
/// Looks at whether the stores can be reached, their versions, settings that endanger data, missing migrations and clocks.
/// Changes no data, and may be run beside a running process. Exits with 1 if anything fails.
#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    pub from: From,
}

/// Show which processes run, which roles nobody has, and what waits for you
///
/// Asks a running process at its admin port, whose address is listen.admin. Any process answers the same. Exits with 1 if anything fails: an
/// expected role that nobody has (process.expected_roles), events that have failed, a webhook that is disabled, an assigner that fails.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse status
  playhouse status --json
  playhouse status --admin http://10.0.0.7:8082")]
pub struct Status {
    #[command(flatten)]
    pub at: AtAdmin,
}

/// Make, check and watch the rows that locks are taken on
///
/// Locks over users, accounts and resources are row locks of the database, on rows that are made beforehand. Where the database
/// is embedded, locks are in process and need no rows.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse locks provision --config playhouse.toml
  playhouse locks provision --rows-per-second 50000    gently, beside other work
  playhouse locks simulate --ids 5000000 --buckets 1000000 --held 2000
  playhouse locks hot")]
pub struct Locks {
    #[command(flatten)]
    pub from: From,
    #[command(subcommand)]
    pub what: LocksCommand,
}

#[derive(Debug, Subcommand)]
pub enum LocksCommand {
    /// Make the rows that are missing, locks.buckets per level
    ///
    /// Can be interrupted in any way and run again: what is there is left out. Rows that are there can be locked meanwhile. More
    /// rows than before can be made only while nobody is connected to the database; fewer, never.
    Provision {
        /// Make at most so many rows per second
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        rows_per_second: Option<u32>,
    },
    /// Count the rows and tell what is missing; exits with 1 if anything is
    Status,
    /// Predict how often ids wait for each other only because they share a bucket
    Simulate {
        /// How many ids there are at one level, players for instance
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
        ids: u64,
        /// How many buckets that level has [default: locks.buckets]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
        buckets: Option<u32>,
        /// How many of the ids are locked at the same time: locks per second times seconds held
        #[arg(long, value_name = "N", default_value_t = 1000)]
        held: u64,
    },
    /// List the rows that are waited for: now, and since a process began
    Hot {
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        /// The admin address of a running process [default: that of listen.admin]
        #[arg(long, value_name = "URL")]
        admin: Option<String>,
        #[command(flatten)]
        operator: AsOperator,
    },
    /// Try out who waits for whom, live, and compare it with the rules; exits with 1 if anything differs
    Matrix,
}

/// Which process is asked, and how it is told.
#[derive(Debug, Args)]
pub struct AtAdmin {
    /// The admin address of a running process [default: that of listen.admin]
    #[arg(long, value_name = "URL", global = true)]
    pub admin: Option<String>,
    /// Print JSON, for scripts
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub operator: AsOperator,
    #[command(flatten)]
    pub from: From,
}

/// As which operator a process is asked.
#[derive(Debug, Default, Args)]
pub struct AsOperator {
    /// The file that has your operator token [env: PLAYHOUSE_OPERATOR_TOKEN_FILE, or the token itself in PLAYHOUSE_OPERATOR_TOKEN]
    #[arg(long, value_name = "FILE", global = true)]
    pub operator_token_file: Option<PathBuf>,
    /// Why you change something, for the audit log
    #[arg(long, value_name = "TEXT", global = true)]
    pub note: Option<String>,
}

/// Look at events on their way to the bus, and mend what is stuck
///
/// Asks a running process at its admin port, which listen.admin says where it is: any process, or `playhouse dev`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse outbox list --state failed
  playhouse outbox blocked
  playhouse outbox show 0198c0de-0000-7000-8000-000000000001
  playhouse outbox retry 0198c0de-0000-7000-8000-000000000001
  playhouse outbox retry --cause 'too large' --since 1h --dry-run
  playhouse outbox republish --since 10m    after NATS lost what it had acknowledged")]
pub struct Outbox {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: OutboxCommand,
}

/// One event, or all failed ones that fit everything that is given.
#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("which").args(["event", "cause", "since", "until", "key", "all"]).required(true).multiple(true)
))]
pub struct WhichEvents {
    /// One event: its id, or its number in the outbox
    #[arg(conflicts_with_all = ["cause", "since", "until", "key", "all", "dry_run"])]
    pub event: Option<String>,
    /// Failed events whose cause has this text in it
    #[arg(long, value_name = "TEXT")]
    pub cause: Option<String>,
    /// Failed since: a time such as 2026-03-01T12:00:00Z, or how long ago, such as 10m
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Failed until then
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Failed events of this key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// All failed events
    #[arg(long, conflicts_with_all = ["cause", "since", "until", "key"])]
    pub all: bool,
    /// Only count them
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// The newest events; or those in one state, the longest in it first
    List {
        /// Which ones
        #[arg(long, default_value = "all", value_parser = ["all", "open", "published", "failed", "skipped"])]
        state: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Keys whose next event has failed, so that the events behind it wait
    Blocked {
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// One event: its state, its attempts, and what it says
    Show {
        /// Its id, or its number in the outbox
        event: String,
    },
    /// Try events that have failed again; those behind them follow at once
    Retry {
        #[command(flatten)]
        which: WhichEvents,
    },
    /// Give up events: they are never published, and those behind them go on at once
    Skip {
        #[command(flatten)]
        which: WhichEvents,
    },
    /// Publish again what was published lately
    ///
    /// For a NATS that lost what it had acknowledged. Every event keeps its id: what NATS still has it drops, within its duplicate
    /// window, and readers know what they have had.
    Republish {
        /// Since when: a time such as 2026-03-01T12:00:00Z, or how long ago, such as 10m
        #[arg(long, value_name = "TIME")]
        since: String,
    },
}

/// Make a token: for a player to try things with, for a service, or for an operator
///
/// With --user it is an access token of the builtin issuer, for curl and scripts, and only the token is printed; it lasts for an
/// hour, or until that process stops. A running process is asked at its admin port, which listen.admin says where it is.
///
/// With the name of a service it is a token for the service API, which is shown once and kept nowhere, and its hash for the
/// configuration. With --operator it is a token for the admin API, likewise.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  curl -H \"authorization: Bearer $(playhouse token --user ada)\" http://127.0.0.1:8080/v1/home
  playhouse token --user grace --role operator
  playhouse token shop --may read,entitlements
  playhouse token --operator grace"
)]
pub struct Token {
    /// What the service is called
    #[arg(value_name = "SERVICE", required_unless_present_any = ["user", "for_operator"])]
    pub name: Option<String>,
    #[arg(long, value_name = "RIGHTS", default_value = "read", value_delimiter = ',', help = may_help())]
    pub may: Vec<String>,
    /// The player: any name, who is registered when first seen
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "may"])]
    pub user: Option<String>,
    /// An extra role for this player
    #[arg(long, requires = "user", value_parser = ["player", "operator", "operator-readonly", "service"])]
    pub role: Option<String>,
    /// What the operator is called in the audit log
    #[arg(long = "operator", value_name = "NAME", conflicts_with_all = ["name", "may", "user"])]
    pub for_operator: Option<String>,
    /// The operator may only read
    #[arg(long, requires = "for_operator")]
    pub read_only: bool,
    #[command(flatten)]
    pub operator: AsOperator,
    /// The admin address of a running process [default: that of listen.admin]
    #[arg(long, value_name = "URL", requires = "user")]
    pub admin: Option<String>,
    #[command(flatten)]
    pub from: From,
}

/// Look at matchmaking tickets and mend them
///
/// Asks a running process at its admin port, whose address is listen.admin. Any process answers the same.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse tickets list
  playhouse tickets list --user 0198c0de-0000-7000-8000-000000000001
  playhouse tickets show dbt8pcfejq8o287bsa0g
  playhouse tickets --admin http://10.0.0.7:8082 release dbt8pcfejq8o287bsa0g")]
pub struct Tickets {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: TicketsCommand,
}

#[derive(Debug, Subcommand)]
pub enum TicketsCommand {
    /// The tickets that take part in matchmaking, the longest waiting first
    List {
        /// Only those of this player: those that wait, and those assigned that can still be read
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// One ticket: its data, its state, and why it is not assigned
    Show { ticket_id: String },
    /// Give a ticket that an engine has fetched back to matchmaking
    Release { ticket_id: String },
    /// Take a ticket back, as its player could
    Delete { ticket_id: String },
}

/// Look at game servers that are given back, and mend that
///
/// Playhouse calls a webhook assigner for every match that was not made after all, so that its server is free. Asks a running process at its
/// admin port, whose address is listen.admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse allocations list --state failed
  playhouse allocations retry 0198c0de-0000-7000-8000-000000000001
  playhouse allocations retry --all")]
pub struct Allocations {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: AllocationsCommand,
}

#[derive(Debug, Subcommand)]
pub enum AllocationsCommand {
    /// The newest matches that were abandoned; or those in one state, the longest in it first
    List {
        /// Which ones: open calls are still tried, failed ones wait for you
        #[arg(long, default_value = "all", value_parser = ["all", "open", "done", "failed", "skipped"])]
        state: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Try calls that have failed again
    Retry {
        /// The id of the match
        #[arg(required_unless_present = "all")]
        match_id: Option<String>,
        /// All that have failed
        #[arg(long, conflicts_with = "match_id")]
        all: bool,
    },
    /// Give up a call: the assigner is not told, and its server stays until it ends by itself
    Skip {
        /// The id of the match
        match_id: String,
    },
}

/// Print a script that completes commands and options in a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:
  playhouse completions bash > /etc/bash_completion.d/playhouse")]
pub struct Completions {
    pub shell: Shell,
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub struct From {
    /// The configuration file; `playhouse config` prints one to start from [env: PLAYHOUSE_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub set: Set,
}

#[derive(Debug, Args)]
pub struct Set {
    /// Set one key, over file and environment; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value, global = true)]
    pub set: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct PrintAddresses {
    /// Once everything answers, print the bound addresses as one line of JSON
    #[arg(long)]
    pub print_addresses: bool,
}

fn may_help() -> String {
    let words: Vec<&str> = SERVICES.rights().into_iter().map(Right::word).collect();
    format!("What the service may do, separated by commas: {}", words.join(", "))
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as db.max_connections=20")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
