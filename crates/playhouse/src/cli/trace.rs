//! Arguments of `playhouse trace`.

use clap::Args;

use super::AdminArgs;

/// Show every recorded step of an event, order, ticket, match, notification, request or user
///
/// Follows the ids that belong together: from an order to its events, their notifications and deliveries, from a ticket to its match. Calls
/// the admin API of a running process, at listen.admin or --admin. Every process gives the same answer. Exits with 1 if nothing is known of
/// the id.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse trace 0198c0de-0000-7000-8000-000000000001
  playhouse trace dbt8pcfejq8o287bsa0g                    a ticket
  playhouse trace 0198c0de-0000-7000-8000-000000000001 --json")]
pub struct Trace {
    /// The id of an event, order, ticket, match, notification, request or user
    pub id: String,
    #[command(flatten)]
    pub target: AdminArgs,
}
