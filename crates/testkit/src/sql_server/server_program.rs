//! MariaDB and MySQL programs: how to find them, create their data folder and start them.

use std::env;
use std::path::{Path, PathBuf};

use crate::process::Launch;
use crate::{Error, installed};

/// The path of a MySQL that is not on the PATH.
const MYSQLD_VARIABLE: &str = "TESTKIT_MYSQLD";

/// Allows root from 127.0.0.1. By default MySQL allows root only from `localhost`, which needs name resolution. That is switched
/// off, because each connection would wait for a name server. MariaDB allows both by default.
pub(super) const INIT_SQL: &str = "\
CREATE USER root@127.0.0.1;
GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;
GRANT PROXY ON ''@'' TO root@127.0.0.1 WITH GRANT OPTION;
";

/// Small, because the log is copied with each data folder.
const MARIADB_SMALL_LOG: &str = "--innodb-log-file-size=16M";
const MYSQL_SMALL_LOG: &str = "--innodb-redo-log-capacity=16M";

/// The two servers with the MySQL protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// MariaDB.
    Mariadb,
    /// MySQL proper.
    Mysql,
}

/// An installed server program.
#[derive(Clone, Debug)]
pub(super) struct ServerProgram {
    pub(super) flavour: Flavour,
    pub(super) version: String,
    program: PathBuf,
    /// MariaDB has a separate program that creates the data folder.
    installer: Option<PathBuf>,
}

impl Flavour {
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Mariadb => "mariadbd",
            Self::Mysql => "mysqld",
        }
    }

    pub(super) fn of_version(version: &str) -> Self {
        if version.contains("MariaDB") { Self::Mariadb } else { Self::Mysql }
    }
}

impl ServerProgram {
    pub(super) fn find(flavour: Flavour) -> Result<Self, Error> {
        match flavour {
            Flavour::Mariadb => Self::find_mariadb(),
            Flavour::Mysql => Self::find_mysql(),
        }
    }

    fn find_mariadb() -> Result<Self, Error> {
        let remedy = "`cargo xtask test` installs it, or set MYSQL_DSN to a running server";
        let missing = |program| Error::Missing { program, remedy };
        let found = installed::find_all("mariadbd").chain(installed::find_all("mysqld"));
        let (program, version) = pick(found, Flavour::Mariadb).ok_or_else(|| missing("mariadbd"))?;
        let installer = installed::find(&["mariadb-install-db", "mysql_install_db"])
            .ok_or_else(|| missing("mariadb-install-db"))?;
        Ok(Self { flavour: Flavour::Mariadb, version, program, installer: Some(installer) })
    }

    fn find_mysql() -> Result<Self, Error> {
        let named = env::var_os(MYSQLD_VARIABLE).filter(|set| !set.is_empty()).map(PathBuf::from);
        // Checks the version of each, because Debian's MariaDB has a `mysqld` too.
        let found = match &named {
            Some(named) => pick(std::iter::once(named.clone()), Flavour::Mysql),
            None => pick(installed::find_all("mysqld"), Flavour::Mysql),
        };
        match (found, named) {
            (Some((program, version)), _) => {
                Ok(Self { flavour: Flavour::Mysql, version, program, installer: None })
            }
            (None, Some(named)) => {
                Err(Error::failed(MYSQLD_VARIABLE, format!("{} is not a MySQL server", named.display())))
            }
            (None, None) => {
                let remedy = "set TESTKIT_MYSQLD to its path, or MYSQL_DSN to a running server";
                Err(Error::Missing { program: "mysqld (of MySQL, not of MariaDB)", remedy })
            }
        }
    }

    /// Returns the command that creates the data folder. `scratch` is an empty folder.
    pub(super) fn installer(&self, data: &Path, scratch: &Path, init_file: &Path) -> Launch {
        let launch = match &self.installer {
            Some(installer) => Launch::new(installer)
                .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
                .arg(MARIADB_SMALL_LOG),
            None => Launch::new(&self.program)
                .args(["--no-defaults", "--initialize-insecure", "--skip-log-bin"])
                .args(["--auto-generate-certs=OFF", MYSQL_SMALL_LOG])
                .option("init-file", init_file),
        };
        as_root(launch).option("datadir", data).option("tmpdir", scratch)
    }

    /// Returns the command that serves a data folder. The caller adds the addresses.
    ///
    /// Each server needs its own folder for temporary tables, `scratch`: a starting MariaDB removes all temporary tables there, as
    /// leftovers of a crash.
    pub(super) fn server(&self, data: &Path, scratch: &Path, durable: bool) -> Launch {
        let launch = Launch::new(&self.program)
            .arg("--no-defaults")
            .option("datadir", data)
            .option("tmpdir", scratch)
            .args(["--skip-log-bin", "--skip-name-resolve", "--max-connections=500"])
            // Without a configuration file MariaDB uses latin1.
            .arg("--character-set-server=utf8mb4");
        let (launch, small_log) = match self.flavour {
            Flavour::Mariadb => (launch.arg("--skip-ssl"), MARIADB_SMALL_LOG),
            Flavour::Mysql => {
                let args = ["--auto-generate-certs=OFF", "--mysqlx=OFF", "--secure-file-priv="];
                (launch.args(args), MYSQL_SMALL_LOG)
            }
        };
        as_root(if durable {
            // Keeps the server's default sizes.
            launch.arg("--innodb-flush-log-at-trx-commit=1")
        } else {
            // 2, not 0: an acknowledged commit has been written to the operating system and survives a kill. Doublewrite stays on,
            // because a kill may tear a page; without syncs it is cheap.
            launch
                .args(["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"])
                .args(["--innodb-buffer-pool-size=32M", small_log])
        })
    }
}

fn pick(found: impl Iterator<Item = PathBuf>, flavour: Flavour) -> Option<(PathBuf, String)> {
    found
        .filter_map(|program| installed::version(&program).map(|version| (program, version)))
        .find(|(_, version)| version.contains("Ver ") && Flavour::of_version(version) == flavour)
}

/// Both servers refuse to run as root without this flag.
fn as_root(launch: Launch) -> Launch {
    if nix::unistd::geteuid().is_root() { launch.arg("--user=root") } else { launch }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_determines_the_flavour() {
        let mariadb = "mysqld  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(Flavour::of_version(mariadb), Flavour::Mariadb);
        assert_eq!(Flavour::of_version("11.8.2-MariaDB-log"), Flavour::Mariadb);
        assert_eq!(Flavour::of_version("mysqld  Ver 9.7.4-2 for Linux on x86_64"), Flavour::Mysql);
        assert_eq!(Flavour::of_version("8.0.45"), Flavour::Mysql);
    }

    #[test]
    fn other_programs_are_not_picked() {
        let shell = installed::find(&["sh"]).unwrap();
        assert_eq!(pick(std::iter::once(shell), Flavour::Mysql), None);
    }
}
