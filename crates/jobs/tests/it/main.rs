//! Jobs on real stores: SQLite and MariaDB.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::id::ProcessId;
use base::{Backoff, Clock};
use config::{Setting, Value};
use db::{Db, DbUrl};
use jobs::{JobId, JobView, Jobs};
use prometheus_client::registry::Registry;
use runtime::lifecycle::Drain;
use serde_json::json;
use service::{JobError, JobKind, JobStep, Provided, ScreenRequest, Service as _, StepReport};
use testkit::{SqlServer, TestDatabase};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);
/// How many items the test's job has, and how many a step changes.
const ITEMS: u64 = 50;
const PER_STEP: u64 = 5;

/// Runs each test on both dialects.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&testkit::TestDatabase::sqlite().unwrap()).await;
            })*
        }

        mod on_server {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let server = testkit::need!(super::SqlServer::shared().await);
                super::$name(&super::TestDatabase::Server(server.database().await)).await;
            })*
        }
    };
}

on_both![
    job_continues_in_another_process_after_a_crash,
    stopped_job_changes_nothing_until_it_is_resumed,
    failing_step_is_retried_then_the_job_fails_and_can_be_resumed,
    screens_show_the_progress,
];

/// What the steps of the test's job change. The bits stand for items.
#[derive(Clone, Debug, Default)]
struct Chores {
    changed: Arc<AtomicU64>,
    steps: Arc<AtomicU64>,
    /// While set, a step waits.
    is_closed: Arc<AtomicBool>,
    is_broken: Arc<AtomicBool>,
}

async fn step(chores: Chores, input: JobStep) -> Result<StepReport, JobError> {
    if chores.is_broken.load(Ordering::SeqCst) {
        return Err(JobError::new("the shop is broken"));
    }
    let first = input.cursor.as_u64().unwrap_or_default();
    if first > 0 {
        while chores.is_closed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    for item in first..first + PER_STEP {
        chores.changed.fetch_or(1 << item, Ordering::SeqCst);
    }
    chores.steps.fetch_add(1, Ordering::SeqCst);
    let next = first + PER_STEP;
    let failed = if first == 0 { vec![("item-0".to_owned(), "it is stuck".to_owned())] } else { Vec::new() };
    Ok(StepReport {
        done: PER_STEP - failed.len() as u64,
        failed,
        cursor: json!(next),
        is_finished: next >= ITEMS,
        ..StepReport::default()
    })
}

struct Fixture {
    jobs: Jobs,
    chores: Chores,
    provided: Provided,
}

impl Fixture {
    async fn new(place: &TestDatabase) -> Self {
        let url = DbUrl::parse(&Value::Text(place.url())).unwrap();
        let config =
            db::Config { url, max_connections: 8, acquire_timeout: Duration::from_secs(5), migrate: true };
        let db = Db::open(&config).await.unwrap();
        db.migrate(&[jobs::MIGRATIONS]).await.unwrap();
        let config = work_queue::Config {
            workers: 1,
            batch: 1,
            poll: Duration::from_millis(20),
            lease: Duration::from_secs(1),
            max_attempts: 3,
            retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(50)),
            retention: Duration::from_secs(3600),
        };
        let metrics = work_queue::Metrics::new(&mut Registry::default(), "jobs");
        let jobs = Jobs::with_config(db, config, &metrics, Clock::system());
        let (chores, provided) = (Chores::default(), Provided::default());
        provided.put("test", chores.clone()).unwrap();
        provided.put("test", jobs.clone()).unwrap();
        Self { jobs, chores, provided }
    }

    /// Runs jobs as another process does.
    fn process(&self) -> JoinHandle<()> {
        let (jobs, provided) = (self.jobs.clone(), self.provided.clone());
        let kinds = vec![JobKind::new("test.chores", "Do chores", step)];
        tokio::spawn(async move {
            jobs.run(ProcessId::generate(), kinds, provided, Drain::default()).await.unwrap();
        })
    }

    async fn start(&self) -> JobId {
        self.jobs.start("test.chores", json!({ "all": true }), ITEMS, "ada").await.unwrap()
    }

    async fn wait_for(&self, id: JobId, what: &str, is_met: impl Fn(&JobView) -> bool) -> JobView {
        testkit::eventually(what, PATIENCE, async || {
            let job = self.jobs.find(id).await.unwrap();
            if is_met(&job) { Ok(job) } else { Err(format!("{job:?}")) }
        })
        .await
    }
}

