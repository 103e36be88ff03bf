//! The screen of the limits: which callers do we turn away, by which rule?

use base::error::chain;
use base::id::Uuid;
use base::{Timestamp, counted};
use http_server::{ListenerConnections, Problem};
use limits::{KeyKind, RuleCounts};
use screens::{
    Block, Cell, Chart, ChartKind, Combine, Count, Figure, Link, Measure, Section, Series, Table, Tone, Unit,
    View,
};
use service::{Menu, Screen, ScreenRequest};

use crate::limits_admin::{LISTED, LimitsAdmin, LimitsReport, RatesReport};

const PATH: &str = "/console/limits";
const NODES: &str = "/console/nodes";

/// How far back the charts reach.
const CHARTED_MILLIS: i64 = 30 * 60 * 1000;

/// The refusals of all processes.
pub(crate) const FIGURES: [Figure; 2] = [
    refusals(
        "limits_refused",
        "Requests refused by rate limits",
        "playhouse_limits_decisions",
        &[("outcome", "refused")],
    ),
    refusals(
        "connections_refused",
        "Connections refused by connection limits",
        "playhouse_http_connections_refused",
        &[],
    ),
];

const fn refusals(
    name: &'static str,
    title: &'static str,
    metric: &'static str,
    labels: &'static [(&'static str, &'static str)],
) -> Figure {
    Figure {
        name,
        title,
        unit: Unit::PerSecond,
        metric,
        labels,
        measure: Measure::Rate,
        combine: Combine::Sum,
        href: PATH,
    }
}

/// Returns the screen.
pub(crate) fn screens() -> Vec<Screen> {
    vec![Screen::listed(Menu::System, PATH, "Limits", "Which callers do we turn away, by which rule?", read)]
}

async fn read(admin: LimitsAdmin, _: ScreenRequest) -> Result<View, Problem> {
    let charts = charts(&admin).await;
    Ok(view(&admin.report(LISTED), charts))
}

/// Reads the charts of all processes. None if they cannot be read; the counts of this process are known anyway.
async fn charts(admin: &LimitsAdmin) -> Option<Vec<Series>> {
    let since = Timestamp::from_millis(admin.clock.now().as_millis() - CHARTED_MILLIS);
    match admin.fleet.as_ref()?.figures(since).await {
        Ok(mut series) => Some(FIGURES.iter().filter_map(|figure| series.remove(figure.name)).collect()),
        Err(error) => {
            tracing::warn!(outage = "console", cause = chain(&error), "cannot read the charts of the limits");
            None
        }
    }
}

fn view(report: &LimitsReport, charts: Option<Vec<Series>>) -> View {
    let view = match &report.rates {
        Some(rates) => View::new().section(rules(report, rates)).section(keys(rates)),
        None => {
            let text = "The process that serves this page has no gateway, so it applies no rate limits. Open the console of a process \
                        with the role gateway.";
            let link = Some(Link::new("Processes and their admin addresses", NODES));
            View::new()
                .section(Section::new("rules", "Rules").block(Block::Empty { text: text.to_owned(), link }))
        }
    };
    view.section(fleet_section(charts)).section(connections(report))
}

fn rules(report: &LimitsReport, rates: &RatesReport) -> Section {
    let decided_by = match (rates.is_shared, rates.is_embedded) {
        (true, _) => "All processes share the limits through Redis.",
        (false, true) => "This process counts on its own, because its stores are embedded.",
        (false, false) => "This process counts on its own, because Redis does not answer.",
    };
    let refused: u64 = rates.rules.iter().map(|(_, counts)| counts.last_minute.refused).sum();
    let section = Section::new("rules", "Rules");
    let section = match refused {
        0 => section.notice(Tone::Good, "No request was refused in the last minute."),
        _ => section
            .notice(Tone::Warning, format!("{} refused in the last minute.", counted(refused, "request"))),
    };
    let mut table = Table::new(
        &[
            "Rule",
            "Counted by",
            "Limit",
            "#Refused, 1 min",
            "#Refused, 1 h",
            "#Refused, total",
            "#Allowed, 1 min",
            "#Allowed, 1 h",
            "#Allowed, total",
        ],
        "There are no rules.",
    );
    for (rate, RuleCounts { rule, since_start, last_minute, last_hour }) in &rates.rules {
        let periods = [last_minute, last_hour, since_start];
        let cells = [Cell::text(rule.policy), Cell::text(kind_text(rule.kind)), Cell::code(rate.to_string())];
        let refused = periods.map(|counts| Cell::number(counts.refused));
        let allowed = periods.map(|counts| Cell::number(counts.allowed));
        table.push(cells.into_iter().chain(refused).chain(allowed), []);
    }
    section
        .text(format!("{decided_by} The limits are settings of `gateway.limits`. {}", counts_of(report)))
        .facts([("Counts begin", Cell::Time(report.started_at))])
        .block(table)
        .block(Block::Links(vec![Link::new("Other processes and their admin addresses", NODES)]))
}

fn counts_of(report: &LimitsReport) -> String {
    format!("The counts are those of the process that serves this page, {}.", report.process)
}

fn keys(rates: &RatesReport) -> Section {
    let mut table = Table::new(
        &["Who", "Rule", "Counted by", "#Refused", "First", "Last"],
        "Nobody was refused in the last hour.",
    );
    for key in &rates.most_refused {
        let cells = [
            who(key.rule.kind, &key.key),
            Cell::text(key.rule.policy),
            Cell::text(kind_text(key.rule.kind)),
            Cell::Count(Count { counted: key.refused - key.error, capped: key.error > 0 }),
            Cell::Time(key.first),
            Cell::Time(key.last),
        ];
        table.push(cells, []);
    }
    Section::new("keys", "Most refused by this process")
        .text("A caller is listed until an hour after the last refusal. IPv6 addresses count by their /64 network.")
        .block(table)
}

