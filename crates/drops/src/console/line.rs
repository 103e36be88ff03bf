//! The line of a drop, in order.

use base::id::Uuid;
use http_server::Problem;
use screens::{Cell, Filter, Section, Table, View};
use service::ScreenRequest;

use super::{DropsConsole, PAGE, database_problem, links, path, player, store};
use crate::model::{EntryState, LineEntry};
use crate::problem::problem;

const STATES: [EntryState; 4] =
    [EntryState::Waiting, EntryState::Entered, EntryState::Left, EntryState::Expired];

pub(super) async fn show(console: DropsConsole, request: ScreenRequest) -> Result<View, Problem> {
    let id = crate::http::id("drop_id", request.parameter("drop_id"))?;
    let drop = console.drops.get(id).await.map_err(problem)?;
    let word = request.query("state");
    let find = |word: &str| STATES.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(word));
    let state = word.and_then(find).unwrap_or(EntryState::Waiting);
    let after = request.query("after").and_then(|at| {
        let (place, user) = at.split_once('.')?;
        Some((place.parse().ok()?, Uuid::try_parse(user).ok()?))
    });
    let limit = base::page::rows_to_read(PAGE);
    let mut found = store::line(console.db(), id, state, after, limit).await.map_err(database_problem)?;
    let next = base::page::next_page(&mut found, PAGE, |last| {
        format!("after={}.{}", last.place.stored(), last.user)
    });
    let filter = Filter::new("Show").choice(
        "state",
        "State",
        &[("waiting", "Waiting"), ("entered", "Inside"), ("left", "Left"), ("expired", "Admission expired")],
        word,
    );
    let mut table = Table::new(
        &["Player", "State", "#Join", "Joined", "Admitted", "Arrived", "Admission ends"],
        "No player is in this state.",
    );
    (table.next, table.page_key) = (next, Some("after"));
    for entry in &found {
        table.push(cells(entry), []);
    }
    let section = Section::new("line", "Players in the order of the line").block(filter).block(table);
    let section = section.block(links([("The drop", path(id))]));
    Ok(View::titled(format!("Line of {}", drop.name)).section(section))
}

fn cells(entry: &LineEntry) -> [Cell; 7] {
    let state = match entry.left_reason {
        Some(reason) => Cell::text(format!("{}: {}", entry.state.as_str(), reason.as_str())),
        None => Cell::text(entry.state.as_str()),
    };
    [
        player(entry.user),
        state,
        Cell::number(entry.number),
        Cell::Time(entry.joined_at),
        Cell::optional(entry.entered_at, Cell::Time),
        Cell::optional(entry.arrived_at, Cell::Time),
        Cell::optional(entry.expires_at, Cell::Time),
    ]
}
