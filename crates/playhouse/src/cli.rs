//! The command line.

mod audit_log;
mod drops;
mod jobs;
mod notifications;
mod parties;
mod players;
mod rules;
mod simulate;
mod trace;
mod try_it;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use http_server::Right;

use crate::services::SERVICES;

pub(crate) use audit_log::{AuditFilter, AuditLog, AuditLogCommand};
pub(crate) use drops::{CreateDrop, DropArg, Drops, DropsCommand, Switch, TermsArgs};
pub(crate) use jobs::{Jobs, JobsCommand};
pub(crate) use notifications::{
    BroadcastDraft, Broadcasts, BroadcastsCommand, DeadLetterFilter, DeadLetterSelection, Dlq, DlqCommand,
    Webhooks, WebhooksCommand,
};
pub(crate) use parties::{Parties, PartiesCommand};
pub(crate) use players::{Entitlements, EntitlementsCommand, Users, UsersCommand};
pub(crate) use rules::{DefinitionArgs, Rules, RulesCommand};
pub(crate) use simulate::Simulate;
pub(crate) use trace::Trace;
pub(crate) use try_it::{TryIt, TryItCommand};

/// The backend that an online game needs around its game servers.
///
/// On a laptop, `playhouse dev` runs everything in one process and needs nothing else. In a fleet, `playhouse serve --config
/// FILE` runs the same program on MySQL or MariaDB, Redis and NATS.
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
    Trace(Trace),
    Locks(Locks),
    Limits(Limits),
    Outbox(Outbox),
    Jobs(Jobs),
    Dlq(Dlq),
    Webhooks(Webhooks),
    Broadcasts(Broadcasts),
    Drops(Drops),
    Users(Users),
    Entitlements(Entitlements),
    Tickets(Tickets),
    Parties(Parties),
    Backfills(Backfills),
    Rules(Rules),
    Allocations(Allocations),
    AuditLog(AuditLog),
    Token(Token),
    TryIt(TryIt),
    Simulate(Simulate),
    Completions(Completions),
}

/// Run everything in one process, with embedded stores
///
/// Needs no servers and no configuration. Runs pending migrations. Data is kept in a folder: Ctrl-C stops the process, and the
/// next start continues with the same data.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse dev                        data in ./playhouse-data
  playhouse dev --ephemeral            data in a temporary folder that is removed at the end
  playhouse dev --ephemeral --demo     with players and traffic, to look around in the console
  playhouse dev --gateway-port 9080    another port, if 8080 is in use")]
pub struct Dev {
    /// The folder for the data
    #[arg(long, value_name = "DIR", default_value = "playhouse-data", conflicts_with = "ephemeral")]
    pub data: PathBuf,
    /// Use a temporary folder and remove it at the end
    #[arg(long)]
    pub ephemeral: bool,
    /// Fill in players, entitlements, a drop, tickets and notifications, and keep a few requests per second going
    ///
    /// Every screen of the console then has something to show, including what goes wrong: a webhook destination that is gone, with
    /// dead letters to replay, an event that blocks its key, a banned player, declined payments and refused requests.
    #[arg(long)]
    pub demo: bool,
    /// The port of the gateway, for players and web pages; 0 means any free port [default: 8080]
    #[arg(long, value_name = "PORT")]
    pub gateway_port: Option<u16>,
    /// The port of the service API, for your services [default: 8081]
    #[arg(long, value_name = "PORT", alias = "internal-port")]
    pub service_api_port: Option<u16>,
    /// The port of the admin API, for operators, health checks and metrics [default: 8082]
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// The port for Open Match clients [default: 50504]
    #[arg(long, value_name = "PORT")]
    pub open_match_port: Option<u16>,
    #[command(flatten)]
    pub print: PrintAddressesArg,
    #[command(flatten)]
    pub set: SetArgs,
}

/// Run a process with the roles of the configuration
///
/// A process refuses to start while migrations are pending (see `playhouse migrate` and db.migrate). SIGTERM or Ctrl-C
/// drains the process: it accepts nothing new, finishes requests in flight, and releases leases and tickets, all within
/// lifecycle.grace. A second signal stops it at once.
///
/// Exit codes: 0 stopped cleanly, 1 failed, 2 wrong command line or configuration, 3 stopped, but some work was cut off.
#[derive(Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    pub from: ConfigArgs,
    /// The roles to run, separated by commas; the same as --set process.roles=…
    #[arg(long, value_name = "ROLES")]
    pub roles: Option<String>,
    #[command(flatten)]
    pub print: PrintAddressesArg,
}

