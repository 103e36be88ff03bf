//! What each command does.

mod config;
mod dev;
mod doctor;
mod migrate;
mod serve;

use std::path::Path;

use ::config::{Layers, Loaded, Problems, load};
use anyhow::Context;
use clap::CommandFactory;

use crate::cli::{Cli, Command, From, Set};
use crate::{REFERENCE, Settings, answer};

pub(crate) const CONFIG_VARIABLE: &str = "PLAYHOUSE_CONFIG";

/// How a command ended, as the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    Done = 0,
    Failed = 1,
    /// Wrong command line (as clap has it) or configuration.
    Usage = 2,
    /// Stopped, but something had to be cut off.
    CutOff = 3,
}

impl Outcome {
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        if error.is::<Problems>() { Self::Usage } else { Self::Failed }
    }
}

pub(crate) fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Dev(args) => dev::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Migrate(args) => runtime()?.block_on(migrate::run(args)),
        Command::Config(args) => config::run(&args),
        Command::Doctor(args) => runtime()?.block_on(doctor::run(args)),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "playhouse", &mut script);
            answer(String::from_utf8_lossy(&script).trim_end());
            Ok(Outcome::Done)
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")
}

/// The layers under the command's own flags.
fn layers(from: &From) -> anyhow::Result<Layers> {
    let layers = with_set(Layers::new(REFERENCE).with_env(environment()), &from.set);
    let Some(path) = &from.config else { return Ok(layers) };
    layers
        .with_file(path)
        .with_context(|| format!("cannot read the configuration file {}", Path::display(path)))
}

fn environment() -> impl Iterator<Item = (String, String)> {
    let text = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(|(name, _)| name != CONFIG_VARIABLE)
}

fn with_set(layers: Layers, set: &Set) -> Layers {
    set.set.iter().fold(layers, |layers, (key, value)| layers.with_flag("--set", key, value))
}

fn settings(layers: Layers) -> anyhow::Result<Loaded<Settings>> {
    Ok(load(layers)?)
}