async fn job_continues_in_another_process_after_a_crash(place: &TestDatabase) {
    let fixture = Fixture::new(place).await;
    fixture.chores.is_closed.store(true, Ordering::SeqCst);
    let first = fixture.process();
    let id = fixture.start().await;
    fixture.wait_for(id, "the first step is recorded", |job| job.done > 0).await;
    // Dropped in the middle of the second step: it releases nothing.
    first.abort();
    let _ = first.await;
    fixture.chores.is_closed.store(false, Ordering::SeqCst);
    let second = fixture.process();
    let job = fixture.wait_for(id, "the job is done", |job| job.state_word() == "DONE").await;
    assert_eq!((job.done, job.failed, job.expected), (ITEMS - 1, 1, ITEMS));
    assert_eq!(job.failures[0].cause, "it is stuck");
    assert_eq!(fixture.chores.changed.load(Ordering::SeqCst), (1 << ITEMS) - 1, "every item is changed");
    second.abort();
}

async fn stopped_job_changes_nothing_until_it_is_resumed(place: &TestDatabase) {
    let fixture = Fixture::new(place).await;
    fixture.chores.is_closed.store(true, Ordering::SeqCst);
    let process = fixture.process();
    let id = fixture.start().await;
    fixture.wait_for(id, "the first step is recorded", |job| job.done > 0).await;
    fixture.jobs.stop(id).await.unwrap();
    assert_eq!(fixture.jobs.find(id).await.unwrap().state_word(), "STOPPED");
    assert!(fixture.jobs.stop(id).await.is_err(), "it is stopped already");
    // The step in flight ends, and is recorded.
    fixture.chores.is_closed.store(false, Ordering::SeqCst);
    let counted = 2 * PER_STEP - 1;
    fixture.wait_for(id, "the step in flight is recorded", |job| job.done == counted).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.chores.steps.load(Ordering::SeqCst), 2, "no further step began");
    fixture.jobs.resume(id).await.unwrap();
    let job = fixture.wait_for(id, "the job is done", |job| job.state_word() == "DONE").await;
    assert_eq!(job.done, ITEMS - 1);
    assert_eq!(fixture.chores.steps.load(Ordering::SeqCst), ITEMS / PER_STEP, "no step ran twice");
    process.abort();
}

async fn failing_step_is_retried_then_the_job_fails_and_can_be_resumed(place: &TestDatabase) {
    let fixture = Fixture::new(place).await;
    fixture.chores.is_broken.store(true, Ordering::SeqCst);
    let process = fixture.process();
    let id = fixture.start().await;
    let job = fixture.wait_for(id, "the job has failed", |job| job.state_word() == "FAILED").await;
    assert_eq!(job.cause.as_deref(), Some("the shop is broken"));
    fixture.chores.is_broken.store(false, Ordering::SeqCst);
    fixture.jobs.resume(id).await.unwrap();
    fixture.wait_for(id, "the job is done", |job| job.state_word() == "DONE").await;
    process.abort();
}

async fn screens_show_the_progress(place: &TestDatabase) {
    let fixture = Fixture::new(place).await;
    let id = fixture.start().await;
    let screens = jobs::Wiring.screens();
    let read = async |path: &str| {
        let (screen, parameters) =
            screens.iter().find_map(|screen| Some((screen, screen.matches(path)?))).unwrap();
        let request = ScreenRequest { parameters, query: [].into() };
        format!("{:?}", screen.read(fixture.provided.clone(), request).await.unwrap())
    };
    let list = read("/console/jobs").await;
    assert!(list.contains("test.chores") && list.contains("POST /jobs/{job_id}/stop"), "{list}");
    let one = read(&format!("/console/jobs/{id}")).await;
    assert!(one.contains("RUNNING") && one.contains("ada"), "{one}");
    assert_eq!(one, read(&format!("/console/jobs/{id}")).await, "a view is deterministic");
    let process = fixture.process();
    fixture.wait_for(id, "the job is done", |job| job.state_word() == "DONE").await;
    assert!(read(&format!("/console/jobs/{id}")).await.contains("it is stuck"));
    process.abort();
}
