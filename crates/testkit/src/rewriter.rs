//! A TCP proxy that replaces bytes, so that a server poses as another version or product.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use url::Url;

/// Replaces bytes in both directions. The replacement has the same length, so the lengths in packets stay correct. Dropping it
/// closes its port and all connections.
#[derive(Debug)]
pub struct Rewriter {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rewriter {
    /// Starts a proxy to `target` that replaces `from` by `to` wherever one read contains it completely.
    ///
    /// # Panics
    /// If the two differ in length, there is no free port, or no thread can be started.
    pub async fn to(target: SocketAddr, from: &str, to: &str) -> Self {
        assert_eq!(from.len(), to.len(), "the replacement must have the same length");
        let words: Arc<(Vec<u8>, Vec<u8>)> = Arc::new((from.into(), to.into()));
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        // A separate thread, like the fault proxy: it does not depend on a test's runtime.
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port can be bound");
                let _ = ready.send(listener.local_addr().expect("a listener has an address"));
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listener, target, words) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("rewriter".to_owned()).spawn(work);
        let thread = Some(thread.expect("a thread can be started"));
        let addr = is_ready.await.expect("the proxy starts");
        Self { addr, stop: Some(stop), thread }
    }

    /// Returns the URL with host and port replaced by the proxy's.
    ///
    /// # Panics
    /// If `url` is not a URL with a host.
    pub fn url(&self, url: &str) -> String {
        let mut url = Url::parse(url).expect("a URL");
        url.set_host(Some(&self.addr.ip().to_string())).expect("a URL with a host");
        url.set_port(Some(self.addr.port())).expect("a URL with a port");
        url.to_string()
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, words: Arc<(Vec<u8>, Vec<u8>)>) {
    while let Ok((client, _)) = listener.accept().await {
        let words = Arc::clone(&words);
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(target).await else { return };
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            let _ = tokio::join!(copy(from_client, to_server, &words), copy(from_server, to_client, &words));
        });
    }
}

async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    words: &(Vec<u8>, Vec<u8>),
) -> io::Result<()> {
    let (old, new) = words;
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        let read = &mut bytes[..count];
        for at in 0..read.len().saturating_sub(old.len() - 1) {
            if read[at..].starts_with(old) {
                read[at..at + new.len()].copy_from_slice(new);
            }
        }
        to.write_all(read).await?;
    }
}
