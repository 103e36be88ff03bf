//! The report as a view: figures, checks and charts.

use std::time::Duration;

use screens::{Block, Cell, Chart, ChartKind, Section, Series, Table, Tone, Unit, View};

use super::{Report, millis};
use crate::checks::Promise;
use crate::meter::Second;

/// How many violations a table has. The JSON report has all of them.
const LISTED: usize = 200;

impl Report {
    /// Returns the report as a view.
    pub fn to_view(&self) -> View {
        View::titled(format!("Simulation: {}", self.name))
            .section(self.summary())
            .section(self.checks())
            .section(self.charts())
            .section(self.requests())
            .section(self.events())
    }

    fn summary(&self) -> Section {
        let section = Section::new("summary", "Summary");
        let section = if self.is_clean() {
            section.notice(Tone::Good, "All checks passed.")
        } else {
            section.notice(
                Tone::Bad,
                format!("{} of {} promises are broken.", self.broken(), Promise::ALL.len()),
            )
        };
        let section = if self.is_interrupted() {
            let what = "The run was stopped. Players who had not finished are checked as far as they got.";
            section.notice(Tone::Warning, what)
        } else {
            section
        };
        let figure = |name: &str, count: u64| (name.to_owned(), Cell::number(count), None);
        let counts = &self.figures.counts;
        let mut figures = vec![figure("players", self.history.players.len() as u64)];
        figures.extend(self.outcomes().into_iter().map(|(name, count)| figure(name, count)));
        figures.push(figure("notifications", counts.notified));
        figures.push(figure("requests", counts.requests));
        let facts = [
            ("Scenario", Cell::text(&self.name)),
            ("Began", Cell::Time(self.began)),
            ("Took", Cell::Duration(self.took)),
            ("Players sign in with", Cell::text(self.sign_in)),
            ("Seed", Cell::code(self.seed.to_string())),
            ("Run", Cell::code(&self.run)),
            ("Retried requests", Cell::number(counts.retries)),
            ("Reconnects", Cell::number(counts.reconnects)),
            ("Silent streams given up", Cell::number(counts.silences)),
            ("Held back by the simulator, p99 ms", Cell::Decimal(self.held_back())),
            ("Renewed access tokens", Cell::number(counts.renewals)),
        ];
        section.block(Block::Figures(figures)).facts(facts)
    }

    fn checks(&self) -> Section {
        let mut table = Table::new(&["Promise", "Result"], "Nothing was checked.");
        for promise in Promise::ALL {
            let count = self.violations_of(promise).count();
            let result = match count {
                0 => Cell::state(Tone::Good, "holds"),
                count => Cell::state(Tone::Bad, base::counted(count as u64, "violation")),
            };
            table = table.row([Cell::text(promise.to_string()), result]);
        }
        let section = Section::new("checks", "Checks").block(table);
        if self.is_clean() {
            return section;
        }
        let rows = self.violations.iter().take(LISTED);
        let list = rows.fold(Table::new(&["Promise", "What was found"], ""), |table, violation| {
            table.row([Cell::text(violation.promise.to_string()), Cell::text(&violation.what)])
        });
        section.block(list)
    }

    fn charts(&self) -> Section {
        let each = |value: fn(&Second) -> f64| -> Vec<Option<f64>> {
            self.figures.seconds.iter().map(|second| Some(value(second))).collect()
        };
        let line = |title: &str, unit, series: Vec<(&str, Vec<Option<f64>>)>| {
            let series = series.into_iter().map(|(name, values)| self.series(name, values)).collect();
            Chart { title: title.to_owned(), unit, kind: ChartKind::Ended(series), href: None }
        };
        let quantile = |second: &Second, quantile| second.latency.value_at_quantile(quantile) as f64 / 1e6;
        let mut charts = vec![
            line(
                "Arrivals",
                Unit::PerSecond,
                vec![("arrivals", each(|second| second.counts.arrived as f64))],
            ),
            line(
                "Requests",
                Unit::PerSecond,
                vec![("requests", each(|second| second.counts.requests as f64))],
            ),
            line(
                "Time of a request",
                Unit::Seconds,
                vec![
                    ("p50", self.figures.seconds.iter().map(|second| Some(quantile(second, 0.5))).collect()),
                    ("p99", self.figures.seconds.iter().map(|second| Some(quantile(second, 0.99))).collect()),
                ],
            ),
            line(
                "Notifications",
                Unit::PerSecond,
                vec![("notifications", each(|second| second.counts.notified as f64))],
            ),
            line(
                "Tickets matched",
                Unit::PerSecond,
                vec![("matched", each(|second| second.counts.matched as f64))],
            ),
            line(
                "Retries and reconnects",
                Unit::PerSecond,
                vec![
                    ("retries", each(|second| second.counts.retries as f64)),
                    ("reconnects", each(|second| second.counts.reconnects as f64)),
                ],
            ),
        ];
        if !self.figures.drop.is_empty() {
            let sampled = |value: fn(&(f64, u64, u64)) -> u64, name: &str| {
                let points = self.figures.drop.iter();
                let points = points.map(|sample| (self.at(sample.0), Some(value(sample) as f64))).collect();
                Series { name: name.to_owned(), points }
            };
            let chart = |title: &str, series| Chart {
                title: title.to_owned(),
                unit: Unit::Count,
                kind: ChartKind::Ended(vec![series]),
                href: None,
            };
            charts.push(chart("Players in line", sampled(|sample| sample.1, "waiting")));
            charts.push(chart("Units available", sampled(|sample| sample.2, "available")));
        }
        Section::new("charts", "Second by second").block(Block::Charts(charts))
    }

    fn requests(&self) -> Section {
        let titles = ["Request", "#Count", "#Refused", "#p50 ms", "#p99 ms", "#max ms"];
        let table =
            self.figures.calls.iter().fold(Table::new(&titles, "No requests."), |table, (name, call)| {
                let at = |quantile| Cell::Decimal(millis(call.latency.value_at_quantile(quantile)));
                let (count, refused) = (Cell::number(call.latency.len()), Cell::number(call.refused));
                table.row([
                    Cell::text(*name),
                    count,
                    refused,
                    at(0.5),
                    at(0.99),
                    Cell::Decimal(millis(call.latency.max())),
                ])
            });
        Section::new("requests", "Requests").block(table)
    }

    fn events(&self) -> Section {
        let table = self
            .figures
            .marks
            .iter()
            .fold(Table::new(&["Second", "What"], "Nothing."), |table, (at, what)| {
                table.row([Cell::Decimal((at * 10.0).round() / 10.0), Cell::text(what)])
            });
        Section::new("events", "Faults and events").block(table)
    }

    fn series(&self, name: &str, values: Vec<Option<f64>>) -> Series {
        let points = values.into_iter().enumerate().map(|(second, value)| (self.at(second as f64), value));
        Series { name: name.to_owned(), points: points.collect() }
    }

    fn at(&self, seconds: f64) -> base::Timestamp {
        self.began.after(Duration::from_secs_f64(seconds))
    }
}
