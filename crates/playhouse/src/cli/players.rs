//! Arguments of `playhouse users` and `entitlements`.

use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use super::AdminArgs;

/// Find users, show their data, and act on them
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse users find ada                                     a display name, or the subject at the issuer
  playhouse users find 0198c0de-0000-7000-8000-000000000001    the id of a user or of an account
  playhouse users show 0198c0de-0000-7000-8000-000000000001
  playhouse users ban 0198c0de-0000-7000-8000-000000000001 --reason \"sold an account\"
  playhouse users export 0198c0de-0000-7000-8000-000000000001 > player.json")]
pub struct Users {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: UsersCommand,
}

#[derive(Debug, Subcommand)]
pub enum UsersCommand {
    /// Find users by their id, an account's id, the subject at the issuer, or their display name
    Find {
        /// The full name or id
        text: String,
        /// Only users after this one, for the next page
        #[arg(long, value_name = "USER")]
        after: Option<String>,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one user: state, identities, accounts, notes, and audit records
    Show {
        /// The id of the user
        user_id: String,
    },
    /// Add a note that other operators see
    ///
    /// It is removed when the user is erased.
    Note {
        /// The id of the user
        user_id: String,
        /// The text
        note: String,
    },
    /// End all sessions: the user must sign in again in every browser
    EndSessions {
        /// The id of the user
        user_id: String,
    },
    /// End all sessions and refuse sign-ins until you unban the user
    Ban {
        /// The id of the user
        user_id: String,
        /// The reason, which the user sees at every sign-in
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Let a banned user sign in again
    Unban {
        /// The id of the user
        user_id: String,
    },
    /// Remove all personal data permanently and revoke everything the user owns
    Erase {
        /// The id of the user
        user_id: String,
        /// Confirm that the data is lost
        #[arg(long, required = true)]
        yes: bool,
    },
    /// Print everything that is stored about a user, as one JSON document
    Export {
        /// The id of the user
        user_id: String,
    },
}

/// Find purchases, show what accounts own, grant and revoke
///
/// Calls the admin API of a running process, at listen.admin or --admin. Every process gives the same answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse entitlements list --user 0198c0de-0000-7000-8000-000000000001
  playhouse entitlements history --user 0198c0de-0000-7000-8000-000000000001
  playhouse entitlements history --reference order-4711
  playhouse entitlements history --idempotency-key order-4711-grant --caller shop
  playhouse entitlements grant --account 0198c0de-0000-7000-8000-000000000002 --resource skin-dragon --reason case-12")]
pub struct Entitlements {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: EntitlementsCommand,
}

#[derive(Debug, Subcommand)]
pub enum EntitlementsCommand {
    /// List what a user owns or has owned, by account
    List {
        /// The id of the user
        #[arg(long, value_name = "USER")]
        user: String,
        /// Only this account
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// Only what the user owns now
        #[arg(long)]
        in_force: bool,
        #[command(flatten)]
        page: Page,
    },
    /// List grants and revocations, the newest first
    #[command(group(ArgGroup::new("which").args(["user", "reference", "idempotency_key"]).required(true)))]
    History {
        /// Changes for this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Only this account of the user
        #[arg(long, value_name = "ACCOUNT", requires = "user")]
        account: Option<String>,
        /// Only this resource of the account
        #[arg(long, value_name = "RESOURCE", requires = "account")]
        resource: Option<String>,
        /// The shop's name for the purchase, in full: the `reference` of its request, or the id of a drop's order
        #[arg(long, value_name = "TEXT")]
        reference: Option<String>,
        /// The result of the request with this Idempotency-Key
        #[arg(long, value_name = "KEY", conflicts_with_all = ["after"])]
        idempotency_key: Option<String>,
        /// The service that sent the request; can be repeated [default: all services of the configuration]
        #[arg(long, value_name = "NAME", requires = "idempotency_key")]
        caller: Vec<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Grant a resource to an account
    Grant {
        #[command(flatten)]
        change: EntitlementChange,
        /// When it ends by itself, as RFC 3339 [default: never]
        #[arg(long, value_name = "TIME")]
        valid_until: Option<String>,
    },
    /// Revoke a resource, or a quantity of it, from an account
    Revoke {
        #[command(flatten)]
        change: EntitlementChange,
    },
}

#[derive(Debug, Args)]
pub struct EntitlementChange {
    /// The id of the account
    #[arg(long, value_name = "ACCOUNT")]
    pub account: String,
    /// The name of the resource
    #[arg(long, value_name = "RESOURCE")]
    pub resource: String,
    /// How many, for counted resources
    #[arg(long, value_name = "N")]
    pub quantity: Option<i64>,
    /// The reference in the history, such as a support case
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// A request with a key is applied once [default: a new key]
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct Page {
    /// Where the page begins: the `next` of the previous page
    #[arg(long, value_name = "NEXT")]
    pub after: Option<String>,
    /// The most to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
}

impl EntitlementChange {
    /// Returns the body of the request.
    pub(crate) fn body(&self, valid_until: Option<&str>) -> Value {
        let mut body = json!({ "account_id": self.account, "resource": self.resource });
        let optional = [
            ("quantity", self.quantity.map(Value::from)),
            ("valid_until", valid_until.map(Value::from)),
            ("reason", self.reason.as_deref().map(Value::from)),
            ("idempotency_key", self.idempotency_key.as_deref().map(Value::from)),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        body
    }
}
