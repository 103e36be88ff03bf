//! What is shown while the simulation runs: bars with live rates on a terminal, plain lines elsewhere. Lines fit in 80 columns.

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
/// Lines below the first one begin where its bar does.
const INDENT: usize = 8;
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
    let mut screen = Screen::new(io::stderr().is_terminal());
    let mut every = interval(if screen.is_terminal { ON_TERMINAL } else { ELSEWHERE });
    every.tick().await;
    loop {
        let is_last = tokio::select! {
            _ = &mut stopped => true,
            _ = every.tick() => false,
        };
        let text = screen.next(&Shown::new(&world));
        // Nobody is helped by a simulation that stops because its progress cannot be written.
        let _ = io::stderr().write_all(text.as_bytes());
        let _ = io::stderr().flush();
        if is_last {
            return;
        }
    }
}

/// What was written so far: it decides how the next lines are written.
#[derive(Debug)]
struct Screen {
    is_terminal: bool,
    /// The lines on the terminal that the next ones replace.
    lines: usize,
    /// Whether the line that all players are done was written.
    said_done: bool,
}

impl Screen {
    const fn new(is_terminal: bool) -> Self {
        Self { is_terminal, lines: 0, said_done: false }
    }

    /// Returns what to write: on a terminal the lines replace the earlier ones, elsewhere they are added.
    fn next(&mut self, shown: &Shown) -> String {
        if self.is_terminal {
            let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
            let lines = shown.block();
            self.lines = lines.len();
            return format!("{up}\r\x1b[J{}\n", lines.join("\n"));
        }
        let mut text = String::new();
        if !shown.is_reading || !self.said_done {
            text = format!("{}\n", shown.players());
            self.said_done = shown.is_reading;
        }
        if shown.is_reading {
            text += &format!("{} {}\n", shown.time(), shown.reading());
        }
        text
    }
}

/// The figures that are shown.
#[derive(Clone, Debug)]
struct Shown {
    elapsed: Duration,
    players: u64,
    /// The stock of the drop, if there is one.
    stock: Option<u64>,
    plays: bool,
    is_reading: bool,
    counts: Counts,
    waiting: u64,
    /// Requests per second.
    rate: f64,
    /// The 99th percentile of requests in milliseconds.
    p99: f64,
}

impl Shown {
    fn new(world: &World) -> Self {
        let figures = world.api.meter.snapshot();
        let (rate, p99) = recent(&figures);
        Self {
            elapsed: world.api.meter.elapsed(),
            players: u64::from(world.scenario.players),
            stock: world.drop_id.as_ref().map(|_| u64::from(world.scenario.drop.stock)),
            plays: world.queue.is_some(),
            is_reading: figures.is_reading,
            counts: figures.counts,
            waiting: figures.drop.last().map_or(0, |(_, waiting, _)| *waiting),
            rate,
            p99,
        }
    }

    /// Returns the lines for a terminal.
    fn block(&self) -> Vec<String> {
        let Counts { arrived, finished, bought, matched, notified, streams, retries, .. } = self.counts;
        let (players, indent) = (self.players, " ".repeat(INDENT));
        let mut lines = vec![format!(
            "{}  {} {}/{} done  {} arrived  {} streams",
            self.time(),
            bar(finished, players),
            short(finished),
            short(players),
            short(arrived),
            short(streams)
        )];
        if let Some(stock) = self.stock {
            let (bar, bought, stock) = (bar(bought, stock), short(bought), short(stock));
            lines.push(format!("{indent}{bar} {bought}/{stock} bought  {} in line", short(self.waiting)));
        }
        let matched = if self.plays { format!("{} matched  ", short(matched)) } else { String::new() };
        lines.push(format!(
            "{indent}{matched}{} notified  {} requests/s  p99 {} ms  {} retries",
            short(notified),
            short(self.rate as u64),
            short(self.p99 as u64),
            short(retries)
        ));
        if self.is_reading {
            lines.push(format!("{indent}{} {}", bar(self.counts.read_back, players), self.reading()));
        }
        lines
    }

    /// Returns what the players do, in one plain line.
    fn players(&self) -> String {
        let Counts { finished, bought, matched, .. } = self.counts;
        let mut line = format!("{} {}/{} done", self.time(), short(finished), short(self.players));
        if self.stock.is_some() {
            line += &format!(", {} in line, {} bought", short(self.waiting), short(bought));
        }
        if self.plays {
            line += &format!(", {} matched", short(matched));
        }
        line + &format!(", {} requests/s", short(self.rate as u64))
    }

    fn reading(&self) -> String {
        format!("{}/{} read back", short(self.counts.read_back), short(self.players))
    }

    fn time(&self) -> String {
        match self.elapsed.as_secs() {
            seconds @ ..10_000 => format!("{seconds:>4} s"),
            seconds => format!("{:>4} h", seconds / 3_600),
        }
    }
}

