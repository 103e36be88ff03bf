//! `playhouse jobs`, and how other commands wait for the jobs that they start.

use std::time::Duration;

use anyhow::bail;
use reqwest::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::admin::AdminClient;
use super::{ExitStatus, encoded, items, text};
use crate::cli::{Jobs, JobsCommand};
use crate::{print, print_error};

/// How often a job is read while a command waits for it: often at first, because most jobs are short.
const FIRST_INTERVAL: Duration = Duration::from_millis(50);
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: Jobs) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let render = |found: &Value| if args.target.json { found.to_string() } else { show(found) };
    let shown = match &args.command {
        JobsCommand::List { limit } => {
            let found = admin.call(Method::GET, &format!("/jobs?limit={limit}")).await?;
            if args.target.json { found.to_string() } else { list(&found) }
        }
        JobsCommand::Show { job, watch } => {
            let mut found = admin.call(Method::GET, &path(job)).await?;
            while *watch && is_running(&found) {
                print(&render(&found))?;
                sleep(INTERVAL).await;
                found = admin.call(Method::GET, &path(job)).await?;
            }
            render(&found)
        }
        JobsCommand::Stop { job } => render(&admin.call(Method::POST, &format!("{}/stop", path(job))).await?),
        JobsCommand::Resume { job } => {
            render(&admin.call(Method::POST, &format!("{}/resume", path(job))).await?)
        }
    };
    print(&shown)?;
    Ok(ExitStatus::Done)
}

/// Waits until the job that a route started has ended, and prints its progress. Returns the job. It continues if the command is
/// interrupted.
pub(super) async fn wait(admin: &AdminClient, started: &Value) -> anyhow::Result<Value> {
    let id = text(&started["job_id"]);
    let (mut interval, mut printed) = (FIRST_INTERVAL, Instant::now());
    loop {
        let job = admin.call(Method::GET, &path(id)).await?;
        if !is_running(&job) {
            return Ok(job);
        }
        if printed.elapsed() >= INTERVAL {
            printed = Instant::now();
            print_error(&format!(
                "{} of {} … (`playhouse jobs stop {id}` stops it)",
                job["done"],
                expected(&job)
            ));
        }
        sleep(interval).await;
        interval = (interval * 2).min(INTERVAL);
    }
}

/// Prints the result of a job that has ended. The command fails if the job was stopped, or could not change every item.
pub(super) fn finished(
    job: &Value,
    json: bool,
    shown: impl FnOnce(&Value) -> String,
) -> anyhow::Result<ExitStatus> {
    let (id, failed) = (text(&job["id"]), job["failed"].as_u64().unwrap_or_default());
    match text(&job["state"]) {
        "DONE" => {}
        "STOPPED" => {
            bail!("the job was stopped after {}: `playhouse jobs resume {id}` continues it", job["done"])
        }
        _ => bail!("the job failed: {}. `playhouse jobs resume {id}` continues it", text(&job["cause"])),
    }
    if json {
        print(&job.to_string())?;
    } else {
        let mut lines = vec![shown(job)];
        lines.extend(failures(job));
        print(&lines.join("\n"))?;
    }
    Ok(if failed == 0 { ExitStatus::Done } else { ExitStatus::Failed })
}

fn failures(job: &Value) -> Vec<String> {
    let (failed, listed) = (job["failed"].as_u64().unwrap_or_default(), items(job, "failures"));
    if failed == 0 {
        return Vec::new();
    }
    let first = if failed > listed.len() as u64 { "; the first ones" } else { "" };
    let changed = if job["kind"] == "dlq.replay" { "replayed" } else { "changed" };
    let mut lines = vec![format!("{failed} could not be {changed}{first}:")];
    lines.extend(listed.iter().map(|item| format!("  {}  {}", text(&item["id"]), text(&item["cause"]))));
    lines
}

fn path(job: &str) -> String {
    format!("/jobs/{}", encoded(job))
}

fn is_running(job: &Value) -> bool {
    job["state"] == "RUNNING"
}

/// Returns how many items matched at the start. They are counted up to a limit.
fn expected(job: &Value) -> String {
    match job["expected"].as_u64().unwrap_or_default() {
        10_001.. => "10,000 or more".to_owned(),
        expected => expected.to_string(),
    }
}

fn list(found: &Value) -> String {
    let jobs = items(found, "jobs");
    if jobs.is_empty() {
        return "No jobs in the last 30 days.".to_owned();
    }
    jobs.iter().map(summary).collect::<Vec<_>>().join("\n")
}

fn summary(job: &Value) -> String {
    format!(
        "{}  {:<8} {:<18} {} of {}  {}  by {}",
        text(&job["id"]),
        text(&job["state"]),
        text(&job["kind"]),
        job["done"],
        expected(job),
        text(&job["created"]),
        text(&job["operator"])
    )
}

fn show(job: &Value) -> String {
    let mut lines = vec![summary(job), format!("  filter {}", job["filter"])];
    lines.extend(job["cause"].as_str().map(|cause| format!("  {cause}")));
    lines.extend(failures(job));
    lines.join("\n")
}
