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
use crate::http2::{Driver, Link, connect};

const RECONNECT: Duration = Duration::from_millis(20);

/// Where a frontend is.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
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
    link: RefCell<Option<Link>>,
    streams: Cell<usize>,
}

/// The right to have one stream open at a time on a connection.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) link: Link,
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
        Ok(Self { authority: authority.to_string() })
    }
}

impl Target {
    /// A connection of its own, for a player that shares none.
    pub(crate) async fn connect_alone(&self) -> Result<(Link, AbortHandle), Failure> {
        let (link, driver) = connect(&self.authority).await?;
        Ok((link, spawn_local(driver).abort_handle()))
    }
}

impl Pool {
    /// Opens the connections, and opens them again whenever the server closes one.
    pub(crate) async fn open(target: &Target, connections: usize) -> Result<Self, Failure> {
        let freed = Rc::new(Notify::new());
        let mut pool = Self { slots: Vec::new(), drivers: Vec::new(), next: Cell::new(0), freed };
        for _ in 0..connections.max(1) {
            let (link, driver) = connect(&target.authority).await?;
            let slot = Rc::new(Slot { link: RefCell::new(Some(link)), streams: Cell::new(0) });
            let driver = drive(target.clone(), Rc::clone(&slot), driver, Rc::clone(&pool.freed));
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
            let link = slot.link.borrow();
            if let Some(link) = link.as_ref().filter(|link| slot.streams.get() < link.max_streams()) {
                slot.streams.set(slot.streams.get() + 1);
                let (link, slot, freed) = (link.clone(), Rc::clone(slot), Rc::clone(&self.freed));
                return Some(Lease { link, slot, freed });
            }
        }
        None
    }

    /// How many streams the server allows in all.
    pub(crate) fn room(&self) -> usize {
        let limit = |slot: &Rc<Slot>| slot.link.borrow().as_ref().map_or(0, Link::max_streams);
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

async fn drive(target: Target, slot: Rc<Slot>, mut driver: Driver, freed: Rc<Notify>) {
    loop {
        driver.await;
        slot.link.replace(None);
        driver = loop {
            sleep(RECONNECT).await;
            if let Ok((link, driver)) = connect(&target.authority).await {
                slot.link.replace(Some(link));
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
    fn a_target_is_plain_http_with_a_port() {
        assert_eq!("http://localhost:50504".parse::<Target>().unwrap().authority, "localhost:50504");
        for bad in ["localhost:50504", "https://localhost:50504", "http://localhost", "nonsense", ""] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
