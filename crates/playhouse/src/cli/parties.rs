//! `playhouse parties`

use clap::{Args, Subcommand};

use super::AdminArgs;

/// Show parties: who is in them, who is invited, and their ticket
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer. Join codes are not shown.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse parties show dbt8pcfejq8o287bsa0g
  playhouse parties show 0198c0de-0000-7000-8000-000000000001")]
pub struct Parties {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: PartiesCommand,
}

#[derive(Debug, Subcommand)]
pub enum PartiesCommand {
    /// Show one party, or the party and the invitations of a player
    Show {
        /// The id of the party, or the user id of a player
        #[arg(value_name = "PARTY_OR_USER")]
        id: String,
    },
}
