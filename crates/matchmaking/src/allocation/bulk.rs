//! The bulk action about give-back calls, as a job: sends failed ones again.

use base::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::{JobError, JobKind, JobStep, StepReport};
use work_queue::{Decision, FailedFilter};

use super::Allocations;

pub(crate) const RETRY: &str = "allocations.retry";

/// Selects failed calls, as a job stores it. A call must match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedCalls {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) assigner: Option<String>,
    /// A substring of the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    /// When the call failed, as RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<String>,
}

impl FailedCalls {
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
            key: self.assigner.clone(),
            content: None,
        })
    }
}

pub(crate) fn jobs() -> Vec<JobKind> {
    vec![JobKind::new(RETRY, "Give servers back again", retry)]
}

async fn retry(allocations: Allocations, step: JobStep) -> Result<StepReport, JobError> {
    let calls: FailedCalls = serde_json::from_value(step.filter)
        .map_err(|error| JobError::new(format!("the filter cannot be read: {error}")))?;
    let filter = calls.filter().map_err(JobError::new)?;
    let after = step.cursor.as_i64().unwrap_or_default();
    Ok(match allocations.queue().decide_next(&filter, Decision::Retry, after).await? {
        Some((done, last)) => StepReport { done, cursor: json!(last), ..StepReport::default() },
        None => StepReport { cursor: step.cursor, is_finished: true, ..StepReport::default() },
    })
}
