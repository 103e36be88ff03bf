//! What operators do about notifications.

use clap::{Args, Subcommand};

use super::AtAdmin;

/// Look at what could not be told, and replay or discard it
///
/// A dead letter is a delivery that was given up, or an event that could not be understood. It stays until it is replayed, discarded,
/// or older than notification.dead_retention. Asks a running process at its admin port, which listen.admin says where it is: any
/// process, or `playhouse dev`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse dlq list --kind webhook
  playhouse dlq show 0198c0de-0000-7000-8000-000000000001
  playhouse dlq replay 0198c0de-0000-7000-8000-000000000001
  playhouse dlq replay --destination webhook:crm --rate 20/s    once the CRM is back, gently
  playhouse dlq discard --user 01990000-0000-7000-8000-000000000001 --yes")]
pub struct Dlq {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: DlqCommand,
}

#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// The dead letters, the oldest first, each with its cause
    List {
        #[command(flatten)]
        fits: Fits,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// One dead letter: where it was to go, why it did not, and what it says
    Show {
        /// Its id
        letter: String,
    },
    /// Deliver dead letters once more, with all attempts; an event that was not understood is read anew
    ///
    /// Those that die while this runs are left alone. Can be interrupted and run again: what was replayed is no dead letter any
    /// more. Exits with 1 if some stay, and says why.
    #[command(after_help = "Examples:
  playhouse dlq replay 0198c0de-0000-7000-8000-000000000001
  playhouse dlq replay --kind webhook --rate 20/s
  playhouse dlq replay --all")]
    Replay {
        #[command(flatten)]
        chosen: Chosen,
        /// How many begin in a second
        #[arg(long, value_name = "N", default_value = "100/s", value_parser = per_second)]
        rate: u32,
    },
    /// Throw dead letters away: what they say is never told
    #[command(after_help = "Examples:
  playhouse dlq discard 0198c0de-0000-7000-8000-000000000001
  playhouse dlq discard --destination webhook:old-crm --yes")]
    Discard {
        #[command(flatten)]
        chosen: Chosen,
        /// Do it, though it is more than one
        #[arg(long)]
        yes: bool,
    },
}

/// Which of the dead letters.
#[derive(Debug, Args)]
pub struct Chosen {
    /// The id of one
    #[arg(conflicts_with_all = ["all", "kind", "destination", "user"])]
    pub letter: Option<String>,
    /// All there are
    #[arg(long, conflicts_with_all = ["kind", "destination", "user"])]
    pub all: bool,
    #[command(flatten)]
    pub fits: Fits,
}

#[derive(Debug, Args)]
pub struct Fits {
    /// Only those of an event, of a broadcast, or of this channel
    #[arg(long, value_name = "KIND", value_parser = ["event", "live", "log", "webhook", "broadcast"])]
    pub kind: Option<String>,
    /// Only those that were to go there: `webhook:NAME`, `live`, `log`; of an event, its subject
    #[arg(long, value_name = "TO")]
    pub destination: Option<String>,
    /// Only those of this user
    #[arg(long, value_name = "ID")]
    pub user: Option<String>,
}

/// Watch broadcasts to all players, stop and resume them
///
/// A broadcast that is stopped stays so, whichever processes are restarted, until it is resumed: then it goes on behind the last player
/// who was told. Asks a running process at its admin port, whose address is listen.admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse broadcasts list
  playhouse broadcasts list --state stopped
  playhouse broadcasts show 0198c0de-0000-7000-8000-000000000001
  playhouse broadcasts stop 0198c0de-0000-7000-8000-000000000001
  playhouse broadcasts resume 0198c0de-0000-7000-8000-000000000001")]
pub struct Broadcasts {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: BroadcastsCommand,
}

#[derive(Debug, Subcommand)]
pub enum BroadcastsCommand {
    /// The broadcasts, the newest first, with how many players were told
    ///
    /// One that is done is listed for notification.delivery.retention.
    List {
        /// Only those in this state, the longest in it first
        #[arg(long, default_value = "all", value_parser = ["all", "open", "sent", "failed", "stopped"])]
        state: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// One broadcast: its state, how many players were told, and why it was interrupted
    Show {
        /// Its id, which the service that sent it was answered
        broadcast: String,
        /// Show it again every second until it is done, has failed, or is stopped
        #[arg(long)]
        watch: bool,
    },
    /// Stop a broadcast: it reaches no further player
    Stop {
        /// Its id
        broadcast: String,
    },
    /// Resume a broadcast that was stopped, or has failed and is a dead letter
    Resume {
        /// Its id
        broadcast: String,
    },
}

/// Look at the destinations of webhooks, and enable those that had gone
///
/// A destination that answers 410 Gone is disabled: what is for it becomes a dead letter. Asks a running process at its admin port,
/// which listen.admin says where it is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse webhooks list
  playhouse webhooks enable crm && playhouse dlq replay --destination webhook:crm")]
pub struct Webhooks {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: WebhooksCommand,
}

#[derive(Debug, Subcommand)]
pub enum WebhooksCommand {
    /// The destinations of the configuration, and which of them are disabled
    List,
    /// Send to a destination again
    Enable {
        /// Its name: NAME of [notification.webhooks.NAME]
        name: String,
    },
}

fn per_second(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches("/s").trim_end();
    let rate = number.parse().ok().filter(|rate| *rate > 0);
    rate.ok_or_else(|| "expected how many in a second, such as 20 or 20/s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_per_second() {
        assert_eq!((per_second("20"), per_second("20/s"), per_second(" 20 /s")), (Ok(20), Ok(20), Ok(20)));
        for odd in ["", "0", "-1", "20/m", "fast", "1.5/s"] {
            assert!(per_second(odd).is_err(), "{odd}");
        }
    }
}
