//! Temporary folders that do not outlive the test process.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use crate::guard;
use crate::unique::unique;

/// A file system in memory: writes do not wait for a disk.
const SHARED_MEMORY: &str = "/dev/shm";
/// With less free space a few databases could fill it up, and tests would fail for unclear reasons.
const MIN_FREE_SPACE: u64 = 2 << 30;

/// A temporary folder. It is removed when it is dropped or when the process ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates an empty folder in memory if possible, or else in the system's temporary folder.
    pub fn fresh() -> io::Result<Self> {
        Self::within(&fastest())
    }

    /// Creates an empty folder on the disk of the build folder, where a sync has its real cost.
    pub fn on_disk() -> io::Result<Self> {
        Self::within(&target_dir().join("testkit").join("run"))
    }

    pub(crate) fn within(parent: &Path) -> io::Result<Self> {
        fs::create_dir_all(parent)?;
        // Servers are recognised by the folder that they report, and they resolve symbolic links.
        let path = parent.canonicalize()?.join(unique());
        guard::folder(&path);
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the folder to its final name, atomically. Other processes see the whole folder or nothing.
    pub(crate) fn publish(self, name: &Path) -> io::Result<()> {
        // Afterwards `drop` and the guard find nothing under the old name.
        fs::rename(&self.path, name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Retries, because another program (a backup, an indexer) may have the folder open.
        for _ in 0..20 {
            match fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// Copies a folder recursively. Shares blocks on file systems that support it.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The folder that the build goes to, `target` as a rule.
///
/// The running test program lies in it, so it is found whichever way it was set: variable, flag or configuration file.
/// Where that does not help (a test binary that was moved) the variable and the source tree do.
pub fn target_dir() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    std::env::current_exe()
        .ok()
        .and_then(|exe| build_folder_above(&exe))
        .or_else(|| std::env::var_os("CARGO_TARGET_DIR").map(|set| from_variable(workspace, &set)))
        .unwrap_or_else(|| workspace.join("target"))
}

/// Finds the build folder by the file with which cargo marks it as a cache.
fn build_folder_above(exe: &Path) -> Option<PathBuf> {
    exe.ancestors().skip(1).find(|above| above.join("CACHEDIR.TAG").exists()).map(Path::to_path_buf)
}

fn from_variable(workspace: &Path, set: &OsStr) -> PathBuf {
    // A relative path is relative to the folder where cargo was called, usually the workspace.
    workspace.join(set)
}

fn fastest() -> PathBuf {
    let memory = Path::new(SHARED_MEMORY);
    match statvfs(memory) {
        Ok(disk) if disk.blocks_available() * disk.fragment_size() > MIN_FREE_SPACE => memory.to_path_buf(),
        _ => std::env::temp_dir(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_empty_distinct_and_removed() {
        let (one, two) = (Folder::fresh().unwrap(), Folder::fresh().unwrap());
        assert_ne!(one.path(), two.path());
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0);
        fs::write(one.path().join("file"), "x").unwrap();
        let path = one.path().to_path_buf();
        drop(one);
        assert!(!path.exists());
    }

    #[test]
    fn copies_are_deep() {
        let (from, to) = (Folder::fresh().unwrap(), Folder::fresh().unwrap());
        fs::create_dir(from.path().join("deep")).unwrap();
        fs::write(from.path().join("deep/file"), "x").unwrap();
        copy(from.path(), &to.path().join("new")).unwrap();
        assert_eq!(fs::read_to_string(to.path().join("new/deep/file")).unwrap(), "x");
    }

    #[test]
    fn build_folder_is_found() {
        let home = Folder::fresh().unwrap();
        let exe = home.path().join("debug/deps/tests");
        assert_eq!(build_folder_above(&exe), None);
        fs::write(home.path().join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(build_folder_above(&exe).unwrap(), home.path());

        assert_eq!(from_variable(Path::new("/w"), OsStr::new("out")), Path::new("/w/out"));
        assert_eq!(from_variable(Path::new("/w"), OsStr::new("/out")), Path::new("/out"));
    }
}
