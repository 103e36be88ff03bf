//! A fresh place for SQL data: a file, or a database on a server.

use crate::{Database, Error, Folder, SqlServer};

/// A place of one test's own, on one of the kinds of store that there are.
#[derive(Debug)]
pub enum SqlPlace {
    /// A folder with a SQLite file in it.
    Sqlite(Folder),
    /// A database on MySQL or MariaDB.
    Server(Database),
}

impl SqlPlace {
    pub fn sqlite() -> std::io::Result<Self> {
        Ok(Self::Sqlite(Folder::fresh()?))
    }

    /// One on every server that can be had here.
    pub async fn servers() -> Result<Vec<Self>, Error> {
        let mut places = Vec::new();
        for server in SqlServer::all_shared().await? {
            places.push(Self::Server(server.database().await));
        }
        Ok(places)
    }

    /// One of each kind.
    pub async fn all() -> Result<Vec<Self>, Error> {
        let mut places = Self::servers().await?;
        places.extend(Self::sqlite());
        Ok(places)
    }

    /// Where the data is: `sqlite:PATH` or `mysql://…`.
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

/// Runs behaviours on every kind of store: `on_all_stores!(this_holds, that_holds)` makes a test of each `async fn(&SqlPlace)`.
#[macro_export]
macro_rules! on_all_stores {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&$crate::SqlPlace::sqlite().expect("a folder can be made")).await;
            })*
        }

        mod on_servers {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                for place in $crate::need!($crate::SqlPlace::servers().await) {
                    super::$name(&place).await;
                }
            })*
        }
    };
}
