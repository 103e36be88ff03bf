//! Open allocations, and the calls that give servers back.

use http_server::Problem;
use screens::{ActionLink, Cell, Count, Filter, Link, Section, Table, Tone, View};
use service::ScreenRequest;
use work_queue::{Filter as ItemFilter, ItemView, State};

use super::{CAP, MAX_RECENT, MatchmakingConsole};
use crate::allocation::{AbandonedMatch, OpenAllocation, database_problem};

/// How many calls a page lists.
const PAGE: u32 = 100;

/// Lists the oldest allocations that are neither recorded nor given back.
pub(super) async fn open(console: &MatchmakingConsole) -> Result<Section, Problem> {
    let found = console.allocations.oldest_open(MAX_RECENT as u32).await.map_err(database_problem)?;
    let mut table = Table::new(
        &["Match", "Assigner", "Profile", "#Tickets", "Requested"],
        "No server is being requested.",
    );
    for OpenAllocation { match_id, assigner, profile, tickets, asked_at } in &found {
        let cells = [
            Cell::code(match_id.to_string()),
            Cell::text(assigner),
            Cell::text(profile),
            Cell::number(*tickets as u64),
            Cell::Time(*asked_at),
        ];
        table.push(cells, []);
    }
    let failed = console.allocations.queue().count(ItemFilter::Failed, CAP + 1).await;
    let failed = failed.map_err(database_problem)?;
    let section = Section::new("allocations", "Open allocations").block(table);
    let section = if failed > 0 {
        section.notice(Tone::Bad, "Some servers were not given back: the calls to their assigner failed.")
    } else {
        section
    };
    Ok(section.block(screens::Block::Links(vec![Link::new(
        "Calls that give servers back",
        "/console/allocations",
    )])))
}

/// Lists the calls that give servers back.
pub(super) async fn list(console: MatchmakingConsole, request: ScreenRequest) -> Result<View, Problem> {
    let word = request.query("state");
    let filter = match word {
        Some("open") => ItemFilter::Open,
        Some("done") => ItemFilter::Done,
        Some("failed") => ItemFilter::Failed,
        Some("skipped") => ItemFilter::Skipped,
        _ => ItemFilter::All,
    };
    let queue = console.allocations.queue();
    let calls = queue.list(filter, PAGE).await.map_err(database_problem)?;
    let failed = queue.count(ItemFilter::Failed, CAP + 1).await.map_err(database_problem)?;
    let mut table = Table::new(
        &["Match", "Assigner", "Why it was not made", "State", "Created", "Since", "#Attempts", "Cause"],
        "No call is in this state. Playhouse calls an assigner to free the server of each match that was not made.",
    );
    table.total = Some(Count::up_to(queue.count(filter, CAP + 1).await.map_err(database_problem)?, CAP));
    for call in &calls {
        table.push(cells(call), actions(call));
    }
    let choices =
        &[("all", "All"), ("open", "Open"), ("done", "Done"), ("failed", "Failed"), ("skipped", "Skipped")];
    let filter = Filter::new("Show").choice("state", "State", choices, word);
    let mut section = Section::new("calls", "Calls that give servers back").block(filter).block(table);
    if failed > 0 {
        section = section.action(ActionLink::new("POST /allocations/retry").value("expected", failed));
    }
    Ok(View::new().section(section).section(open(&console).await?))
}

fn cells(call: &ItemView) -> [Cell; 8] {
    let abandoned: Option<AbandonedMatch> = serde_json::from_slice(&call.payload).ok();
    let tone = match call.state {
        State::Failed => Tone::Bad,
        State::Done => Tone::Good,
        State::Skipped => Tone::Warning,
        State::Pending | State::InFlight | State::Held => Tone::Neutral,
    };
    [
        Cell::code(call.id.to_string()),
        Cell::text(&call.key),
        Cell::optional(abandoned, |abandoned| Cell::text(abandoned.reason.word())),
        Cell::state(tone, call.state.word()),
        Cell::Time(call.created),
        Cell::Time(call.due),
        Cell::number(call.attempts),
        Cell::optional(call.cause.as_deref(), Cell::text),
    ]
}

fn actions(call: &ItemView) -> Vec<ActionLink> {
    let link = |route| ActionLink::new(route).with("match", call.id);
    match call.state {
        State::Failed => {
            vec![link("POST /allocations/{match}/retry"), link("POST /allocations/{match}/skip")]
        }
        State::Pending => vec![link("POST /allocations/{match}/skip")],
        State::InFlight | State::Held | State::Done | State::Skipped => Vec::new(),
    }
}
