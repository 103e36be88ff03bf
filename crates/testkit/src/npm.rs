//! Node.js programs. Their packages are installed once per build folder.

use std::fs;
use std::path::PathBuf;

use crate::process::Launch;
use crate::{Error, cache, installed};

/// Node.js and its package manager.
#[derive(Debug)]
pub(crate) struct Npm {
    pub(crate) node: PathBuf,
    pub(crate) npm: PathBuf,
}

/// Finds Node.js, for scripts that need no packages.
pub fn node() -> Result<PathBuf, Error> {
    installed::find(&["node", "nodejs"]).ok_or_else(|| missing("node"))
}

const fn missing(program: &'static str) -> Error {
    Error::Missing { program, remedy: "`cargo xtask test` installs it" }
}

/// The name of the file that pins the packages.
pub(crate) const LOCK: &str = "package-lock.json";

impl Npm {
    pub(crate) fn find() -> Result<Self, Error> {
        Ok(Self { node: node()?, npm: installed::find(&["npm"]).ok_or_else(|| missing("npm"))? })
    }

    /// Returns a folder with these files (name and content) and the packages of their lock file. Creates it on first use. Blocks.
    pub(crate) fn folder(&self, name: &'static str, files: &[(&str, &str)]) -> Result<PathBuf, Error> {
        let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
        cache::get_or_make(&format!("{name}-{}", cache::fingerprint(&texts)), |folder| {
            for (file, text) in files {
                fs::write(folder.join(file), text).map_err(|error| Error::failed(name, error))?;
            }
            let install = Launch::new(&self.npm)
                .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"])
                .folder(folder);
            cache::run("npm ci", &install, &folder.join("log"))
        })
    }
}

/// Asserts that a lock file pins hashes and no download URLs, which would name the author's registry.
#[cfg(test)]
pub(crate) fn assert_names_no_registry(lock: &str) {
    assert!(!lock.contains("\"resolved\""));
    assert!(lock.contains("\"integrity\": \"sha512-"));
}
