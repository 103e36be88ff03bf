//! Arguments of `playhouse rules`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Check, test and import match rules
///
/// A rule set says which players make a good match: teams, roles, skill, latency, parties, and what is relaxed while players wait. These
/// commands read files and need no running process.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse rules check ranked.toml
  playhouse rules test ranked.test.toml
  playhouse rules import flexmatch.json > ranked.toml")]
pub struct Rules {
    #[command(subcommand)]
    pub command: RulesCommand,
}

#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Find all mistakes of rule sets, and what cannot work as written
    ///
    /// Exits with 1 if there is a mistake or a warning: rules that contradict each other, party sizes that are never placed, roles that
    /// nobody fills, relaxations that change nothing, attributes that nothing uses.
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
    /// Prints the rule set. What means something else here, or is not kept, is listed in its first lines and on standard error.
    Import {
        /// The rule set, as JSON
        file: PathBuf,
        /// The matchmaking configuration that it is used with, as JSON
        #[arg(long, value_name = "FILE")]
        configuration: Option<PathBuf>,
    },
}
