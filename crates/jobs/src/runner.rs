//! Runs jobs step by step.

use std::collections::BTreeMap;

use base::error::{Coded, chain};
use base::id::ProcessId;
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use service::{JobKind, JobStep, Provided};
use work_queue::{Handler, Item, ItemOutcome, RetentionCleaner, Worker};

use crate::Jobs;
use crate::model::Job;

/// The kinds of jobs, by name.
pub(crate) type Kinds = BTreeMap<&'static str, JobKind>;

impl Jobs {
    /// Runs jobs of these kinds, and removes old ones, until `drain` is requested.
    pub async fn run(
        &self,
        process: ProcessId,
        kinds: Vec<JobKind>,
        provided: Provided,
        drain: Drain,
    ) -> Result<(), LoopError> {
        let kinds: Kinds = kinds.into_iter().map(|kind| (kind.name, kind)).collect();
        let runner = JobRunner { jobs: self.clone(), kinds, provided, drain: drain.clone() };
        let worker = Worker::new(self.queue.clone(), runner, process);
        let cleaner = RetentionCleaner::new(self.queue.clone());
        futures::try_join!(Box::pin(worker.run(drain.clone())), cleaner.run(drain)).map(drop)
    }
}

#[derive(Debug)]
struct JobRunner {
    jobs: Jobs,
    kinds: Kinds,
    provided: Provided,
    drain: Drain,
}

impl Handler for JobRunner {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            outcomes.push(self.run_job(item).await);
        }
        outcomes
    }
}

enum Progress {
    More,
    Finished,
    /// The lease has expired, or an operator stopped the job.
    LeaseLost,
}

impl JobRunner {
    async fn run_job(&self, item: &Item) -> ItemOutcome {
        let mut job: Job = match serde_json::from_slice(&item.payload) {
            Ok(job) => job,
            Err(cause) => return ItemOutcome::Failed(format!("the stored job cannot be read: {cause}")),
        };
        let Some(kind) = self.kinds.get(job.kind.as_str()) else {
            // A process with another version may know it.
            return ItemOutcome::Retry(format!("this process knows no jobs of the kind {}", job.kind));
        };
        let mut has_progressed = false;
        loop {
            if self.drain.is_requested() {
                return ItemOutcome::NotAttempted("this process is stopping".to_owned());
            }
            let input = JobStep { filter: job.filter.clone(), cursor: job.cursor.clone() };
            let report = match kind.step(self.provided.clone(), input).await {
                Ok(report) => report,
                Err(error) if error.is_transient => return ItemOutcome::NotAttempted(error.cause),
                // The attempts of this item were counted before it made progress, so the next attempt counts as the first.
                Err(error) if has_progressed => {
                    let after = self.jobs.queue.config().retry.after(1);
                    return ItemOutcome::Postponed { after, cause: error.cause };
                }
                Err(error) => return ItemOutcome::Retry(error.cause),
            };
            fault::point("jobs.step");
            let next = job.after(&report);
            match self.record(item, &next, report.is_finished).await {
                Ok(Progress::Finished) => return ItemOutcome::Done,
                Ok(Progress::LeaseLost) => {
                    return ItemOutcome::NotAttempted(
                        "another process has claimed it, or an operator stopped it".to_owned(),
                    );
                }
                Ok(Progress::More) => {}
                Err(error) if error.is_transient() => return ItemOutcome::NotAttempted(chain(&error)),
                Err(error) => return ItemOutcome::Retry(chain(&error)),
            }
            job = next;
            has_progressed = true;
            if !report.pause.is_zero() {
                self.drain.sleep(report.pause).await;
            }
        }
    }

    /// Writes the progress after a step.
    async fn record(&self, item: &Item, job: &Job, is_finished: bool) -> Result<Progress, db::Error> {
        let (queue, db, payload) = (&self.jobs.queue, &self.jobs.db, job.payload());
        let saving = async || {
            let mut tx = db.begin().await?;
            let is_saved = queue.save(&mut tx, item, &payload).await?;
            if is_saved {
                tx.commit().await?
            } else {
                tx.rollback().await?
            }
            Ok::<_, db::Error>(is_saved)
        };
        if db::retry_conflicts(db::Error::is_conflict, || db.bounded(saving())).await? {
            return Ok(if is_finished { Progress::Finished } else { Progress::More });
        }
        // If an operator stopped it during the step, count what the step did.
        queue.save_held(item, &payload).await?;
        Ok(Progress::LeaseLost)
    }
}
