//! A SQL database for one test: a SQLite file, or a database on a server.

use crate::{Database, Error, Folder, SqlServer};

/// A database for one test, in one of the supported SQL stores.
#[derive(Debug)]
pub enum TestDatabase {
    /// A folder with a SQLite file.
    Sqlite(Folder),
    /// A database on MySQL or MariaDB.
    Server(Database),
}

impl TestDatabase {
    pub fn sqlite() -> std::io::Result<Self> {
        Ok(Self::Sqlite(Folder::fresh()?))
    }

    /// Creates a database on every available server.
    pub async fn servers() -> Result<Vec<Self>, Error> {
        let mut databases = Vec::new();
        for server in SqlServer::all_shared().await? {
            databases.push(Self::Server(server.database().await));
        }
        Ok(databases)
    }

    /// Creates a database on every available server, and a SQLite file.
    pub async fn all() -> Result<Vec<Self>, Error> {
        let mut databases = Self::servers().await?;
        databases.extend(Self::sqlite());
        Ok(databases)
    }

    /// Returns the URL: `sqlite:PATH` or `mysql://…`.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("test.db").display()),
            Self::Server(database) => database.url().to_owned(),
        }
    }

    pub const fn is_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }
}

/// Runs tests on every kind of store: `on_all_stores!(one, two)` makes tests of each `async fn(&TestDatabase)`.
#[macro_export]
macro_rules! on_all_stores {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&$crate::TestDatabase::sqlite().expect("a folder can be made")).await;
            })*
        }

        mod on_servers {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                for database in $crate::need!($crate::TestDatabase::servers().await) {
                    super::$name(&database).await;
                }
            })*
        }
    };
}
