//! What operators do about drops.

use std::time::Duration;

use ::config::{Setting, Value};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::AtAdmin;

/// Prepare, run and check limited sales
///
/// A drop is a limited sale: players wait in line, are admitted in order, reserve, pay and own the item. A drop begins as a draft; players
/// can join once it is scheduled or open. Asks a running process at its admin port, whose address is listen.admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse drops create --name summer --item skin:summer --stock 1000 --price 1999 --currency EUR
  playhouse drops schedule 0198c0de-0000-7000-8000-000000000001 --in 10m
  playhouse drops show 0198c0de-0000-7000-8000-000000000001 --watch
  playhouse drops everyone-waits 0198c0de-0000-7000-8000-000000000001 on
  playhouse drops stock 0198c0de-0000-7000-8000-000000000001 --by -10 --reason 'damaged'
  playhouse drops orders --state refund_due
  playhouse drops audit 0198c0de-0000-7000-8000-000000000001
  playhouse drops verify-order 0198c0de-0000-7000-8000-000000000001")]
pub struct Drops {
    #[command(flatten)]
    pub at: AtAdmin,
    #[command(subcommand)]
    pub what: DropsCommand,
}

#[derive(Debug, Subcommand)]
pub enum DropsCommand {
    Create(Box<CreateDrop>),
    /// The drops, in the order of their creation
    List {
        /// Only those in this state
        #[arg(long, default_value = "all", value_parser = ["all", "draft", "scheduled", "open", "paused", "closed", "cancelled"])]
        state: String,
        /// Only those behind this one, for the next page
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// One drop: its state, its terms, its stock, how many wait and are inside
    Show {
        #[command(flatten)]
        drop: WhichDrop,
        /// Show it again every second until it is over
        #[arg(long)]
        watch: bool,
    },
    /// Set when a drop opens and closes; players can join from then on
    #[command(after_help = "Examples:
  playhouse drops schedule 0198c0de-0000-7000-8000-000000000001 --in 10m
  playhouse drops schedule 0198c0de-0000-7000-8000-000000000001 --opens-at 2026-12-01T18:00:00Z --closes-at 2026-12-01T20:00:00Z")]
    Schedule {
        #[command(flatten)]
        drop: WhichDrop,
        /// When it opens: a time such as 2026-12-01T18:00:00Z
        #[arg(long, value_name = "TIME", required_unless_present = "after", conflicts_with = "after")]
        opens_at: Option<String>,
        /// Or in how long it opens, such as 10m
        #[arg(long = "in", value_name = "DURATION", value_parser = duration)]
        after: Option<Duration>,
        /// When it closes by itself
        #[arg(long, value_name = "TIME")]
        closes_at: Option<String>,
    },
    /// Open a drop now; the seed of its shuffle is public from then on
    Open {
        #[command(flatten)]
        drop: WhichDrop,
    },
    /// Stop admissions and new reservations; players keep their places, and more can join
    Pause {
        #[command(flatten)]
        drop: WhichDrop,
    },
    /// Go on after a pause
    Resume {
        #[command(flatten)]
        drop: WhichDrop,
    },
    /// End a drop; refused while units are reserved
    Close {
        #[command(flatten)]
        drop: WhichDrop,
        /// Also while units are reserved: they can be paid for until their time ends
        #[arg(long)]
        force: bool,
    },
    /// Give a drop up; refused while units are reserved
    Cancel {
        #[command(flatten)]
        drop: WhichDrop,
        /// Also while units are reserved: they can be paid for until their time ends
        #[arg(long)]
        force: bool,
    },
    /// Hold everybody in the line, for emergencies; those who are inside stay
    EveryoneWaits {
        #[command(flatten)]
        drop: WhichDrop,
        /// Whether everybody waits
        switch: Switch,
    },
    /// Change how fast players are admitted, also while the drop is open
    #[command(after_help = "Examples:
  playhouse drops pace 0198c0de-0000-7000-8000-000000000001 --batch 100
  playhouse drops pace 0198c0de-0000-7000-8000-000000000001 --capacity 1000 --period 5s")]
    #[command(group(ArgGroup::new("what").args(["batch", "period", "capacity"]).required(true).multiple(true)))]
    Pace {
        #[command(flatten)]
        drop: WhichDrop,
        /// How many players are to arrive per period
        #[arg(long, value_name = "N")]
        batch: Option<u32>,
        /// How long a period is
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        period: Option<Duration>,
        /// How many may be inside at once; fewer than there are admits nobody until enough have left
        #[arg(long, value_name = "N")]
        capacity: Option<u32>,
    },
    /// Show those who wait a message
    Message {
        #[command(flatten)]
        drop: WhichDrop,
        /// The message; at most 1,000 characters
        #[arg(required_unless_present = "clear")]
        text: Option<String>,
        /// Remove it instead
        #[arg(long, conflicts_with = "text")]
        clear: bool,
    },
    /// The counts of a stock; with --by, add units or take available ones away
    Stock {
        #[command(flatten)]
        drop: WhichDrop,
        /// How many units are added, or taken away if negative
        #[arg(long, value_name = "N", requires = "reason", allow_negative_numbers = true)]
        by: Option<i64>,
        /// Why, for the ledger
        #[arg(long, value_name = "TEXT", requires = "by")]
        reason: Option<String>,
        /// The idempotency key: the same adjustment again under the same key does nothing [default: a new one]
        #[arg(long, value_name = "KEY", requires = "by")]
        key: Option<String>,
    },
    /// Every change of a stock, the newest first
    Ledger {
        #[command(flatten)]
        drop: WhichDrop,
        /// Only those before this one, for the next page
        #[arg(long, value_name = "VERSION.ENTRY")]
        before: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Check that every unit is accounted for; exits with 1 if one is not
    ///
    /// Compares the counts with the ledger, the reservations and the orders, all of one state of the database: also while players buy.
    Audit {
        #[command(flatten)]
        drop: WhichDrop,
    },
    /// The orders in one state, the longest in it first; those in refund_due wait for you
    Orders {
        /// Which ones
        #[arg(long, default_value = "refund_due", value_parser = ["pending", "paid", "refund_due", "failed", "refunded"])]
        state: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// List the payments that must be refunded: nothing to give for them, or an order that was paid twice
    Refunds {
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Mark a payment that you refunded by hand as refunded, where the provider's webhook does not
    Settle {
        /// The id of the order
        order: String,
        /// The provider's name for the payment
        #[arg(long, value_name = "ID")]
        payment: String,
    },
    /// Fill the line in Redis from the database, in order
    ///
    /// Happens by itself where a line is missing. Nobody loses a place; positions are unknown meanwhile.
    Rebuild {
        #[command(flatten)]
        drop: WhichDrop,
    },
    /// Compute every place of the line again; exits with 1 if one deviates
    ///
    /// Reads the published seed and all entries, and computes from them where each player belongs. For a shuffle the drop must have been
    /// opened: its seed is secret before.
    VerifyOrder {
        #[command(flatten)]
        drop: WhichDrop,
    },
}

/// Which drop.
#[derive(Debug, Args)]
pub struct WhichDrop {
    /// The id of the drop
    #[arg(value_name = "ID")]
    pub id: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Create a drop as a draft: nobody sees it until it is scheduled or opened
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse drops create --name summer --item skin:summer --stock 1000 --price 1999 --currency EUR
  playhouse drops create --name finals --item ticket:finals --stock 500 --price 4500 --currency EUR --per-player 2 \\
    --order shuffle --lane founder --only-owners season-pass --batch 20 --capacity 100")]
pub struct CreateDrop {
    /// Its name, unique among all drops
    #[arg(long)]
    pub name: String,
    /// What a unit is: the resource that the buyer's account is granted
    #[arg(long, value_name = "RESOURCE")]
    pub item: String,
    /// How many units there are
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub stock: i64,
    /// The price of one unit, in the smallest unit of the currency: 1999 is 19.99 EUR
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub price: i64,
    /// The currency: three capital letters
    #[arg(long, value_name = "CODE")]
    pub currency: String,
    /// How many units one player may buy
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub per_player: u32,
    /// The order of players who join before the opening; players who join later are behind them, first come first served
    #[arg(long, default_value = "first-come", value_parser = ["first-come", "shuffle"])]
    pub order: String,
    /// An entitlement whose owners go before all others; repeat it for further lanes, the best one first
    #[arg(long = "lane", value_name = "RESOURCE")]
    pub lanes: Vec<String>,
    /// Only players with this role may join
    #[arg(long, value_name = "ROLE", conflicts_with = "only_owners")]
    pub only_role: Option<String>,
    /// Only players whose account owns this may join
    #[arg(long, value_name = "RESOURCE")]
    pub only_owners: Option<String>,
    /// How many players are to arrive per period
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub batch: u32,
    /// How long a period is
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration)]
    pub period: Duration,
    /// How many may be inside at once
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub capacity: u32,
    /// How long an admission lasts
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub lifetime: Duration,
    /// How soon an admitted player must arrive; the admission ends otherwise
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub arrive_within: Duration,
    /// How long reserved units are held
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub reservation: Duration,
    /// What admissions do while Redis is away: go on from the database, or pause
    #[arg(long, default_value = "continue", value_parser = ["continue", "pause"])]
    pub without_redis: String,
    /// What happens when every unit is sold: the drop closes and those who wait are notified, or it stays open for units that come back
    #[arg(long, default_value = "close", value_parser = ["close", "stay-open"])]
    pub when_sold_out: String,
    /// Shown to those who wait
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// The idempotency key: the same drop again under the same key is created once [default: a new one]
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

fn duration(text: &str) -> Result<Duration, String> {
    Duration::parse(&Value::Text(text.to_owned()))
        .map_err(|_| "expected a duration such as 250ms, 30s or 1h30m".to_owned())
}
