//! A socket with a write timeout.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::open_response::Handover;

/// A socket on which a write fails after it has waited for the timeout.
///
/// Only a pending write is timed, so an idle stream never times out. A timeout means that the client does not read: the
/// kernel's send buffer stayed full.
#[derive(Debug)]
pub(super) struct Socket<S> {
    stream: S,
    timeout: Duration,
    /// Runs while a write is pending. Created by the first pending write, because most connections have none.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    cut: Counter,
    /// Learns when the socket is flushed.
    handover: Handover,
}

impl<S: AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, timeout: Duration, cut: Counter, handover: Handover) -> Self {
        Self { stream, timeout, timer: None, is_waiting: false, cut, handover }
    }

    /// Attempts a write. Fails if it has been pending for the timeout.
    fn write_timed<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = write(Pin::new(&mut self.stream), context) {
            self.is_waiting = false;
            return Poll::Ready(done);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        if !self.is_waiting {
            self.is_waiting = true;
            timer.as_mut().reset(Instant::now() + self.timeout);
        }
        ready!(timer.as_mut().poll(context));
        self.is_waiting = false;
        self.cut.inc();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its response")))
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
        self.write_timed(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_timed(context, |stream, context| stream.poll_write_vectored(context, slices))
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

    /// Returns a socket with a send buffer of four bytes, its client, and the counter of closed connections.
    fn socket() -> (Socket<DuplexStream>, DuplexStream, Counter) {
        let (near, far) = duplex(4);
        let cut = Counter::default();
        (Socket::new(near, TIMEOUT, cut.clone(), Handover::default()), far, cut)
    }

    #[tokio::test(start_paused = true)]
    async fn write_fails_when_the_client_reads_nothing_within_the_timeout() {
        let (mut socket, _client, cut) = socket();
        socket.write_all(b"four").await.unwrap();
        let started = Instant::now();
        let error = socket.write_all(b"more").await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed(), cut.get()), (io::ErrorKind::TimedOut, TIMEOUT, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn write_succeeds_when_the_client_reads_slowly() {
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
    async fn idle_socket_never_times_out() {
        let (mut socket, mut client, cut) = socket();
        let (mut none, mut received) = ([0; 1], [0; 8]);
        for _ in 0..3 {
            // A write that waited, then a client that sends nothing for long.
            let (written, _) = tokio::join!(socket.write_all(&[0; 8]), client.read_exact(&mut received));
            written.unwrap();
            assert!(timeout(10 * TIMEOUT, socket.read(&mut none)).await.is_err());
        }
        assert_eq!(cut.get(), 0);
    }
}
