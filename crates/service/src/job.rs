//! Kinds of jobs: bulk actions that run in the background, step by step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::error::{Coded, chain};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::Provided;

/// A kind of job. The service `jobs` runs its steps, stops it on request, and continues it in another process after a crash.
#[derive(Clone)]
pub struct JobKind {
    /// Its permanent name, such as `outbox.retry`.
    pub name: &'static str,
    /// What operators read: "Retry failed events".
    pub title: &'static str,
    step: Arc<dyn Fn(Provided, JobStep) -> StepFuture + Send + Sync>,
}

type StepFuture = BoxFuture<'static, Result<StepReport, JobError>>;

/// The input of a step.
#[derive(Clone, Debug)]
pub struct JobStep {
    /// What the job is about, as it was started.
    pub filter: Value,
    /// The cursor of the last step that was recorded. `null` in the first step.
    pub cursor: Value,
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// How many items it changed.
    pub done: u64,
    /// The items that it could not change, each with the cause.
    pub failed: Vec<(String, String)>,
    /// Where the next step begins.
    pub cursor: Value,
    pub is_finished: bool,
    /// How long to wait before the next step, to limit the rate.
    pub pause: Duration,
}

/// Why a step failed. The step is repeated.
#[derive(Clone, Debug)]
pub struct JobError {
    pub cause: String,
    /// Whether a store was unreachable. Such a step does not count as an attempt.
    pub is_transient: bool,
}

impl<E: Coded + std::error::Error + 'static> From<E> for JobError {
    fn from(error: E) -> Self {
        Self { cause: chain(&error), is_transient: error.is_transient() }
    }
}

impl JobError {
    /// Creates the error of a step that cannot succeed.
    pub fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), is_transient: false }
    }
}

impl JobKind {
    /// Creates a kind whose steps use a value that a service provides. A step changes at most a few hundred items. It must be
    /// idempotent: after a crash it is repeated with the same cursor.
    pub fn new<T, Step>(
        name: &'static str,
        title: &'static str,
        step: impl Fn(T, JobStep) -> Step + Send + Sync + 'static,
    ) -> Self
    where
        T: std::any::Any + Clone + Send + Sync,
        Step: Future<Output = Result<StepReport, JobError>> + Send + 'static,
    {
        let step = move |provided: Provided, input: JobStep| match provided.find::<T>() {
            Some(value) => step(value, input).boxed(),
            None => async {
                Err(JobError { cause: "the service is not open yet".to_owned(), is_transient: true })
            }
            .boxed(),
        };
        Self { name, title, step: Arc::new(step) }
    }

    /// Runs a step.
    pub fn step(&self, provided: Provided, input: JobStep) -> StepFuture {
        (self.step)(provided, input)
    }
}

impl fmt::Debug for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JobKind").field(&self.name).finish()
    }
}
