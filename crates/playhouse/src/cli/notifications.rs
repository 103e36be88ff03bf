//! Arguments of `playhouse dlq`, `broadcasts` and `webhooks`.

use clap::{Args, Subcommand};

use super::AdminArgs;

/// List dead letters, and replay or discard them
///
/// A dead letter is a delivery that was given up, or an event that could not be parsed. It stays until it is replayed, discarded, or
/// older than notification.dead_retention. Calls the admin API of a running process, at listen.admin or --admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse dlq list --kind webhook
  playhouse dlq show 0198c0de-0000-7000-8000-000000000001
  playhouse dlq replay 0198c0de-0000-7000-8000-000000000001
  playhouse dlq replay --destination webhook:crm --rate 20/s    slowly, once the CRM is back
  playhouse dlq discard --user 01990000-0000-7000-8000-000000000001 --yes")]
pub struct Dlq {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: DlqCommand,
}

#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List dead letters with their causes, the oldest first
    List {
        #[command(flatten)]
        filter: DeadLetterFilter,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one dead letter: its destination, its cause and its content
    Show {
        /// The id of the dead letter
        letter: String,
    },
    /// Deliver dead letters again, with a full set of attempts; an event is parsed again
    ///
    /// Several dead letters are replayed by a job, which continues if you interrupt the command (see `playhouse jobs`). Dead letters that
    /// are created meanwhile are left alone. Exits with 1 and prints the causes if some could not be replayed.
    #[command(after_help = "Examples:
  playhouse dlq replay 0198c0de-0000-7000-8000-000000000001
  playhouse dlq replay --kind webhook --rate 20/s
  playhouse dlq replay --all")]
    Replay {
        #[command(flatten)]
        selection: DeadLetterSelection,
        /// How many to replay per second
        #[arg(long, value_name = "N", default_value = "100/s", value_parser = per_second)]
        rate: u32,
    },
    /// Delete dead letters: their content is never delivered
    #[command(after_help = "Examples:
  playhouse dlq discard 0198c0de-0000-7000-8000-000000000001
  playhouse dlq discard --destination webhook:old-crm --yes")]
    Discard {
        #[command(flatten)]
        selection: DeadLetterSelection,
        /// Confirm that more than one dead letter is deleted
        #[arg(long)]
        yes: bool,
    },
}

/// The dead letters that a command is about: one, all, or those that match a filter.
#[derive(Debug, Args)]
pub struct DeadLetterSelection {
    /// The id of one dead letter
    #[arg(conflicts_with_all = ["all", "kind", "destination", "user", "cause", "since", "expected"])]
    pub letter: Option<String>,
    /// All dead letters
    #[arg(long, conflicts_with_all = ["kind", "destination", "user", "cause", "since"])]
    pub all: bool,
    /// Do nothing unless exactly this many match; a number above 10000 stands for all above it
    #[arg(long, value_name = "N")]
    pub expected: Option<u64>,
    #[command(flatten)]
    pub filter: DeadLetterFilter,
}

