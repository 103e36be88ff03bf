//! Opening the store.

use std::fmt;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{ErrorKind, IntoConnectionInfo};

use crate::{Config, Error};

/// The open store. Clones share its connection.
#[derive(Clone)]
pub enum Hot {
    Memory,
    /// One multiplexed connection, which is faster than a pool: what waits together is sent together.
    Redis(ConnectionManager),
}

impl Hot {
    /// Opens the store and makes sure that it answers.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let Some(url) = config.url.server() else { return Ok(Self::Memory) };
        let info = url.as_str().into_connection_info()?;
        let protocol = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(protocol))?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(config.timeout))
            .set_response_timeout(Some(config.timeout))
            // The caller decides what is tried again; the next command connects anew.
            .set_number_of_retries(0);
        let opening = async {
            let hot = Self::Redis(ConnectionManager::new_with_config(client, settings).await?);
            hot.ping().await?;
            Ok(hot)
        };
        let opened = tokio::time::timeout(config.timeout, opening).await;
        opened.unwrap_or_else(|_| Err(Error::Unreachable((ErrorKind::Io, "no answer in time").into())))
    }

    /// Whether the store answers.
    pub async fn ping(&self) -> Result<(), Error> {
        match self {
            Self::Memory => Ok(()),
            Self::Redis(connection) => Ok(redis::cmd("PING").query_async(&mut connection.clone()).await?),
        }
    }
}

impl fmt::Debug for Hot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "Hot(memory)",
            Self::Redis(_) => "Hot(redis)",
        })
    }
}
