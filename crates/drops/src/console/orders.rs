//! Orders, and payments that must be refunded.

use http_server::Problem;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use screens::{ActionLink, Block, Cell, Section, Table, Tone, View};
use service::ScreenRequest;

use super::{DropsConsole, PAGE, database_problem, links, path, player, store};
use crate::error::Error;
use crate::orders::store::{DatedOrder, WhichOrders};
use crate::orders::{ListRefunds, Order, OrderState, RefundDue, RefundKey, RefundPage};
use crate::problem::problem;
use crate::{DropId, OrderId, money};

pub(super) async fn show(console: DropsConsole, request: ScreenRequest) -> Result<View, Problem> {
    let id: OrderId = crate::http::id("order_id", request.parameter("order_id"))?;
    let found = store::orders(console.db(), WhichOrders::Order(id), 1).await.map_err(database_problem)?;
    let Some(DatedOrder { order, changed_at }) = found.into_iter().next() else {
        return Err(problem(Error::UnknownOrder(id)));
    };
    let mut section = Section::new("order", "Order").facts([
        ("State", state(order.state)),
        ("Player", player(order.user)),
        ("Account", Cell::code(order.account.to_string())),
        ("Drop", Cell::id(order.drop.to_string(), path(order.drop))),
        ("Units", Cell::number(order.quantity)),
        ("Amount", amount(&order)),
        ("Payment", Cell::optional(order.payment.as_deref(), Cell::code)),
        ("Reservation", Cell::code(order.reservation.to_string())),
        ("Created", Cell::Time(order.created_at)),
        ("Last change", Cell::Time(changed_at)),
        ("Granted", Cell::optional(order.granted_at, Cell::Time)),
        ("Refund settled by", Cell::optional(order.settled_by.as_deref(), Cell::text)),
    ]);
    if order.state == OrderState::RefundDue {
        let text = "The payment succeeded, but no units could be delivered. Refund it at the payment provider, then mark it here.";
        section = section.notice(Tone::Bad, text);
        section = section.action(settle(&order, order.payment.as_deref().unwrap_or_default()));
    }
    let section = section.block(links([("Every step of this order", format!("/console/trace?id={id}"))]));
    let steps = super::steps::order_steps(&order, changed_at);
    let life = Section::new("life", "What happened").block(Block::Timeline(steps));
    Ok(View::titled(format!("Order {id}")).section(section).section(life))
}

/// Reads the page of due refunds that a screen shows, of all drops or of one.
pub(super) async fn refunds(
    console: &DropsConsole,
    drop: Option<DropId>,
    request: &ScreenRequest,
) -> Result<RefundPage, Problem> {
    let after = request.query("refunds_after");
    let after = after.map(|after| crate::http::refund_key("refunds_after", after)).transpose()?;
    let which = ListRefunds { drop, after, limit: PAGE };
    console.orders.refunds_due(&which).await.map_err(problem)
}

/// Lists payments that must be refunded.
pub(super) fn refunds_section(RefundPage { refunds: due, next }: &RefundPage) -> Section {
    let mut table =
        Table::new(&["Payment", "Order", "Player", "Amount", "Why", "Due since"], "No refund is due.");
    let escaped = |key: &RefundKey| utf8_percent_encode(&key.to_text(), NON_ALPHANUMERIC).to_string();
    table.page_key = Some("refunds_after");
    table.next = next.as_ref().map(|next| format!("refunds_after={}", escaped(next)));
    for RefundDue { order, payment, is_surplus, since } in due {
        let why = if *is_surplus { "The order was paid twice" } else { "No units could be delivered" };
        let cells = [
            Cell::code(payment),
            Cell::id(order.id.to_string(), format!("/console/orders/{}", order.id)),
            player(order.user),
            amount(order),
            Cell::text(why),
            Cell::Time(*since),
        ];
        table.push(cells, [settle(order, payment)]);
    }
    Section::new("refunds", "Refunds due").block(table)
}

/// Lists orders.
pub(super) fn order_table(orders: &[DatedOrder], empty: String) -> Table {
    let mut table =
        Table::new(&["Order", "Player", "State", "#Units", "Amount", "Created", "Last change"], empty);
    for DatedOrder { order, changed_at } in orders {
        let cells = [
            Cell::id(order.id.to_string(), format!("/console/orders/{}", order.id)),
            player(order.user),
            state(order.state),
            Cell::number(order.quantity),
            amount(order),
            Cell::Time(order.created_at),
            Cell::Time(*changed_at),
        ];
        table.push(cells, []);
    }
    table
}

fn settle(order: &Order, payment: &str) -> ActionLink {
    ActionLink::new("POST /orders/{order_id}/settle").with("order_id", order.id).value("payment_id", payment)
}

fn amount(order: &Order) -> Cell {
    Cell::text(money(order.amount, &order.currency))
}

fn state(state: OrderState) -> Cell {
    let tone = match state {
        OrderState::Paid => Tone::Good,
        OrderState::RefundDue => Tone::Bad,
        OrderState::Failed => Tone::Warning,
        OrderState::Pending | OrderState::Refunded => Tone::Neutral,
    };
    Cell::state(tone, state.as_str())
}
