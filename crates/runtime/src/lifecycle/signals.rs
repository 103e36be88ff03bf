//! SIGTERM, SIGINT and SIGHUP.
//!
//! SIGTERM and SIGINT (Ctrl-C) stop the process. SIGHUP stops it only if the terminal that it was started from has closed and the
//! process was not started with `nohup`. Otherwise it is ignored: by convention it asks a daemon to reload its configuration,
//! which is read at start only.

use std::fs::{self, File};
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The signals that request a process to stop.
#[derive(Debug)]
pub struct Signals(Source);

#[derive(Debug)]
enum Source {
    Kernel { terminate: Signal, interrupt: Signal, hangup: Signal, terminal: Option<Terminal> },
    Channel(UnboundedReceiver<&'static str>),
}

impl Signals {
    /// Starts to listen. From now on the signals no longer kill the process.
    pub fn listen() -> io::Result<Self> {
        // Before the handler is installed, which overrides the disposition that `nohup` sets.
        let terminal = Terminal::of_process();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        Ok(Self(Source::Kernel { terminate, interrupt, hangup, terminal }))
    }

    /// Returns signals that the caller sends itself: for tests, and for programs that have their own handlers.
    pub fn channel() -> (UnboundedSender<&'static str>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(Source::Channel(receiver)))
    }

    /// Waits for the next signal that stops the process. Returns its name.
    pub async fn next(&mut self) -> &'static str {
        match &mut self.0 {
            Source::Kernel { terminate, interrupt, hangup, terminal } => loop {
                tokio::select! {
                    _ = terminate.recv() => return "SIGTERM",
                    _ = interrupt.recv() => return "SIGINT",
                    _ = hangup.recv() => {
                        if terminal.as_ref().is_some_and(Terminal::is_closed) {
                            return "SIGHUP";
                        }
                        tracing::info!(
                            "SIGHUP is ignored: the configuration is read at start only; restart the process to apply changes"
                        );
                    }
                }
            },
            Source::Channel(receiver) => match receiver.recv().await {
                Some(signal) => signal,
                None => std::future::pending().await,
            },
        }
    }
}

/// The terminal that the process was started from and ends with.
#[derive(Debug)]
struct Terminal(());

impl Terminal {
    /// Returns none for a daemon, which has no controlling terminal, and under `nohup`.
    fn of_process() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let terminal = Self(());
        (!terminal.is_closed() && !ignores_hangup(&status)).then_some(terminal)
    }

    /// The kernel detaches the terminal from all processes of its session before the shell passes SIGHUP on to its jobs.
    #[expect(clippy::unused_self, reason = "only a process that has a terminal can lose it")]
    fn is_closed(&self) -> bool {
        File::open("/dev/tty").is_err()
    }
}

/// Returns whether the process inherited SIGHUP as ignored, according to its `/proc/PID/status`.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1, SIGHUP.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal as Number, raise};

    use super::*;

    #[tokio::test]
    async fn hangup_of_a_process_that_keeps_its_terminal_is_ignored() {
        let mut signals = Signals::listen().unwrap();
        raise(Number::SIGHUP).unwrap();
        raise(Number::SIGHUP).unwrap();
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(200), signals.next());
        assert!(waiting.await.is_err(), "SIGHUP does not stop the process");
        raise(Number::SIGTERM).unwrap();
        assert_eq!(signals.next().await, "SIGTERM");
    }

    #[test]
    fn nohup_is_recognised_by_the_ignored_signals() {
        assert!(ignores_hangup("Name:\tplayhouse\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup("SigCgt:\t0000000000000001\n"));
        assert!(!ignores_hangup(""));
    }
}
