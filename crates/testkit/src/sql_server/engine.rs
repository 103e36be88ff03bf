//! The two flavours: which program it is, how its data folder is made, and how it is started.

use std::env;
use std::path::{Path, PathBuf};

use crate::process::Launch;
use crate::{Error, installed};

/// Names a MySQL that is not on the PATH.
const MYSQLD_VARIABLE: &str = "TESTKIT_MYSQLD";

/// Lets root in from 127.0.0.1. MySQL knows it by the name `localhost` only, and we do not have names
/// resolved: that would make each connection wait for a name server. MariaDB knows both.
pub(super) const FIRST_WORDS: &str = "\
CREATE USER root@127.0.0.1;
GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;
GRANT PROXY ON ''@'' TO root@127.0.0.1 WITH GRANT OPTION;
";

/// Small, since it is copied with each data folder.
const MARIADB_SMALL_LOG: &str = "--innodb-log-file-size=16M";
const MYSQL_SMALL_LOG: &str = "--innodb-redo-log-capacity=16M";

/// The two servers that speak the MySQL protocol. They differ more than one would like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// MariaDB.
    Mariadb,
    /// MySQL proper.
    Mysql,
}

/// A server program that is installed here.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) flavour: Flavour,
    pub(super) version: String,
    program: PathBuf,
    /// MariaDB makes its data folder with a program of its own.
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

impl Engine {
    pub(super) fn find(flavour: Flavour) -> Result<Self, Error> {
        match flavour {
            Flavour::Mariadb => Self::find_mariadb(),
            Flavour::Mysql => Self::find_mysql(),
        }
    }

    fn find_mariadb() -> Result<Self, Error> {
        let remedy = "`cargo xtask test` installs it, or set MYSQL_DSN to a server that runs";
        let missing = |program| Error::Missing { program, remedy };
        let found = installed::find_all("mariadbd").chain(installed::find_all("mysqld"));
        let (program, version) = pick(found, Flavour::Mariadb).ok_or_else(|| missing("mariadbd"))?;
        let installer = installed::find(&["mariadb-install-db", "mysql_install_db"])
            .ok_or_else(|| missing("mariadb-install-db"))?;
        Ok(Self { flavour: Flavour::Mariadb, version, program, installer: Some(installer) })
    }

    fn find_mysql() -> Result<Self, Error> {
        let named = env::var_os(MYSQLD_VARIABLE).filter(|set| !set.is_empty()).map(PathBuf::from);
        // Debian's MariaDB comes with a `mysqld` too, hence the look at the version of each.
        let found = match &named {
            Some(named) => pick(std::iter::once(named.clone()), Flavour::Mysql),
            None => pick(installed::find_all("mysqld"), Flavour::Mysql),
        };
        match (found, named) {
            (Some((program, version)), _) => {
                Ok(Self { flavour: Flavour::Mysql, version, program, installer: None })
            }
            (None, Some(named)) => {
                Err(Error::failed(MYSQLD_VARIABLE, format!("{} is no MySQL server", named.display())))
            }
            (None, None) => {
                let remedy = "set TESTKIT_MYSQLD to one, or MYSQL_DSN to a server that runs";
                Err(Error::Missing { program: "mysqld (of MySQL, not of MariaDB)", remedy })
            }
        }
    }

    /// The command that makes the data folder; `scratch` is an empty folder.
    pub(super) fn installer(&self, data: &Path, scratch: &Path, first_words: &Path) -> Launch {
        let launch = match &self.installer {
            Some(installer) => Launch::new(installer)
                .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
                .arg(MARIADB_SMALL_LOG),
            None => Launch::new(&self.program)
                .args(["--no-defaults", "--initialize-insecure", "--skip-log-bin"])
                .args(["--auto-generate-certs=OFF", MYSQL_SMALL_LOG])
                .option("init-file", first_words),
        };
        as_root(launch).option("datadir", data).option("tmpdir", scratch)
    }

    /// The command that serves a data folder; where to listen is for the caller to add.
    ///
    /// A folder of its own for temporary tables, `scratch`, is a must: a MariaDB that starts removes
    /// those of others, which it takes for its own from before a crash.
    pub(super) fn server(&self, data: &Path, scratch: &Path, durable: bool) -> Launch {
        let launch = Launch::new(&self.program)
            .arg("--no-defaults")
            .option("datadir", data)
            .option("tmpdir", scratch)
            .args(["--skip-log-bin", "--skip-name-resolve", "--max-connections=500"])
            // Without a configuration file MariaDB would fall back to latin1.
            .arg("--character-set-server=utf8mb4");
        let (launch, small_log) = match self.flavour {
            Flavour::Mariadb => (launch.arg("--skip-ssl"), MARIADB_SMALL_LOG),
            Flavour::Mysql => {
                let args = ["--auto-generate-certs=OFF", "--mysqlx=OFF", "--secure-file-priv="];
                (launch.args(args), MYSQL_SMALL_LOG)
            }
        };
        as_root(if durable {
            // And the sizes that the server takes by itself.
            launch.arg("--innodb-flush-log-at-trx-commit=1")
        } else {
            // 2, not 0: a commit that was answered is in the system's hands and survives a kill. The
            // doublewrite stays on for the same reason, a kill may tear a page; without syncs it is cheap.
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

/// Both servers refuse to run as root by accident.
fn as_root(launch: Launch) -> Launch {
    if nix::unistd::geteuid().is_root() { launch.arg("--user=root") } else { launch }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flavour_is_in_the_version() {
        let mariadb = "mysqld  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(Flavour::of_version(mariadb), Flavour::Mariadb);
        assert_eq!(Flavour::of_version("11.8.2-MariaDB-log"), Flavour::Mariadb);
        assert_eq!(Flavour::of_version("mysqld  Ver 9.7.4-2 for Linux on x86_64"), Flavour::Mysql);
        assert_eq!(Flavour::of_version("8.0.45"), Flavour::Mysql);
    }

    #[test]
    fn what_is_no_server_is_not_picked() {
        let shell = installed::find(&["sh"]).unwrap();
        assert_eq!(pick(std::iter::once(shell), Flavour::Mysql), None);
    }
}