/// Run pending database migrations
///
/// Runs each pending migration once, in order. Several processes may do this at the same time: one works, the others wait. The
/// next run continues a migration that was killed half-way.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Only list the migrations; exits with 1 if any is pending
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub from: ConfigArgs,
}

/// Print every setting with its meaning and default, as a TOML file to edit
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse config > playhouse.toml
  playhouse config --effective --config playhouse.toml")]
pub struct Config {
    /// Print the values in force instead, and where each comes from; secrets are hidden
    #[arg(long)]
    pub effective: bool,
    #[command(flatten)]
    pub from: ConfigArgs,
}

/// Check the stores and the configuration, and suggest what to do
///
/// Checks that the stores are reachable, their versions, settings that endanger data, pending migrations, and clocks. Changes no
/// data, so you can run it while processes run. Exits with 1 if a check fails.
#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    pub from: ConfigArgs,
}

/// Show the running processes, missing roles, and what needs your attention
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer. Exits with 1 if something
/// needs you: no process runs an expected role (process.expected_roles), events have failed, a webhook is disabled, an assigner fails.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse status
  playhouse status --json
  playhouse status --admin http://10.0.0.7:8082")]
pub struct Status {
    #[command(flatten)]
    pub target: AdminArgs,
}

/// Show the rate limits, and which callers they refuse
///
/// Calls the admin API of a running process, at listen.admin or --admin. The counts are those of that process: ask each process with the
/// role gateway.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse limits
  playhouse limits --json
  playhouse limits --admin http://10.0.0.7:8082")]
pub struct Limits {
    #[command(flatten)]
    pub target: AdminArgs,
}

/// Create, check and watch the lock rows
///
/// Locks on users, accounts and resources are row locks in the database, on rows that must exist. With an embedded database, locks
/// are in process and need no rows.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse locks provision --config playhouse.toml
  playhouse locks provision --rows-per-second 50000    slowly, next to other work
  playhouse locks simulate --ids 5000000 --buckets 1000000 --held 2000
  playhouse locks hot
  playhouse locks waits")]
pub struct Locks {
    #[command(flatten)]
    pub from: ConfigArgs,
    #[command(subcommand)]
    pub command: LocksCommand,
}

#[derive(Debug, Subcommand)]
pub enum LocksCommand {
    /// Create the missing lock rows, locks.buckets per level
    ///
    /// You can interrupt it and run it again: it skips rows that exist, and they can be locked meanwhile. You can raise the number of
    /// rows while no process is connected to the database. You cannot lower it.
    Provision {
        /// Create at most this many rows per second
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        rows_per_second: Option<u32>,
    },
    /// Count the rows and those that are missing; exits with 1 if any is missing
    Status,
    /// Predict how often unrelated ids wait for each other because they share a bucket
    Simulate {
        /// The number of ids at one level, for example of players
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
        ids: u64,
        /// The number of buckets of that level [default: locks.buckets]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
        buckets: Option<u32>,
        /// The number of ids locked at a time: locks per second times the seconds that each is held
        #[arg(long, value_name = "N", default_value_t = 1000)]
        held: u64,
    },
    /// List the rows with the longest waits: now, and since a process started
    Hot {
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        /// The address of a process's admin API [default: listen.admin]
        #[arg(long, value_name = "URL")]
        admin: Option<String>,
        #[command(flatten)]
        operator: OperatorArgs,
    },
    /// Show who waits, who blocks, and since when
    ///
    /// With MySQL or MariaDB, the waits are those of all processes. With an embedded database, and for transactions that wait for their
    /// turn, they are those of the process that answers.
    Waits {
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// The address of a process's admin API [default: listen.admin]
        #[arg(long, value_name = "URL")]
        admin: Option<String>,
        #[command(flatten)]
        operator: OperatorArgs,
    },
    /// End a database session that others wait for; its transaction is rolled back, which releases its locks
    End {
        /// The number of the session, as `playhouse locks waits` shows it
        session: u64,
        /// The address of a process's admin API [default: listen.admin]
        #[arg(long, value_name = "URL")]
        admin: Option<String>,
        #[command(flatten)]
        operator: OperatorArgs,
    },
    /// Take every pair of locks and compare which wait with the rules; exits with 1 if any differs
    Matrix,
}

/// The process whose admin API a command calls, and the format of the output.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The address of a process's admin API [default: listen.admin]
    #[arg(long, value_name = "URL", global = true)]
    pub admin: Option<String>,
    /// Print JSON for scripts
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub operator: OperatorArgs,
    #[command(flatten)]
    pub from: ConfigArgs,
}

