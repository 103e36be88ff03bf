//! What operators look up about players.

use clap::{ArgGroup, Args, Subcommand};

use super::AtAdmin;

/// Find players and look at them
///
/// Asks a running process at its admin port, whose address is listen.admin. Any process answers the same.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse users find ada                                     a display name, or what the issuer calls them
  playhouse users find 0198c0de-0000-7000-8000-000000000001    the id of a user or of an account
  playhouse users show 0198c0de-0000-7000-8000-000000000001")]
pub struct Users {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: UsersCommand,
}

#[derive(Debug, Subcommand)]
pub enum UsersCommand {
    /// Users by their id, an account's id, what the issuer calls them, or their display name
    Find {
        /// The whole name or id
        text: String,
        /// Only those behind this one, for the next page
        #[arg(long, value_name = "USER")]
        after: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// One user: state, identities, accounts, and what was done to them
    Show {
        /// The id of the user
        user_id: String,
    },
}

/// Find purchases and see what accounts own
///
/// Asks a running process at its admin port, whose address is listen.admin. Any process answers the same.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse entitlements list --user 0198c0de-0000-7000-8000-000000000001
  playhouse entitlements history --user 0198c0de-0000-7000-8000-000000000001
  playhouse entitlements history --reference order-4711
  playhouse entitlements history --idempotency-key order-4711-grant --caller shop")]
pub struct Entitlements {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: EntitlementsCommand,
}

#[derive(Debug, Subcommand)]
pub enum EntitlementsCommand {
    /// What a user owns or owned, account by account
    List {
        /// The id of the user
        #[arg(long, value_name = "USER")]
        user: String,
        /// Only this account
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// Only what the user has now
        #[arg(long)]
        in_force: bool,
        #[command(flatten)]
        page: Page,
    },
    /// What was granted and revoked, the newest first
    #[command(group(ArgGroup::new("which").args(["user", "reference", "idempotency_key"]).required(true)))]
    History {
        /// Everything of this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Only this account of the user
        #[arg(long, value_name = "ACCOUNT", requires = "user")]
        account: Option<String>,
        /// Only this resource of the account
        #[arg(long, value_name = "RESOURCE", requires = "account")]
        resource: Option<String>,
        /// What the shop calls the purchase: the `reference` of its request, or the id of a drop's order
        #[arg(long, value_name = "TEXT")]
        reference: Option<String>,
        /// What became of the request with this Idempotency-Key
        #[arg(long, value_name = "KEY", conflicts_with_all = ["after"])]
        idempotency_key: Option<String>,
        /// The service that sent the request with the key; may be given several times [default: all callers of the configuration]
        #[arg(long, value_name = "NAME", requires = "idempotency_key")]
        caller: Vec<String>,
        #[command(flatten)]
        page: Page,
    },
}

#[derive(Debug, Args)]
pub struct Page {
    /// Where the page begins: what the page before it printed as `next`
    #[arg(long, value_name = "NEXT")]
    pub after: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
}
