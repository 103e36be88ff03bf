//! What operators read of the audit log.

use clap::{Args, Subcommand};

use super::AtAdmin;

/// Read the log of what operators changed
///
/// Every change by an operator, or by a service with an operator's rights, is an entry: who, what, when, from where, why, and the outcome.
/// Refused attempts are entries too. Nothing changes the log; entries are removed after admin.audit_retention.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse audit-log list
  playhouse audit-log list --actor grace --since 1d
  playhouse audit-log export --since 2026-03-01T00:00:00Z > march.jsonl")]
pub struct AuditLog {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: AuditLogCommand,
}

#[derive(Debug, Subcommand)]
pub enum AuditLogCommand {
    /// The newest entries first
    List {
        #[command(flatten)]
        which: WhichEntries,
        /// From before this entry, by its number
        #[arg(long, value_name = "NUMBER")]
        before: Option<i64>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// All entries as lines of JSON, the oldest first
    Export {
        #[command(flatten)]
        which: WhichEntries,
        /// From behind this entry, by its number: to go on after an earlier export
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: i64,
    },
}

/// Entries that fit everything that is given.
#[derive(Debug, Args)]
pub struct WhichEntries {
    /// Who did it: the name of an operator or of a service
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// A part of the action, such as "outbox"
    #[arg(long, value_name = "TEXT")]
    pub action: Option<String>,
    /// A part of the target, such as an id
    #[arg(long, value_name = "TEXT")]
    pub target: Option<String>,
    /// Since: a time such as 2026-03-01T12:00:00Z, or how long ago, such as 10m
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Until then
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// What came of it
    #[arg(long, value_parser = ["done", "refused", "failed", "committed", "unknown"])]
    pub outcome: Option<String>,
}
