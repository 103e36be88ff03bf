//! `playhouse rules`

mod definitions;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use rules::{Mistakes, RuleSet, Scenario, import_flexmatch};

use super::{ExitStatus, layers, settings};
use crate::cli::{ConfigArgs, Rules, RulesCommand};
use crate::settings::reference_layers;
use crate::{print, print_error};

pub(super) async fn run(args: &Rules) -> anyhow::Result<ExitStatus> {
    match &args.command {
        RulesCommand::Check { files } => {
            let config = matchmaking_config(&args.target.from)?;
            for_each(files, |file| check(file, &config))
        }
        RulesCommand::Test { files } => for_each(files, test),
        RulesCommand::Import { file, configuration } => import(file, configuration.as_deref()),
        command => definitions::run(&args.target, command).await,
    }
}

/// Runs a command on every file, and fails if it failed on any.
fn for_each(
    files: &[impl AsRef<Path>],
    command: impl Fn(&Path) -> anyhow::Result<bool>,
) -> anyhow::Result<ExitStatus> {
    let mut all_passed = true;
    for file in files {
        all_passed &= command(file.as_ref())?;
    }
    Ok(if all_passed { ExitStatus::Done } else { ExitStatus::Failed })
}

/// Returns the settings of --config or --set, else the defaults. The environment of a process does not count.
fn matchmaking_config(from: &ConfigArgs) -> anyhow::Result<matchmaking::Config> {
    let is_given = from.config.is_some() || !from.set.set.is_empty();
    let layers = if is_given { layers(from)? } else { reference_layers() };
    Ok(settings(layers)?.config.shared.get::<matchmaking::Config>().clone())
}

fn check(file: &Path, config: &matchmaking::Config) -> anyhow::Result<bool> {
    let Some(rules) = parsed(file, RuleSet::parse(&read(file)?)) else { return Ok(false) };
    let mut warnings = rules.lint();
    warnings.extend(config.lint(&rules));
    for warning in &warnings {
        let colon = if warning.position.is_some() { ":" } else { ": " };
        print_error(&format!("{}{colon}{warning}", file.display()));
    }
    if warnings.is_empty() {
        let (teams, count) = (rules.teams.iter().map(|team| team.count).sum::<usize>(), rules.rules.len());
        let players = (rules.min_players(0.0), rules.max_players());
        let players = if players.0 == players.1 {
            players.0.to_string()
        } else {
            format!("{} to {}", players.0, players.1)
        };
        let (teams, rules_found) = (base::counted(teams as u64, "team"), base::counted(count as u64, "rule"));
        print(&format!("{}: {}: {teams}, {players} players, {rules_found}", file.display(), rules.name))?;
    }
    Ok(warnings.is_empty())
}

fn test(file: &Path) -> anyhow::Result<bool> {
    let Some(scenario) = parsed(file, Scenario::parse(&read(file)?)) else { return Ok(false) };
    let rules_file = file.parent().unwrap_or(Path::new("")).join(&scenario.rules);
    let Some(rules) = parsed(&rules_file, RuleSet::parse(&read(&rules_file)?)) else { return Ok(false) };
    let mut lines = String::new();
    let outcomes = scenario.run(&rules);
    for outcome in &outcomes {
        let _ = write!(
            lines,
            "\n  {} {}",
            if outcome.failures.is_empty() { "ok  " } else { "FAIL" },
            outcome.case
        );
        for failure in &outcome.failures {
            let _ = write!(lines, "\n         {failure}");
        }
    }
    print(&format!("{} with {}{lines}", file.display(), rules.name))?;
    Ok(outcomes.iter().all(|outcome| outcome.failures.is_empty()))
}

fn import(file: &Path, configuration: Option<&Path>) -> anyhow::Result<ExitStatus> {
    let configuration = configuration.map(read).transpose()?;
    let Some(imported) = parsed(file, import_flexmatch(&read(file)?, configuration.as_deref())) else {
        return Ok(ExitStatus::Failed);
    };
    for note in &imported.notes {
        print_error(note);
    }
    print(imported.text.trim_end())?;
    Ok(ExitStatus::Done)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Prints all mistakes, a line each.
fn parsed<T>(file: &Path, parsed: Result<T, Mistakes>) -> Option<T> {
    parsed
        .inspect_err(|mistakes| {
            mistakes.iter().for_each(|mistake| print_error(&format!("{}:{mistake}", file.display())))
        })
        .ok()
}
