//! The parts of a process, in stages.

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

/// How long dropping a part may take.
const CUT_OFF: Duration = Duration::from_millis(100);

/// The share of a stage's time that is kept for each wave of parts that stops after others.
const WAVE: f64 = 0.1;

/// What a part is, which decides when it stops. Stages start in this order and stop in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Admin,
    Stores,
    Loops,
    Listeners,
}

impl Stage {
    /// The order of stopping, with the share of the grace (less the delay) by which each must be done: a client that never
    /// finishes must not keep the loops from releasing what they hold, nor those the stores from closing.
    const STOPPING: [(Self, f64); 4] =
        [(Self::Listeners, 0.8), (Self::Loops, 0.9), (Self::Stores, 0.95), (Self::Admin, 1.0)];
}

/// A running process: what was started, and how to stop it.
#[derive(Debug)]
pub struct Process {
    config: Config,
    metrics: Metrics,
    lifecycle: LifecycleMetrics,
    readiness: Readiness,
    itself: Part,
    running: Vec<Running>,
    ended: (mpsc::UnboundedSender<&'static str>, mpsc::UnboundedReceiver<&'static str>),
}

#[derive(Debug)]
struct Running {
    stage: Stage,
    name: &'static str,
    /// The parts of its stage that end before it is asked to.
    after: Vec<&'static str>,
    drain: Drain,
    task: JoinHandle<()>,
    /// What the part has started besides.
    tasks: TaskTracker,
}

/// How a process ended.
#[derive(Debug)]
pub enum Exit<E> {
    /// Everything finished in time.
    Clean,
    /// The start failed; what had been started was stopped again.
    StartFailed(E),
    /// A part ended that should not have.
    PartEnded(&'static str),
    /// Something had to be cut off.
    Forced(Forced),
}

/// Why something had to be cut off.
#[derive(Debug, PartialEq, Eq)]
pub enum Forced {
    /// The grace was over before these parts had finished.
    GraceOver(Vec<&'static str>),
    SecondSignal,
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GraceOver(parts) => {
                write!(f, "cut off after lifecycle.grace, still busy: {}", parts.join(", "))
            }
            Self::SecondSignal => f.write_str("a second signal arrived, stopped at once"),
        }
    }
}

