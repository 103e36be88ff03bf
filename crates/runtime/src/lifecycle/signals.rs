//! SIGTERM, Ctrl-C, and the terminal that goes away.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The signals that ask a process to stop.
#[derive(Debug)]
pub struct Signals(Source);

#[derive(Debug)]
enum Source {
    Kernel { terminate: Signal, interrupt: Signal, hangup: Signal },
    Channel(UnboundedReceiver<&'static str>),
}

impl Signals {
    /// From now on the signals no longer end the process by themselves.
    pub fn listen() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        Ok(Self(Source::Kernel { terminate, interrupt, hangup }))
    }

    /// Signals that the caller sends itself: for tests, and for programs that have their own handlers.
    pub fn channel() -> (UnboundedSender<&'static str>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(Source::Channel(receiver)))
    }

    /// The next signal, by name.
    pub async fn next(&mut self) -> &'static str {
        match &mut self.0 {
            Source::Kernel { terminate, interrupt, hangup } => tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = hangup.recv() => "SIGHUP",
            },
            Source::Channel(receiver) => match receiver.recv().await {
                Some(signal) => signal,
                None => std::future::pending().await,
            },
        }
    }
}
