//! The SQL store on real servers: one suite over SQLite, MariaDB and, where there is one, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod cancelling;
mod doctor;
mod locking;
mod logging;
mod migrations;
mod outages;
mod read_only;
mod store;
mod vanishing;
mod waiters;

use std::time::Duration;

use config::{Setting, Value};
use db::{Config, Db, DbUrl};
use testkit::{Database, Flavour, Folder, SqlPlace as Place, SqlServer};

const PATIENCE: Duration = Duration::from_secs(20);

/// How a place is opened here.
trait Opened {
    fn config(&self) -> Config;

    async fn open(&self) -> Db {
        Db::open(&self.config()).await.unwrap()
    }
}

impl Opened for Place {
    fn config(&self) -> Config {
        config(DbUrl::parse(&Value::Text(self.url())).unwrap())
    }
}

/// A server of the test's own of each flavour that can be had here. MySQL is a bonus.
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
