//! The Keycloak distribution: fetched, unpacked and set up once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Launch;
use crate::{Error, cache, installed};

/// The Maven coordinates. `xtask` reads the same file.
const ARTIFACT: &str = include_str!("artifact");
/// Increase it when the setup below changes.
const EDITION: u32 = 1;
const OLDEST_JAVA: u32 = 17;
/// The name and password of the administrator. The server listens on loopback and lives as long as a test.
pub(super) const ADMIN: &str = "admin";
/// Most of a start is JIT compilation, so only the fast compiler is used.
const JAVA_OPTIONS: &str = "-XX:TieredStopAtLevel=1 -XX:-UsePerfData";
const JAVA_MEMORY: &str = "-Xms64m -Xmx512m";

/// The programs that fetch and run Keycloak.
#[derive(Debug)]
pub(super) struct Distribution {
    maven: PathBuf,
}

impl Distribution {
    /// Finds Java and Maven. Blocks.
    pub(super) fn find() -> Result<Self, Error> {
        let remedy = "`cargo xtask test-keycloak` installs it";
        let java = installed::find(&["java"]).and_then(|java| major(&version(&java)?));
        if java.is_none_or(|major| major < OLDEST_JAVA) {
            return Err(Error::Missing { program: "java (17 or newer)", remedy });
        }
        let maven = installed::find(&["mvn"]).ok_or(Error::Missing { program: "mvn", remedy })?;
        Ok(Self { maven })
    }

    /// Returns the folder with the distribution and, in `data`, a database with an administrator. Sets it up on first use. Blocks.
    pub(super) fn ready(&self) -> Result<PathBuf, Error> {
        let artifact = ARTIFACT.trim();
        let name = format!("keycloak-{}-edition{EDITION}", cache::fingerprint(&[artifact]));
        cache::get_or_make(&name, |folder| {
            let failed = |error: std::io::Error| Error::failed("the distribution of Keycloak", error);
            let log = folder.join("log");
            let unpack = Launch::new(&self.maven)
                .args(["--batch-mode", "--quiet", "dependency:unpack"])
                .arg(format!("-Dartifact={artifact}"))
                .arg(format!("-DoutputDirectory={}", folder.display()))
                // Maven must not find a project in the current folder.
                .folder(folder);
            cache::run("fetching Keycloak", &unpack, &log)?;
            // The archive holds one folder, whose name contains the version.
            let inner = fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path());
            let inner = inner.filter(|path| path.join("bin/kc.sh").exists()).last();
            let inner =
                inner.ok_or_else(|| Error::failed("fetching Keycloak", "the archive has no bin/kc.sh"))?;
            for entry in fs::read_dir(&inner).map_err(failed)?.flatten() {
                fs::rename(entry.path(), folder.join(entry.file_name())).map_err(failed)?;
            }
            cache::run("building Keycloak", &kc(folder, folder).args(["build", "--db=dev-file"]), &log)?;
            let bootstrap = kc(folder, folder)
                .args(["bootstrap-admin", "user", "--optimized"])
                .args(["--username:env=TESTKIT_ADMIN", "--password:env=TESTKIT_ADMIN"])
                .env("TESTKIT_ADMIN", Some(ADMIN.into()))
                .env("KC_CACHE", Some("local".into()));
            cache::run("the database of Keycloak", &bootstrap, &log)
        })
    }
}

/// Returns the command that runs the start script in `home`. Temporary files go to `scratch`.
pub(super) fn kc(home: &Path, scratch: &Path) -> Launch {
    let options = format!("{JAVA_OPTIONS} -Djava.io.tmpdir={}", scratch.display());
    Launch::new("/bin/sh")
        .arg(home.join("bin/kc.sh"))
        .folder(home)
        .env("JAVA_OPTS_APPEND", Some(options.into()))
        .env("JAVA_OPTS_KC_HEAP", Some(JAVA_MEMORY.into()))
}

fn version(java: &Path) -> Option<String> {
    let output = Command::new(java).arg("-version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Parses the major version from a line like `openjdk version "17.0.15" 2025-04-15`.
fn major(version: &str) -> Option<u32> {
    version.split('"').nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_versions_are_parsed() {
        assert_eq!(major("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK …"), Some(17));
        assert_eq!(major("openjdk version \"25\" 2025-09-16"), Some(25));
        assert_eq!(major("java version \"1.8.0_402\""), Some(1));
        assert_eq!(major("no java here"), None);
    }
}