/// The operator that a command acts for.
#[derive(Debug, Default, Args)]
pub struct OperatorArgs {
    /// The file with your operator token [env: PLAYHOUSE_OPERATOR_TOKEN_FILE, or the token itself in PLAYHOUSE_OPERATOR_TOKEN]
    #[arg(long, value_name = "FILE", global = true)]
    pub operator_token_file: Option<PathBuf>,
    /// Why you make the change, for the audit log
    #[arg(long, value_name = "TEXT", global = true)]
    pub note: Option<String>,
}

/// List events of the outbox, and retry or skip failed ones
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse outbox list --state failed
  playhouse outbox blocked
  playhouse outbox show 0198c0de-0000-7000-8000-000000000001
  playhouse outbox retry 0198c0de-0000-7000-8000-000000000001
  playhouse outbox retry --cause 'too large' --since 1h --dry-run
  playhouse outbox republish --since 10m    after NATS lost events that it had acknowledged")]
pub struct Outbox {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: OutboxCommand,
}

/// One event, or all failed events that match every given option.
#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("which").args(["event", "cause", "kind", "since", "until", "key", "all", "expected"]).required(true).multiple(true)
))]
pub struct EventSelection {
    /// The id of one event, or its number in the outbox
    #[arg(conflicts_with_all = ["cause", "kind", "since", "until", "key", "all", "expected", "dry_run"])]
    pub event: Option<String>,
    /// Failed events whose cause contains this text
    #[arg(long, value_name = "TEXT")]
    pub cause: Option<String>,
    /// Failed events of this type, such as playhouse.entitlement.granted.v1
    #[arg(long, value_name = "TYPE")]
    pub kind: Option<String>,
    /// Events that failed since this time, such as 2026-03-01T12:00:00Z, or this long ago, such as 10m
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Events that failed until this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Failed events with this key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// All failed events
    #[arg(long, conflicts_with_all = ["cause", "kind", "since", "until", "key"])]
    pub all: bool,
    /// Do nothing unless exactly this many match; a number above 10000 stands for all above it
    #[arg(long, value_name = "N")]
    pub expected: Option<u64>,
    /// Only count the events
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// List the newest events, or those in one state, the longest in that state first
    List {
        /// The state of the events
        #[arg(long, default_value = "all", value_parser = ["all", "open", "published", "failed", "skipped"])]
        state: String,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// List the keys whose next event has failed, so that later events wait
    Blocked {
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Show one event: its state, its attempts and its content
    Show {
        /// The id of the event, or its number in the outbox
        event: String,
    },
    /// Publish failed events again; later events of their keys follow at once
    Retry {
        #[command(flatten)]
        selection: EventSelection,
    },
    /// Give up events: they are never published, and later events of their keys follow at once
    Skip {
        #[command(flatten)]
        selection: EventSelection,
    },
    /// Publish recently published events again
    ///
    /// For a NATS that lost events that it had acknowledged. Each event keeps its id: NATS drops those that it still has, within its
    /// duplicate window, and consumers deduplicate by id.
    Republish {
        /// Events published since this time, such as 2026-03-01T12:00:00Z, or this long ago, such as 10m
        #[arg(long, value_name = "TIME")]
        since: String,
        /// Events published until this time [default: now]
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// Do nothing unless exactly this many match
        #[arg(long, value_name = "N")]
        expected: Option<u64>,
    },
}

/// Create a token for a player, a service or an operator
///
/// With --user, a running process creates an access token of the builtin issuer, for curl and scripts. The command calls its admin
/// API, at listen.admin or --admin, and prints only the token. It is valid for an hour, or until that process stops.
///
/// With the name of a service, the command prints a token for the service API and its hash for the configuration. The token is
/// stored nowhere and not shown again. With --operator, it does the same for the admin API.
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
    /// The name of the service
    #[arg(value_name = "SERVICE", required_unless_present_any = ["user", "for_operator"])]
    pub name: Option<String>,
    #[arg(long, value_name = "RIGHTS", default_value = "read", value_delimiter = ',', help = may_help())]
    pub may: Vec<String>,
    /// The name of the player: any name; a new player is registered
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "may"])]
    pub user: Option<String>,
    /// An extra role for this player
    #[arg(long, requires = "user", value_parser = ["player", "operator", "operator-readonly", "service"])]
    pub role: Option<String>,
    /// The name of the operator in the audit log
    #[arg(long = "operator", value_name = "NAME", conflicts_with_all = ["name", "may", "user"])]
    pub for_operator: Option<String>,
    /// The operator may only read
    #[arg(long, requires = "for_operator")]
    pub read_only: bool,
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// The address of a process's admin API [default: listen.admin]
    #[arg(long, value_name = "URL", requires = "user")]
    pub admin: Option<String>,
    #[command(flatten)]
    pub from: ConfigArgs,
}

