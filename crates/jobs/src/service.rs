//! Starts, lists, stops and resumes jobs.

use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use base::{Backoff, Clock};
use db::{Db, Tx};
use serde_json::Value;
use work_queue::{
    Config, DecisionError, FailedItem, FailureHook, Filter, NewItem, PageKey, Unordered, WorkQueue,
};

use crate::model::Job;
use crate::{Error, JobId, JobView, TABLE};

/// Jobs take minutes, not milliseconds: these times need no setting.
const CONFIG: Config = Config {
    workers: 4,
    batch: 1,
    poll: Duration::from_secs(1),
    lease: Duration::from_secs(15),
    max_attempts: 10,
    retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
    retention: Duration::from_secs(30 * 86_400),
};

/// The jobs. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Jobs {
    pub(crate) queue: Unordered,
    pub(crate) db: Db,
}

/// Logs jobs that were given up.
#[derive(Debug)]
struct LogFailed;

impl FailureHook for LogFailed {
    fn record_failure(&self, _: &mut Tx, _: FailedItem<'_>) {}

    fn committed(&self, FailedItem { item, cause }: FailedItem<'_>) {
        let id = item.id;
        tracing::error!(
            job = %id, kind = item.key, cause,
            "a job failed: look at it with `playhouse jobs show {id}`, then run `playhouse jobs resume {id}`"
        );
    }
}

impl Jobs {
    pub fn new(db: Db, metrics: &work_queue::Metrics, clock: Clock) -> Self {
        Self::with_config(db, CONFIG, metrics, clock)
    }

    /// Creates jobs with other times, for tests.
    pub fn with_config(db: Db, config: Config, metrics: &work_queue::Metrics, clock: Clock) -> Self {
        let config = Config { batch: 1, ..config };
        let queue = WorkQueue::new(TABLE, db.clone(), config, metrics.for_queue(TABLE), clock);
        Self { queue: queue.with_failure_hook(Arc::new(LogFailed)).unordered(), db }
    }

    /// Starts a job. `expected` is how many items match its filter now.
    pub async fn start(
        &self,
        kind: &'static str,
        filter: Value,
        expected: u64,
        operator: &str,
    ) -> Result<JobId, Error> {
        let id = Uuid::now_v7();
        let job = Job {
            kind: kind.to_owned(),
            filter,
            operator: operator.to_owned(),
            expected,
            done: 0,
            failed: 0,
            failures: Vec::new(),
            cursor: Value::Null,
        };
        let payload = job.payload();
        let starting = async {
            let mut tx = self.db.begin().await?;
            self.queue.push(&mut tx, &[NewItem { id, user: Uuid::nil(), key: kind, payload: &payload }]);
            tx.commit().await
        };
        self.db.bounded(starting).await?;
        tracing::info!(job = %id, kind, operator, expected, "an operator started a job");
        Ok(JobId::from_uuid(id))
    }

    /// Lists jobs, newest first, after the job with the number `before`.
    pub async fn list(&self, before: Option<i64>, limit: u32) -> Result<Vec<JobView>, Error> {
        let after = before.map(|number| PageKey { due: base::Timestamp::from_millis(i64::MAX), number });
        let items = self.queue.page(Filter::All, after, limit).await?;
        Ok(items.into_iter().map(JobView::new).collect())
    }

    /// Returns a job.
    pub async fn find(&self, id: JobId) -> Result<JobView, Error> {
        let item = self.queue.find(*id.as_uuid()).await?;
        item.map(JobView::new).ok_or(Error::NotFound(id))
    }

    /// Stops a job: it starts no further step until it is resumed.
    pub async fn stop(&self, id: JobId) -> Result<(), Error> {
        match self.queue.hold(*id.as_uuid()).await? {
            Ok(()) => Ok(()),
            Err(DecisionError::Unknown) => Err(Error::NotFound(id)),
            Err(_) => Err(Error::NotPossible(format!("the job {id} is not running"))),
        }
    }

    /// Resumes a job that was stopped or has failed, after its last step.
    pub async fn resume(&self, id: JobId) -> Result<(), Error> {
        let job = self.find(id).await?;
        let resumed = match job.state {
            work_queue::State::Failed => self.queue.retry(job.number).await?,
            _ => self.queue.resume(*id.as_uuid()).await?,
        };
        resumed.map_err(|_| Error::NotPossible(format!("the job {id} is not stopped")))
    }
}