impl Process {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        let lifecycle = LifecycleMetrics::new(&metrics);
        let readiness = Readiness::new(lifecycle.clone());
        Self {
            itself: readiness.part("process"),
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

    /// How long the parts of a stage have to finish, if those of the stages before use up none of it.
    pub fn time_to_stop(&self, stage: Stage) -> Duration {
        let share =
            Stage::STOPPING.iter().find(|(other, _)| *other == stage).map_or(0.0, |(_, share)| *share);
        self.config.grace.saturating_sub(self.config.drain_delay).mul_f64(share)
    }

    /// Runs a background loop, started again with backoff whenever it fails.
    pub fn supervise<F, Run>(&mut self, name: &'static str, body: F)
    where
        F: Fn(Drain) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<(), LoopError>> + Send + 'static,
    {
        self.supervise_within(name, self.config.restart.max, body);
    }

    /// As [`supervise`](Self::supervise), for a loop whose absence is felt: it is never down for longer than this.
    pub fn supervise_within<F, Run>(&mut self, name: &'static str, longest: Duration, body: F)
    where
        F: Fn(Drain) -> Run + Send + Sync + 'static,
        Run: Future<Output = Result<(), LoopError>> + Send + 'static,
    {
        let (mut backoff, metrics) = (self.config.restart, self.lifecycle.clone());
        backoff.max = backoff.max.min(longest);
        self.start(Stage::Loops, name, move |drain, _| supervise(name, backoff, metrics, drain, body));
    }

    /// Has a loop that runs go on until these others have ended, where they run: it works on what they leave.
    pub fn stop_after(&mut self, name: &'static str, others: &[&'static str]) {
        for part in self.running.iter_mut().filter(|part| part.name == name) {
            part.after.extend_from_slice(others);
        }
    }

    /// Runs `close` when the stores stop: after everything that uses them.
    pub fn close_at_end(&mut self, name: &'static str, close: impl Future<Output = ()> + Send + 'static) {
        self.start(Stage::Stores, name, |drain, _| async move {
            drain.requested().await;
            close.await;
        });
    }

    /// Starts a part of a stage. The part puts the tasks that it starts into the tracker.
    pub fn start<Run>(
        &mut self,
        stage: Stage,
        name: &'static str,
        body: impl FnOnce(Drain, TaskTracker) -> Run,
    ) where
        Run: Future<Output = ()> + Send + 'static,
    {
        let (drain, tasks) = (Drain::new(), TaskTracker::new());
        let (body, ended, asked) = (body(drain.clone(), tasks.clone()), self.ended.0.clone(), drain.clone());
        let task = tokio::spawn(async move {
            // Told on every way out, a panic included.
            let _teller = Teller { name, ended, asked };
            body.await;
        });
        self.running.push(Running { stage, name, after: Vec::new(), drain, task, tasks });
    }

    /// Starts with `start`, runs until a signal or until a part ends, and stops in order.
    pub async fn run<E>(
        mut self,
        mut signals: Signals,
        start: impl AsyncFnOnce(&mut Self) -> Result<(), E>,
    ) -> Exit<E> {
        let started = tokio::select! {
            started = start(&mut self) => Some(started),
            signal = signals.next() => {
                tracing::info!(signal, "stopping before the start was done");
                None
            }
        };
        let exit = match started {
            Some(Ok(())) => {
                self.itself.set(PartState::Ready);
                tokio::select! {
                    signal = signals.next() => {
                        tracing::info!(signal, grace = ?self.config.grace, "stopping");
                        Exit::Clean
                    }
                    Some(part) = self.ended.1.recv() => {
                        tracing::error!(part, "a part ended that should not have; stopping");
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
        let was_serving = self.running.iter().any(|part| part.stage == Stage::Listeners);
        self.itself.set(PartState::NotReady("draining".to_owned()));
        if was_serving {
            tokio::time::sleep(self.config.drain_delay).await;
        }
        let (begun, grace) = (Instant::now(), self.config.grace.saturating_sub(self.config.drain_delay));
        let mut late = Vec::new();
        for (stage, share) in Stage::STOPPING {
            let deadline = begun + grace.mul_f64(share);
            let parts: Vec<Running> = self.running.extract_if(.., |part| part.stage == stage).collect();
            let mut waves = waves(parts);
            let reserve = deadline.saturating_duration_since(Instant::now()).mul_f64(WAVE);
            let mut later = waves.len() as u32;
            for wave in &mut waves {
                later -= 1;
                stop_wave(wave, deadline - reserve * later, &mut late).await;
            }
        }
        (!late.is_empty()).then_some(Forced::GraceOver(late))
    }
}

/// Sorts parts so that each is in a later wave than those after which it stops.
fn waves(mut parts: Vec<Running>) -> Vec<Vec<Running>> {
    let mut waves = Vec::new();
    while !parts.is_empty() {
        let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
        let waits = |part: &Running| part.after.iter().any(|other| names.contains(other));
        let (mut wave, later): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| !waits(part));
        parts = later;
        if wave.is_empty() {
            // They wait for each other: none of them is first.
            wave.append(&mut parts);
        }
        waves.push(wave);
    }
    waves
}

/// Asks parts to finish, and cuts off those that have not when the time is over.
async fn stop_wave(parts: &mut [Running], deadline: Instant, late: &mut Vec<&'static str>) {
    for part in &*parts {
        part.drain.request();
    }
    let finishing = join_all(parts.iter_mut().map(|part| &mut part.task));
    if timeout_at(deadline, finishing).await.is_err() {
        for part in parts.iter_mut().filter(|part| !part.task.is_finished()) {
            part.cut_off().await;
            late.push(part.name);
        }
    }
}

impl Running {
    /// Ends the part and all it has started, which takes no longer than it takes to drop them.
    async fn cut_off(&mut self) {
        self.task.abort();
        self.tasks.close();
        let gone = async {
            let _ = (&mut self.task).await;
            self.tasks.wait().await;
        };
        // A task that blocks its thread cannot be dropped.
        let _ = tokio::time::timeout(CUT_OFF, gone).await;
    }
}

/// Says that a part ended although nobody asked it to.
struct Teller {
    name: &'static str,
    ended: mpsc::UnboundedSender<&'static str>,
    asked: Drain,
}

impl Drop for Teller {
    fn drop(&mut self) {
        if !self.asked.is_requested() {
            // Nobody listens any more when the process is stopping.
            let _ = self.ended.send(self.name);
        }
    }
}
