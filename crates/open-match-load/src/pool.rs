//! Connections to the frontend, shared by all players.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::sleep;

use crate::call::Failure;
use crate::http2::{Driver, Http2Client, connect};

const RECONNECT: Duration = Duration::from_millis(20);

/// The address of a frontend.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
}

/// The URL of the frontend is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a URL like http://127.0.0.1:50504")]
pub struct BadTarget(String);

/// A pool of connections, each with many streams.
#[derive(Debug)]
pub(crate) struct Pool {
    connections: Vec<Rc<PooledConnection>>,
    drivers: Vec<AbortHandle>,
    next: Cell<usize>,
    freed: Rc<Notify>,
}

#[derive(Debug, Default)]
struct PooledConnection {
    /// `None` while it is disconnected.
    client: RefCell<Option<Http2Client>>,
    streams: Cell<usize>,
}

/// A permit for one open stream on a connection.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    pub(crate) client: Http2Client,
    connection: Rc<PooledConnection>,
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
        Ok(Self { authority: authority.to_string() })
    }
}

impl Target {
    /// Opens a connection that is not shared.
    pub(crate) async fn connect_alone(&self) -> Result<(Http2Client, AbortHandle), Failure> {
        let (client, driver) = connect(&self.authority).await?;
        Ok((client, spawn_local(driver).abort_handle()))
    }
}

impl Pool {
    /// Opens the connections. Reopens a connection that the server closes.
    pub(crate) async fn open(target: &Target, connections: usize) -> Result<Self, Failure> {
        let freed = Rc::new(Notify::new());
        let mut pool = Self { connections: Vec::new(), drivers: Vec::new(), next: Cell::new(0), freed };
        for _ in 0..connections.max(1) {
            let (client, driver) = connect(&target.authority).await?;
            let connection =
                Rc::new(PooledConnection { client: RefCell::new(Some(client)), streams: Cell::new(0) });
            let driver = drive(target.clone(), Rc::clone(&connection), driver, Rc::clone(&pool.freed));
            pool.connections.push(connection);
            pool.drivers.push(spawn_local(driver).abort_handle());
        }
        Ok(pool)
    }

    /// Acquires a stream on the next connection, round robin. Waits while all connections have their maximum of streams.
    pub(crate) async fn acquire(&self) -> StreamPermit {
        loop {
            let freed = self.freed.notified();
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            freed.await;
        }
    }

    fn try_acquire(&self) -> Option<StreamPermit> {
        for _ in 0..self.connections.len() {
            let index = self.next.get();
            self.next.set((index + 1) % self.connections.len());
            let connection = &self.connections[index];
            let client = connection.client.borrow();
            if let Some(client) =
                client.as_ref().filter(|client| connection.streams.get() < client.max_streams())
            {
                connection.streams.set(connection.streams.get() + 1);
                let (client, connection, freed) =
                    (client.clone(), Rc::clone(connection), Rc::clone(&self.freed));
                return Some(StreamPermit { client, connection, freed });
            }
        }
        None
    }

    /// Returns how many streams the server allows over all connections.
    pub(crate) fn max_streams(&self) -> usize {
        let limit = |connection: &Rc<PooledConnection>| {
            connection.client.borrow().as_ref().map_or(0, Http2Client::max_streams)
        };
        self.connections.iter().map(limit).fold(0, usize::saturating_add)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for driver in &self.drivers {
            driver.abort();
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.freed.notify_one();
    }
}

async fn drive(target: Target, connection: Rc<PooledConnection>, mut driver: Driver, freed: Rc<Notify>) {
    loop {
        driver.await;
        connection.client.replace(None);
        driver = loop {
            sleep(RECONNECT).await;
            if let Ok((client, driver)) = connect(&target.authority).await {
                connection.client.replace(Some(client));
                freed.notify_waiters();
                break driver;
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
    fn target_is_plain_http_with_a_port() {
        assert_eq!("http://localhost:50504".parse::<Target>().unwrap().authority, "localhost:50504");
        for bad in ["localhost:50504", "https://localhost:50504", "http://localhost", "nonsense", ""] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
