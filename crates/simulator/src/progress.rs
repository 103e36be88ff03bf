//! What is shown while the simulation runs: a bar with live rates on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::interval;

use crate::meter::{Counts, Figures};
use crate::world::World;

const ON_TERMINAL: Duration = Duration::from_millis(250);
const ELSEWHERE: Duration = Duration::from_secs(5);
/// The width of the bar.
const BAR: usize = 24;
/// The seconds over which rates are averaged.
const WINDOW: usize = 3;

/// Shows the progress until it is stopped.
pub(crate) struct Progress {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Progress {
    pub(crate) fn start(world: Arc<World>) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(show(world, stopped)) }
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

async fn show(world: Arc<World>, mut stopped: oneshot::Receiver<()>) {
    let is_terminal = io::stderr().is_terminal();
    let mut every = interval(if is_terminal { ON_TERMINAL } else { ELSEWHERE });
    every.tick().await;
    loop {
        let is_last = tokio::select! {
            _ = &mut stopped => true,
            _ = every.tick() => false,
        };
        let line = line(&world, &world.api.meter.snapshot(), is_terminal);
        // Nobody is helped by a simulation that stops because its progress cannot be written.
        let _ = match (is_terminal, is_last) {
            (true, false) => write!(io::stderr(), "\r\x1b[2K{line}"),
            (true, true) => writeln!(io::stderr(), "\r\x1b[2K{line}"),
            (false, _) => writeln!(io::stderr(), "{line}"),
        };
        let _ = io::stderr().flush();
        if is_last {
            return;
        }
    }
}

fn line(world: &World, figures: &Figures, with_bar: bool) -> String {
    let Counts { arrived, finished, bought, matched, notified, streams, retries, .. } = figures.counts;
    let all = world.scenario.players;
    let (rate, p99) = recent(figures);
    let bar = if with_bar { format!("{} ", bar(finished, u64::from(all))) } else { String::new() };
    let waiting = figures.drop.last().map_or(0, |(_, waiting, _)| *waiting);
    format!(
        "{:>4.0} s {bar}{finished}/{all} done, {arrived} arrived, {streams} streams, line {waiting}, bought {bought}, matched {matched}, \
         notified {notified}, {rate:.0} requests/s, p99 {p99:.0} ms, {retries} retries",
        world.api.meter.elapsed().as_secs_f64(),
    )
}

fn bar(done: u64, all: u64) -> String {
    let filled = usize::try_from(done * BAR as u64 / all.max(1)).unwrap_or(BAR).min(BAR);
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR - filled))
}

/// Returns the requests per second and their 99th percentile in milliseconds, over the last seconds that are complete.
fn recent(figures: &Figures) -> (f64, f64) {
    let complete = figures.seconds.len().saturating_sub(1);
    let seconds = &figures.seconds[complete.saturating_sub(WINDOW)..complete];
    let requests: u64 = seconds.iter().map(|second| second.counts.requests).sum();
    let slowest =
        seconds.iter().map(|second| second.latency.value_at_quantile(0.99)).max().unwrap_or_default();
    (requests as f64 / seconds.len().max(1) as f64, slowest as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_grows_with_the_share_that_is_done() {
        assert_eq!(
            [bar(0, 10), bar(10, 10)],
            [format!("[{}]", ".".repeat(24)), format!("[{}]", "#".repeat(24))]
        );
        assert_eq!(bar(1, 2).matches('#').count(), 12);
        assert_eq!(bar(0, 0).matches('#').count(), 0);
    }
}
