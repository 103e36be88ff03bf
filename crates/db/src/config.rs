//! Settings of the SQL store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::config::{Reader, Rejected, Section, Setting, Value, redacted};
use sqlx::mysql::MySqlConnectOptions;
use url::Url;

/// Settings of the SQL store.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: DbUrl,
    pub max_connections: u32,
    /// How long to wait for a connection before saying that there is none.
    pub acquire_timeout: Duration,
    /// Whether pending migrations are run at start, rather than refused.
    pub migrate: bool,
}

impl Config {
    /// How the server is reached, in the driver's terms. None where the store is embedded.
    pub fn server(&self) -> Option<MySqlConnectOptions> {
        match &self.url {
            DbUrl::Sqlite(_) => None,
            // Looked at when it was read.
            DbUrl::MySql(url) => crate::connect::mysql::options(url).ok(),
        }
    }
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            url: reader.get("url"),
            max_connections: reader.get_within("max_connections", 1..=10_000),
            acquire_timeout: reader
                .get_within("acquire_timeout", Duration::from_millis(100)..=Duration::from_secs(300)),
            migrate: reader.get("migrate"),
        }
    }
}

/// Where the data is. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub enum DbUrl {
    Sqlite(PathBuf),
    MySql(Url),
}

impl DbUrl {
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::Sqlite(path.into())
    }

    /// Embedded means: part of one process, which has it alone.
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }
}

impl Setting for DbUrl {
    fn expected() -> String {
        "\"sqlite:PATH\" (embedded) or \"mysql://USER:PASSWORD@HOST:PORT/DATABASE\" (MySQL or MariaDB)"
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let text = String::parse(value)?;
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(Rejected::because("the path is missing")),
                ":memory:" => Err(Rejected::because(
                    "the data needs a file; `playhouse dev --ephemeral` removes it at the end",
                )),
                path => Ok(Self::sqlite(path)),
            };
        }
        let url = Url::parse(&text).map_err(|error| Rejected::because(error.to_string()))?;
        match url.scheme() {
            "mysql" | "mariadb" if url.path().len() > 1 => match crate::connect::mysql::options(&url) {
                Ok(_) => Ok(Self::MySql(url)),
                Err(error) => Err(Rejected::because(base::error::chain(&error))),
            },
            "mysql" | "mariadb" => Err(Rejected::because("the name of the database is missing")),
            other => Err(Rejected::because(format!("{other}: is not a store we know"))),
        }
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }

    fn is_secret() -> bool {
        true
    }
}

impl fmt::Display for DbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::MySql(url) => f.write_str(&redacted(url)),
        }
    }
}

impl fmt::Debug for DbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The file whose lock says that a process has the SQLite file.
pub(crate) fn lock_path(data: &Path) -> PathBuf {
    let mut name = data.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DbUrl, Rejected> {
        DbUrl::parse(&Value::Text(text.to_owned()))
    }

    #[test]
    fn the_scheme_chooses_the_store() {
        assert_eq!(parse("sqlite:a/b.db"), Ok(DbUrl::sqlite("a/b.db")));
        assert_eq!(parse("sqlite:///a/b.db"), Ok(DbUrl::sqlite("/a/b.db")));
        assert!(matches!(parse("mysql://root@localhost/play"), Ok(DbUrl::MySql(_))));
        for (wrong, reason) in [
            ("postgres://x/y", "postgres: is not a store we know"),
            ("mysql://root@localhost", "the name of the database is missing"),
            ("sqlite:", "the path is missing"),
            ("play.db", "relative URL without a base"),
        ] {
            assert_eq!(parse(wrong).unwrap_err().reason.as_deref(), Some(reason));
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let url = parse("mysql://root:hunter2@localhost:3306/play").unwrap();
        assert_eq!(url.to_string(), "mysql://root:***@localhost:3306/play");
        assert!(!format!("{url:?}{}", url.show()).contains("hunter2"));
    }
}
