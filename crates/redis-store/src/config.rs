//! Settings of the store of short-lived state.

use std::time::Duration;

use ::config::{Reader, Section, Server, StoreUrl};
use redis::IntoConnectionInfo;
use url::Url;

/// Settings of the store of short-lived state.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: RedisUrl,
    /// How long one command may take, including connecting.
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
pub type RedisUrl = StoreUrl<Redis>;

/// The kind of server for this store.
#[derive(Debug)]
pub enum Redis {}

impl Server for Redis {
    const SCHEMES: &'static [&'static str] = &["redis", "rediss"];
    const EXAMPLE: &'static str = "redis://USER:PASSWORD@HOST:PORT/DATABASE";

    fn check(url: &Url) -> Result<(), String> {
        url.as_str().into_connection_info().map(drop).map_err(|error| base::error::chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use ::config::{Setting, Value};

    use super::*;

    #[test]
    fn invalid_url_is_rejected_with_the_configuration() {
        let parse = |text: &str| RedisUrl::parse(&Value::Text(text.to_owned()));
        assert!(parse("redis://:secret@localhost:6379/3").is_ok());
        assert!(parse("redis://localhost/three").is_err());
    }
}
