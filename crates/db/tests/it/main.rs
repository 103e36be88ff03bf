//! The SQL store on real servers: one suite for SQLite, MariaDB and, if installed, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod cancellation;
mod doctor;
mod locking;
mod logging;
mod migrations;
mod outages;
mod read_only;
mod store;
mod vanished_hosts;
mod waiters;

use std::time::Duration;

use config::{Setting, Value};
use db::{Config, Db, DbUrl};
use testkit::{Database, Flavour, Folder, SqlServer, TestDatabase as Place};

/// How long to wait for an expected state before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens a store at a place.
trait OpenStore {
    fn config(&self) -> Config;

    async fn open(&self) -> Db {
        Db::open(&self.config()).await.unwrap()
    }
}

impl OpenStore for Place {
    fn config(&self) -> Config {
        config(DbUrl::parse(&Value::Text(self.url())).unwrap())
    }
}

/// Starts a private server of each installed flavour. MySQL is optional.
async fn private_servers() -> Result<Vec<SqlServer>, testkit::Error> {
    let mut servers = vec![SqlServer::private().await?];
    match SqlServer::builder(Flavour::Mysql).start().await {
        Ok(server) => servers.push(server),
        Err(testkit::Error::Missing { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(servers)
}

fn config(url: DbUrl) -> Config {
    Config { url, max_connections: 10, acquire_timeout: Duration::from_secs(5), migrate: false }
}
