//! What drops know about a player, an order, a reservation, a payment or a drop; and the figures of the overview.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use screens::{Combine, Figure, Measure, Step, Subject, Tone, Unit};

use super::{DropsConsole, path, store};
use crate::error::Error;
use crate::event::SOURCE;
use crate::model::{DropRecord, EntryState, LeftReason};
use crate::orders::store::{DatedOrder, WhichOrders};
use crate::orders::{Order, OrderState};
use crate::stock::{Reservation, ReservationState};
use crate::store::PlayerEntry;
use crate::{DropId, OrderId, ReservationId, money};

const PART: &str = "drops";
const SQL: &str = "sql";
/// How many drops of a player are read to find the one of an event.
const MAX_ENTRIES: u32 = 100;

/// Returns the figures of drops on the overview.
pub(crate) fn figures() -> Vec<Figure> {
    let counter = |name, title, metric| Figure {
        name,
        title,
        unit: Unit::PerSecond,
        metric,
        labels: &[],
        measure: Measure::Rate,
        combine: Combine::Sum,
        href: "/console/drops",
    };
    vec![
        counter("drops_joins", "Joins of lines", "playhouse_drops_joins"),
        counter("drops_admissions", "Admissions to drops", "playhouse_drops_admissions"),
        Figure {
            name: "drops_refunds_due",
            title: "Refunds due",
            unit: Unit::Count,
            metric: "playhouse_drops_refunds_due",
            labels: &[],
            measure: Measure::Gauge,
            combine: Combine::Max,
            href: "/console/drops",
        },
    ]
}

/// Returns what drops know about a subject, at most `limit` steps: the newest ones.
pub async fn steps(console: &DropsConsole, subject: &Subject, limit: u32) -> Result<Vec<Step>, Error> {
    let mut steps = match subject {
        Subject::User(user) => of_user(console, UserId::from_uuid(*user), limit).await?,
        Subject::Id(text) => of_id(console, text).await?,
    };
    steps.sort_by_key(|step| std::cmp::Reverse(step.at));
    steps.truncate(limit as usize);
    Ok(steps)
}

async fn of_user(console: &DropsConsole, user: UserId, limit: u32) -> Result<Vec<Step>, Error> {
    let db = console.db();
    let mut steps = Vec::new();
    for entry in store::entries_of_user(db, user, None, limit).await? {
        steps.extend(entry_steps(&entry));
    }
    for reservation in store::reservations_of_user(db, user, None, limit).await? {
        steps.extend(reservation_steps(&reservation));
    }
    let which = WhichOrders::User { user, before: None };
    for DatedOrder { order, changed_at } in store::orders(db, which, limit).await? {
        steps.extend(order_steps(&order, changed_at));
    }
    Ok(steps)
}

async fn of_id(console: &DropsConsole, text: &str) -> Result<Vec<Step>, Error> {
    let db = console.db();
    // The ordering key of an order's events has this prefix.
    let text = text.strip_prefix("order/").unwrap_or(text);
    let mut steps = Vec::new();
    let Ok(id) = Uuid::try_parse(text) else {
        for DatedOrder { order, changed_at } in store::orders(db, WhichOrders::Payment(text), 10).await? {
            steps.extend(order_steps(&order, changed_at));
        }
        if let Some(webhook) = store::webhook(db, text).await? {
            let what = format!("Received the webhook {} about order {}", webhook.kind, webhook.order);
            steps.push(Step::new(webhook.received_at, SQL, PART, what).follow(webhook.order));
        }
        return Ok(steps);
    };
    let order = WhichOrders::Order(OrderId::from_uuid(id));
    let of_reservation = WhichOrders::Reservation(ReservationId::from_uuid(id));
    let mut orders = store::orders(db, order, 1).await?;
    let mut reservation = None;
    if let Some(found) = orders.first() {
        reservation = store::reservation(db, found.order.reservation).await?;
    } else if let Some(found) = store::reservation(db, ReservationId::from_uuid(id)).await? {
        reservation = Some(found);
        orders = store::orders(db, of_reservation, 1).await?;
    } else if let Ok(drop) = console.drops.get(DropId::from_uuid(id)).await {
        steps.extend(drop_steps(&drop));
    }
    steps.extend(reservation.iter().flat_map(reservation_steps));
    for DatedOrder { order, changed_at } in &orders {
        steps.extend(order_steps(order, *changed_at));
    }
    if steps.is_empty() {
        steps.extend(of_event(console, id).await?);
    }
    Ok(steps)
}

