//! The overview: is anything wrong, since when?

use std::time::Duration;

use base::finding::{Finding, Verdict};
use http_server::Problem;
use screens::{Block, Cell, Chart, ChartKind, Figure, Measure, Section, Series, Table, Tone, Unit, View};
use service::{Screen, ScreenRequest, Services};

use super::{NODES, to_problem, verdict_cell};
use crate::Fleet;
use crate::model::ProcessState;
use crate::status::{Snapshot, Status};

pub(super) const PATH: &str = "/console";

pub(super) async fn read(fleet: Fleet, _: ScreenRequest) -> Result<View, Problem> {
    let snapshot = fleet.snapshot().await.map_err(to_problem)?;
    Ok(view(&snapshot, fleet.services()))
}

fn view(snapshot: &Snapshot, services: Services) -> View {
    let figures = Section::new("figures", "Now").block(Block::Figures(numbers(snapshot)));
    let charts = Section::new("charts", "The last half hour");
    let has_values = snapshot.figures.iter().any(|(_, series)| latest(series).is_some());
    let charts = if has_values {
        charts.block(Block::Charts(snapshot.figures.iter().map(chart).collect()))
    } else {
        let text = "No figures yet. Every process records them every 10 seconds; the first ones are about to appear.";
        charts.block(Block::Empty { text: text.to_owned(), link: None })
    };
    View::new().section(findings(snapshot, services)).section(figures).section(charts)
}

/// Shows the findings that are not good, the worst first, and counts the others.
fn findings(snapshot: &Snapshot, services: Services) -> Section {
    let section = Section::new("findings", "Is anything wrong?");
    let all = &snapshot.status.findings;
    let (good, mut bad): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, finding)| finding.verdict == Verdict::Good);
    let good = match good.len() {
        0 => "No check is good.".to_owned(),
        1 => "1 check is good.".to_owned(),
        count => format!("{count} checks are good."),
    };
    if bad.is_empty() {
        return section.notice(Tone::Good, format!("Nothing is wrong. {good}"));
    }
    bad.sort_by_key(|(_, finding)| std::cmp::Reverse(finding.verdict));
    let mut table = Table::new(&["State", "What", "Since", "What to do", "Where"], "");
    for (part, finding) in bad {
        table.push(row(snapshot, services, part, finding), []);
    }
    section.block(table).text(format!("{good} Advice that names a command works in a shell, too."))
}

fn row(snapshot: &Snapshot, services: Services, part: &'static str, finding: &Finding) -> [Cell; 5] {
    [
        verdict_cell(finding.verdict),
        Cell::text(&finding.what),
        Cell::optional(snapshot.times.since(part, finding), Cell::Time),
        Cell::optional(finding.advice.as_ref(), Cell::text),
        screen_of(services, part, finding)
            .map_or_else(|| Cell::text(part), |(title, path)| Cell::link(title, path)),
    ]
}

/// Returns the screen that a finding names, or the first one in the menu of its service.
fn screen_of(services: Services, part: &str, finding: &Finding) -> Option<(&'static str, &'static str)> {
    let service = services.iter().find(|service| service.name() == part)?;
    let is_shown = |screen: &&Screen| match finding.screen {
        Some(path) => screen.path == path,
        None => screen.menu.is_some() && screen.path != PATH,
    };
    let screens = service.screens();
    let screen = screens.iter().find(is_shown)?;
    Some((screen.title, screen.path))
}

/// Returns the processes that run, and the latest value of each gauge.
fn numbers(snapshot: &Snapshot) -> Vec<(String, Cell, Option<String>)> {
    let Status { now, processes, .. } = &snapshot.status;
    let running = processes.iter().filter(|process| process.state(*now) == ProcessState::Running).count();
    let processes = ("Processes running".to_owned(), Cell::number(running), Some(NODES.to_owned()));
    let gauges = snapshot.figures.iter().filter(|(figure, _)| figure.measure == Measure::Gauge);
    let latest = gauges.map(|(figure, series)| {
        let value = Cell::optional(latest(series), |value| number(figure.unit, value));
        (figure.title.to_owned(), value, Some(figure.href.to_owned()))
    });
    [processes].into_iter().chain(latest).collect()
}

/// Returns the last value of a series, if it is at most two points old.
fn latest(series: &Series) -> Option<f64> {
    series.points.iter().rev().take(2).find_map(|(_, value)| *value)
}

fn number(unit: Unit, value: f64) -> Cell {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and gauges are small")]
    let whole = value.round() as i64;
    match unit {
        Unit::Seconds => Duration::try_from_secs_f64(value.max(0.0)).map_or(Cell::None, Cell::Duration),
        Unit::PerSecond => Cell::Decimal(value),
        Unit::Count => Cell::Number(whole),
        Unit::Bytes => Cell::text(format!("{} MB", whole / 1_000_000)),
    }
}

fn chart((figure, series): &(Figure, Series)) -> Chart {
    Chart {
        title: figure.title.to_owned(),
        unit: figure.unit,
        kind: ChartKind::Line(vec![series.clone()]),
        href: Some(figure.href.to_owned()),
    }
}