fn bar(done: u64, all: u64) -> String {
    let filled = usize::try_from(done.saturating_mul(BAR as u64) / all.max(1)).unwrap_or(BAR).min(BAR);
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR - filled))
}

/// Shortens a number to four characters: 9999, 12k, 3.4M, 56G.
fn short(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{}k", number / 1_000),
        1_000_000..10_000_000 => format!("{}.{}M", number / 1_000_000, number / 100_000 % 10),
        10_000_000..1_000_000_000 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", (number / 1_000_000_000).min(999)),
    }
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
    use proptest::prelude::*;

    use super::*;

    /// The columns of a terminal.
    const COLUMNS: usize = 80;

    fn shown() -> Shown {
        let counts = Counts {
            arrived: 2_000,
            finished: 1_071,
            streams: 2_062,
            bought: 241,
            matched: 1_495,
            notified: 2_622,
            ..Counts::default()
        };
        Shown {
            elapsed: Duration::from_secs(15),
            players: 2_000,
            stock: Some(400),
            plays: true,
            is_reading: false,
            counts,
            waiting: 539,
            rate: 1_663.4,
            p99: 40.2,
        }
    }

    fn ended(read_back: u64) -> Shown {
        let counts = Counts { finished: 2_000, read_back, ..shown().counts };
        Shown { elapsed: Duration::from_secs(31), is_reading: true, counts, ..shown() }
    }

    #[test]
    fn bar_grows_with_the_share_that_is_done() {
        assert_eq!(
            [bar(0, 10), bar(10, 10)],
            [format!("[{}]", ".".repeat(24)), format!("[{}]", "#".repeat(24))]
        );
        assert_eq!(bar(1, 2).matches('#').count(), 12);
        assert_eq!(bar(0, 0).matches('#').count(), 0);
    }

    #[test]
    fn lines_on_a_terminal_replace_the_earlier_ones() {
        let mut screen = Screen::new(true);
        assert_eq!(
            screen.next(&shown()),
            "\r\x1b[J  15 s  [############............] 1071/2000 done  2000 arrived  2062 streams\n        \
             [##############..........] 241/400 bought  539 in line\n        \
             1495 matched  2622 notified  1663 requests/s  p99 40 ms  0 retries\n"
        );
        let reading = screen.next(&ended(500));
        assert!(reading.starts_with("\x1b[3A\r\x1b[J"), "{reading:?}");
        assert!(
            reading.ends_with("\n        [######..................] 500/2000 read back\n"),
            "{reading:?}"
        );
        assert!(screen.next(&ended(2_000)).starts_with("\x1b[4A\r\x1b[J"));
    }

    #[test]
    fn plain_lines_are_added_also_while_reading_back() {
        let mut screen = Screen::new(false);
        assert_eq!(
            screen.next(&shown()),
            "  15 s 1071/2000 done, 539 in line, 241 bought, 1495 matched, 1663 requests/s\n"
        );
        assert_eq!(
            screen.next(&ended(0)),
            "  31 s 2000/2000 done, 539 in line, 241 bought, 1495 matched, 1663 requests/s\n  31 s 0/2000 read back\n"
        );
        assert_eq!(screen.next(&ended(1_200)), "  31 s 1200/2000 read back\n");
        let no_drop = Shown { stock: None, plays: false, ..shown() };
        assert_eq!(Screen::new(false).next(&no_drop), "  15 s 1071/2000 done, 1663 requests/s\n");
        assert_eq!(no_drop.block().len(), 2);
    }

    #[test]
    fn numbers_have_at_most_four_characters() {
        let numbers = [9_999, 10_000, 999_999, 1_000_000, 9_999_999, 10_000_000, 5_000_000_000];
        assert_eq!(numbers.map(short), ["9999", "10k", "999k", "1.0M", "9.9M", "10M", "5G"]);
    }

    proptest! {
        #[test]
        fn lines_fit_on_a_terminal(numbers in any::<[u64; 11]>(), shift in 0_u32..64) {
            let [players, arrived, finished, bought, matched, notified, streams, retries, read_back, other, seconds] =
                numbers.map(|number| number >> shift);
            let counts = Counts {
                arrived, finished, read_back, bought, matched, notified, streams, retries, ..Counts::default()
            };
            let shown = Shown {
                elapsed: Duration::from_secs(seconds % 10_000_000),
                players,
                stock: Some(other),
                plays: true,
                is_reading: true,
                counts,
                waiting: other,
                rate: other as f64,
                p99: other as f64,
            };
            let lines = shown.block().into_iter().chain([shown.players(), shown.reading()]);
            for line in lines {
                prop_assert!(line.len() < COLUMNS, "{} columns: {line}", line.len());
            }
        }
    }
}
