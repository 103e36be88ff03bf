//! Settings of the store of short-lived state.

use std::time::Duration;

use ::config::{Reader, Section, Server, StoreUrl};

/// Settings of the store of short-lived state.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: HotUrl,
    /// How long one command may take, connecting included.
    pub timeout: Duration,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            url: reader.get("url"),
            timeout: reader.get_within("timeout", Duration::from_millis(10)..=Duration::from_secs(60)),
        }
    }
}

/// `memory:` or `redis://…` (`rediss://…` with TLS).
pub type HotUrl = StoreUrl<Redis>;

/// The server that this store can be.
#[derive(Debug)]
pub enum Redis {}

impl Server for Redis {
    const SCHEMES: &'static [&'static str] = &["redis", "rediss"];
    const EXAMPLE: &'static str = "redis://USER:PASSWORD@HOST:PORT/DATABASE";
}
