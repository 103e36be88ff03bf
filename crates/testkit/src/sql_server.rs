//! MariaDB and MySQL.

mod database;
mod dsn;
mod server_program;
mod template;

use std::fs;
use std::path::Path;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Row};
use tokio::sync::OnceCell;
use url::Url;

use crate::process::Launch;
use crate::server::{Hosting, Server, ServerKind, ServerLocation};
use crate::{Error, external, folder};

pub use database::Database;
pub use server_program::Flavour;
use server_program::ServerProgram;

const VARIABLE: &str = "MYSQL_DSN";
const SOCKET: &str = "sql.sock";
const SCRATCH: &str = "scratch";

/// A MariaDB or MySQL server. The user is `root` without a password.
///
/// By default commits are written to the operating system but not synced to disk: they survive [`kill`](Server::kill), but not a
/// power loss.
pub type SqlServer = Server<SqlKind>;

/// The options of a MariaDB or MySQL server.
#[derive(Clone, Debug)]
pub struct SqlBuilder {
    flavour: Flavour,
    durable: bool,
    args: Vec<String>,
}

/// Starts MariaDB or MySQL.
#[derive(Debug)]
pub struct SqlKind {
    flavour: Flavour,
    /// None for an external server.
    program: Option<ServerProgram>,
    durable: bool,
    args: Vec<String>,
}

impl SqlServer {
    /// Returns the shared server of this test process: the one at `MYSQL_DSN`, or else a local MariaDB.
    pub async fn shared() -> Result<&'static Self, Error> {
        match external().await? {
            Some(server) => Ok(server),
            None => Self::mariadb().await,
        }
    }

    /// Returns the shared MariaDB of this test process: the one at `MYSQL_DSN` if that is a MariaDB, or else a local one.
    pub async fn mariadb() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<SqlServer> = OnceCell::const_new();
        shared_of(Flavour::Mariadb, &SHARED).await
    }

    /// Returns the shared MySQL of this test process: the one at `MYSQL_DSN` if that is a MySQL, or else a local one.
    pub async fn mysql() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<SqlServer> = OnceCell::const_new();
        shared_of(Flavour::Mysql, &SHARED).await
    }

    /// Returns a shared server of each available flavour, for suites that loop over them. MySQL is optional. Fails if there is
    /// neither a MariaDB nor a server at `MYSQL_DSN`.
    pub async fn all_shared() -> Result<Vec<&'static Self>, Error> {
        let mut all = Vec::new();
        let mut missing = None;
        for server in [Self::mariadb().await, Self::mysql().await] {
            match server {
                Ok(server) => all.push(server),
                Err(error @ Error::Missing { .. }) => missing = missing.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        let has_required = all.iter().any(|server| {
            server.flavour() == Flavour::Mariadb || matches!(server.hosting, Hosting::External(_))
        });
        match missing {
            Some(error) if !has_required => Err(error),
            _ => Ok(all),
        }
    }

    /// Starts a MariaDB that only the caller uses and may break.
    pub async fn private() -> Result<Self, Error> {
        Self::builder(Flavour::Mariadb).start().await
    }

    /// Returns a builder for a server that only the caller uses.
    pub fn builder(flavour: Flavour) -> SqlBuilder {
        SqlBuilder { flavour, durable: false, args: Vec::new() }
    }

    /// Returns whether it is MariaDB or MySQL.
    pub fn flavour(&self) -> Flavour {
        self.kind.flavour
    }

    /// Returns the URL `mysql://…` without a database.
    pub fn url(&self) -> String {
        self.base_url().to_string()
    }

    /// Creates an empty database.
    ///
    /// # Panics
    /// If the server does not create it.
    pub async fn database(&self) -> Database {
        let socket = self.local().map(|local| local.location().folder().join(SOCKET));
        Database::create(&self.base_url(), socket).await.expect("the SQL server creates a database")
    }

    fn base_url(&self) -> Url {
        match &self.hosting {
            Hosting::Local(local) => local_url(local.location()),
            Hosting::External(url) => url.clone(),
        }
    }
}

