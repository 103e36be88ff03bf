//! One connection through the proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::pipe::{Broken, Pipe};
use super::{Counts, Current, Mode};

/// Adds one to a count as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

pub(super) async fn run(
    mut client: TcpStream,
    target: SocketAddr,
    mut current: watch::Receiver<Current>,
    counts: Arc<Counts>,
) {
    let _counted = Counted::new(&counts.connections);
    let Ok(mut server) = dial(target, &mut current).await else {
        let _ = client.set_zero_linger();
        return;
    };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let end = {
        // Whether either direction has lost something.
        let loss = AtomicBool::new(false);
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = Pipe::new(from_client, to_server, current.clone(), &loss, &counts.to_server);
        let down = Pipe::new(from_server, to_client, current, &loss, &counts.to_client);
        tokio::try_join!(up.run(), down.run())
    };
    if end.is_err() {
        // Closing now sends a reset, so that both sides notice at once.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Connects to the server.
async fn dial(target: SocketAddr, current: &mut watch::Receiver<Current>) -> Result<TcpStream, Broken> {
    tokio::select! {
        dialled = TcpStream::connect(target) => {
            if let Ok(server) = dialled {
                return Ok(server);
            }
        }
        _ = current.wait_for(|current| current.mode == Mode::Cut) => return Err(Broken),
    }
    // While nothing gets through, the news that the server is not there does not either.
    loop {
        let acting = current.borrow_and_update().clone();
        if acting.mode != Mode::HalfOpen || current.changed().await.is_err() {
            return Err(Broken);
        }
    }
}

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
