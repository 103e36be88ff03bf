//! Answers as players see them.

use base::Timestamp;
use base::id::Uuid;
use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{DropRecord, Order as LineOrder, Who};
use crate::orders::Order;
use crate::stock::Reservation;
use crate::{PaymentProvider, Standing, Waiting};

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
    /// How many units a player may have.
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
    /// Whether the operators hold everybody in the line for the moment.
    everyone_waits: bool,
    /// The SHA-256 of the shuffle's seed in hexadecimal digits, published from the beginning.
    seed_hash: String,
    /// The shuffle's seed in hexadecimal digits, once the drop is open: it shows that the order was not chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    /// From the operators to those who wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The time of this answer, to count down by: the clock of a player's device may be wrong.
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

/// The order of those who join before the opening.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OrderOfLine {
    FirstCome,
    Shuffle,
}

/// Where a player stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PlaceAnswer {
    state: PlaceState,
    /// How many are before the player. Missing while it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    /// How many wait in all. Missing while it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    /// How long the wait will be at the present pace. Null while it is unknown.
    wait_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<AdmissionAnswer>,
    /// From the operators to those who wait.
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
    /// The admission has ended. Joining again goes to the end of the line.
    Expired,
}

/// What lets a player reserve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct AdmissionAnswer {
    /// A JWT that the keys of `/v1/drops/jwks` verify.
    token: String,
    /// RFC 3339. The first reservation lengthens it: ask for the place again then.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Units that are held for a player.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReservationAnswer {
    reservation_id: Uuid,
    drop_id: Uuid,
    /// HELD, CONFIRMED, RELEASED or EXPIRED.
    #[schema(example = "HELD")]
    state: &'static str,
    quantity: i64,
    /// Until when they are held; RFC 3339.
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
    /// Where the player pays while the order is PENDING. Missing if the game has a checkout of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkout_url: Option<String>,
}

impl DropAnswer {
    pub(super) fn of(drop: &DropRecord, now: Timestamp) -> Self {
        let terms = &drop.terms;
        Self {
            drop_id: *drop.id.as_uuid(),
            name: drop.name.clone(),
            state: drop.state.word(),
            resource: drop.resource.clone(),
            price: PriceAnswer { amount: terms.price.amount, currency: terms.price.currency.clone() },
            per_player: terms.per_player,
            who: match &terms.who {
                Who::Anyone => WhoAnswer::Anyone,
                Who::Role(role) => WhoAnswer::Role(role.clone()),
                Who::Owns(resource) => WhoAnswer::Owns(resource.clone()),
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
    /// Writes a place. `sign` makes the token of an admission.
    pub(super) fn of(
        standing: &Standing,
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
        match standing {
            Standing::NotJoined => place(PlaceState::NotJoined),
            Standing::Left => place(PlaceState::Left),
            Standing::Expired => place(PlaceState::Expired),
            Standing::Waiting(Waiting { position, wait }) => Self {
                ahead: position.map(|at| at.ahead),
                waiting: position.map(|at| at.waiting),
                wait_seconds: wait.map(|wait| wait.as_secs()),
                message: message.map(ToOwned::to_owned),
                ..place(PlaceState::Waiting)
            },
            Standing::Entered(admission) => Self {
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
    pub(super) fn of(reservation: &Reservation) -> Self {
        Self {
            reservation_id: *reservation.id.as_uuid(),
            drop_id: *reservation.drop.as_uuid(),
            state: reservation.state.word(),
            quantity: reservation.quantity,
            expires_at: reservation.expires_at.to_rfc3339(),
        }
    }
}

impl OrderAnswer {
    pub(super) fn of(order: &Order, provider: &PaymentProvider) -> Self {
        let is_payable = order.state == crate::orders::OrderState::Pending;
        let checkout = is_payable.then(|| provider.checkout(order)).flatten();
        Self {
            order_id: *order.id.as_uuid(),
            drop_id: *order.drop.as_uuid(),
            reservation_id: *order.reservation.as_uuid(),
            state: order.state.word(),
            quantity: order.quantity,
            amount: order.amount,
            currency: order.currency.clone(),
            created_at: order.created_at.to_rfc3339(),
            checkout_url: checkout.map(String::from),
        }
    }
}
