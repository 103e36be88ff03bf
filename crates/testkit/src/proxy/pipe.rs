//! One direction of one connection through the proxy.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{ActiveMode, Mode};

const READ_BUFFER: usize = 16 << 10;
/// The most bytes in flight. A delay needs a larger buffer, or it would limit the throughput.
const MAX_IN_FLIGHT: usize = 64 << 10;
const MAX_IN_FLIGHT_DELAYED: usize = 4 << 20;
/// How many portions per second a limited bandwidth is divided into.
const PORTIONS: u64 = 50;

/// The connection must be reset on both sides.
#[derive(Debug)]
pub(super) struct ConnectionBroken;

pub(super) struct Pipe<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    current: watch::Receiver<ActiveMode>,
    /// Whether this or the other direction has lost bytes. Such a connection cannot continue.
    loss: &'a AtomicBool,
    delivered: &'a AtomicU64,
    in_flight: VecDeque<Chunk>,
    /// Whether the sender may still send.
    open: bool,
    /// When the bandwidth allows the next portion.
    next_portion: Instant,
}

/// The bytes of one read. An empty chunk is the end of the stream.
struct Chunk {
    arrived: Instant,
    bytes: Vec<u8>,
    sent: usize,
}

enum Progress {
    Bytes(usize),
    End,
}

impl Mode {
    fn delay(self) -> Duration {
        if let Self::Delay(delay) = self { delay } else { Duration::ZERO }
    }

    fn max_in_flight(self) -> usize {
        if let Self::Delay(_) = self { MAX_IN_FLIGHT_DELAYED } else { MAX_IN_FLIGHT }
    }

    /// The most bytes that may be delivered at once.
    fn portion(self) -> usize {
        match self {
            Self::Bandwidth(rate) => usize::try_from((rate / PORTIONS).max(1)).unwrap_or(usize::MAX),
            _ => usize::MAX,
        }
    }

    /// How long to wait after delivering this many bytes.
    fn rest_after(self, bytes: usize) -> Duration {
        match self {
            Self::Bandwidth(rate) => Duration::from_secs_f64(bytes as f64 / rate as f64),
            _ => Duration::ZERO,
        }
    }
}

impl<'a> Pipe<'a> {
    pub(super) fn new(
        from: ReadHalf<'a>,
        to: WriteHalf<'a>,
        current: watch::Receiver<ActiveMode>,
        loss: &'a AtomicBool,
        delivered: &'a AtomicU64,
    ) -> Self {
        let (in_flight, next_portion) = (VecDeque::new(), Instant::now());
        Self { from, to, current, loss, delivered, in_flight, open: true, next_portion }
    }

    /// Forwards bytes until the sender has ended and everything is delivered.
    pub(super) async fn run(mut self) -> Result<(), ConnectionBroken> {
        let mut buffer = vec![0; READ_BUFFER];
        loop {
            // Held until the end of the iteration, while the mode is applied.
            let active = self.current.borrow_and_update().clone();
            let mode = active.mode;
            match mode {
                Mode::Cut => return Err(ConnectionBroken),
                Mode::HalfOpen if self.in_flight.is_empty() => {}
                Mode::HalfOpen => {
                    self.in_flight.clear();
                    self.loss.store(true, Ordering::Relaxed);
                }
                _ if self.loss.load(Ordering::Relaxed) => return Err(ConnectionBroken),
                _ => {}
            }
            let may_read = self.open && self.bytes_in_flight() < mode.max_in_flight();
            let front = self.in_flight.front();
            let delivering = deliver(&mut self.to, front, self.next_portion, mode, self.delivered);
            tokio::select! {
                // A change of mode comes first, so that no byte is handled in an outdated mode.
                biased;
                changed = self.current.changed() => changed.map_err(|_| ConnectionBroken)?,
                delivered = delivering => match delivered.map_err(|_| ConnectionBroken)? {
                    Progress::Bytes(count) => self.mark_sent(count, mode),
                    Progress::End => return Ok(()),
                },
                read = self.from.read(&mut buffer), if may_read => {
                    self.receive(mode, read.map(|count| &buffer[..count]))?;
                }
            }
        }
    }

    fn bytes_in_flight(&self) -> usize {
        self.in_flight.iter().map(|chunk| chunk.bytes.len() - chunk.sent).sum()
    }

    fn receive(&mut self, mode: Mode, read: io::Result<&[u8]>) -> Result<(), ConnectionBroken> {
        self.open = read.as_ref().is_ok_and(|bytes| !bytes.is_empty());
        if mode == Mode::HalfOpen {
            // An end or a reset is lost too.
            self.loss.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let bytes = read.map_err(|_| ConnectionBroken)?.to_vec();
        self.in_flight.push_back(Chunk { arrived: Instant::now(), bytes, sent: 0 });
        Ok(())
    }

    fn mark_sent(&mut self, count: usize, mode: Mode) {
        self.next_portion = Instant::now() + mode.rest_after(count);
        if let Some(chunk) = self.in_flight.front_mut() {
            chunk.sent += count;
            if chunk.sent == chunk.bytes.len() {
                self.in_flight.pop_front();
            }
        }
    }
}

/// Delivers a part of the chunk when it is due. Cancel-safe: if it is dropped, nothing was delivered.
async fn deliver(
    to: &mut WriteHalf<'_>,
    chunk: Option<&Chunk>,
    next_portion: Instant,
    mode: Mode,
    delivered: &AtomicU64,
) -> io::Result<Progress> {
    let Some(chunk) = chunk else { return std::future::pending().await };
    sleep_until(next_portion.max(chunk.arrived + mode.delay())).await;
    if chunk.bytes.is_empty() {
        to.shutdown().await?;
        return Ok(Progress::End);
    }
    let left = &chunk.bytes[chunk.sent..];
    let portion = &left[..left.len().min(mode.portion())];
    loop {
        to.writable().await?;
        // Counts before the write and corrects afterwards, so that a received byte is always counted.
        delivered.fetch_add(portion.len() as u64, Ordering::Relaxed);
        let sent = to.try_write(portion);
        let unsent = portion.len() - sent.as_ref().copied().unwrap_or(0);
        delivered.fetch_sub(unsent as u64, Ordering::Relaxed);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent.map(Progress::Bytes),
        }
    }
}
