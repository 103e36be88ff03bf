//! Arguments of `playhouse audit-log`.

use clap::{Args, Subcommand};

use super::AdminArgs;

/// Read the audit log: what operators changed
///
/// Each change by an operator, or by a service with an operator's rights, is an entry: who, what, when, from where, why, and the outcome.
/// Refused attempts are entries too. Entries are never changed, and are removed after admin.audit_retention.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse audit-log list
  playhouse audit-log list --actor grace --since 1d
  playhouse audit-log export --since 2026-03-01T00:00:00Z > march.jsonl")]
pub struct AuditLog {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: AuditLogCommand,
}

#[derive(Debug, Subcommand)]
pub enum AuditLogCommand {
    /// List entries, the newest first
    List {
        #[command(flatten)]
        filter: AuditFilter,
        /// Only entries before this number, for the next page
        #[arg(long, value_name = "NUMBER")]
        before: Option<i64>,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Print all entries as lines of JSON, the oldest first
    Export {
        #[command(flatten)]
        filter: AuditFilter,
        /// Only entries after this number, to continue an earlier export
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: i64,
    },
}

/// Selects the entries that match every given option.
#[derive(Debug, Args)]
pub struct AuditFilter {
    /// The name of the operator or service that made the change
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// A part of the action, such as "outbox"
    #[arg(long, value_name = "TEXT")]
    pub action: Option<String>,
    /// A part of the target, such as an id
    #[arg(long, value_name = "TEXT")]
    pub target: Option<String>,
    /// Entries since this time, such as 2026-03-01T12:00:00Z, or this long ago, such as 10m
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Entries until this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// The outcome of the change
    #[arg(long, value_parser = ["done", "refused", "failed", "committed", "unknown"])]
    pub outcome: Option<String>,
}
