//! A job and its progress.

use base::Timestamp;
use base::id::Uuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use service::StepReport;
use work_queue::{ItemView, State};

base::typed_id!(
    /// The id of a job.
    JobId
);

/// How many failures a job keeps with their causes. It counts all.
const MAX_FAILURES: usize = 20;

/// A job and its progress, as the queue stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) kind: String,
    pub(crate) filter: Value,
    /// The name of the operator who started it.
    pub(crate) operator: String,
    /// How many items matched when it was started, up to the cap plus one.
    pub(crate) expected: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// The first failures.
    pub(crate) failures: Vec<Failure>,
    pub(crate) cursor: Value,
}

/// An item that a job could not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub id: String,
    pub cause: String,
}

impl Job {
    /// Returns the job after a step.
    pub(crate) fn after(&self, step: &StepReport) -> Self {
        let mut next = self.clone();
        next.done += step.done;
        next.failed += step.failed.len() as u64;
        let failures = step.failed.iter().map(|(id, cause)| Failure { id: id.clone(), cause: cause.clone() });
        next.failures.extend(failures);
        next.failures.truncate(MAX_FAILURES);
        next.cursor = step.cursor.clone();
        next
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        // A struct of plain values always serializes.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A job, as operators see it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub id: JobId,
    /// Increases with each job.
    pub number: i64,
    pub kind: String,
    pub filter: Value,
    pub operator: String,
    pub expected: u64,
    pub done: u64,
    pub failed: u64,
    pub failures: Vec<Failure>,
    pub state: State,
    /// Why the last step was not successful.
    pub cause: Option<String>,
    pub created: Timestamp,
    /// Pending: when it continues. In flight: when the lease ends. Otherwise: since when it is in this state.
    pub due: Timestamp,
    /// The process that runs it.
    pub holder: Option<Uuid>,
}

impl JobView {
    pub(crate) fn new(item: ItemView) -> Self {
        let unreadable = |cause: serde_json::Error| Job {
            kind: format!("unreadable: {cause}"),
            filter: Value::Null,
            operator: String::new(),
            expected: 0,
            done: 0,
            failed: 0,
            failures: Vec::new(),
            cursor: Value::Null,
        };
        let job: Job = serde_json::from_slice(&item.payload).unwrap_or_else(unreadable);
        Self {
            id: JobId::from_uuid(item.id),
            number: item.number,
            kind: job.kind,
            filter: job.filter,
            operator: job.operator,
            expected: job.expected,
            done: job.done,
            failed: job.failed,
            failures: job.failures,
            state: item.state,
            cause: item.cause,
            created: item.created,
            due: item.due,
            holder: item.holder,
        }
    }

    /// Returns the state as operators read it.
    pub const fn state_word(&self) -> &'static str {
        match self.state {
            State::Pending | State::InFlight => "RUNNING",
            State::Done => "DONE",
            State::Failed | State::Skipped => "FAILED",
            State::Held => "STOPPED",
        }
    }

    /// Returns when it ended or was stopped.
    pub fn ended(&self) -> Option<Timestamp> {
        (!matches!(self.state, State::Pending | State::InFlight)).then_some(self.due)
    }
}
