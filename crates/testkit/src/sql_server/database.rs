//! A database for one test.

use std::path::{Path, PathBuf};

use sqlx::AssertSqlSafe;
use url::Url;

use super::connect;
use crate::external;
use crate::unique::unique;

/// A database for one test on a SQL server.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: Url,
    /// The socket of a local server.
    socket: Option<PathBuf>,
}

impl Database {
    /// Creates a database with a unique name.
    pub(super) async fn create(server: &Url, socket: Option<PathBuf>) -> Result<Self, sqlx::Error> {
        let name = unique();
        run(server, format!("CREATE DATABASE {name} CHARACTER SET utf8mb4")).await?;
        let mut url = server.clone();
        url.set_path(&name);
        Ok(Self { name, url, socket })
    }

    /// `mysql://…/NAME`
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Returns its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the Unix socket of a local server. It has half the latency of TCP. For benchmarks.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A local server is removed as a whole.
        if self.socket.is_none() {
            let (mut server, drop) = (self.url.clone(), format!("DROP DATABASE {}", self.name));
            server.set_path("");
            external::clean_up(async move { run(&server, drop).await });
        }
    }
}

async fn run(server: &Url, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = connect(server).await?;
    // Safe: the name consists of letters, digits and underscores.
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    Ok(())
}