/// List matchmaking tickets, and release or delete them
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse tickets list
  playhouse tickets list --user 0198c0de-0000-7000-8000-000000000001
  playhouse tickets show dbt8pcfejq8o287bsa0g
  playhouse tickets --admin http://10.0.0.7:8082 release dbt8pcfejq8o287bsa0g")]
pub struct Tickets {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: TicketsCommand,
}

#[derive(Debug, Subcommand)]
pub enum TicketsCommand {
    /// List the tickets in matchmaking, the longest waiting first
    List {
        /// Only tickets of this player: waiting ones, and assigned ones that can still be read
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// The most to list
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one ticket: its data, its state, and why it is not assigned
    Show {
        /// The id of the ticket
        ticket_id: String,
    },
    /// Show why one ticket waits: by profile, pool and rule, with the nearest candidates
    Why {
        /// The id of the ticket
        ticket_id: String,
    },
    /// Release a ticket that an engine or a Director holds, so that it can be matched again
    Release {
        /// The id of the ticket
        ticket_id: String,
    },
    /// Delete a ticket, as its player could
    Delete {
        /// The id of the ticket
        ticket_id: String,
    },
}

/// List running matches that have room for more tickets
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse backfills list
  playhouse backfills show dbt8pcfejq8o287bsa0g")]
pub struct Backfills {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: BackfillsCommand,
}

#[derive(Debug, Subcommand)]
pub enum BackfillsCommand {
    /// List the backfills that game servers keep alive
    List {
        /// The most to list
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one backfill: its data, when it was acknowledged, and the tickets that wait for its game server
    Show {
        /// The id of the backfill
        backfill_id: String,
    },
}

/// List calls that give game servers back, and retry or skip failed ones
///
/// Playhouse calls a webhook assigner for each abandoned match, so that it frees the server. Calls the admin API of a running process, at
/// listen.admin or --admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse allocations list --state failed
  playhouse allocations retry 0198c0de-0000-7000-8000-000000000001
  playhouse allocations retry --all")]
pub struct Allocations {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: AllocationsCommand,
}

/// Selects one call, or failed calls that match every given option.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("calls").required(true).multiple(true)
    .args(["match_id", "assigner", "cause", "since", "until", "all", "expected"]))]
pub struct CallSelection {
    /// The id of the match
    #[arg(conflicts_with_all = ["assigner", "cause", "since", "until", "all", "expected", "dry_run"])]
    pub match_id: Option<String>,
    /// Failed calls to this assigner
    #[arg(long, value_name = "NAME")]
    pub assigner: Option<String>,
    /// Failed calls whose cause contains this text
    #[arg(long, value_name = "TEXT")]
    pub cause: Option<String>,
    /// Calls that failed since this time, such as 2026-03-01T12:00:00Z, or this long ago, such as 10m
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Calls that failed until this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// All failed calls
    #[arg(long, conflicts_with_all = ["assigner", "cause", "since", "until"])]
    pub all: bool,
    /// Do nothing unless exactly this many match; a number above 10000 stands for all above it
    #[arg(long, value_name = "N")]
    pub expected: Option<u64>,
    /// Only count the calls
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum AllocationsCommand {
    /// List the newest abandoned matches, or those in one state, the longest in that state first
    List {
        /// The state of the calls: open ones are retried, failed ones wait for you
        #[arg(long, default_value = "all", value_parser = ["all", "open", "done", "failed", "skipped"])]
        state: String,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Send failed calls again: one, or those that match, as a job
    Retry {
        #[command(flatten)]
        selection: CallSelection,
    },
    /// Give up a call: the assigner is not called, and the server runs until it ends on its own
    Skip {
        /// The id of the match
        match_id: String,
    },
}

/// Print a shell completion script
#[derive(Debug, Args)]
#[command(after_help = "Example:
  playhouse completions bash > /etc/bash_completion.d/playhouse")]
pub struct Completions {
    pub shell: Shell,
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The configuration file; `playhouse config` prints a template [env: PLAYHOUSE_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub set: SetArgs,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Set one key, overriding file and environment; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value, global = true)]
    pub set: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct PrintAddressesArg {
    /// Print the bound addresses as one line of JSON once all listeners answer
    #[arg(long)]
    pub print_addresses: bool,
}

fn may_help() -> String {
    let words: Vec<&str> = SERVICES.rights().into_iter().map(Right::word).collect();
    format!("The rights of the service, separated by commas: {}", words.join(", "))
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
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
