//! Arguments of `playhouse drops`.

use std::time::Duration;

use ::config::{Setting, Value};
use clap::builder::{BoolishValueParser, PossibleValue};
use clap::{ArgAction, ArgGroup, Args, Subcommand, ValueEnum};

use super::AdminArgs;

/// Prepare, run and check limited sales
///
/// A drop is a limited sale: players wait in line, are admitted in order, reserve, pay and own the item. A new drop is a draft. Players can
/// join once it is scheduled or open. Calls the admin API of a running process, at listen.admin or --admin.
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
    pub target: AdminArgs,
    #[command(subcommand)]
    pub command: DropsCommand,
}

#[derive(Debug, Subcommand)]
pub enum DropsCommand {
    Create(Box<CreateDrop>),
    /// List drops, in the order of their creation
    List {
        /// Only drops in this state
        #[arg(long, default_value = "all", value_parser = ["all", "draft", "scheduled", "open", "paused", "closed", "cancelled"])]
        state: String,
        /// Only drops after this one, for the next page
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one drop: its state, terms and stock, and how many players wait and are inside
    Show {
        #[command(flatten)]
        drop: DropArg,
        /// Show it again every second until the drop ends
        #[arg(long)]
        watch: bool,
    },
    /// Set when a drop opens and closes; players can join from then on
    #[command(after_help = "Examples:
  playhouse drops schedule 0198c0de-0000-7000-8000-000000000001 --in 10m
  playhouse drops schedule 0198c0de-0000-7000-8000-000000000001 --opens-at 2026-12-01T18:00:00Z --closes-at 2026-12-01T20:00:00Z")]
    Schedule {
        #[command(flatten)]
        drop: DropArg,
        /// When the drop opens, such as 2026-12-01T18:00:00Z
        #[arg(long, value_name = "TIME", required_unless_present = "after", conflicts_with = "after")]
        opens_at: Option<String>,
        /// How long from now the drop opens, such as 10m
        #[arg(long = "in", value_name = "DURATION", value_parser = duration)]
        after: Option<Duration>,
        /// When the drop closes on its own
        #[arg(long, value_name = "TIME")]
        closes_at: Option<String>,
    },
    /// Open a drop now; this publishes the seed of its shuffle
    Open {
        #[command(flatten)]
        drop: DropArg,
    },
    /// Stop admissions and new reservations; players keep their places, and more can join
    Pause {
        #[command(flatten)]
        drop: DropArg,
    },
    /// Continue after a pause
    Resume {
        #[command(flatten)]
        drop: DropArg,
    },
    /// End a drop; refused while units are reserved
    Close {
        #[command(flatten)]
        drop: DropArg,
        /// Even while units are reserved: players can pay for those until the reservation ends
        #[arg(long, action = ArgAction::Set, default_value_t = false, hide_default_value = true, hide_possible_values = true,
            num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
        force: bool,
    },
    /// Cancel a drop; refused while units are reserved
    Cancel {
        #[command(flatten)]
        drop: DropArg,
        /// Even while units are reserved: players can pay for those until the reservation ends
        #[arg(long, action = ArgAction::Set, default_value_t = false, hide_default_value = true, hide_possible_values = true,
            num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
        force: bool,
    },
    /// Admit nobody, for emergencies; players who are inside stay
    EveryoneWaits {
        #[command(flatten)]
        drop: DropArg,
        /// Whether all players wait
        switch: Switch,
    },
    /// Change how fast players are admitted, also while the drop is open
    #[command(after_help = "Examples:
  playhouse drops pace 0198c0de-0000-7000-8000-000000000001 --batch 100
  playhouse drops pace 0198c0de-0000-7000-8000-000000000001 --capacity 1000 --period 5s")]
    #[command(group(ArgGroup::new("what").args(["batch", "period", "capacity"]).required(true).multiple(true)))]
    Pace {
        #[command(flatten)]
        drop: DropArg,
        /// How many players to let in per period
        #[arg(long, value_name = "N")]
        batch: Option<u32>,
        /// How long a period is
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        period: Option<Duration>,
        /// How many players may be inside at once; if more are inside, nobody is admitted until enough have left
        #[arg(long, value_name = "N")]
        capacity: Option<u32>,
    },
    /// Replace all terms of a drop; order and lanes are fixed once players can join, price and limit once it is open
    #[command(after_help = "Example:
  playhouse drops terms 0198c0de-0000-7000-8000-000000000001 --price 1999 --currency EUR --batch 100 --capacity 1000")]
    Terms {
        #[command(flatten)]
        drop: DropArg,
        #[command(flatten)]
        terms: Box<TermsArgs>,
    },
    /// Show a message to players who wait
    Message {
        #[command(flatten)]
        drop: DropArg,
        /// The message; at most 1,000 characters
        #[arg(required_unless_present = "clear")]
        text: Option<String>,
        /// Remove the message instead
        #[arg(long, conflicts_with = "text")]
        clear: bool,
    },
    /// Show the stock; with --by, add units or remove available ones
    Stock {
        #[command(flatten)]
        drop: DropArg,
        /// How many units to add, or to remove if negative
        #[arg(long, value_name = "N", requires = "reason", allow_negative_numbers = true)]
        by: Option<i64>,
        /// Why, for the ledger
        #[arg(long, value_name = "TEXT", requires = "by")]
        reason: Option<String>,
        /// The idempotency key: repeating the adjustment with the same key changes nothing [default: a new key]
        #[arg(long, value_name = "KEY", requires = "by")]
        key: Option<String>,
    },
    /// List every movement of the stock, the newest first
    Ledger {
        #[command(flatten)]
        drop: DropArg,
        /// Only movements before this one, for the next page
        #[arg(long, value_name = "VERSION.ENTRY")]
        before: Option<String>,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Check that every unit is accounted for; exits with 1 if one is not
    ///
    /// Compares the stock with the ledger, the reservations and the orders, in one snapshot of the database. You can run it while players
    /// buy.
    Audit {
        #[command(flatten)]
        drop: DropArg,
    },
    /// List the orders in one state, the longest in that state first; orders in refund_due wait for you
    Orders {
        /// The state of the orders
        #[arg(long, default_value = "refund_due", value_parser = ["pending", "paid", "refund_due", "failed", "refunded"])]
        state: String,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// List payments that must be refunded: nothing was left to sell, or the order was paid twice
    Refunds {
        /// Only payments for orders of this drop
        #[arg(long, value_name = "DROP")]
        drop: Option<String>,
        /// The `next` of the previous page
        #[arg(long, value_name = "NEXT")]
        after: Option<String>,
        /// The most to list
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Mark a payment as refunded that you refunded by hand, if the provider's webhook does not do it
    Settle {
        /// The id of the order
        order: String,
        /// The id of the payment at the provider
        #[arg(long, value_name = "ID")]
        payment: String,
    },
    /// Rebuild the line in Redis from the database, in order
    ///
    /// A missing line is rebuilt automatically. No player loses a place; positions are unknown meanwhile.
    Rebuild {
        #[command(flatten)]
        drop: DropArg,
    },
    /// Recompute every place in the line; exits with 1 if one deviates
    ///
    /// Reads the published seed and all entries, and computes the place of each player from them. The seed of a shuffle is secret until
    /// the drop opens.
    VerifyOrder {
        #[command(flatten)]
        drop: DropArg,
    },
}

/// The drop that a command is about.
#[derive(Debug, Args)]
pub struct DropArg {
    /// The id of the drop
    #[arg(value_name = "ID")]
    pub id: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Switch {
    #[value(alias = "true")]
    On,
    #[value(alias = "false")]
    Off,
}

/// Create a drop as a draft: players do not see it until you schedule or open it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  playhouse drops create --name summer --item skin:summer --stock 1000 --price 1999 --currency EUR
  playhouse drops create --name finals --item ticket:finals --stock 500 --price 4500 --currency EUR --per-player 2 \\
    --order shuffle --lane founder --only-owners season-pass --batch 20 --capacity 100")]
pub struct CreateDrop {
    /// The name of the drop, unique among all drops
    #[arg(long)]
    pub name: String,
    /// The resource that a buyer's account is granted per unit
    #[arg(long, value_name = "RESOURCE")]
    pub item: String,
    /// How many units are for sale
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub stock: i64,
    #[command(flatten)]
    pub terms: TermsArgs,
    /// The idempotency key: repeating the command with the same key creates no second drop [default: a new key]
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

/// The terms under which a drop sells and admits.
#[derive(Debug, Args)]
pub struct TermsArgs {
    /// The price of one unit, in the smallest unit of the currency: 1999 is 19.99 EUR
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub price: i64,
    /// The currency: three capital letters
    #[arg(long, value_name = "CODE")]
    pub currency: String,
    /// How many units one player may buy
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub per_player: u32,
    /// The order of players who join before the opening; later players are behind them, first come first served
    #[arg(long, default_value = "first-come", value_parser = [PossibleValue::new("first-come").alias("first_come"), PossibleValue::new("shuffle")])]
    pub order: String,
    /// An entitlement whose owners go before all other players; repeat it for further lanes, the best one first
    #[arg(long = "lane", value_name = "RESOURCE")]
    pub lanes: Vec<String>,
    /// Only players with this role may join
    #[arg(long, value_name = "ROLE", conflicts_with = "only_owners")]
    pub only_role: Option<String>,
    /// Only players whose account owns this may join
    #[arg(long, value_name = "RESOURCE")]
    pub only_owners: Option<String>,
    /// Who may join, as JSON: "anyone", {"role": "beta"} or {"owns": "season-pass"}
    #[arg(long, value_name = "JSON", conflicts_with_all = ["only_role", "only_owners"])]
    pub who: Option<String>,
    /// The priority lanes as a JSON list, the best one first: ["founder"]
    #[arg(long = "lanes", value_name = "JSON", conflicts_with = "lanes")]
    pub lanes_json: Option<String>,
    /// How many players to let in per period
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub batch: u32,
    /// How long a period is
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration)]
    pub period: Duration,
    /// How many players may be inside at once
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub capacity: u32,
    /// How long an admission lasts
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub lifetime: Duration,
    /// How soon an admitted player must arrive before the admission ends
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub arrive_within: Duration,
    /// How long reserved units are held
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub reservation: Duration,
    /// Whether admissions continue from the database or pause while Redis is away
    #[arg(long, default_value = "continue", value_parser = ["continue", "pause"])]
    pub without_redis: String,
    /// When every unit is sold: close the drop and notify players who wait, or keep it open for returned units
    #[arg(long, default_value = "close", value_parser = [PossibleValue::new("close"), PossibleValue::new("stay-open").alias("stay_open")])]
    pub when_sold_out: String,
    /// A message for players who wait
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
}

fn duration(text: &str) -> Result<Duration, String> {
    Duration::parse(&Value::Text(text.to_owned()))
        .map_err(|_| "expected a duration such as 250ms, 30s or 1h30m".to_owned())
}
