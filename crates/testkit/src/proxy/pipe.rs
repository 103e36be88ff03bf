//! One direction of one connection through the proxy.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{Current, Mode};

const READ_AT_ONCE: usize = 16 << 10;
/// How much is under way at most. A delay needs more, or it would limit the throughput.
const UNDER_WAY: usize = 64 << 10;
const UNDER_WAY_DELAYED: usize = 4 << 20;
/// A limited bandwidth is given out in so many portions a second.
const PORTIONS: u64 = 50;

/// The connection cannot go on, and both ends are to know.
#[derive(Debug)]
pub(super) struct Broken;

pub(super) struct Pipe<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    current: watch::Receiver<Current>,
    /// Whether this or the other direction has lost something, so that the connection cannot go on.
    loss: &'a AtomicBool,
    delivered: &'a AtomicU64,
    under_way: VecDeque<Piece>,
    /// Whether the sender may still send something.
    open: bool,
    /// When the bandwidth allows the next portion.
    next_portion: Instant,
}

/// What arrived at one time. An empty piece is the end of what the sender sends.
struct Piece {
    arrived: Instant,
    bytes: Vec<u8>,
    sent: usize,
}

enum Delivered {
    Bytes(usize),
    End,
}

impl Mode {
    fn delay(self) -> Duration {
        if let Self::Delay(delay) = self { delay } else { Duration::ZERO }
    }

    fn room(self) -> usize {
        if let Self::Delay(_) = self { UNDER_WAY_DELAYED } else { UNDER_WAY }
    }

    /// How much may be delivered at once.
    fn portion(self) -> usize {
        match self {
            Self::Bandwidth(rate) => usize::try_from((rate / PORTIONS).max(1)).unwrap_or(usize::MAX),
            _ => usize::MAX,
        }
    }

    /// How long to wait after so many bytes.
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
        current: watch::Receiver<Current>,
        loss: &'a AtomicBool,
        delivered: &'a AtomicU64,
    ) -> Self {
        let (under_way, next_portion) = (VecDeque::new(), Instant::now());
        Self { from, to, current, loss, delivered, under_way, open: true, next_portion }
    }

    /// Carries bytes until the sender has ended and all has been delivered.
    pub(super) async fn run(mut self) -> Result<(), Broken> {
        let mut buffer = vec![0; READ_AT_ONCE];
        loop {
            // Held until the end of the round, as long as it is acted upon.
            let acting = self.current.borrow_and_update().clone();
            let mode = acting.mode;
            match mode {
                Mode::Cut => return Err(Broken),
                Mode::HalfOpen if self.under_way.is_empty() => {}
                Mode::HalfOpen => {
                    self.under_way.clear();
                    self.loss.store(true, Ordering::Relaxed);
                }
                _ if self.loss.load(Ordering::Relaxed) => return Err(Broken),
                _ => {}
            }
            let may_read = self.open && self.bytes_under_way() < mode.room();
            let front = self.under_way.front();
            let delivering = deliver(&mut self.to, front, self.next_portion, mode, self.delivered);
            tokio::select! {
                // First of all, so that no byte is treated according to a mode that is over.
                biased;
                changed = self.current.changed() => changed.map_err(|_| Broken)?,
                delivered = delivering => match delivered.map_err(|_| Broken)? {
                    Delivered::Bytes(count) => self.strike_off(count, mode),
                    Delivered::End => return Ok(()),
                },
                read = self.from.read(&mut buffer), if may_read => {
                    self.take_in(mode, read.map(|count| &buffer[..count]))?;
                }
            }
        }
    }

    fn bytes_under_way(&self) -> usize {
        self.under_way.iter().map(|piece| piece.bytes.len() - piece.sent).sum()
    }

    fn take_in(&mut self, mode: Mode, read: io::Result<&[u8]>) -> Result<(), Broken> {
        self.open = read.as_ref().is_ok_and(|bytes| !bytes.is_empty());
        if mode == Mode::HalfOpen {
            // An end, or a reset, gets lost like everything else.
            self.loss.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let bytes = read.map_err(|_| Broken)?.to_vec();
        self.under_way.push_back(Piece { arrived: Instant::now(), bytes, sent: 0 });
        Ok(())
    }

    fn strike_off(&mut self, count: usize, mode: Mode) {
        self.next_portion = Instant::now() + mode.rest_after(count);
        if let Some(piece) = self.under_way.front_mut() {
            piece.sent += count;
            if piece.sent == piece.bytes.len() {
                self.under_way.pop_front();
            }
        }
    }
}

/// Delivers some of the piece when it is due. May be dropped at any time and has then done nothing.
async fn deliver(
    to: &mut WriteHalf<'_>,
    piece: Option<&Piece>,
    next_portion: Instant,
    mode: Mode,
    delivered: &AtomicU64,
) -> io::Result<Delivered> {
    let Some(piece) = piece else { return std::future::pending().await };
    sleep_until(next_portion.max(piece.arrived + mode.delay())).await;
    if piece.bytes.is_empty() {
        to.shutdown().await?;
        return Ok(Delivered::End);
    }
    let left = &piece.bytes[piece.sent..];
    let portion = &left[..left.len().min(mode.portion())];
    loop {
        to.writable().await?;
        // Counted first and corrected after: who has received a byte finds it counted.
        delivered.fetch_add(portion.len() as u64, Ordering::Relaxed);
        let sent = to.try_write(portion);
        let unsent = portion.len() - sent.as_ref().copied().unwrap_or(0);
        delivered.fetch_sub(unsent as u64, Ordering::Relaxed);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent.map(Delivered::Bytes),
        }
    }
}