#[derive(Debug, Args)]
pub struct DeadLetterFilter {
    /// Only dead letters of events, of broadcasts, or of this channel
    #[arg(long, value_name = "KIND", value_parser = ["event", "live", "log", "webhook", "broadcast"])]
    pub kind: Option<String>,
    /// Only dead letters for this destination: `webhook:NAME`, `live` or `log`; for an event, its subject
    #[arg(long, value_name = "TO")]
    pub destination: Option<String>,
    /// Only dead letters for this user
    #[arg(long, value_name = "ID")]
    pub user: Option<String>,
    /// Only dead letters whose cause contains this text
    #[arg(long, value_name = "TEXT")]
    pub cause: Option<String>,
    /// Only dead letters that were given up since this time, such as 2026-03-01T12:00:00Z, or this long ago, such as 10m
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

/// Preview and send broadcasts to all players; watch, stop and resume them
///
/// A stopped broadcast stays stopped across restarts until you resume it. Then it continues after the last notified player. Calls the admin
/// API of a running process, at listen.admin or --admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse broadcasts preview --title 'Maintenance tonight' --body 'From 22:00 to 23:00 UTC'
  playhouse broadcasts send --title 'Maintenance tonight' --body 'From 22:00 to 23:00 UTC'
  playhouse broadcasts list --state stopped
  playhouse broadcasts show 0198c0de-0000-7000-8000-000000000001
  playhouse broadcasts stop 0198c0de-0000-7000-8000-000000000001
  playhouse broadcasts resume 0198c0de-0000-7000-8000-000000000001")]
pub struct Broadcasts {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: BroadcastsCommand,
}

/// The content of a broadcast: a title, a template, or texts by language.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("content").args(["title", "template", "texts"]).required(true)))]
pub struct BroadcastDraft {
    /// The title, 1 to 200 characters
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// The text below the title, at most 4,000 characters
    #[arg(long, value_name = "TEXT", requires = "title")]
    pub body: Option<String>,
    /// The language of the title and the text [default: en]
    #[arg(long, value_name = "LANGUAGE")]
    pub language: Option<String>,
    /// The name of a template for services
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Texts by language, such as {"en": {"title": "Hello", "body": ""}}
    #[arg(long, value_name = "JSON")]
    pub texts: Option<String>,
    /// The channels beside the inbox, separated by commas [default: live]
    #[arg(long, value_name = "CHANNELS")]
    pub channels: Option<String>,
    /// JSON for the client and for the fields of a template
    #[arg(long, value_name = "JSON")]
    pub data: Option<String>,
    /// When it expires, such as 2026-03-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub expires_at: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum BroadcastsCommand {
    /// Show the texts in each language and how many players would get them; sends nothing
    Preview {
        #[command(flatten)]
        draft: BroadcastDraft,
    },
    /// Send a message to all players
    Send {
        #[command(flatten)]
        draft: BroadcastDraft,
        /// Do nothing unless exactly this many players would get it; a number above 10000 stands for all above it
        #[arg(long, value_name = "N")]
        expected: Option<u64>,
        /// A key of your choice: a repetition with the same key sends nothing
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
    /// List broadcasts and how many players were notified, the newest first
    ///
    /// A completed broadcast is listed for notification.delivery.retention.
    List {
        /// Only broadcasts in this state, the longest in that state first
        #[arg(long, default_value = "all", value_parser = ["all", "open", "sent", "failed", "stopped"])]
        state: String,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one broadcast: its state, how many players were notified, and why it was interrupted
    Show {
        /// The id from the response to the service that sent it
        broadcast: String,
        /// Show it again every second until it is completed, failed or stopped
        #[arg(long)]
        watch: bool,
    },
    /// Stop a broadcast: no further players are notified
    Stop {
        /// The id of the broadcast
        broadcast: String,
    },
    /// Resume a broadcast that was stopped, or that failed and is a dead letter
    Resume {
        /// The id of the broadcast
        broadcast: String,
    },
}

/// List webhook destinations, test them, and recover after an outage
///
/// A destination that answers 410 Gone is disabled, and its deliveries become dead letters. Calls the admin API of a running process,
/// at listen.admin or --admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse webhooks list
  playhouse webhooks test crm
  playhouse webhooks enable crm && playhouse webhooks recover crm --since 2h")]
pub struct Webhooks {
    #[command(flatten)]
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: WebhooksCommand,
}

#[derive(Debug, Subcommand)]
pub enum WebhooksCommand {
    /// List the configured destinations and their states
    List,
    /// Enable a disabled destination
    Enable {
        /// The NAME of its table [notification.webhooks.NAME]
        name: String,
    },
    /// Send a test message to a destination now and show its response; exits with 1 if it is not accepted
    Test {
        /// The NAME of its table [notification.webhooks.NAME]
        name: String,
    },
    /// Deliver everything again that was given up for a destination since a time
    Recover {
        /// The NAME of its table [notification.webhooks.NAME]
        name: String,
        /// Deliveries that were given up since this time, such as 2026-03-01T12:00:00Z, or this long ago, such as 10m
        #[arg(long, value_name = "TIME")]
        since: String,
        /// How many to deliver per second
        #[arg(long, value_name = "N", default_value = "100/s", value_parser = per_second)]
        rate: u32,
        /// Do nothing unless exactly this many match; a number above 10000 stands for all above it
        #[arg(long, value_name = "N")]
        expected: Option<u64>,
    },
}

fn per_second(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches("/s").trim_end();
    let rate = number.parse().ok().filter(|rate| *rate > 0);
    rate.ok_or_else(|| "expected a number per second, such as 20 or 20/s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_per_second() {
        assert_eq!((per_second("20"), per_second("20/s"), per_second(" 20 /s")), (Ok(20), Ok(20), Ok(20)));
        for odd in ["", "0", "-1", "20/m", "fast", "1.5/s"] {
            assert!(per_second(odd).is_err(), "{odd}");
        }
    }
}
