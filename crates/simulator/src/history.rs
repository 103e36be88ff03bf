//! What players saw and what the instance says afterwards. The checks read nothing else.

use std::time::Duration;

/// Everything that the checks look at.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub players: Vec<PlayerHistory>,
    /// The drop as the instance has it. None if the scenario has no drop, or if it could not be read.
    pub drop: Option<DropTruth>,
    /// What could not be read at the end, with the cause.
    pub unread: Vec<String>,
}

/// A player's simulation.
#[derive(Clone, Debug, Default)]
pub struct PlayerHistory {
    pub name: String,
    pub user_id: String,
    /// Steps without an outcome, with the cause.
    pub lost: Vec<String>,
    /// Whether the run was stopped before the player had finished. Then what the player did is not all in here.
    pub is_interrupted: bool,
    /// The message of a panic in the player's task: nothing else is known then.
    pub panic: Option<String>,
    /// How the player joined the line.
    pub joined: Option<Join>,
    /// The position of the inbox at the sign-in.
    pub from: u64,
    /// How the purchase ended. None if the player wanted none.
    pub purchase: Option<Purchase>,
    pub orders: Vec<Order>,
    /// How many units of the drop the player owns.
    pub owned: u64,
    pub tickets: Vec<Ticket>,
    /// Whether the player's admission had expired before the inbox was read.
    pub admission_expired: bool,
    /// The whole inbox since the simulation began, the oldest first.
    pub inbox: Vec<Notification>,
    pub devices: Vec<DeviceHistory>,
}

/// How a player joined the line. The times are since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// Before the first attempt.
    pub sent: Duration,
    /// After the response.
    pub answered: Duration,
    /// How many players the response said to be ahead. None if it did not say.
    pub ahead: Option<u64>,
}

/// How a purchase ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purchase {
    /// The player paid, and the order was PAID.
    Bought { order_id: String },
    /// The player paid, and the order is due for a refund.
    RefundDue { order_id: String },
    /// The player was admitted and found nothing left.
    SoldOut,
    /// The player was admitted and did not reserve, or did not pay.
    NotWanted,
    /// The player waited until the drop ended.
    WaitedInVain,
    /// The drop had ended before the player arrived.
    TooLate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub order_id: String,
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub ticket_id: String,
    pub outcome: TicketOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketOutcome {
    Assigned {
        connection: String,
    },
    Cancelled,
    /// The player declined a ready check.
    Declined,
    /// The player was away, or too late, when a ready check asked.
    Missed,
}

/// A notification in an inbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notification {
    pub notification_id: String,
    pub position: u64,
    pub template: String,
    /// The match, if it is about one.
    pub match_id: Option<String>,
    /// The tickets of that match.
    pub ticket_ids: Vec<String>,
    /// The order, if it is about one, or about the units that one paid for.
    pub order_id: Option<String>,
    /// The admission, if it is about one.
    pub admission_id: Option<String>,
    /// Whether it is about a drop of another simulation with the same users. Then only its delivery is checked.
    pub is_foreign: bool,
}

/// What one device of a player received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHistory {
    /// The position that its first stream started from.
    pub from: u64,
    /// The notifications in the order of arrival: position and id.
    pub seen: Vec<(u64, String)>,
    /// How often it sent its position and the stream did not resume there.
    pub not_resumed: u32,
}

/// A drop as the instance has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropTruth {
    pub drop_id: String,
    /// Initial stock and later adjustments.
    pub total: i64,
    pub sold: i64,
    /// Differences that the instance's own audit found.
    pub differences: Vec<String>,
    pub line: Vec<LineEntry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineEntry {
    pub user_id: String,
    /// WAITING, ENTERED, LEFT or EXPIRED.
    pub state: String,
    pub number: u64,
    pub place: u64,
    /// RFC 3339, which sorts as text.
    pub entered_at: Option<String>,
}
