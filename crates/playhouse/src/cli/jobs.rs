//! Arguments of `playhouse jobs`.

use clap::{Args, Subcommand};

use super::AdminArgs;

/// List bulk actions and their progress, and stop or resume them
///
/// A bulk action, such as `playhouse outbox retry --all`, runs as a job in the background. A job survives the process that runs it, and
/// is listed for 30 days. Calls the admin API of a running process, at listen.admin or --admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse jobs list
  playhouse jobs show 0198c0de-0000-7000-8000-000000000001 --watch
  playhouse jobs stop 0198c0de-0000-7000-8000-000000000001")]
pub struct Jobs {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: JobsCommand,
}

#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// List jobs and their progress, the newest first
    List {
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one job: its filter, its progress, and the items that it could not change
    Show {
        /// The id of the job
        job: String,
        /// Show it again every second until it has ended
        #[arg(long)]
        watch: bool,
    },
    /// Stop a job: it starts no further step, and what it has changed stays changed
    Stop {
        /// The id of the job
        job: String,
    },
    /// Resume a job that was stopped or has failed, after its last step
    Resume {
        /// The id of the job
        job: String,
    },
}