/// Returns the changes that an event of drops announces, while the outbox keeps it.
async fn of_event(console: &DropsConsole, id: Uuid) -> Result<Vec<Step>, Error> {
    let Some(event) = console.drops.outbox.find_batched_event(id).await? else { return Ok(Vec::new()) };
    if event.source != SOURCE {
        return Ok(Vec::new());
    }
    let data: serde_json::Value = serde_json::from_slice(event.data.as_bytes()).unwrap_or_default();
    let field = |name: &str| data[name].as_str().and_then(|text| Uuid::try_parse(text).ok());
    let (order, drop, user) = (field("order_id"), field("drop_id").map(DropId::from_uuid), field("user_id"));
    let mut steps = Vec::new();
    if let Some(order) = order {
        let which = WhichOrders::Order(OrderId::from_uuid(order));
        for DatedOrder { order, changed_at } in store::orders(console.db(), which, 1).await? {
            steps.extend(order_steps(&order, changed_at));
        }
    } else if let (Some(drop), Some(user)) = (drop, user) {
        let user = UserId::from_uuid(user);
        let entries = store::entries_of_user(console.db(), user, None, MAX_ENTRIES).await?;
        steps.extend(entries.iter().filter(|entry| entry.drop == drop).flat_map(entry_steps));
    } else if let Some(drop) = drop
        && let Ok(drop) = console.drops.get(drop).await
    {
        steps.extend(drop_steps(&drop));
    }
    Ok(steps)
}

fn drop_steps(drop: &DropRecord) -> Vec<Step> {
    let step = |at, what: &str| {
        let step = Step::new(at, SQL, PART, format!("{what} the drop {}", drop.name));
        step.link(&drop.name, path(drop.id)).follow(format!("drop/{}", drop.id))
    };
    let times = [(Some(drop.created_at), "Created"), (drop.opened_at, "Opened"), (drop.closed_at, "Ended")];
    times.into_iter().filter_map(|(at, what)| Some(step(at?, what))).collect()
}

fn entry_steps(PlayerEntry { drop, drop_name, entry, .. }: &PlayerEntry) -> Vec<Step> {
    let step = |at: Timestamp, what: String| Step::new(at, SQL, PART, what).link(drop_name, path(*drop));
    let mut steps =
        vec![step(entry.joined_at, format!("Joined the line of {drop_name} as number {}", entry.number))];
    if let Some(at) = entry.entered_at {
        // The event has the id of the admission.
        let admitted = step(at, format!("Admitted to {drop_name}")).tone(Tone::Good);
        steps.push(admitted.of_event(*entry.admission.as_uuid()).follow(entry.admission));
    }
    if let Some(at) = entry.arrived_at {
        steps.push(step(at, format!("Arrived in {drop_name}")));
    }
    let end = match (entry.state, entry.left_reason) {
        (EntryState::Expired, _) => Some("The admission expired"),
        (EntryState::Left, Some(LeftReason::DropEnded)) => Some("Was in the line when the drop ended"),
        _ => None,
    };
    if let (Some(end), Some(at)) = (end, entry.expires_at.or(entry.entered_at)) {
        steps.push(step(at, format!("{end}: {drop_name}")).tone(Tone::Warning));
    }
    steps
}

fn reservation_steps(reservation: &Reservation) -> Vec<Step> {
    let units = base::counted(usize::try_from(reservation.quantity).unwrap_or_default(), "unit");
    let step = |at, what: String| {
        Step::new(at, SQL, PART, what).link("Drop", path(reservation.drop)).follow(reservation.id)
    };
    let mut steps = vec![step(reservation.reserved_at, format!("Reserved {units}"))];
    if reservation.state == ReservationState::Expired {
        let expired = step(reservation.expires_at, format!("The reservation of {units} expired"));
        steps.push(expired.tone(Tone::Warning));
    }
    steps
}

/// Returns the steps of an order.
pub(super) fn order_steps(order: &Order, changed_at: Timestamp) -> Vec<Step> {
    let units = base::counted(usize::try_from(order.quantity).unwrap_or_default(), "unit");
    let step = |at, what: String| {
        let step = Step::new(at, SQL, PART, what).link("Order", format!("/console/orders/{}", order.id));
        // The outbox finds the events of the order and of its payment by their ordering keys.
        let step = step.follow(order.id).follow(format!("order/{}", order.id)).follow(order.reservation);
        let payment = order.payment.iter().map(|payment| format!("payment/{}/{payment}", order.id));
        payment.fold(step, Step::follow)
    };
    let mut steps =
        vec![step(order.created_at, format!("Ordered {units} for {}", money(order.amount, &order.currency)))];
    let payment = order.payment.as_deref().map(|id| format!(" (payment {id})")).unwrap_or_default();
    let change = match order.state {
        OrderState::Pending => None,
        OrderState::Paid => Some((Tone::Good, "Paid and granted")),
        OrderState::RefundDue => Some((Tone::Bad, "Paid, but no units were left: a refund is due")),
        OrderState::Failed => Some((Tone::Warning, "The payment failed")),
        OrderState::Refunded => Some((Tone::Neutral, "Refunded")),
    };
    if let Some((tone, what)) = change {
        steps.push(step(changed_at, format!("{what}{payment}")).tone(tone));
    }
    steps
}
