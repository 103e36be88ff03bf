//! MariaDB and MySQL.

mod database;
mod dsn;
mod engine;
mod template;

use std::fs;
use std::path::Path;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Row};
use tokio::sync::OnceCell;
use url::Url;

use crate::process::Launch;
use crate::server::{Home, Kind, Place, Server};
use crate::{Error, external, folder};

pub use database::Database;
use engine::Engine;
pub use engine::Flavour;

const VARIABLE: &str = "MYSQL_DSN";
const SOCKET: &str = "sql.sock";
const SCRATCH: &str = "scratch";

/// A MariaDB or MySQL server; the user is `root` without a password.
///
/// By default nothing is synced to disk, but every commit is handed to the operating system: it
/// survives [`kill`](Server::kill), not a loss of power.
pub type SqlServer = Server<SqlKind>;

/// A MariaDB or MySQL server about to be started.
#[derive(Clone, Debug)]
pub struct SqlBuilder {
    flavour: Flavour,
    durable: bool,
    args: Vec<String>,
}

/// How MariaDB or MySQL is started.
#[derive(Debug)]
pub struct SqlKind {
    flavour: Flavour,
    /// None for an external server.
    engine: Option<Engine>,
    durable: bool,
    args: Vec<String>,
}

impl SqlServer {
    /// The one of this test process: at `MYSQL_DSN`, or else a MariaDB that is started now.
    pub async fn shared() -> Result<&'static Self, Error> {
        match external().await? {
            Some(server) => Ok(server),
            None => Self::mariadb().await,
        }
    }

    /// The MariaDB of this test process: at `MYSQL_DSN` if that is one, or else started now.
    pub async fn mariadb() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<SqlServer> = OnceCell::const_new();
        shared_of(Flavour::Mariadb, &SHARED).await
    }

    /// The MySQL of this test process: at `MYSQL_DSN` if that is one, or else started now.
    pub async fn mysql() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<SqlServer> = OnceCell::const_new();
        shared_of(Flavour::Mysql, &SHARED).await
    }

    /// One of each flavour that can be had here, for suites that loop over them. MySQL is a bonus; it is
    /// an error if there is neither a MariaDB nor a server at `MYSQL_DSN`.
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
        let has_required = all
            .iter()
            .any(|server| server.flavour() == Flavour::Mariadb || matches!(server.home, Home::External(_)));
        match missing {
            Some(error) if !has_required => Err(error),
            _ => Ok(all),
        }
    }

    /// A MariaDB for the caller alone, to break.
    pub async fn private() -> Result<Self, Error> {
        Self::builder(Flavour::Mariadb).start().await
    }

    /// A server for the caller alone, with options.
    pub fn builder(flavour: Flavour) -> SqlBuilder {
        SqlBuilder { flavour, durable: false, args: Vec::new() }
    }

    /// Which of the two it is.
    pub fn flavour(&self) -> Flavour {
        self.kind.flavour
    }

    /// `mysql://…` without a database.
    pub fn url(&self) -> String {
        self.base_url().to_string()
    }

    /// A new empty database.
    ///
    /// # Panics
    /// When the server does not create it.
    pub async fn database(&self) -> Database {
        let socket = self.own().map(|own| own.place().folder().join(SOCKET));
        Database::create(&self.base_url(), socket).await.expect("the SQL server creates a database")
    }

    fn base_url(&self) -> Url {
        match &self.home {
            Home::Own(own) => own_url(own.place()),
            Home::External(url) => url.clone(),
        }
    }
}

impl SqlBuilder {
    /// Syncs each commit to a real disk, as in production, for benchmarks.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// One more argument for the server. The last one wins, so it may overrule ours.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts it and waits until it answers.
    pub async fn start(self) -> Result<SqlServer, Error> {
        // Finding it runs programs to ask for their versions.
        let finding = tokio::task::spawn_blocking(move || self.kind());
        let kind = finding.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        Server::of(kind).await
    }

    fn kind(self) -> Result<SqlKind, Error> {
        let Self { flavour, durable, args } = self;
        Ok(SqlKind { flavour, engine: Some(Engine::find(flavour)?), durable, args })
    }
}

impl SqlKind {
    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("only a server of ours is launched")
    }
}

impl Kind for SqlKind {
    fn name(&self) -> &'static str {
        self.flavour.program()
    }

    fn on_disk(&self) -> bool {
        self.durable
    }

    fn prepare(&self, place: &Place) -> Result<(), Error> {
        let scratch = fs::create_dir(place.folder().join(SCRATCH));
        scratch.map_err(|error| Error::failed(self.name(), error))?;
        let template = template::ready(self.engine())?;
        folder::copy(&template, &place.data()).map_err(|error| Error::failed("copying the template", error))
    }

    fn launch(&self, place: &Place) -> Launch {
        self.engine()
            .server(&place.data(), &place.folder().join(SCRATCH), self.durable)
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--port={}", place.port))
            .option("socket", place.folder().join(SOCKET))
            .option("pid-file", place.folder().join("pid"))
            .args(&self.args)
    }

    async fn answers(&self, place: &Place) -> Result<(), String> {
        let mut connection = connect(&own_url(place)).await.map_err(|e| e.to_string())?;
        let asked = sqlx::raw_sql("SELECT @@datadir").fetch_one(&mut connection).await;
        let data: String = asked.and_then(|row| row.try_get(0)).map_err(|e| e.to_string())?;
        // The server adds a slash to the end, which a path does not mind.
        if Path::new(&data) == place.data() {
            return Ok(());
        }
        Err(format!("another server answers, in {data}"))
    }
}

async fn connect(url: &Url) -> Result<MySqlConnection, sqlx::Error> {
    MySqlConnectOptions::from_url(url)?.connect().await
}

fn own_url(place: &Place) -> Url {
    Url::parse(&format!("mysql://root@{}", place.addr())).expect("a well-formed URL")
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

/// The server at `MYSQL_DSN`, if that is set.
async fn external() -> Result<Option<&'static SqlServer>, Error> {
    static EXTERNAL: OnceCell<SqlServer> = OnceCell::const_new();
    let Some(url) = external::named_by(VARIABLE, dsn::parse)? else { return Ok(None) };
    let start = || async {
        let mut version = String::new();
        let ask = async {
            let mut connection = connect(&url).await?;
            version = sqlx::raw_sql("SELECT VERSION()").fetch_one(&mut connection).await?.try_get(0)?;
            Ok::<_, sqlx::Error>(())
        };
        external::check(VARIABLE, &url, async { ask.await.map_err(|e| e.to_string()) }).await?;
        let flavour = Flavour::of_version(&version);
        let kind = SqlKind { flavour, engine: None, durable: false, args: Vec::new() };
        Ok::<_, Error>(SqlServer { kind, home: Home::External(url.clone()) })
    };
    EXTERNAL.get_or_try_init(start).await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_notices_taken_port;

    #[tokio::test]
    async fn a_taken_port_is_noticed_by_mariadb() {
        let kind = || SqlServer::builder(Flavour::Mariadb).kind();
        assert_notices_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }

    #[tokio::test]
    async fn a_taken_port_is_noticed_by_mysql() {
        // A bonus, as in `all_shared`: it is missing in most places.
        let kind = || SqlServer::builder(Flavour::Mysql).kind();
        if let (Ok(one), Ok(another)) = (kind(), kind()) {
            assert_notices_taken_port(one, another).await;
        }
    }
}
