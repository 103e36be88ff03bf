//! The cockpit of one drop.

use http_server::Problem;
use screens::{ActionLink, Block, Cell, Section, Table, Tone, View};
use service::ScreenRequest;

use super::orders::{order_table, refunds, refunds_section};
use super::{CAP, DropsConsole, LINE_AWAY, PAGE, capped, database_problem, links, path, state, store};
use crate::model::{DropAction, DropRecord, DropState, EntryState, WhenSoldOut};
use crate::orders::OrderState;
use crate::orders::store::WhichOrders;
use crate::problem::problem;
use crate::stock::{LedgerPosition, Levels};

pub(super) async fn show(console: DropsConsole, request: ScreenRequest) -> Result<View, Problem> {
    let id = crate::http::id("drop_id", request.parameter("drop_id"))?;
    let drop = console.drops.get(id).await.map_err(problem)?;
    let levels = console.stock.levels(id).await.map_err(problem)?;
    let view = View::titled(&drop.name).section(now(&console, &drop).await?).section(stock(&drop, levels));
    let due = refunds(&console, Some(id), &request).await?;
    let is_shown = !due.refunds.is_empty() || request.query("refunds_after").is_some();
    let view = if is_shown { view.section(refunds_section(&due)) } else { view };
    let view = view.section(orders(&console, &drop, &request).await?);
    Ok(view.section(ledger(&console, &drop, &request).await?).section(terms(&drop)))
}

/// Shows the state, the line and the admissions, with the actions that the state allows.
async fn now(console: &DropsConsole, drop: &DropRecord) -> Result<Section, Problem> {
    let db = console.db();
    let waiting = console.line.len(drop.id).await.ok();
    let inside = store::count_entries(db, drop.id, EntryState::Entered, CAP + 1).await;
    let admitted = store::admissions_in_last_minute(db, drop.id, CAP + 1).await;
    let line = Some(format!("{}/line", path(drop.id)));
    let mut section = Section::new("now", "Now").block(Block::Figures(vec![
        ("State".to_owned(), state(drop), None),
        ("In line".to_owned(), Cell::optional(waiting, Cell::number), line.clone()),
        ("Inside".to_owned(), capped(inside.map_err(database_problem)?), line),
        ("Capacity".to_owned(), Cell::number(drop.terms.admission.capacity), None),
        ("Admitted in the last minute".to_owned(), capped(admitted.map_err(database_problem)?), None),
    ]));
    if drop.everyone_waits {
        let text = "Everyone waits: no player is admitted until you turn it off.";
        section = section.notice(Tone::Warning, text);
    }
    if waiting.is_none() && !drop.state.is_final() {
        section = section.notice(Tone::Warning, LINE_AWAY);
    }
    section = section.facts([
        ("Opens", Cell::optional(drop.opens_at, Cell::Time)),
        ("Opened", Cell::optional(drop.opened_at, Cell::Time)),
        ("Closes", Cell::optional(drop.closes_at, Cell::Time)),
        ("Ended", Cell::optional(drop.closed_at, Cell::Time)),
        ("Why it ended", Cell::optional(drop.end_reason, |reason| Cell::text(reason.as_str()))),
        ("Message to players who wait", Cell::optional(drop.terms.message.as_deref(), Cell::text)),
        ("Drop", Cell::code(drop.id.to_string())),
    ]);
    section.actions = actions(drop);
    Ok(section)
}

/// Returns the actions that the drop's state allows.
pub(super) fn actions(drop: &DropRecord) -> Vec<ActionLink> {
    let allows = |action: DropAction| drop.state.after(action).is_some();
    let link = |route: &'static str| ActionLink::new(route).with("drop_id", drop.id);
    let admission = &drop.terms.admission;
    let mut actions = Vec::new();
    let mut offer = |action: DropAction, link: ActionLink| {
        if allows(action) {
            actions.push(link);
        }
    };
    let schedule = link("POST /drops/{drop_id}/schedule");
    let schedule = match drop.opens_at {
        Some(at) => schedule.value("opens_at", at.to_rfc3339()),
        None => schedule,
    };
    let schedule = match drop.closes_at {
        Some(at) => schedule.value("closes_at", at.to_rfc3339()),
        None => schedule,
    };
    offer(DropAction::Schedule, schedule);
    offer(DropAction::Open, link("POST /drops/{drop_id}/open"));
    offer(DropAction::Pause, link("POST /drops/{drop_id}/pause"));
    offer(DropAction::Resume, link("POST /drops/{drop_id}/resume"));
    let waits = link("PUT /drops/{drop_id}/everyone-waits").value("on", !drop.everyone_waits);
    let label = if drop.everyone_waits { "Admit players again" } else { "Make everyone wait" };
    offer(DropAction::EveryoneWaits, waits.label(label));
    let pace = link("PUT /drops/{drop_id}/pace")
        .value("batch", admission.batch)
        .value("period_ms", admission.period.as_millis())
        .value("capacity", admission.capacity);
    offer(DropAction::Terms, pace);
    let message = drop.terms.message.clone().unwrap_or_default();
    offer(DropAction::Terms, link("PUT /drops/{drop_id}/message").value("message", message));
    offer(DropAction::Terms, link("POST /drops/{drop_id}/rebuild"));
    offer(DropAction::Close, link("POST /drops/{drop_id}/close"));
    offer(DropAction::Cancel, link("POST /drops/{drop_id}/cancel"));
    actions
}

