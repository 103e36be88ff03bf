//! All figures, compared with their goals.

use std::collections::BTreeMap;

use open_match_load::{Faults, LoadReport};
use testkit::bench::Report;

use crate::peer::VARIABLE;
use crate::system::{SystemKind, TestBed};

/// A figure that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    Sustained,
    SustainedP99,
    ClosedRate,
    ClosedP99,
    P50,
    P99,
    Max,
    CpuTotal,
    CpuFrontend,
    CpuEngine,
    CpuRedis,
    SustainedCpuTotal,
    SustainedCpuFrontend,
    SustainedCpuEngine,
    SustainedCpuRedis,
    Commands,
    ScriptCommands,
    IdleCpu,
    IdleCpuRedis,
    IdleCommands,
    Drain,
    DrainByTwo,
    Reconnecting,
    Wrong,
    RawSets,
}

/// The goal of a figure of Playhouse.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// At least this multiple of minimatch's better figure.
    AtLeast(f64),
    /// At most this multiple of minimatch's better figure.
    AtMost(f64),
    /// Less than this number.
    Below(f64),
    /// More than another figure of Playhouse.
    MoreThan(Row),
    None,
}

impl Row {
    pub(crate) const CPU: [Self; 4] = [Self::CpuTotal, Self::CpuFrontend, Self::CpuEngine, Self::CpuRedis];
    pub(crate) const CPU_SUSTAINED: [Self; 4] = [
        Self::SustainedCpuTotal,
        Self::SustainedCpuFrontend,
        Self::SustainedCpuEngine,
        Self::SustainedCpuRedis,
    ];

    const fn about(self) -> (&'static str, Goal) {
        match self {
            Self::Sustained => ("sustained tickets/s, p99 < 1 s", Goal::AtLeast(2.0)),
            Self::SustainedP99 => ("  p99 at that rate, ms", Goal::None),
            Self::ClosedRate => ("tickets/s, closed loop of 2,000", Goal::AtLeast(2.0)),
            Self::ClosedP99 => ("  p99 at that rate, ms", Goal::None),
            Self::P50 => ("p50 at 2,000/s, ms", Goal::AtMost(0.25)),
            Self::P99 => ("p99 at 2,000/s, ms", Goal::AtMost(0.25)),
            Self::Max => ("max at 2,000/s, ms", Goal::None),
            Self::CpuTotal => ("CPU per ticket at 2,000/s, us", Goal::AtMost(0.45)),
            Self::SustainedCpuTotal => ("CPU per ticket, sustained, us", Goal::AtMost(0.45)),
            Self::CpuFrontend | Self::SustainedCpuFrontend => ("  frontend", Goal::None),
            Self::CpuEngine | Self::SustainedCpuEngine => ("  engine", Goal::None),
            Self::CpuRedis | Self::SustainedCpuRedis => ("  Redis", Goal::None),
            Self::Commands => ("Redis commands per ticket, sent", Goal::AtMost(0.5)),
            Self::ScriptCommands => ("  called inside scripts", Goal::None),
            Self::IdleCpu => ("CPU of 10,000 idle watchers, %", Goal::AtMost(0.02)),
            Self::IdleCpuRedis => ("  Redis", Goal::None),
            Self::IdleCommands => ("  Redis commands/s", Goal::Below(50.0)),
            Self::Drain => ("drain of 50,000, tickets/s", Goal::AtLeast(5.0)),
            Self::DrainByTwo => ("  by two engines", Goal::MoreThan(Self::Drain)),
            Self::Reconnecting => ("tickets/s, one connection each", Goal::None),
            Self::Wrong => ("wrong assignments", Goal::Below(1.0)),
            Self::RawSets => ("this machine: plain SETs/s of Redis", Goal::None),
        }
    }

    /// Returns whether larger is better.
    const fn more_is_better(self) -> bool {
        use Row::{ClosedRate, Drain, DrainByTwo, Reconnecting, Sustained};
        matches!(self, Sustained | ClosedRate | Drain | DrainByTwo | Reconnecting)
    }
}

/// All figures so far.
#[derive(Debug, Default)]
pub(crate) struct Results {
    figures: BTreeMap<(Row, SystemKind), Vec<f64>>,
    warnings: Vec<String>,
}

impl Results {
    pub(crate) fn add(&mut self, row: Row, kind: SystemKind, figure: f64) {
        self.figures.entry((row, kind)).or_default().push(figure);
    }

