//! The SQL store on real servers: one suite over SQLite, MariaDB and, where there is one, MySQL.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod doctor;
mod locking;
mod migrations;
mod outages;
mod store;

use std::time::Duration;

use db::{Config, Db, DbUrl};
use testkit::{Database, Folder, SqlServer};

const PATIENCE: Duration = Duration::from_secs(20);

/// A fresh place for one test, on one of the stores.
enum Place {
    Sqlite(Folder),
    MySql(Database),
}

impl Place {
    fn config(&self) -> Config {
        let url = match self {
            Self::Sqlite(folder) => DbUrl::sqlite(folder.path().join("test.db")),
            Self::MySql(database) => DbUrl::MySql(database.url().parse().unwrap()),
        };
        config(url)
    }

    async fn open(&self) -> Db {
        Db::open(&self.config()).await.unwrap()
    }
}

fn config(url: DbUrl) -> Config {
    Config { url, max_connections: 10, acquire_timeout: Duration::from_secs(5), migrate: false }
}

/// A fresh place on every store that can be had here.
async fn places() -> Result<Vec<Place>, testkit::Error> {
    let mut places = vec![Place::Sqlite(Folder::fresh().unwrap())];
    for server in SqlServer::all_shared().await? {
        places.push(Place::MySql(server.database().await));
    }
    Ok(places)
}
