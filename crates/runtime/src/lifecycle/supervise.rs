//! Restarts background loops that fail.

use std::time::Duration;

use base::Backoff;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::Drain;
use crate::metrics::{LifecycleMetrics, LoopLabels};

/// Why a loop ended.
pub type LoopError = Box<dyn std::error::Error + Send + Sync>;

/// Runs `body` until drain is requested. Restarts it with backoff when it fails, panics or returns early.
///
/// A run that lasted longer than the maximum backoff counts as healthy: the next failure starts with the minimum again.
pub(super) async fn supervise<F, Run>(
    name: &'static str,
    backoff: Backoff,
    metrics: LifecycleMetrics,
    drain: Drain,
    body: F,
) where
    F: Fn(Drain) -> Run,
    Run: Future<Output = Result<(), LoopError>> + Send + 'static,
{
    let labels = LoopLabels { r#loop: name.to_owned() };
    let running = metrics.loop_running.get_or_create(&labels).clone();
    let restarts = metrics.loop_restarts.get_or_create(&labels).clone();
    let mut failures = 0;
    loop {
        let started = Instant::now();
        running.set(1);
        // A separate task contains a panic. It is aborted together with this one when the grace period is over.
        let ended = AbortOnDropHandle::new(tokio::spawn(body(drain.clone()))).await;
        running.set(0);
        let cause = match ended {
            Ok(Ok(())) if drain.is_requested() => return,
            Ok(Ok(())) => "returned before it was requested to stop".to_owned(),
            Ok(Err(error)) => base::error::chain(error.as_ref()),
            Err(join) => format!("panicked: {}", panic_text(join)),
        };
        if drain.is_requested() {
            tracing::error!(r#loop = name, cause, "background loop failed while stopping");
            return;
        }
        failures = if started.elapsed() > backoff.max { 1 } else { failures + 1 };
        restarts.inc();
        let wait = backoff.after(failures);
        tracing::error!(
            outage = name,
            r#loop = name,
            cause,
            failures,
            again_in_ms = millis(wait),
            "background loop failed; restarting after a backoff"
        );
        if !drain.sleep(wait).await {
            return;
        }
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => crate::fault::panic_text(panic.as_ref()),
        Err(_) => "the task was cancelled".to_owned(),
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
