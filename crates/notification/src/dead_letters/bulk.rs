//! Bulk actions about dead letters, as jobs.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{JobError, JobKind, JobStep, StepReport};

use super::DeadLetterFilter;
use crate::{Error, Notifications};

pub(crate) const REPLAY: &str = "dlq.replay";
pub(crate) const DISCARD: &str = "dlq.discard";

/// How many dead letters a step handles at most.
const PER_STEP: u32 = 200;

/// The dead letters that a job is about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SelectedDeadLetters {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    /// As RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// The number of the newest one at the start. Later ones are left alone.
    pub(crate) up_to: i64,
    /// How many a replay starts per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<u32>,
}

impl SelectedDeadLetters {
    pub(crate) fn new(filter: &DeadLetterFilter, up_to: i64, rate: Option<u32>) -> Self {
        Self {
            kind: filter.kind.clone(),
            destination: filter.destination.clone(),
            user: filter.user,
            cause: filter.cause.clone(),
            since: filter.since.map(Timestamp::to_rfc3339),
            up_to: filter.up_to.map_or(up_to, |given| given.min(up_to)),
            rate,
        }
    }

    fn read(step: &JobStep) -> Result<(Self, DeadLetterFilter), JobError> {
        let unreadable =
            |error: &dyn std::fmt::Display| JobError::new(format!("the filter cannot be read: {error}"));
        let selected: Self =
            serde_json::from_value(step.filter.clone()).map_err(|error| unreadable(&error))?;
        let since = selected.since.as_deref().map(str::parse).transpose();
        let filter = DeadLetterFilter {
            kind: selected.kind.clone(),
            destination: selected.destination.clone(),
            user: selected.user,
            cause: selected.cause.clone(),
            since: since.map_err(|error: base::InvalidTime| unreadable(&error))?,
            after: step.cursor.as_i64().unwrap_or_default(),
            up_to: Some(selected.up_to),
        };
        Ok((selected, filter))
    }
}

pub(crate) fn jobs() -> Vec<JobKind> {
    vec![
        JobKind::new(REPLAY, "Replay dead letters", replay),
        JobKind::new(DISCARD, "Discard dead letters", discard),
    ]
}

async fn replay(notifications: Notifications, step: JobStep) -> Result<StepReport, JobError> {
    let (selected, filter) = SelectedDeadLetters::read(&step)?;
    let rate = selected.rate.unwrap_or(PER_STEP).max(1);
    let report = notifications.replay_some(&filter, rate.min(PER_STEP), rate).await?;
    let handled = report.replayed + report.failed.len();
    Ok(StepReport {
        done: report.replayed as u64,
        failed: report.failed.into_iter().map(|(id, cause)| (id.to_string(), cause)).collect(),
        is_finished: report.next.is_none(),
        // The deliveries of this step are spread over this time.
        pause: Duration::from_secs_f64(handled as f64 / f64::from(rate)),
        cursor: next(report.next),
    })
}

async fn discard(notifications: Notifications, step: JobStep) -> Result<StepReport, JobError> {
    let (_, filter) = SelectedDeadLetters::read(&step)?;
    let page = notifications.dead_letters(&filter, PER_STEP).await?;
    let mut done = 0;
    for dead_letter in &page.dead_letters {
        match notifications.discard(dead_letter.id).await {
            Ok(()) => done += 1,
            // Another operator has replayed or discarded it.
            Err(Error::DeadLetterNotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(StepReport {
        done,
        is_finished: page.next.is_none(),
        cursor: next(page.next),
        ..StepReport::default()
    })
}

fn next(next: Option<i64>) -> Value {
    next.map_or(Value::Null, |next| json!(next))
}
