//! The screens of drops in the console.

mod cockpit;
mod export;
mod line;
mod orders;
mod steps;
mod store;

use db::Db;
use http_server::Problem;
use screens::{ActionLink, Block, Cell, Count, Link, Section, Table, Tone, View};
use service::{Menu, Screen, ScreenRequest};

use self::store::{ListedDrop, WhichDrops};
use crate::DropId;
use crate::error::Error;
use crate::line::Line;
use crate::model::{DropRecord, DropState};
use crate::orders::Orders;
use crate::problem::problem;
use crate::service::Drops;
use crate::stock::Stock;

pub(crate) use self::export::player_data;
pub(crate) use self::steps::figures;
pub use self::steps::steps;

/// How many drops, orders, refunds, ledger entries or players a page lists.
const PAGE: u32 = 50;
/// How many drops that run are listed.
const MAX_RUNNING: u32 = 50;
/// How many rows are counted at most.
const CAP: u64 = 10_000;

/// What the screens of drops read. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct DropsConsole {
    drops: Drops,
    stock: Stock,
    line: Line,
    orders: Orders,
}

impl DropsConsole {
    pub const fn new(drops: Drops, stock: Stock, line: Line, orders: Orders) -> Self {
        Self { drops, stock, line, orders }
    }

    const fn db(&self) -> &Db {
        &self.drops.db
    }
}

/// Returns the screens of drops.
pub(crate) fn screens() -> Vec<Screen> {
    const QUESTION: &str = "Is it selling, fairly, never above stock?";
    vec![
        Screen::listed(Menu::Sales, "/console/drops", "Drops", QUESTION, list),
        Screen::linked("/console/drops/{drop_id}", "Drop", QUESTION, cockpit::show),
        Screen::linked("/console/drops/{drop_id}/line", "Line", "Who is next?", line::show),
        Screen::linked("/console/orders/{order_id}", "Order", "Was it paid and granted?", orders::show),
    ]
}

async fn list(console: DropsConsole, request: ScreenRequest) -> Result<View, Problem> {
    let db = console.db();
    let before = request.query("after").map(|drop| crate::http::id("after", drop)).transpose()?;
    let running = store::list(db, WhichDrops::Running, MAX_RUNNING).await.map_err(database_problem)?;
    let mut running_table = Table::new(
        &["Drop", "State", "#In line", "#Sold", "#Reserved", "#Stock", "Opens", "Closes"],
        "No drop is scheduled, open or paused. Create one, then schedule or open it.",
    );
    let mut is_line_away = false;
    for ListedDrop { drop, levels } in &running {
        let waiting = console.line.len(drop.id).await.ok();
        is_line_away |= waiting.is_none();
        let cells = [
            name(drop),
            state(drop),
            Cell::optional(waiting, Cell::number),
            Cell::number(levels.sold),
            Cell::number(levels.reserved),
            Cell::number(levels.total()),
            Cell::optional(drop.opened_at.or(drop.opens_at), Cell::Time),
            Cell::optional(drop.closes_at, Cell::Time),
        ];
        running_table.push(cells, []);
    }
    let mut running_section =
        Section::new("running", "Running").action(ActionLink::new("POST /drops")).block(running_table);
    if is_line_away {
        running_section = running_section.notice(Tone::Warning, LINE_AWAY);
    }
    let refunds = orders::refunds_section(&orders::refunds(&console, None, &request).await?);
    let limit = base::page::rows_to_read(PAGE);
    let mut all = store::list(db, WhichDrops::Before(before), limit).await.map_err(database_problem)?;
    let next = base::page::next_page(&mut all, PAGE, |last| format!("after={}", last.drop.id));
    let mut table = Table::new(
        &["Drop", "State", "Item", "#Sold", "#Stock", "Created", "Ended"],
        "There are no drops yet.",
    );
    (table.next, table.page_key) = (next, Some("after"));
    for ListedDrop { drop, levels } in &all {
        let cells = [
            name(drop),
            state(drop),
            Cell::code(&drop.resource),
            Cell::number(levels.sold),
            Cell::number(levels.total()),
            Cell::Time(drop.created_at),
            Cell::optional(drop.closed_at, Cell::Time),
        ];
        table.push(cells, []);
    }
    let all = Section::new("all", "All drops").block(table);
    Ok(View::new().section(running_section).section(refunds).section(all))
}

const LINE_AWAY: &str = "The length of the line is unknown: Redis does not answer. Admissions continue from the database, unless the terms say pause.";

fn name(drop: &DropRecord) -> Cell {
    Cell::link(&drop.name, path(drop.id))
}

fn path(drop: DropId) -> String {
    format!("/console/drops/{drop}")
}

fn player(user: account::UserId) -> Cell {
    if user.as_uuid().is_nil() {
        Cell::text("erased")
    } else {
        Cell::id(user.to_string(), format!("/console/players/{user}"))
    }
}

fn state(drop: &DropRecord) -> Cell {
    let tone = match drop.state {
        DropState::Open if drop.everyone_waits => Tone::Warning,
        DropState::Open => Tone::Good,
        DropState::Paused => Tone::Warning,
        DropState::Draft | DropState::Scheduled | DropState::Closed | DropState::Cancelled => Tone::Neutral,
    };
    let text = match drop.state {
        DropState::Open if drop.everyone_waits => "OPEN, everyone waits",
        state => state.as_str(),
    };
    Cell::state(tone, text)
}

const fn capped(counted: u64) -> Cell {
    Cell::Count(Count::up_to(counted, CAP))
}

/// Returns a block of links.
fn links(links: impl IntoIterator<Item = (&'static str, String)>) -> Block {
    Block::Links(links.into_iter().map(|(text, href)| Link::new(text, href)).collect())
}

fn database_problem(error: db::Error) -> Problem {
    problem(Error::Db(error))
}