impl SqlBuilder {
    /// Syncs each commit to a real disk, as in production. For benchmarks.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Adds an argument for the server. It overrides the default arguments, because the last one wins.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts the server and waits until it is ready.
    pub async fn start(self) -> Result<SqlServer, Error> {
        // Blocking: the search runs programs to get their versions.
        let finding = tokio::task::spawn_blocking(move || self.kind());
        let kind = finding.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        Server::start_new(kind).await
    }

    fn kind(self) -> Result<SqlKind, Error> {
        let Self { flavour, durable, args } = self;
        Ok(SqlKind { flavour, program: Some(ServerProgram::find(flavour)?), durable, args })
    }
}

impl SqlKind {
    fn program(&self) -> &ServerProgram {
        self.program.as_ref().expect("only a local server is launched")
    }
}

impl ServerKind for SqlKind {
    fn name(&self) -> &'static str {
        self.flavour.program()
    }

    fn on_disk(&self) -> bool {
        self.durable
    }

    fn prepare(&self, location: &ServerLocation) -> Result<(), Error> {
        let scratch = fs::create_dir(location.folder().join(SCRATCH));
        scratch.map_err(|error| Error::failed(self.name(), error))?;
        let template = template::ready(self.program())?;
        folder::copy(&template, &location.data())
            .map_err(|error| Error::failed("copying the template", error))
    }

    fn launch(&self, location: &ServerLocation) -> Launch {
        self.program()
            .server(&location.data(), &location.folder().join(SCRATCH), self.durable)
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--port={}", location.port))
            .option("socket", location.folder().join(SOCKET))
            .option("pid-file", location.folder().join("pid"))
            .args(&self.args)
    }

    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        let mut connection = connect(&local_url(location)).await.map_err(|e| e.to_string())?;
        let row = sqlx::raw_sql("SELECT @@datadir").fetch_one(&mut connection).await;
        let data: String = row.and_then(|row| row.try_get(0)).map_err(|e| e.to_string())?;
        // Paths are compared, because the server adds a slash to the end.
        if Path::new(&data) == location.data() {
            return Ok(());
        }
        Err(format!("another server answers, in {data}"))
    }
}

async fn connect(url: &Url) -> Result<MySqlConnection, sqlx::Error> {
    MySqlConnectOptions::from_url(url)?.connect().await
}

fn local_url(location: &ServerLocation) -> Url {
    Url::parse(&format!("mysql://root@{}", location.addr())).expect("a well-formed URL")
}

async fn shared_of(
    flavour: Flavour,
    cell: &'static OnceCell<SqlServer>,
) -> Result<&'static SqlServer, Error> {
    match external().await? {
        Some(server) if server.flavour() == flavour => Ok(server),
        _ => cell.get_or_try_init(|| SqlServer::builder(flavour).start()).await,
    }
}

/// Returns the server at `MYSQL_DSN`, if that is set.
async fn external() -> Result<Option<&'static SqlServer>, Error> {
    static EXTERNAL: OnceCell<SqlServer> = OnceCell::const_new();
    let Some(url) = external::from_variable(VARIABLE, dsn::parse)? else { return Ok(None) };
    let start = || async {
        let mut version = String::new();
        let probe = async {
            let mut connection = connect(&url).await?;
            version = sqlx::raw_sql("SELECT VERSION()").fetch_one(&mut connection).await?.try_get(0)?;
            Ok::<_, sqlx::Error>(())
        };
        external::check(VARIABLE, &url, async { probe.await.map_err(|e| e.to_string()) }).await?;
        let flavour = Flavour::of_version(&version);
        let kind = SqlKind { flavour, program: None, durable: false, args: Vec::new() };
        Ok::<_, Error>(SqlServer { kind, hosting: Hosting::External(url.clone()) })
    };
    EXTERNAL.get_or_try_init(start).await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_detects_taken_port;

    #[tokio::test]
    async fn mariadb_detects_a_taken_port() {
        let kind = || SqlServer::builder(Flavour::Mariadb).kind();
        assert_detects_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }

    #[tokio::test]
    async fn mysql_detects_a_taken_port() {
        // Optional, as in `all_shared`: most machines have no MySQL.
        let kind = || SqlServer::builder(Flavour::Mysql).kind();
        if let (Ok(one), Ok(another)) = (kind(), kind()) {
            assert_detects_taken_port(one, another).await;
        }
    }
}
