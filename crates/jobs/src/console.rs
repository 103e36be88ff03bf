//! The screens of jobs.

use http_server::Problem;
use screens::{ActionLink, Block, Cell, Count, Section, Table, Tone, View};
use service::{Menu, Screen, ScreenRequest};

use crate::admin::{parse, problem};
use crate::{COUNT_CAP, JobView, Jobs};

/// How many jobs a page lists.
const PAGE: u32 = 50;

pub(crate) fn screens() -> Vec<Screen> {
    const QUESTION: &str = "How far is this bulk action?";
    vec![
        Screen::listed(Menu::System, "/console/jobs", "Jobs", QUESTION, list),
        Screen::linked("/console/jobs/{job_id}", "Job", QUESTION, show),
    ]
}

async fn list(jobs: Jobs, request: ScreenRequest) -> Result<View, Problem> {
    let before = request.query("after").and_then(|after| after.parse().ok());
    let found = jobs.list(before, PAGE).await.map_err(problem)?;
    let mut table = Table::new(
        &["Job", "State", "#Changed", "#Of", "#Failed", "Started", "Ended", "Operator"],
        "No bulk action was started in the last 30 days. Retrying failed events or replaying dead letters starts one.",
    );
    table.next =
        found.last().filter(|_| found.len() == PAGE as usize).map(|job| format!("after={}", job.number));
    for job in &found {
        let cells = [
            Cell::link(&job.kind, format!("/console/jobs/{}", job.id)),
            state(job),
            Cell::number(job.done),
            Cell::Count(Count::up_to(job.expected, COUNT_CAP)),
            Cell::number(job.failed),
            Cell::Time(job.created),
            Cell::optional(job.ended(), Cell::Time),
            Cell::text(&job.operator),
        ];
        table.push(cells, actions(job));
    }
    Ok(View::new().section(Section::new("jobs", "Jobs").block(table)))
}

async fn show(jobs: Jobs, request: ScreenRequest) -> Result<View, Problem> {
    let job = jobs.find(parse(request.parameter("job_id"))?).await.map_err(problem)?;
    let mut progress = Section::new("progress", "Progress").block(Block::Figures(vec![
        ("Changed".to_owned(), Cell::number(job.done), None),
        ("Of".to_owned(), Cell::Count(Count::up_to(job.expected, COUNT_CAP)), None),
        ("Failed".to_owned(), Cell::number(job.failed), None),
    ]));
    progress = progress.facts([
        ("State", state(&job)),
        ("Cause", Cell::optional(job.cause.as_deref(), Cell::text)),
        ("Started", Cell::Time(job.created)),
        ("Ended", Cell::optional(job.ended(), Cell::Time)),
        ("Operator", Cell::text(&job.operator)),
        ("Runs in process", Cell::optional(job.holder, |holder| Cell::code(holder.to_string()))),
        ("Job", Cell::code(job.id.to_string())),
    ]);
    progress.actions = actions(&job);
    let filter = serde_json::to_string_pretty(&job.filter).unwrap_or_default();
    let filter = Section::new("filter", "Filter").block(Block::Code(filter));
    let mut failures = Table::new(&["Item", "Cause"], "Every item so far was changed.");
    for failure in &job.failures {
        failures.push([Cell::code(&failure.id), Cell::text(&failure.cause)], []);
    }
    let failures = Section::new("failures", "Items that could not be changed").block(failures);
    Ok(View::titled(job.kind).section(progress).section(filter).section(failures))
}

fn state(job: &JobView) -> Cell {
    let tone = match job.state_word() {
        "DONE" if job.failed == 0 => Tone::Good,
        "DONE" | "STOPPED" => Tone::Warning,
        "FAILED" => Tone::Bad,
        _ => Tone::Neutral,
    };
    Cell::state(tone, job.state_word())
}

fn actions(job: &JobView) -> Vec<ActionLink> {
    let route = match job.state_word() {
        "RUNNING" => "POST /jobs/{job_id}/stop",
        "STOPPED" | "FAILED" => "POST /jobs/{job_id}/resume",
        _ => return Vec::new(),
    };
    vec![ActionLink::new(route).with("job_id", job.id)]
}
