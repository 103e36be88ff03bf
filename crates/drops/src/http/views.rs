//! Response types for services and operators.

use base::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::store::EntrySummary;
use crate::model::{DropRecord, EndReason, EntryState, Terms};
use crate::orders::{Order, RefundDue};
use crate::stock::{Audit, LedgerEntry, LedgerKind, Levels};

/// A drop.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Drop)]
pub(super) struct DropView {
    #[schema(format = Uuid)]
    drop_id: String,
    name: String,
    /// DRAFT, SCHEDULED, OPEN, PAUSED, CLOSED or CANCELLED.
    state: &'static str,
    /// What a buyer's account is granted.
    resource: String,
    /// Incremented with every change.
    version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    opens_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    closes_at: Option<String>,
    /// When it was actually opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    opened_at: Option<String>,
    /// When it was actually closed or cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    closed_at: Option<String>,
    /// Why it ended: CLOSED, SOLD_OUT or CANCELLED.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_reason: Option<&'static str>,
    #[schema(format = DateTime)]
    created_at: String,
    /// Whether the emergency switch is on: no player is admitted.
    everyone_waits: bool,
    /// The SHA-256 of the shuffle's seed, in hex.
    seed_hash: String,
    /// The shuffle's seed in hex, once the drop is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    terms: Terms,
}

/// A drop with its counts.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct DropDetails {
    #[serde(flatten)]
    pub(super) drop: DropView,
    pub(super) stock: StockView,
    /// Players in the line. Null while Redis is unreachable.
    #[schema(required = true)]
    pub(super) waiting: Option<u64>,
    /// Players with an admission that has not expired.
    pub(super) inside: i64,
}

/// The counts of a stock: initial + adjusted = available + reserved + sold.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = Stock)]
pub(super) struct StockView {
    initial: i64,
    /// The net of all adjustments.
    adjusted: i64,
    available: i64,
    reserved: i64,
    sold: i64,
    /// Incremented with every change. The larger of two versions is newer.
    version: i64,
}

/// One change of a stock.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StockLedgerEntry)]
pub(super) struct LedgerView {
    /// The version of the stock after the change.
    version: i64,
    /// Its index among the changes of that version.
    entry: i32,
    /// CREATED, ADJUSTED, RESERVED, RELEASED, EXPIRED, SOLD, SOLD_LATE or REFUNDED.
    kind: &'static str,
    /// The change of each count.
    adjusted: i64,
    available: i64,
    reserved: i64,
    sold: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid)]
    reservation_id: Option<String>,
    /// Who created or adjusted the stock.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[schema(format = DateTime)]
    recorded_at: String,
}

/// The result of an audit.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StockAudit)]
pub(super) struct AuditView {
    /// Whether every unit is accounted for.
    balanced: bool,
    stock: StockView,
    /// Empty if it is balanced.
    differences: Vec<DifferenceView>,
}

/// Two numbers that should be equal.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StockDifference)]
pub(super) struct DifferenceView {
    what: &'static str,
    expected: i64,
    found: i64,
}

/// A player's entry in the line.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = DropEntry)]
pub(super) struct EntryView {
    #[schema(format = Uuid)]
    user_id: String,
    /// WAITING, ENTERED, LEFT or EXPIRED.
    state: &'static str,
    /// The number of the join.
    number: i64,
    /// The place in the line: lower is first.
    place: i64,
    #[schema(format = DateTime)]
    joined_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    entered_at: Option<String>,
}

/// An order.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Order)]
pub(super) struct OrderView {
    #[schema(format = Uuid)]
    order_id: String,
    #[schema(format = Uuid)]
    drop_id: String,
    #[schema(format = Uuid)]
    user_id: String,
    #[schema(format = Uuid)]
    account_id: String,
    /// PENDING, PAID, REFUND_DUE, FAILED or REFUNDED.
    state: &'static str,
    quantity: i64,
    /// In the smallest unit of the currency.
    amount: i64,
    /// ISO 4217.
    currency: String,
    /// The provider's id of the payment.
    #[serde(skip_serializing_if = "Option::is_none")]
    payment_id: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
}