    /// Prints an intermediate result.
    pub(crate) fn print(&self, kind: SystemKind, what: &str) {
        eprintln!("{:<18} {what}", kind.name());
    }

    /// Prints the report of a run, and records its faults and warnings.
    pub(crate) fn record(&mut self, kind: SystemKind, what: &str, load: &LoadReport) {
        self.print(kind, &format!("{what}: {load}"));
        self.add_faults(kind, load.faults);
        for warning in load.warnings() {
            self.warnings.push(format!("{}, {what}: {warning}", kind.name()));
        }
    }

    /// Adds to the count of wrong assignments.
    pub(crate) fn add_faults(&mut self, kind: SystemKind, faults: Faults) {
        let Faults { alone, crowded, changed, repeated } = faults;
        let wrong = self.figures.entry((Row::Wrong, kind)).or_insert_with(|| vec![0.0]);
        wrong[0] += (alone + crowded + changed + repeated) as f64;
    }

    /// Returns the median.
    fn get(&self, row: Row, kind: SystemKind) -> Option<f64> {
        let mut figures = self.figures.get(&(row, kind))?.clone();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied()
    }

    fn best_peer(&self, row: Row) -> Option<f64> {
        let peers = [SystemKind::MinimatchGrpc, SystemKind::MinimatchConnect];
        let figures = peers.into_iter().filter_map(|kind| self.get(row, kind));
        if row.more_is_better() { figures.reduce(f64::max) } else { figures.reduce(f64::min) }
    }

    fn ratio(&self, row: Row) -> Option<f64> {
        let peer = self.best_peer(row).filter(|peer| *peer > 0.0)?;
        Some(self.get(row, SystemKind::Playhouse)? / peer)
    }

    /// Returns the goal, and whether it is reached.
    fn judge(&self, row: Row) -> (String, Option<bool>) {
        let ours = self.get(row, SystemKind::Playhouse);
        match row.about().1 {
            Goal::AtLeast(goal) => (format!(">= {goal}x"), self.ratio(row).map(|ratio| ratio >= goal)),
            Goal::AtMost(goal) => (format!("<= {goal}x"), self.ratio(row).map(|ratio| ratio <= goal)),
            Goal::Below(goal) => (format!("< {goal}"), ours.map(|ours| ours < goal)),
            Goal::MoreThan(other) => {
                let other = self.get(other, SystemKind::Playhouse);
                ("> one".to_owned(), ours.zip(other).map(|(ours, other)| ours > other))
            }
            Goal::None => (String::new(), None),
        }
    }

    pub(crate) fn report(&self, test_bed: &TestBed) {
        let kinds = SystemKind::ALL.map(SystemKind::name);
        let mut report = Report::new("matchmaking")
            .columns(["measure"].into_iter().chain(kinds).chain(["ratio", "goal", "reached"]));
        let rows: std::collections::BTreeSet<Row> = self.figures.keys().map(|(row, _)| *row).collect();
        let (mut reached, mut judged) = (0, 0);
        for row in rows {
            let (goal, verdict) = self.judge(row);
            judged += u32::from(verdict.is_some());
            reached += u32::from(verdict == Some(true));
            let figures = SystemKind::ALL.map(|kind| self.get(row, kind).map_or("-".to_owned(), short));
            let ratio = self.ratio(row).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let verdict = verdict.map_or("", |reached| if reached { "yes" } else { "NO" });
            let cells = [row.about().0.to_owned()].into_iter().chain(figures);
            report.row(cells.chain([ratio, goal, verdict.to_owned()]));
        }
        for (key, row) in [
            ("tickets_per_s", Row::Sustained),
            ("p50_ms", Row::P50),
            ("p99_ms", Row::P99),
            ("cpu_us", Row::CpuTotal),
            ("redis_commands", Row::Commands),
            ("drain_per_s", Row::Drain),
            ("raw_sets_per_s", Row::RawSets),
        ] {
            if let Some(figure) = self.get(row, SystemKind::Playhouse) {
                report.measure(key, figure);
            }
        }
        report.label("goals", &format!("{reached}/{judged}"));
        // The version of a program that was built elsewhere is unknown.
        let peer = match test_bed.has(SystemKind::MinimatchGrpc) {
            true if std::env::var_os(VARIABLE).is_some() => "given",
            true => "minimatch",
            false => "absent",
        };
        report.label("peer", peer);
        for warning in &self.warnings {
            eprintln!("warning: {warning}");
        }
        report.finish(self.ratio(Row::Sustained)).unwrap();
    }
}

fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 || figure.fract() == 0.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}
