//! Nodes and stores: which process, version, role and lease is where?

use base::id::ProcessId;
use config::Choice;
use http_server::Problem;
use runtime::Readiness;
use runtime::lifecycle::{PartState, Report};
use screens::{Block, Cell, Section, Table, Tone, View};
use service::{DependencyCheck, ScreenRequest};

use super::{to_problem, verdict_cell};
use crate::doctor::Doctor;
use crate::model::{ProcessState, ProcessView};
use crate::{Fleet, Status};

/// What the screen reads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    fleet: Fleet,
    /// This process.
    process: ProcessId,
    readiness: Readiness,
    doctor: Doctor,
}

impl Nodes {
    pub(crate) const fn new(fleet: Fleet, process: ProcessId, readiness: Readiness, doctor: Doctor) -> Self {
        Self { fleet, process, readiness, doctor }
    }
}

pub(super) async fn read(nodes: Nodes, _: ScreenRequest) -> Result<View, Problem> {
    // The state of this process and its stores is shown also if the database is away.
    let (snapshot, checks) = tokio::join!(nodes.fleet.snapshot(), nodes.doctor.checks());
    let fleet = match snapshot.map_err(to_problem) {
        Ok(snapshot) => fleet_sections(&snapshot.status),
        Err(_) => vec![
            Section::new("processes", "Processes")
                .notice(Tone::Bad, "The database does not answer, so the other processes are unknown."),
        ],
    };
    let own = [readiness(&nodes.process.to_string(), &nodes.readiness.report()), stores(checks.as_deref())];
    Ok(fleet.into_iter().chain(own).fold(View::new(), View::section))
}

fn fleet_sections(status: &Status) -> Vec<Section> {
    let titles =
        ["Process", "State", "Version", "Roles", "Admin address", "Started", "Last seen", "Claimed items"];
    let mut table = Table::new(&titles, "No process has a row. Start one with `playhouse serve`.");
    for process in &status.processes {
        table.push(process_row(status, process), []);
    }
    let mut processes = Section::new("processes", "Processes");
    for role in &status.missing {
        let word = role.word();
        let text = format!(
            "No process has the role {word}. Start one with `playhouse serve --roles {word}`, or remove it from \
             process.expected_roles."
        );
        processes = processes.notice(Tone::Bad, text);
    }
    vec![processes.block(table)]
}

fn process_row(status: &Status, process: &ProcessView) -> [Cell; 8] {
    let state = process.state(status.now);
    let leases = status.leases.get(process.id.as_uuid());
    let leases = leases.into_iter().flatten().map(|(queue, items)| Cell::text(format!("{queue}: {items}")));
    let leases: Vec<Cell> = leases.collect();
    [
        Cell::code(process.id.to_string()),
        match state {
            ProcessState::Running => Cell::state(Tone::Good, "Running"),
            ProcessState::Gone => Cell::state(Tone::Bad, "Gone"),
        },
        Cell::text(&process.version),
        Cell::text(process.roles.join(", ")),
        Cell::code(&process.admin),
        Cell::Time(process.started_at),
        // The heartbeats of a running process change every few seconds and say nothing.
        match state {
            ProcessState::Running => Cell::text("now"),
            ProcessState::Gone => Cell::Time(process.seen_at),
        },
        if leases.is_empty() { Cell::None } else { Cell::Many(leases) },
    ]
}

fn readiness(process: &str, report: &Report) -> Section {
    let mut parts = Table::new(&["Part", "State", "Reason"], "This process has no parts.");
    for (part, state) in &report.parts {
        let (state, reason) = match state {
            PartState::Ready => (Cell::state(Tone::Good, "Ready"), Cell::None),
            PartState::NotReady(reason) => (Cell::state(Tone::Bad, "Not ready"), Cell::text(reason)),
        };
        parts.push([Cell::text(part), state, reason], []);
    }
    let mut roles = Table::new(&["Role", "State", "What is missing"], "This process has no roles.");
    for role in &report.roles {
        let state = match (role.is_ready(), role.lacks.is_empty()) {
            (true, true) => Cell::state(Tone::Good, "Ready"),
            (true, false) => Cell::state(Tone::Warning, "Degraded"),
            (false, _) => Cell::state(Tone::Bad, "Not ready"),
        };
        let lacks: Vec<Cell> =
            role.lacks.iter().map(|need| Cell::text(format!("{}: {}", need.part, need.effect))).collect();
        roles.push(
            [Cell::text(role.role), state, if lacks.is_empty() { Cell::None } else { Cell::Many(lacks) }],
            [],
        );
    }
    Section::new("readiness", "Readiness of this process")
        .text(format!("Of the process that serves this page, {process}."))
        .block(parts)
        .block(roles)
}

fn stores(checks: Option<&Vec<DependencyCheck>>) -> Section {
    let section = Section::new("stores", "Stores and dependencies")
        .text("Checked by the process that serves this page, at most every 30 seconds. `playhouse doctor` checks more.");
    let Some(checks) = checks else {
        let text = "The checks are running. Their results appear here in a moment.".to_owned();
        return section.block(Block::Empty { text, link: None });
    };
    let mut table = Table::new(&["Store", "Address", "State", "What", "What to do"], "Nothing was checked.");
    for DependencyCheck { name, address, findings } in checks {
        for finding in findings {
            let advice = Cell::optional(finding.advice.as_ref(), Cell::text);
            let what = Cell::text(&finding.what);
            table.push(
                [Cell::text(*name), Cell::code(address), verdict_cell(finding.verdict), what, advice],
                [],
            );
        }
    }
    section.block(table)
}
