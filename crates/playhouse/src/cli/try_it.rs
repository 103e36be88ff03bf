//! Arguments of `playhouse try-it`.

use clap::{Args, Subcommand};

use super::AdminArgs;

/// Act for a sample player, in development only
///
/// Does what the screen "Try it" of the console does. Needs a process with console.try_it, which `playhouse dev` sets; any other process
/// refuses. A sample player is a user of the builtin issuer. Calls the admin API, at listen.admin or --admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse try-it sign-in ada
  playhouse try-it notify ada --title 'Hello, Ada'
  playhouse try-it join ada --queue duel")]
pub struct TryIt {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: TryItCommand,
}

#[derive(Debug, Subcommand)]
pub enum TryItCommand {
    /// Sign a player in; the first sign-in creates the player with an account
    SignIn {
        /// Any name of letters, digits, `.`, `_` and `-`
        user: String,
    },
    /// Send a player a notification
    Notify {
        /// The name that the player signs in with
        user: String,
        #[arg(long, value_name = "TEXT")]
        title: String,
        #[arg(long, value_name = "TEXT")]
        body: Option<String>,
    },
    /// Put a player into a queue, and print the ticket
    Join {
        /// The name that the player signs in with
        user: String,
        /// One of [matchmaking.queues.NAME]; `playhouse dev` has duel
        #[arg(long, value_name = "NAME")]
        queue: String,
    },
    /// Append an event that the bus refuses for good, and one that waits behind it
    FailedEvent,
}
