//! Arguments of `playhouse rules`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::AdminArgs;

/// Check, test and import match rules, and change them while processes run
///
/// A rule set says which players make a good match: teams, roles, skill, latency, parties, and how limits relax while players wait. `check`,
/// `test` and `import` read files and need no running process. The other commands call the admin API of a running process, at listen.admin
/// or --admin. Every process follows a change within a second.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse rules check ranked.toml
  playhouse rules check ranked.toml --config playhouse.toml
  playhouse rules test ranked.test.toml
  playhouse rules import flexmatch.json > ranked.toml
  playhouse rules diff ranked ranked.toml
  playhouse rules set ranked ranked.toml --note 'skill counts more'
  playhouse rules history ranked
  playhouse rules rollback ranked --to 3
  playhouse rules set event event-profile.toml --kind profile")]
pub struct Rules {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: RulesCommand,
}

#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Report all mistakes in rule sets, and warn about rules that cannot work
    ///
    /// Exits with 1 if there is a mistake or a warning: rules that contradict each other, party sizes that are never placed, roles that
    /// nobody fills, relaxations that change nothing or come after a ticket has expired, attributes that nothing uses. With --config also
    /// attributes that no queue of the configuration lets players send.
    Check {
        /// The rule sets, as TOML or JSON
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Play tickets through a rule set on a fake clock, and compare the matches with the expected ones
    ///
    /// A test file names its rule set and has cases with tickets and steps. Exits with 1 if a case fails, for your CI.
    Test {
        /// The test files, as TOML or JSON
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Convert an Amazon FlexMatch rule set into TOML
    ///
    /// Prints the rule set. Its first lines and standard error list what could not be converted, or works differently here.
    Import {
        /// The rule set, as JSON
        file: PathBuf,
        /// The matchmaking configuration that it is used with, as JSON
        #[arg(long, value_name = "FILE")]
        configuration: Option<PathBuf>,
    },
    /// List all rule sets, profiles and queues, with their versions and where they come from
    List,
    /// Print the text of a rule set, a profile or a queue
    Show {
        #[command(flatten)]
        definition: DefinitionArgs,
        /// The version; 0 is the one in the configuration file [default: the active version]
        #[arg(long, value_name = "N")]
        at: Option<i64>,
    },
    /// List the versions with their time, author and note
    History {
        #[command(flatten)]
        definition: DefinitionArgs,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Replace the text, after checking all rule sets, profiles and queues together
    ///
    /// If the text has mistakes, the command lists all of them and changes nothing. Waiting tickets are matched by the new text.
    Set {
        #[command(flatten)]
        definition: DefinitionArgs,
        /// The file with the text: a rule set, or what a table of the configuration file contains. `-` reads standard input
        file: PathBuf,
        #[command(flatten)]
        expected: ExpectedArgs,
        /// Check and show the difference, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what a file would change, or the difference between two versions
    Diff {
        #[command(flatten)]
        definition: DefinitionArgs,
        /// The file, which is checked too. `-` reads standard input
        #[arg(conflicts_with_all = ["from_version", "to"], required_unless_present = "from_version")]
        file: Option<PathBuf>,
        /// The older version, 0 for the one of the configuration file
        #[arg(long = "from", value_name = "N")]
        from_version: Option<i64>,
        /// The newer version [default: the active version]
        #[arg(long, value_name = "N", requires = "from_version")]
        to: Option<i64>,
    },
    /// Bring back the text of an earlier version, as a new version
    Rollback {
        #[command(flatten)]
        definition: DefinitionArgs,
        /// The earlier version, 0 for the one of the configuration file
        #[arg(long, value_name = "N")]
        to: i64,
        #[command(flatten)]
        expected: ExpectedArgs,
    },
    /// Remove a rule set, a profile or a queue, even if the configuration file defines it
    ///
    /// Its history stays: `rollback` brings it back. Waiting tickets keep waiting.
    Remove {
        #[command(flatten)]
        definition: DefinitionArgs,
        #[command(flatten)]
        expected: ExpectedArgs,
    },
}

/// A rule set, a profile or a queue.
#[derive(Debug, Args)]
pub struct DefinitionArgs {
    /// The name
    pub name: String,
    /// Whether the name is that of a rule set, a profile or a queue
    #[arg(long, default_value = "rule-set", value_parser = ["rule-set", "profile", "queue"])]
    pub kind: String,
}

/// The version that an operator has seen.
#[derive(Debug, Args)]
pub struct ExpectedArgs {
    /// Refuse the change unless this is the newest version
    #[arg(long, value_name = "N")]
    pub expected_version: Option<i64>,
}
