//! The screens of matchmaking in the console.

mod allocations;
mod backfills;
mod definitions;
mod held;
mod players;
mod steps;
mod tickets;
mod why;

use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use http_server::Problem;
use outbox::Outbox;
use screens::{Block, Cell, Chart, ChartKind, Count, Filter, Section, Table, Tone, Unit, View};
use service::{Menu, Screen, ScreenRequest};
use work_queue::Filter as ItemFilter;

use crate::QUEUE_FIELD;
use crate::admin::problem;
use crate::allocation::database_problem;
use crate::error::Error;
use crate::model::{Moment, Ticket, TicketId};
use crate::store::WaitingTimes;
use crate::{Allocations, MatchmakingAdmin};

pub(crate) use self::players::player_data;
pub(crate) use self::steps::{figures, steps};

/// How many of the oldest tickets are read, to count them by queue and profile.
const SAMPLE: usize = 1_000;
/// How many tickets are listed.
const LISTED: usize = 50;
/// How many events are read to find recorded matches.
const RECENT_EVENTS: u32 = 200;
/// How many recorded batches and allocations are listed.
const MAX_RECENT: usize = 20;
const CAP: u64 = 10_000;
/// The limits of the histogram in seconds, with the label of the range below each.
const WAITS: [(u64, &str); 7] = [
    (5, "up to 5 s"),
    (15, "5 to 15 s"),
    (30, "15 to 30 s"),
    (60, "30 to 60 s"),
    (120, "1 to 2 min"),
    (300, "2 to 5 min"),
    (900, "5 to 15 min"),
];
const LONGER: &str = "over 15 min";

/// What the screens of matchmaking read. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct MatchmakingConsole {
    admin: MatchmakingAdmin,
    allocations: Allocations,
    outbox: Outbox,
}

impl MatchmakingConsole {
    pub const fn new(admin: MatchmakingAdmin, allocations: Allocations, outbox: Outbox) -> Self {
        Self { admin, allocations, outbox }
    }
}

/// Returns the screens of matchmaking.
pub(crate) fn screens() -> Vec<Screen> {
    const QUESTION: &str = "Who waits too long?";
    vec![
        Screen::listed(Menu::Matchmaking, "/console/matchmaking", "Matchmaking", QUESTION, overview),
        Screen::listed(
            Menu::Matchmaking,
            "/console/rules",
            "Rules",
            "Which rules make matches, and who changed them?",
            definitions::list,
        ),
        Screen::linked(
            "/console/rules/{kind}/{name}",
            "Definition",
            "Which version is active, and which were before?",
            definitions::show,
        ),
        Screen::linked("/console/tickets/{ticket_id}", "Ticket", "Why does it wait?", tickets::show),
        Screen::linked(
            "/console/backfills/{backfill_id}",
            "Backfill",
            "Who joins this running match?",
            backfills::show,
        ),
        Screen::linked(
            "/console/allocations",
            "Allocations",
            "Which servers were not given back?",
            allocations::list,
        ),
    ]
}

async fn overview(console: MatchmakingConsole, request: ScreenRequest) -> Result<View, Problem> {
    let mut view = View::new();
    view = view.section(search(&console, request.query("search")).await?);
    let sections = async { Ok([waiting(&console).await?, vec![backfills::list(&console).await?]].concat()) };
    view = match sections.await {
        Ok(sections) => sections.into_iter().fold(view, View::section),
        Err(error) => {
            let cause = problem(error);
            let text = format!("Tickets are unknown: Redis does not answer ({}).", cause.code().title());
            view.section(Section::new("waiting", "Waiting").notice(Tone::Bad, text))
        }
    };
    Ok(view.section(recent(&console).await?).section(allocations::open(&console).await?))
}

/// Finds a ticket by its id, or the tickets of a player.
async fn search(console: &MatchmakingConsole, text: Option<&str>) -> Result<Section, Problem> {
    let filter =
        Filter::new("Search").text("search", "Ticket or player", "A ticket id, or the id of a player", text);
    let section = Section::new("search", "Find a ticket").block(filter);
    let Some(text) = text else { return Ok(section) };
    let mut table = Table::new(
        &["Ticket", "State", "Created"],
        "No ticket has this id, and no player with this id waits. Tickets that were assigned long ago are gone; search the trace instead.",
    );
    if let Ok(user) = Uuid::try_parse(text) {
        let found = console.admin.store().player_tickets(user).await.map_err(problem)?;
        for (id, _) in &found {
            table.push(tickets::row(console, id).await?, []);
        }
    } else if let Some(id) = TicketId::parse(text)
        && console.admin.show(text).await.is_ok()
    {
        table.push(tickets::row(console, &id).await?, tickets::actions(&id));
    }
    Ok(section.block(table))
}

