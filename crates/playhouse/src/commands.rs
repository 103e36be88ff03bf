//! The commands, one module each, and their shared helpers.

mod admin;
mod allocations;
mod audit_log;
mod backfills;
mod broadcasts;
mod config;
mod demo;
mod dev;
mod dlq;
mod doctor;
mod drops;
mod entitlements;
mod game_server;
mod jobs;
mod limits;
mod locks;
mod migrate;
mod outbox;
mod parties;
mod rules;
mod serve;
mod simulate;
mod status;
mod tickets;
mod token;
mod trace;
mod try_it;
mod users;
mod webhooks;

use std::io::{self, Write as _};
use std::path::PathBuf;

use ::config::{ENV_PREFIX, Layers, Loaded, Problems, load};
use anyhow::Context;
use clap::CommandFactory;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::cli::{Cli, Command, ConfigArgs, SetArgs};
use crate::settings::reference_layers;
use crate::{Settings, print};

pub(crate) const CONFIG_VARIABLE: &str = "PLAYHOUSE_CONFIG";
/// The operator token that commands use for the admin API, and the file that holds it.
const TOKEN_VARIABLE: &str = "PLAYHOUSE_OPERATOR_TOKEN";
const TOKEN_FILE_VARIABLE: &str = "PLAYHOUSE_OPERATOR_TOKEN_FILE";
/// Variables with our prefix that are not settings.
const NOT_SETTINGS: [&str; 3] = [CONFIG_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE];

/// How a command ended, as the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Done = 0,
    Failed = 1,
    /// The command line or the configuration is wrong. The same code as clap's.
    Usage = 2,
    /// The process stopped, but something had to be cut off.
    CutOff = 3,
}

impl ExitStatus {
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        if error.is::<Problems>() || error.is::<UsageError>() { Self::Usage } else { Self::Failed }
    }
}

/// A mistake in the command line or in the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

pub(crate) fn run(command: Command) -> anyhow::Result<ExitStatus> {
    match command {
        Command::Dev(args) => dev::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Migrate(args) => runtime()?.block_on(migrate::run(args)),
        Command::Config(args) => config::run(&args),
        Command::Status(args) => runtime()?.block_on(status::run(args)),
        Command::Trace(args) => runtime()?.block_on(trace::run(args)),
        Command::Doctor(args) => runtime()?.block_on(doctor::run(args)),
        Command::Locks(args) => runtime()?.block_on(locks::run(args)),
        Command::Limits(args) => runtime()?.block_on(limits::run(args)),
        Command::Outbox(args) => runtime()?.block_on(outbox::run(args)),
        Command::Jobs(args) => runtime()?.block_on(jobs::run(args)),
        Command::Dlq(args) => runtime()?.block_on(dlq::run(args)),
        Command::Broadcasts(args) => runtime()?.block_on(broadcasts::run(args)),
        Command::Drops(args) => runtime()?.block_on(drops::run(args)),
        Command::Users(args) => runtime()?.block_on(users::run(args)),
        Command::Entitlements(args) => runtime()?.block_on(entitlements::run(args)),
        Command::Webhooks(args) => runtime()?.block_on(webhooks::run(args)),
        Command::Rules(args) => runtime()?.block_on(rules::run(&args)),
        Command::Tickets(args) => runtime()?.block_on(tickets::run(args)),
        Command::Parties(args) => runtime()?.block_on(parties::run(args)),
        Command::Backfills(args) => runtime()?.block_on(backfills::run(args)),
        Command::Allocations(args) => runtime()?.block_on(allocations::run(args)),
        Command::AuditLog(args) => runtime()?.block_on(audit_log::run(args)),
        Command::Token(args) => runtime()?.block_on(token::run(&args)),
        Command::Simulate(args) => runtime()?.block_on(simulate::run(args)),
        Command::TryIt(args) => runtime()?.block_on(try_it::run(args)),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "playhouse", &mut script);
            print(String::from_utf8_lossy(&script).trim_end())?;
            Ok(ExitStatus::Done)
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")
}

/// Returns the layers below the command's own flags: reference, environment, file.
fn layers(from: &ConfigArgs) -> anyhow::Result<Layers> {
    let layers = with_set(reference_layers().with_env(environment()?), &from.set);
    // An empty variable counts as not set, as with settings.
    let variable = || std::env::var_os(CONFIG_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let Some(path) = from.config.clone().or_else(variable) else { return Ok(layers) };
    let cannot_read =
        |error| UsageError(format!("cannot read the configuration file {}: {error}", path.display()));
    Ok(layers.with_file(&path).map_err(cannot_read)?)
}

/// Returns the environment variables that are settings.
fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(ENV_PREFIX) && !NOT_SETTINGS.contains(&name.as_str()) {
            let value = value
                .into_string()
                .map_err(|_| UsageError(format!("{name}: the value is not valid UTF-8")))?;
            variables.push((name, value));
        }
    }
    Ok(variables)
}

fn with_set(layers: Layers, set: &SetArgs) -> Layers {
    set.set.iter().fold(layers, |layers, (key, value)| layers.with_flag("--set", key, value))
}

fn settings(layers: Layers) -> anyhow::Result<Loaded<Settings>> {
    let loaded: Loaded<Settings> = load(layers)?;
    for warning in &loaded.warnings {
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    Ok(loaded)
}

/// Returns a list in a response of the admin API.
fn items<'a>(found: &'a Value, name: &str) -> &'a [Value] {
    found[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the option that lists the next page, if there is one.
fn next_page(found: &Value) -> Option<String> {
    found["next"].as_str().map(|next| format!("\nNext page: --after '{next}'"))
}

/// Percent-encodes a text for a path or a query.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// Returns a count in a response of the admin API with its noun: `1 event`, `2 events`.
fn counted(count: &Value, noun: &str) -> String {
    base::counted(count.as_u64().unwrap_or_default(), noun)
}