fn fleet_section(charts: Option<Vec<Series>>) -> Section {
    let section = Section::new("fleet", "Refused by all processes, the last half hour");
    let Some(series) = charts else {
        return section.notice(Tone::Warning, "The charts cannot be read: the database does not answer.");
    };
    if series.iter().all(|series| series.points.iter().all(|(_, value)| value.is_none())) {
        let text = "No process has refused anything, or the first figures are not recorded yet.";
        return section.block(Block::Empty { text: text.to_owned(), link: None });
    }
    let chart = |series: Series| Chart {
        title: series.name.clone(),
        unit: Unit::PerSecond,
        kind: ChartKind::Line(vec![series]),
        href: None,
    };
    section.block(Block::Charts(series.into_iter().map(chart).collect()))
}

fn connections(report: &LimitsReport) -> Section {
    let per_address = match report.max_connections_per_address {
        0 => Cell::text("no limit"),
        limit => Cell::number(limit),
    };
    let mut table = Table::new(
        &["Listener", "#Open", "#Refused: listener full", "#Refused: too many of one address"],
        "This process has no listeners.",
    );
    for ListenerConnections { listener, open, refused_full, refused_address } in &report.connections {
        let numbers = [open, refused_full, refused_address].map(|number| Cell::number(*number));
        table.push([Cell::text(*listener)].into_iter().chain(numbers), []);
    }
    Section::new("connections", "Connections of this process")
        .facts([
            ("Most connections of a listener", Cell::number(report.max_connections)),
            ("Most connections of an address", per_address),
        ])
        .block(table)
}

const fn kind_text(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Address => "address",
        KeyKind::User => "player",
    }
}

/// Shows a caller. A player leads to its screen.
fn who(kind: KeyKind, key: &str) -> Cell {
    match kind {
        KeyKind::User if key.parse::<Uuid>().is_ok() => Cell::id(key, format!("/console/players/{key}")),
        _ if key.is_empty() => Cell::text("unknown address"),
        _ => Cell::code(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits_admin::tests::{NOW, USER, report};

    fn table<'a>(view: &'a View, id: &str) -> &'a Table {
        let section = view.sections.iter().find(|section| section.id == id).unwrap();
        let table = section.blocks.iter().find_map(|block| match block {
            Block::Table(table) => Some(table),
            _ => None,
        });
        table.unwrap()
    }

    #[test]
    fn rules_show_refusals_and_the_most_refused_lead_to_their_players() {
        let view = view(&report(), Some(Vec::new()));
        let rule = &table(&view, "rules").rows[0].cells;
        assert_eq!(rule[..3], [Cell::text("read"), Cell::text("player"), Cell::code("50/s burst 100")]);
        assert_eq!(rule[3..], [1, 4, 9, 5, 20, 50].map(Cell::Number));
        let key = &table(&view, "keys").rows[0].cells;
        assert_eq!(key[0], Cell::id(USER, format!("/console/players/{USER}")));
        assert_eq!(key[3], Cell::Count(Count { counted: 7, capped: true }), "at least");
        assert_eq!(key[5], Cell::Time(NOW));
        assert_eq!(table(&view, "connections").rows[0].cells[1..], [3, 0, 4].map(Cell::Number));
        let text = format!("{view:?}");
        assert!(text.contains("1 request refused in the last minute."), "{text}");
        assert!(text.contains("the process that serves this page"), "{text}");
    }

    #[test]
    fn process_that_counts_on_its_own_says_why() {
        let with = |is_shared, is_embedded| {
            let report = report();
            let rates = report.rates.map(|rates| RatesReport { is_shared, is_embedded, ..rates });
            format!("{:?}", view(&LimitsReport { rates, ..report }, None))
        };
        assert!(with(true, false).contains("All processes share the limits through Redis."));
        assert!(with(false, true).contains("counts on its own, because its stores are embedded."));
        assert!(with(false, false).contains("counts on its own, because Redis does not answer."));
    }

    #[test]
    fn process_without_a_gateway_says_where_to_look() {
        let view = view(&LimitsReport { rates: None, ..report() }, None);
        let text = format!("{view:?}");
        assert!(text.contains("has no gateway") && text.contains(NODES), "{text}");
        assert!(text.contains("the database does not answer"), "the charts are missing: {text}");
        assert_eq!(table(&view, "connections").rows.len(), 1);
    }

    #[test]
    fn chart_is_shown_once_there_is_a_figure() {
        let series = |value| Series { name: "Refused".to_owned(), points: vec![(NOW, value)] };
        let has_chart =
            |value| format!("{:?}", view(&report(), Some(vec![series(value)]))).contains("Charts(");
        assert_eq!([has_chart(None), has_chart(Some(1.0))], [false, true]);
    }

    #[test]
    fn caller_is_an_address_or_a_player() {
        assert_eq!(who(KeyKind::Address, "192.0.2.1"), Cell::code("192.0.2.1"));
        assert_eq!(who(KeyKind::Address, ""), Cell::text("unknown address"));
        assert_eq!(who(KeyKind::User, "not-an-id"), Cell::code("not-an-id"));
    }
}