/// Shows how many tickets wait, for how long and in which queues and profiles.
async fn waiting(console: &MatchmakingConsole) -> Result<Vec<Section>, Error> {
    let (admin, now) = (&console.admin, console.admin.clock().now());
    let bounds = bounds(now);
    let times = admin.store().waiting_times(&bounds, SAMPLE).await?;
    let mut section = Section::new("waiting", "Waiting").block(figures_of(&times));
    if let Some(text) = admin.standstill().await? {
        section = section.notice(Tone::Bad, format!("Nothing is matched: {text}."));
    }
    for failure in admin.store().assigner_failures().await? {
        let text = format!(
            "Profile {}: a match was found, but getting a server failed at {}: {}",
            failure.profile,
            Timestamp::from_millis(failure.failed_at).to_rfc3339(),
            failure.cause
        );
        section = section.notice(Tone::Bad, text);
    }
    section = section.block(histogram(&times));
    let ids: Vec<TicketId> = times.oldest.iter().map(|(id, _)| id.clone()).collect();
    let sample = admin.store().read(&ids).await?;
    let mut queues: std::collections::BTreeMap<&str, (u64, Moment)> = std::collections::BTreeMap::new();
    for ticket in &sample {
        let queue = ticket.fields.strings.get(QUEUE_FIELD).map_or("(no queue)", String::as_str);
        let entry = queues.entry(queue).or_insert((0, ticket.created));
        entry.0 += 1;
        entry.1 = entry.1.min(ticket.created);
    }
    let mut queue_table = Table::new(&["Queue", "#Tickets", "Oldest since"], "No ticket waits.");
    for (queue, (count, since)) in queues {
        queue_table.push([Cell::text(queue), Cell::number(count), Cell::Time(time(since.micros()))], []);
    }
    let empty = "This process has no [matchmaking.profiles.NAME], so it cannot say who is matched.";
    let titles = ["Profile", "#Tickets that it admits", "#Starving", "Oldest since"];
    let mut profile_table = Table::new(&titles, empty);
    let mut warnings = Vec::new();
    for profile in admin.profiles().iter() {
        let admitted: Vec<Arc<Ticket>> =
            sample.iter().filter(|ticket| profile.admits(ticket, Moment::from(now))).cloned().collect();
        let since = admitted.iter().map(|ticket| ticket.created).min();
        let since = Cell::optional(since, |since| Cell::Time(time(since.micros())));
        let starving = profile.max_wait.map(|_| profile.starving(&admitted, Moment::from(now)));
        let starving = Cell::optional(starving, Cell::number);
        profile_table.push([Cell::text(&*profile.name), Cell::number(admitted.len()), starving, since], []);
        let found = profile.function.warnings(&admitted);
        warnings.extend(found.into_iter().map(|warning| format!("Profile {}: {warning}.", profile.name)));
    }
    let about = format!("Of the {} oldest tickets.", times.oldest.len());
    let queues = Section::new("queues", "Queues and profiles");
    let queues = queues.text(about).block(queue_table).block(profile_table);
    let queues = warnings.into_iter().fold(queues, |queues, text| queues.notice(Tone::Warning, text));
    let mut table = Table::new(&["Ticket", "Waits since", "Player", "Queue"], "No ticket waits.");
    for ticket in sample.iter().take(LISTED) {
        let player = Cell::optional(ticket.user, players::player_cell);
        let queue = Cell::optional(ticket.fields.strings.get(QUEUE_FIELD), Cell::text);
        let cells = [tickets::link(&ticket.id), Cell::Time(time(ticket.created.micros())), player, queue];
        table.push(cells, tickets::actions(&ticket.id));
    }
    table.total = Some(Count { counted: times.tickets, capped: false });
    let oldest = Section::new("oldest", "The longest waiting").block(table);
    let mut sections = vec![section, queues];
    sections.extend(held::sections(console, &ids).await?);
    sections.push(oldest);
    Ok(sections)
}

/// Returns the creation times that separate the ranges of the histogram, in microseconds and ascending.
fn bounds(now: Timestamp) -> Vec<i64> {
    let bound = |(seconds, _): &(u64, &str)| {
        let age = Duration::from_secs(*seconds);
        Moment::from(now).micros() - i64::try_from(age.as_micros()).unwrap_or(i64::MAX)
    };
    WAITS.iter().rev().map(bound).collect()
}

fn figures_of(times: &WaitingTimes) -> Block {
    let oldest = times.oldest.first().map(|(_, created)| time(*created));
    Block::Figures(vec![
        ("Tickets in matchmaking".to_owned(), Cell::number(times.tickets), None),
        ("Held by an engine or a Director".to_owned(), Cell::number(times.pending), None),
        ("Oldest since".to_owned(), Cell::optional(oldest, Cell::Time), None),
    ])
}

fn histogram(times: &WaitingTimes) -> Chart {
    let labels = WAITS.iter().map(|(_, label)| *label).chain([LONGER]);
    // The ranges begin with the oldest tickets.
    let counts = times.ranges.iter().rev();
    let bars = labels.zip(counts).map(|(label, count)| (label.to_owned(), *count as f64)).collect();
    Chart {
        title: "Tickets by waiting time".to_owned(),
        unit: Unit::Count,
        kind: ChartKind::Histogram(bars),
        href: None,
    }
}

/// Lists the latest batches of matches that were recorded.
async fn recent(console: &MatchmakingConsole) -> Result<Section, Problem> {
    let events = console.outbox.queue().list(ItemFilter::All, RECENT_EVENTS).await;
    let events = events.map_err(database_problem)?;
    let empty = format!("None of the last {RECENT_EVENTS} events is a match.");
    let mut table = Table::new(&["Recorded", "Matches", "State"], empty);
    // Only matches are recorded in batches, whose id is their key.
    let batches = events.iter().filter(|item| item.key == item.id.to_string() && item.user.is_nil());
    for item in batches.take(MAX_RECENT) {
        let link = Cell::link(item.id.to_string(), format!("/console/pipeline/{}", item.id));
        table.push([Cell::Time(item.created), link, Cell::text(item.state.word())], []);
    }
    Ok(Section::new("matches", "Recorded matches").block(table))
}

/// Returns a time from microseconds since the Unix epoch.
const fn time(micros: i64) -> Timestamp {
    Timestamp::from_millis(micros.div_euclid(1_000))
}