/// A payment that must be refunded.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Refund)]
pub(super) struct RefundView {
    /// The provider's id of the payment.
    payment_id: String,
    /// Whether another payment has paid for the order. If not, no units could be delivered.
    is_surplus: bool,
    /// Since when the refund is due.
    #[schema(format = DateTime)]
    since: String,
    order: OrderView,
}

impl From<RefundDue> for RefundView {
    fn from(RefundDue { order, payment, is_surplus, since }: RefundDue) -> Self {
        Self { payment_id: payment, is_surplus, since: since.to_rfc3339(), order: order.into() }
    }
}

impl From<&DropRecord> for DropView {
    fn from(drop: &DropRecord) -> Self {
        let text = |time: Option<Timestamp>| time.map(Timestamp::to_rfc3339);
        Self {
            drop_id: drop.id.to_string(),
            name: drop.name.clone(),
            state: drop.state.as_str(),
            resource: drop.resource.clone(),
            version: drop.version,
            opens_at: text(drop.opens_at),
            closes_at: text(drop.closes_at),
            opened_at: text(drop.opened_at),
            closed_at: text(drop.closed_at),
            end_reason: drop.end_reason.map(EndReason::as_str),
            created_at: drop.created_at.to_rfc3339(),
            everyone_waits: drop.everyone_waits,
            seed_hash: drop.seed_hash(),
            seed: drop.published_seed().map(|seed| seed.to_hexadecimal()),
            terms: drop.terms.clone(),
        }
    }
}

impl From<Levels> for StockView {
    fn from(Levels { initial, adjusted, available, reserved, sold, version }: Levels) -> Self {
        Self { initial, adjusted, available, reserved, sold, version }
    }
}

impl From<LedgerEntry> for LedgerView {
    fn from(entry: LedgerEntry) -> Self {
        Self {
            version: entry.version,
            entry: entry.entry,
            kind: kind_word(entry.kind),
            adjusted: entry.by.adjusted,
            available: entry.by.available,
            reserved: entry.by.reserved,
            sold: entry.by.sold,
            reservation_id: entry.reservation.map(|id| id.to_string()),
            actor: entry.actor,
            reason: entry.reason,
            recorded_at: entry.recorded_at.to_rfc3339(),
        }
    }
}

impl From<Audit> for AuditView {
    fn from(audit: Audit) -> Self {
        let difference = |one: &crate::stock::Difference| DifferenceView {
            what: one.what,
            expected: one.expected,
            found: one.found,
        };
        Self {
            balanced: audit.is_sound(),
            stock: audit.levels.into(),
            differences: audit.differences.iter().map(difference).collect(),
        }
    }
}

impl From<&EntrySummary> for EntryView {
    fn from(entry: &EntrySummary) -> Self {
        Self {
            user_id: entry.user.to_string(),
            state: entry.state.map_or("UNKNOWN", EntryState::as_str),
            number: entry.number,
            place: entry.place,
            joined_at: entry.joined_at.to_rfc3339(),
            entered_at: entry.entered_at.map(Timestamp::to_rfc3339),
        }
    }
}

impl From<Order> for OrderView {
    fn from(order: Order) -> Self {
        Self {
            order_id: order.id.to_string(),
            drop_id: order.drop.to_string(),
            user_id: order.user.to_string(),
            account_id: order.account.to_string(),
            state: order.state.as_str(),
            quantity: order.quantity,
            amount: order.amount,
            currency: order.currency,
            payment_id: order.payment,
            created_at: order.created_at.to_rfc3339(),
        }
    }
}

pub(crate) const fn kind_word(kind: LedgerKind) -> &'static str {
    match kind {
        LedgerKind::Created => "CREATED",
        LedgerKind::Adjusted => "ADJUSTED",
        LedgerKind::Reserved => "RESERVED",
        LedgerKind::Released => "RELEASED",
        LedgerKind::Expired => "EXPIRED",
        LedgerKind::Sold => "SOLD",
        LedgerKind::SoldLate => "SOLD_LATE",
        LedgerKind::Refunded => "REFUNDED",
    }
}
