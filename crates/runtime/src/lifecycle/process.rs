//! The parts of a process and the stages in which they start and stop.

use std::fmt;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::supervise::{LoopError, supervise};
use super::{Config, Drain, Part, PartState, Readiness, Signals};
use crate::metrics::{LifecycleMetrics, Metrics};

/// How long an aborted part may take to be dropped.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

/// The share of a stage's time that is reserved for each wave of parts that stops after others.
const WAVE_RESERVE: f64 = 0.1;

/// The stage of a part. Stages start in this order and stop in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Admin,
    Stores,
    Loops,
    Listeners,
}

impl Stage {
    /// The order of stopping, with the share of the grace period (less the delay) by which each stage must be done. A client that
    /// never finishes must not keep loops from releasing their leases, and loops must not keep stores from closing.
    const STOPPING: [(Self, f64); 4] =
        [(Self::Listeners, 0.8), (Self::Loops, 0.9), (Self::Stores, 0.95), (Self::Admin, 1.0)];
}

/// A process and its running parts.
#[derive(Debug)]
pub struct Process {
    config: Config,
    metrics: Metrics,
    lifecycle: LifecycleMetrics,
    readiness: Readiness,
    own_part: Part,
    running: Vec<RunningPart>,
    ended: (mpsc::UnboundedSender<&'static str>, mpsc::UnboundedReceiver<&'static str>),
}

#[derive(Debug)]
struct RunningPart {
    stage: Stage,
    name: &'static str,
    /// Parts of the same stage that must end before this one is requested to stop.
    after: Vec<&'static str>,
    drain: Drain,
    task: JoinHandle<()>,
    /// Further tasks that the part has spawned.
    tasks: TaskTracker,
}

/// How a process ended.
#[derive(Debug)]
pub enum Exit<E> {
    /// Everything finished in time.
    Clean,
    /// The start failed. The parts that had started were stopped again.
    StartFailed(E),
    /// A part ended without being requested to.
    PartEnded(&'static str),
    /// Parts were aborted.
    Forced(Forced),
}

/// Why parts were aborted.
#[derive(Debug, PartialEq, Eq)]
pub enum Forced {
    /// The grace period ended before these parts had finished.
    GraceOver(Vec<&'static str>),
    SecondSignal,
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GraceOver(parts) => {
                write!(f, "aborted after lifecycle.grace, still busy: {}", parts.join(", "))
            }
            Self::SecondSignal => f.write_str("stopped at once because of a second signal"),
        }
    }
}

