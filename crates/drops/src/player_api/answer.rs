//! Response types for players.

use base::Timestamp;
use base::id::Uuid;
use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{Audience, DropRecord, LineOrder};
use crate::orders::Order;
use crate::stock::Reservation;
use crate::{PaymentProvider, PlayerStatus, WaitStatus};

/// A drop.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DropAnswer {
    pub(super) drop_id: Uuid,
    #[schema(example = "Golden hat")]
    pub(super) name: String,
    /// SCHEDULED, OPEN, PAUSED, CLOSED or CANCELLED.
    state: &'static str,
    /// What a buyer's account is granted.
    resource: String,
    price: PriceAnswer,
    /// How many units one player may have.
    per_player: u32,
    /// Who may join.
    who: WhoAnswer,
    /// Entitlements that put a player into a priority lane, the best lane first.
    lanes: Vec<String>,
    order: OrderOfLine,
    /// When it opens; RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    opens_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    closes_at: Option<String>,
    /// Whether the operators have stopped admissions for the moment.
    everyone_waits: bool,
    /// The SHA-256 of the shuffle's seed in hex, published from the beginning.
    seed_hash: String,
    /// The shuffle's seed in hex, once the drop is open: it proves that the order was not manipulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    /// A message from the operators to players who wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The server's time, for countdowns: the clock of a player's device may be wrong.
    #[schema(format = DateTime)]
    now: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct PriceAnswer {
    /// In the smallest unit of the currency.
    amount: i64,
    /// ISO 4217.
    #[schema(example = "EUR")]
    currency: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum WhoAnswer {
    Anyone,
    /// Players with this role.
    Role(String),
    /// Players whose account owns this.
    Owns(String),
}

/// The order of players who join before the drop opens.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OrderOfLine {
    FirstCome,
    Shuffle,
}

/// A player's place in a drop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PlaceAnswer {
    state: PlaceState,
    /// How many players are before this one. Missing while unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    /// How many players wait in all. Missing while unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    /// The estimated wait at the present pace. Null while unknown.
    wait_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<AdmissionAnswer>,
    /// A message from the operators to players who wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum PlaceState {
    NotJoined,
    Waiting,
    Entered,
    Left,
    /// The admission has expired. Joining again puts the player at the end of the line.
    Expired,
}

/// An admission: it lets a player reserve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct AdmissionAnswer {
    /// A JWT that the keys of `/v1/drops/jwks` verify.
    token: String,
    /// RFC 3339. The first reservation extends it: read the place again after it.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Units held for a player.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReservationAnswer {
    reservation_id: Uuid,
    drop_id: Uuid,
    /// HELD, CONFIRMED, RELEASED or EXPIRED.
    #[schema(example = "HELD")]
    state: &'static str,
    quantity: i64,
    /// When the reservation expires; RFC 3339.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// An order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OrderAnswer {
    order_id: Uuid,
    drop_id: Uuid,
    reservation_id: Uuid,
    /// PENDING, PAID, REFUND_DUE, FAILED or REFUNDED.
    #[schema(example = "PENDING")]
    state: &'static str,
    quantity: i64,
    /// In the smallest unit of the currency.
    amount: i64,
    currency: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
    /// Where the player pays while the order is PENDING. Missing if the game has its own checkout.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkout_url: Option<String>,
}

impl DropAnswer {
    pub(super) fn new(drop: &DropRecord, now: Timestamp) -> Self {
        let terms = &drop.terms;
        Self {
            drop_id: *drop.id.as_uuid(),
            name: drop.name.clone(),
            state: drop.state.as_str(),
            resource: drop.resource.clone(),
            price: PriceAnswer { amount: terms.price.amount, currency: terms.price.currency.clone() },
            per_player: terms.per_player,
            who: match &terms.who {
                Audience::Anyone => WhoAnswer::Anyone,
                Audience::Role(role) => WhoAnswer::Role(role.clone()),
                Audience::Owns(resource) => WhoAnswer::Owns(resource.clone()),
            },
            lanes: terms.lanes.clone(),
            order: match terms.order {
                LineOrder::FirstCome => OrderOfLine::FirstCome,
                LineOrder::Shuffle => OrderOfLine::Shuffle,
            },
            opens_at: drop.opens_at.map(Timestamp::to_rfc3339),
            closes_at: drop.closes_at.map(Timestamp::to_rfc3339),
            everyone_waits: drop.everyone_waits,
            seed_hash: drop.seed_hash(),
            seed: drop.published_seed().map(|seed| seed.to_hexadecimal()),
            message: terms.message.clone(),
            now: now.to_rfc3339(),
        }
    }
}

impl PlaceAnswer {
    /// Builds the response. `sign` signs the token of an admission.
    pub(super) fn new(
        status: &PlayerStatus,
        message: Option<&str>,
        sign: impl Fn(&crate::Admission) -> String,
    ) -> Self {
        let place = |state| Self {
            state,
            ahead: None,
            waiting: None,
            wait_seconds: None,
            admission: None,
            message: None,
        };
        match status {
            PlayerStatus::NotJoined => place(PlaceState::NotJoined),
            PlayerStatus::Left => place(PlaceState::Left),
            PlayerStatus::Expired => place(PlaceState::Expired),
            PlayerStatus::Waiting(WaitStatus { position, wait }) => Self {
                ahead: position.map(|at| at.ahead),
                waiting: position.map(|at| at.waiting),
                wait_seconds: wait.map(|wait| wait.as_secs()),
                message: message.map(ToOwned::to_owned),
                ..place(PlaceState::Waiting)
            },
            PlayerStatus::Entered(admission) => Self {
                admission: Some(AdmissionAnswer {
                    token: sign(admission),
                    expires_at: admission.expires_at.to_rfc3339(),
                }),
                ..place(PlaceState::Entered)
            },
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state == PlaceState::Waiting
    }
}

impl ReservationAnswer {
    pub(super) fn new(reservation: &Reservation) -> Self {
        Self {
            reservation_id: *reservation.id.as_uuid(),
            drop_id: *reservation.drop.as_uuid(),
            state: reservation.state.as_str(),
            quantity: reservation.quantity,
            expires_at: reservation.expires_at.to_rfc3339(),
        }
    }
}

impl OrderAnswer {
    pub(super) fn new(order: &Order, provider: &PaymentProvider) -> Self {
        let is_payable = order.state == crate::orders::OrderState::Pending;
        let checkout = is_payable.then(|| provider.checkout(order)).flatten();
        Self {
            order_id: *order.id.as_uuid(),
            drop_id: *order.drop.as_uuid(),
            reservation_id: *order.reservation.as_uuid(),
            state: order.state.as_str(),
            quantity: order.quantity,
            amount: order.amount,
            currency: order.currency.clone(),
            created_at: order.created_at.to_rfc3339(),
            checkout_url: checkout.map(String::from),
        }
    }
}
