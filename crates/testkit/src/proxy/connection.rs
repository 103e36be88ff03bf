//! One connection through the proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::pipe::{ConnectionBroken, Pipe};
use super::{ActiveMode, Counts, Mode};

/// Increments a count until it is dropped.
struct CountGuard<'a>(&'a AtomicUsize);

pub(super) async fn run(
    mut client: TcpStream,
    target: SocketAddr,
    mut current: watch::Receiver<ActiveMode>,
    counts: Arc<Counts>,
) {
    let _count_guard = CountGuard::new(&counts.connections);
    let Ok(mut server) = dial(target, &mut current).await else {
        let _ = client.set_zero_linger();
        return;
    };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let end = {
        // Whether either direction has lost bytes.
        let loss = AtomicBool::new(false);
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = Pipe::new(from_client, to_server, current.clone(), &loss, &counts.to_server);
        let down = Pipe::new(from_server, to_client, current, &loss, &counts.to_client);
        tokio::try_join!(up.run(), down.run())
    };
    if end.is_err() {
        // Closing sends a reset, so both sides notice at once.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Connects to the server. In half-open mode a failure is not reported until the mode changes.
async fn dial(
    target: SocketAddr,
    current: &mut watch::Receiver<ActiveMode>,
) -> Result<TcpStream, ConnectionBroken> {
    tokio::select! {
        dialled = TcpStream::connect(target) => {
            if let Ok(server) = dialled {
                return Ok(server);
            }
        }
        _ = current.wait_for(|current| current.mode == Mode::Cut) => return Err(ConnectionBroken),
    }
    // In half-open mode the client must not learn that the server refused the connection.
    loop {
        let active = current.borrow_and_update().clone();
        if active.mode != Mode::HalfOpen || current.changed().await.is_err() {
            return Err(ConnectionBroken);
        }
    }
}

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