impl Process {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        let lifecycle = LifecycleMetrics::new(&metrics);
        let readiness = Readiness::new(lifecycle.clone());
        Self {
            own_part: readiness.part("process"),
            ended: mpsc::unbounded_channel(),
            running: Vec::new(),
            config,
            metrics,
            lifecycle,
            readiness,
        }
    }

    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns how long the parts of a stage have to finish if earlier stages finish at once.
    pub fn time_to_stop(&self, stage: Stage) -> Duration {
        let share =
            Stage::STOPPING.iter().find(|(other, _)| *other == stage).map_or(0.0, |(_, share)| *share);
        self.config.grace.saturating_sub(self.config.drain_delay).mul_f64(share)
    }

    /// Runs a background loop and restarts it with backoff when it fails.
    pub fn supervise<F, Run>(&mut self, name: &'static str, body: F)
    where
        F: Fn(Drain) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<(), LoopError>> + Send + 'static,
    {
        self.supervise_within(name, self.config.restart.max, body);
    }

    /// As [`supervise`](Self::supervise), for a loop that must not be down for longer than `max_downtime`.
    pub fn supervise_within<F, Run>(&mut self, name: &'static str, max_downtime: Duration, body: F)
    where
        F: Fn(Drain) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<(), LoopError>> + Send + 'static,
    {
        let (mut backoff, metrics) = (self.config.restart, self.lifecycle.clone());
        backoff.max = backoff.max.min(max_downtime);
        self.start(Stage::Loops, name, move |drain, _| supervise(name, backoff, metrics, drain, body));
    }

    /// Keeps a running loop alive until the given loops have ended, because it finishes their work. Ignores loops that do not run here.
    pub fn stop_after(&mut self, name: &'static str, others: &[&'static str]) {
        for part in self.running.iter_mut().filter(|part| part.name == name) {
            part.after.extend_from_slice(others);
        }
    }

    /// Runs `close` when the stores stop, after all loops and listeners.
    pub fn close_at_end(&mut self, name: &'static str, close: impl Future<Output = ()> + Send + 'static) {
        self.start(Stage::Stores, name, |drain, _| async move {
            drain.requested().await;
            close.await;
        });
    }

    /// Starts a part. The part spawns further tasks on the tracker, so that they are aborted with it.
    pub fn start<Run>(
        &mut self,
        stage: Stage,
        name: &'static str,
        body: impl FnOnce(Drain, TaskTracker) -> Run,
    ) where
        Run: Future<Output = ()> + Send + 'static,
    {
        let (drain, tasks) = (Drain::new(), TaskTracker::new());
        let (body, ended, requested) =
            (body(drain.clone(), tasks.clone()), self.ended.0.clone(), drain.clone());
        let task = tokio::spawn(async move {
            // Reports on drop, so that a panic is reported too.
            let _reporter = EndReporter { name, ended, drain: requested };
            body.await;
        });
        self.running.push(RunningPart { stage, name, after: Vec::new(), drain, task, tasks });
    }

    /// Starts the process with `start`, runs it until a signal arrives or a part ends, and stops its parts in order.
    pub async fn run<E>(
        mut self,
        mut signals: Signals,
        start: impl AsyncFnOnce(&mut Self) -> Result<(), E>,
    ) -> Exit<E> {
        let started = tokio::select! {
            started = start(&mut self) => Some(started),
            signal = signals.next() => {
                tracing::info!(signal, "stopping before the start is complete");
                None
            }
        };
        let exit = match started {
            Some(Ok(())) => {
                self.own_part.set(PartState::Ready);
                tokio::select! {
                    signal = signals.next() => {
                        tracing::info!(signal, grace = ?self.config.grace, "stopping");
                        Exit::Clean
                    }
                    Some(part) = self.ended.1.recv() => {
                        tracing::error!(part, "a part of the process ended unexpectedly; stopping");
                        Exit::PartEnded(part)
                    }
                }
            }
            Some(Err(error)) => Exit::StartFailed(error),
            None => Exit::Clean,
        };
        let forced = tokio::select! {
            forced = self.stop() => forced,
            _ = signals.next() => Some(Forced::SecondSignal),
        };
        match (exit, forced) {
            (Exit::Clean, Some(forced)) => Exit::Forced(forced),
            (exit, _) => exit,
        }
    }

    async fn stop(&mut self) -> Option<Forced> {
        let has_listeners = self.running.iter().any(|part| part.stage == Stage::Listeners);
        self.own_part.set(PartState::NotReady("draining".to_owned()));
        if has_listeners {
            tokio::time::sleep(self.config.drain_delay).await;
        }
        let (begun, grace) = (Instant::now(), self.config.grace.saturating_sub(self.config.drain_delay));
        let mut late = Vec::new();
        for (stage, share) in Stage::STOPPING {
            let deadline = begun + grace.mul_f64(share);
            let parts: Vec<RunningPart> = self.running.extract_if(.., |part| part.stage == stage).collect();
            let mut waves = waves(parts);
            let reserve = deadline.saturating_duration_since(Instant::now()).mul_f64(WAVE_RESERVE);
            let mut later = waves.len() as u32;
            for wave in &mut waves {
                later -= 1;
                stop_wave(wave, deadline - reserve * later, &mut late).await;
            }
        }
        (!late.is_empty()).then_some(Forced::GraceOver(late))
    }
}

/// Sorts parts into waves so that each part is in a later wave than the parts it stops after.
fn waves(mut parts: Vec<RunningPart>) -> Vec<Vec<RunningPart>> {
    let mut waves = Vec::new();
    while !parts.is_empty() {
        let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
        let must_wait = |part: &RunningPart| part.after.iter().any(|other| names.contains(other));
        let (mut wave, later): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| !must_wait(part));
        parts = later;
        if wave.is_empty() {
            // They wait for each other, so stop them together.
            wave.append(&mut parts);
        }
        waves.push(wave);
    }
    waves
}

/// Requests parts to finish. Aborts those that have not finished by the deadline and adds them to `late`.
async fn stop_wave(parts: &mut [RunningPart], deadline: Instant, late: &mut Vec<&'static str>) {
    for part in &*parts {
        part.drain.request();
    }
    let finishing = join_all(parts.iter_mut().map(|part| &mut part.task));
    if timeout_at(deadline, finishing).await.is_err() {
        for part in parts.iter_mut().filter(|part| !part.task.is_finished()) {
            part.abort().await;
            late.push(part.name);
        }
    }
}

impl RunningPart {
    /// Aborts the part and all its tasks, and waits briefly until they are dropped.
    async fn abort(&mut self) {
        self.task.abort();
        self.tasks.close();
        let dropped = async {
            let _ = (&mut self.task).await;
            self.tasks.wait().await;
        };
        // A task that blocks its thread cannot be dropped.
        let _ = tokio::time::timeout(ABORT_TIMEOUT, dropped).await;
    }
}

/// Reports on drop that a part ended, unless it was requested to.
struct EndReporter {
    name: &'static str,
    ended: mpsc::UnboundedSender<&'static str>,
    drain: Drain,
}

impl Drop for EndReporter {
    fn drop(&mut self) {
        if !self.drain.is_requested() {
            // The receiver is gone if the process is stopping.
            let _ = self.ended.send(self.name);
        }
    }
}
