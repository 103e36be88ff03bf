//! Settings of the SQL store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::config::{InvalidValue, Reader, Section, Setting, Value, redact_url};
use sqlx::mysql::MySqlConnectOptions;
use url::Url;

/// Settings of the SQL store.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: DbUrl,
    pub max_connections: u32,
    /// How long to wait for a pooled connection before failing with [`Error::Unreachable`](crate::Error::Unreachable).
    pub acquire_timeout: Duration,
    /// Whether to run pending migrations at startup. If false, startup fails while any are pending.
    pub migrate: bool,
}

impl Config {
    /// Returns the driver's connect options for the server, or none for SQLite.
    pub fn server(&self) -> Option<MySqlConnectOptions> {
        match &self.url {
            DbUrl::Sqlite(_) => None,
            // Validated when the URL was parsed.
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

/// The address of the SQL store. `Display` and `Debug` redact the password.
#[derive(Clone, PartialEq, Eq)]
pub enum DbUrl {
    Sqlite(PathBuf),
    MySql(Url),
}

impl DbUrl {
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::Sqlite(path.into())
    }

    /// Returns whether the store is embedded: a file that a single process owns.
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }
}

impl Setting for DbUrl {
    fn expected() -> String {
        "\"sqlite:PATH\" (embedded) or \"mysql://USER:PASSWORD@HOST:PORT/DATABASE\" (MySQL or MariaDB)"
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(InvalidValue::with_reason("the path is missing")),
                ":memory:" => Err(InvalidValue::with_reason(
                    "the data needs a file; `playhouse dev --ephemeral` removes it on exit",
                )),
                path => Ok(Self::sqlite(path)),
            };
        }
        let url = Url::parse(&text).map_err(|error| InvalidValue::with_reason(error.to_string()))?;
        match url.scheme() {
            "mysql" | "mariadb" if url.path().len() > 1 => match crate::connect::mysql::options(&url) {
                Ok(_) => Ok(Self::MySql(url)),
                Err(error) => Err(InvalidValue::with_reason(base::error::chain(&error))),
            },
            "mysql" | "mariadb" => Err(InvalidValue::with_reason("the database name is missing")),
            other => Err(InvalidValue::with_reason(format!("{other}: is not a supported store"))),
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
            Self::MySql(url) => f.write_str(&redact_url(url)),
        }
    }
}

impl fmt::Debug for DbUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the path of the lock file. The process that has it locked owns the SQLite file.
pub(crate) fn lock_path(data: &Path) -> PathBuf {
    let mut name = data.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DbUrl, InvalidValue> {
        DbUrl::parse(&Value::Text(text.to_owned()))
    }

    #[test]
    fn scheme_selects_the_store() {
        assert_eq!(parse("sqlite:a/b.db"), Ok(DbUrl::sqlite("a/b.db")));
        assert_eq!(parse("sqlite:///a/b.db"), Ok(DbUrl::sqlite("/a/b.db")));
        assert!(matches!(parse("mysql://root@localhost/play"), Ok(DbUrl::MySql(_))));
        for (wrong, reason) in [
            ("postgres://x/y", "postgres: is not a supported store"),
            ("mysql://root@localhost", "the database name is missing"),
            ("sqlite:", "the path is missing"),
            ("play.db", "relative URL without a base"),
        ] {
            assert_eq!(parse(wrong).unwrap_err().reason.as_deref(), Some(reason));
        }
    }

    #[test]
    fn password_is_redacted() {
        let url = parse("mysql://root:hunter2@localhost:3306/play").unwrap();
        assert_eq!(url.to_string(), "mysql://root:***@localhost:3306/play");
        assert!(!format!("{url:?}{}", url.show()).contains("hunter2"));
    }
}
