//! Bulk actions of operators, as jobs: retry or skip failed events, publish events again.

use base::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{JobError, JobKind, JobStep, StepReport};
use work_queue::{Decision, FailedFilter};

use crate::Outbox;

pub(crate) const RETRY: &str = "outbox.retry";
pub(crate) const SKIP: &str = "outbox.skip";
pub(crate) const REPUBLISH: &str = "outbox.republish";

/// Selects failed events, as a job stores it. An event must match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedEvents {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Times as RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<String>,
}

impl FailedEvents {
    /// Returns the filter for the queue. Fails with the name of the field if a time cannot be read.
    pub(crate) fn filter(&self) -> Result<FailedFilter, String> {
        let time = |name: &str, text: &Option<String>| -> Result<Option<Timestamp>, String> {
            let parsed = text.as_deref().map(str::parse).transpose();
            parsed.map_err(|error: base::InvalidTime| format!("{name}: {error}"))
        };
        Ok(FailedFilter {
            cause: self.cause.clone(),
            since: time("since", &self.since)?,
            until: time("until", &self.until)?,
            key: self.key.clone(),
            content: self.kind.as_deref().map(kind_in_payload),
        })
    }
}

/// Returns the text that the payloads of events of this kind contain: see `event::encode`.
fn kind_in_payload(kind: &str) -> String {
    format!("\"kind\":{}", Value::from(kind))
}

pub(crate) fn jobs() -> Vec<JobKind> {
    vec![
        JobKind::new(RETRY, "Retry failed events", |outbox, step| decide(outbox, step, Decision::Retry)),
        JobKind::new(SKIP, "Skip failed events", |outbox, step| decide(outbox, step, Decision::Skip)),
        JobKind::new(REPUBLISH, "Publish events again", republish),
    ]
}

async fn decide(outbox: Outbox, step: JobStep, decision: Decision) -> Result<StepReport, JobError> {
    let events: FailedEvents = read(step.filter)?;
    let after = step.cursor.as_i64().unwrap_or_default();
    let filter = events.filter().map_err(JobError::new)?;
    Ok(match outbox.queue().decide_next(&filter, decision, after).await? {
        Some((done, last)) => StepReport { done, cursor: json!(last), ..StepReport::default() },
        None => StepReport { cursor: step.cursor, is_finished: true, ..StepReport::default() },
    })
}

/// The events that a job publishes again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PublishedEvents {
    pub(crate) since: String,
    /// When the job was started. Events that it publishes are not published a third time.
    pub(crate) until: String,
}

async fn republish(outbox: Outbox, step: JobStep) -> Result<StepReport, JobError> {
    let PublishedEvents { since, until } = read(step.filter)?;
    let time = |text: &str| text.parse().map_err(|error: base::InvalidTime| JobError::new(error.to_string()));
    let (since, until): (Timestamp, Timestamp) = (time(&since)?, time(&until)?);
    Ok(match outbox.queue().reopen_some_keys(since, until).await? {
        Some(done) => StepReport { done, ..StepReport::default() },
        None => StepReport { is_finished: true, ..StepReport::default() },
    })
}

fn read<T: for<'a> Deserialize<'a>>(filter: Value) -> Result<T, JobError> {
    serde_json::from_value(filter)
        .map_err(|error| JobError::new(format!("the filter cannot be read: {error}")))
}
