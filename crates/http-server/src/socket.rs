//! A connection that waits for its client only so long.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::lasting::Handover;

/// A socket on which no write waits for longer than the timeout.
///
/// Only a write that waits is timed: an answer that stays open and has nothing to say is none. When it is over, the client
/// has not taken what was sent before, for the kernel has no more room for it.
#[derive(Debug)]
pub(super) struct Socket<S> {
    stream: S,
    timeout: Duration,
    /// Runs while a write waits. Made by the first one that does, for most connections have none.
    timer: Option<Pin<Box<Sleep>>>,
    waits: bool,
    cut: Counter,
    /// Is told when all is written.
    handover: Handover,
}

impl<S: AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, timeout: Duration, cut: Counter, handover: Handover) -> Self {
        Self { stream, timeout, timer: None, waits: false, cut, handover }
    }

    /// Does a write, and times how long it waits.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = write(Pin::new(&mut self.stream), context) {
            self.waits = false;
            return Poll::Ready(done);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        if !self.waits {
            self.waits = true;
            timer.as_mut().reset(Instant::now() + self.timeout);
        }
        ready!(timer.as_mut().poll(context));
        self.waits = false;
        self.cut.inc();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.handover.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A socket whose kernel has room for four bytes, its client, and the counter of those cut off.
    fn socket() -> (Socket<DuplexStream>, DuplexStream, Counter) {
        let (near, far) = duplex(4);
        let cut = Counter::default();
        (Socket::new(near, TIMEOUT, cut.clone(), Handover::default()), far, cut)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut_off_when_the_time_is_over() {
        let (mut socket, _client, cut) = socket();
        socket.write_all(b"four").await.unwrap();
        let asked = Instant::now();
        let error = socket.write_all(b"more").await.unwrap_err();
        assert_eq!((error.kind(), asked.elapsed(), cut.get()), (io::ErrorKind::TimedOut, TIMEOUT, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_little_now_and_then_is_not() {
        let (mut socket, mut client, cut) = socket();
        let writing = tokio::spawn(async move { socket.write_all(&[0; 104]).await });
        for _ in 0..100 {
            tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
            client.read_u8().await.unwrap();
        }
        writing.await.unwrap().unwrap();
        assert_eq!(cut.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_not_timed() {
        let (mut socket, mut client, cut) = socket();
        let (mut none, mut taken) = ([0; 1], [0; 8]);
        for _ in 0..3 {
            // A write that waited before, and a client that says nothing for long.
            let (written, _) = tokio::join!(socket.write_all(&[0; 8]), client.read_exact(&mut taken));
            written.unwrap();
            assert!(timeout(10 * TIMEOUT, socket.read(&mut none)).await.is_err());
        }
        assert_eq!(cut.get(), 0);
    }
}
