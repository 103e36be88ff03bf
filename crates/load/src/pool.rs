//! Connections to the frontend, shared by all players.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::str::FromStr;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::sleep;

use crate::call::Failure;

const SERVICE: &str = "/openmatch.FrontendService/";
/// So large that no stream ever waits for us to say that we have read something.
const WINDOW: u32 = 8 << 20;
/// Every player resets its stream at the end, and late frames for it must not be taken for a mistake.
const RESETS_REMEMBERED: usize = 1 << 14;
const RECONNECT: Duration = Duration::from_millis(20);

/// A frontend, with the requests that are sent to it.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
    create: Request<()>,
    watch: Request<()>,
}

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an address like http://127.0.0.1:50504")]
pub struct BadTarget(String);

/// Connections, each of which carries many streams.
#[derive(Debug)]
pub(crate) struct Pool {
    slots: Vec<Rc<Slot>>,
    drivers: Vec<AbortHandle>,
    next: Cell<usize>,
    freed: Rc<Notify>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Empty while there is no connection.
    sender: RefCell<Option<SendRequest<Bytes>>>,
    streams: Cell<usize>,
}

/// The right to have one stream open at a time on a connection.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) sender: SendRequest<Bytes>,
    slot: Rc<Slot>,
    freed: Rc<Notify>,
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(url: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|authority| authority.port_u16().is_some()).ok_or_else(bad)?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(bad());
        }
        let request = |method| request(authority, method).ok_or_else(bad);
        Ok(Self {
            authority: authority.to_string(),
            create: request("CreateTicket")?,
            watch: request("WatchAssignments")?,
        })
    }
}

impl Target {
    pub(crate) fn create(&self) -> Request<()> {
        self.create.clone()
    }

    pub(crate) fn watch(&self) -> Request<()> {
        self.watch.clone()
    }

    /// A connection of its own, for a player that shares none.
    pub(crate) async fn connect_alone(&self) -> Result<(SendRequest<Bytes>, AbortHandle), Failure> {
        let (sender, connection) = self.connect().await?;
        let driver = spawn_local(async {
            let _ = connection.await;
        });
        Ok((sender, driver.abort_handle()))
    }

    async fn connect(&self) -> Result<(SendRequest<Bytes>, Connection<TcpStream, Bytes>), Failure> {
        let socket = TcpStream::connect(&self.authority).await?;
        socket.set_nodelay(true)?;
        let mut builder = Builder::new();
        builder
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_reset_streams(RESETS_REMEMBERED)
            .reset_stream_duration(Duration::from_secs(1))
            // Until the server has said how many there may be.
            .initial_max_send_streams(0)
            .enable_push(false);
        let (sender, mut connection) = builder.handshake(socket).await?;
        poll_fn(|context| match Pin::new(&mut connection).poll(context) {
            _ if sender.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) => Poll::Ready(Err(Failure::Connection("closed at once".to_owned()))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        Ok((sender, connection))
    }
}

fn request(authority: &Authority, method: &str) -> Option<Request<()>> {
    let path = PathAndQuery::from_str(&format!("{SERVICE}{method}")).ok()?;
    let uri =
        Uri::builder().scheme(Scheme::HTTP).authority(authority.clone()).path_and_query(path).build().ok()?;
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Some(request)
}

impl Pool {
    /// Opens the connections, and opens them again whenever the server closes one.
    pub(crate) async fn open(target: &Target, connections: usize) -> Result<Self, Failure> {
        let freed = Rc::new(Notify::new());
        let mut pool = Self { slots: Vec::new(), drivers: Vec::new(), next: Cell::new(0), freed };
        for _ in 0..connections.max(1) {
            let (sender, connection) = target.connect().await?;
            let slot = Rc::new(Slot { sender: RefCell::new(Some(sender)), streams: Cell::new(0) });
            let driver = drive(target.clone(), Rc::clone(&slot), connection, Rc::clone(&pool.freed));
            pool.slots.push(slot);
            pool.drivers.push(spawn_local(driver).abort_handle());
        }
        Ok(pool)
    }

    /// The next connection in turn that may take one more stream; waits while there is none.
    pub(crate) async fn lease(&self) -> Lease {
        loop {
            let freed = self.freed.notified();
            if let Some(lease) = self.try_lease() {
                return lease;
            }
            freed.await;
        }
    }

    fn try_lease(&self) -> Option<Lease> {
        for _ in 0..self.slots.len() {
            let index = self.next.get();
            self.next.set((index + 1) % self.slots.len());
            let slot = &self.slots[index];
            let sender = slot.sender.borrow();
            let usable =
                sender.as_ref().filter(|sender| slot.streams.get() < sender.current_max_send_streams());
            if let Some(sender) = usable {
                slot.streams.set(slot.streams.get() + 1);
                let (sender, slot, freed) = (sender.clone(), Rc::clone(slot), Rc::clone(&self.freed));
                return Some(Lease { sender, slot, freed });
            }
        }
        None
    }

    /// How many streams the server allows in all.
    pub(crate) fn room(&self) -> usize {
        let limit =
            |slot: &Rc<Slot>| slot.sender.borrow().as_ref().map_or(0, SendRequest::current_max_send_streams);
        self.slots.iter().map(limit).fold(0, usize::saturating_add)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for driver in &self.drivers {
            driver.abort();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.streams.set(self.slot.streams.get() - 1);
        self.freed.notify_one();
    }
}

async fn drive(
    target: Target,
    slot: Rc<Slot>,
    mut connection: Connection<TcpStream, Bytes>,
    freed: Rc<Notify>,
) {
    loop {
        let _ = connection.await;
        slot.sender.replace(None);
        connection = loop {
            sleep(RECONNECT).await;
            if let Ok((sender, connection)) = target.connect().await {
                slot.sender.replace(Some(sender));
                freed.notify_waiters();
                break connection;
            }
        };
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_plain_http_with_a_port() {
        let target: Target = "http://localhost:50504".parse().unwrap();
        assert_eq!(target.create().uri(), "http://localhost:50504/openmatch.FrontendService/CreateTicket");
        for bad in ["localhost:50504", "https://localhost:50504", "http://localhost", "nonsense", ""] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