fn stock(drop: &DropRecord, levels: Levels) -> Section {
    let mut table = Table::new(&["Item", "#Total", "#Available", "#Reserved", "#Sold"], "");
    let cells = [
        Cell::code(&drop.resource),
        Cell::number(levels.total()),
        Cell::number(levels.available),
        Cell::number(levels.reserved),
        Cell::number(levels.sold),
    ];
    table.push(cells, []);
    let mut section = Section::new("stock", "Stock").block(table);
    if levels.available == 0 && levels.reserved == 0 && drop.state == DropState::Open {
        let then = match drop.terms.when_sold_out {
            WhenSoldOut::Close => "The drop closes.",
            WhenSoldOut::StayOpen => "It stays open for units that come back; adjust the stock to sell more.",
        };
        section = section.notice(Tone::Neutral, format!("All units are sold. {then}"));
    }
    section.action(ActionLink::new("POST /drops/{drop_id}/stock").with("drop_id", drop.id))
}

async fn orders(
    console: &DropsConsole,
    drop: &DropRecord,
    request: &ScreenRequest,
) -> Result<Section, Problem> {
    let db = console.db();
    let counts = store::order_counts(db, drop.id, CAP + 1).await.map_err(database_problem)?;
    let here = |state: OrderState| format!("{}?orders={}", path(drop.id), state.as_str());
    let figures = counts
        .into_iter()
        .map(|(state, count)| (state.as_str().to_owned(), capped(count), Some(here(state))))
        .collect();
    let word = request.query("orders").unwrap_or(OrderState::Paid.as_str());
    let state = OrderState::parse(word).unwrap_or(OrderState::Paid);
    let before = request.query("orders_after").map(|id| crate::http::id("orders_after", id)).transpose()?;
    let which = WhichOrders::Drop { drop: drop.id, state, before };
    let mut found =
        store::orders(db, which, base::page::rows_to_read(PAGE)).await.map_err(database_problem)?;
    let next = base::page::next_page(&mut found, PAGE, |last| format!("orders_after={}", last.order.id));
    let mut table = order_table(&found, format!("No order is {}.", state.as_str()));
    (table.next, table.page_key) = (next, Some("orders_after"));
    Ok(Section::new("orders", "Orders").block(Block::Figures(figures)).block(table))
}

async fn ledger(
    console: &DropsConsole,
    drop: &DropRecord,
    request: &ScreenRequest,
) -> Result<Section, Problem> {
    let before = request.query("ledger_after").and_then(|at| {
        let (version, entry) = at.split_once('.')?;
        Some(LedgerPosition { version: version.parse().ok()?, entry: entry.parse().ok()? })
    });
    let found = console.stock.ledger(drop.id, before, base::page::rows_to_read(PAGE)).await;
    let mut found = found.map_err(problem)?;
    let next = base::page::next_page(&mut found, PAGE, |last| {
        format!("ledger_after={}.{}", last.version, last.entry)
    });
    let mut table = Table::new(
        &["Time", "Movement", "#Available", "#Reserved", "#Sold", "Reservation", "By", "Reason"],
        "Nothing has moved yet.",
    );
    (table.next, table.page_key) = (next, Some("ledger_after"));
    for entry in &found {
        let cells = [
            Cell::Time(entry.recorded_at),
            Cell::text(crate::http::ledger_word(entry.kind)),
            Cell::number(entry.by.available),
            Cell::number(entry.by.reserved),
            Cell::number(entry.by.sold),
            Cell::optional(entry.reservation, |id| {
                Cell::id(id.to_string(), format!("/console/trace?id={id}"))
            }),
            Cell::optional(entry.actor.as_deref(), Cell::text),
            Cell::optional(entry.reason.as_deref(), Cell::text),
        ];
        table.push(cells, []);
    }
    Ok(Section::new("ledger", "Ledger").block(table))
}

fn terms(drop: &DropRecord) -> Section {
    let terms = &drop.terms;
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    let text = json(serde_json::to_string_pretty(terms));
    let section = Section::new("terms", "Terms")
        .facts([
            ("Seed of the shuffle, hashed", Cell::code(drop.seed_hash())),
            (
                "Seed of the shuffle",
                Cell::optional(drop.published_seed(), |seed| Cell::code(seed.to_hexadecimal())),
            ),
        ])
        .block(Block::Code(text))
        .block(links([("The line", format!("{}/line", path(drop.id)))]));
    if drop.state.after(DropAction::Terms).is_none() {
        return section;
    }
    let word = |value: serde_json::Result<serde_json::Value>| {
        value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let admission = &terms.admission;
    section.action(
        ActionLink::new("PUT /drops/{drop_id}/terms")
            .with("drop_id", drop.id)
            .value("price.amount", terms.price.amount)
            .value("price.currency", &terms.price.currency)
            .value("per_player", terms.per_player)
            .value("admission.batch", admission.batch)
            .value("admission.period_ms", admission.period.as_millis())
            .value("admission.capacity", admission.capacity)
            .value("admission.lifetime_ms", admission.lifetime.as_millis())
            .value("admission.arrive_within_ms", admission.arrive_within.as_millis())
            .value("reservation_ms", terms.reservation.as_millis())
            .value("order", word(serde_json::to_value(terms.order)))
            .value("without_redis", word(serde_json::to_value(terms.without_redis)))
            .value("when_sold_out", word(serde_json::to_value(terms.when_sold_out)))
            .value("who", json(serde_json::to_string(&terms.who)))
            .value("lanes", json(serde_json::to_string(&terms.lanes)))
            .value("message", terms.message.clone().unwrap_or_default()),
    )
}
