//! Folders that cannot outlive the test process, and where they are made.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use crate::guard;
use crate::unique::unique;

/// Memory that looks like a disk: no write ever waits for hardware.
const SHARED_MEMORY: &str = "/dev/shm";
/// Below this a few databases could fill it up, and a full one fails tests in baffling ways.
const ROOM_WANTED: u64 = 2 << 30;

/// A folder of its own for one purpose; dropping it removes it, and so does the end of the process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new empty folder in the fastest place there is: memory, or else the system's temporary folder.
    pub fn fresh() -> io::Result<Self> {
        Self::within(&fastest())
    }

    /// A new empty folder on the disk that holds the build, where a sync to disk costs what it costs.
    pub fn on_disk() -> io::Result<Self> {
        Self::within(&target().join("testkit").join("run"))
    }

    pub(crate) fn within(parent: &Path) -> io::Result<Self> {
        fs::create_dir_all(parent)?;
        // Servers are recognised by the folder they say they are in, and they follow links.
        let path = parent.canonicalize()?.join(unique());
        guard::folder(&path);
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder its final name in one step. Somebody who looks sees all of it or none of it.
    pub(crate) fn publish(self, name: &Path) -> io::Result<()> {
        // Afterwards nothing is left under the old name for `drop` and the guard to remove.
        fs::rename(&self.path, name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Processes that use it are gone by now, but be patient with whoever just looks (a backup, an indexer).
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

/// Copies a folder and everything in it. On file systems that can, blocks are shared, not copied.
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
/// The running test lies in it, whatever set its place: a variable, a flag or a configuration file.
/// Where that does not help (a test binary that was moved) the variable and the source tree do.
pub fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    std::env::current_exe()
        .ok()
        .and_then(|exe| build_folder_above(&exe))
        .or_else(|| std::env::var_os("CARGO_TARGET_DIR").map(|set| from_variable(workspace, &set)))
        .unwrap_or_else(|| workspace.join("target"))
}

/// Cargo marks the folder as a cache, for the benefit of backup programs.
fn build_folder_above(exe: &Path) -> Option<PathBuf> {
    exe.ancestors().skip(1).find(|above| above.join("CACHEDIR.TAG").exists()).map(Path::to_path_buf)
}

fn from_variable(workspace: &Path, set: &OsStr) -> PathBuf {
    // A relative one is relative to where cargo was called, mostly the workspace.
    workspace.join(set)
}

fn fastest() -> PathBuf {
    let memory = Path::new(SHARED_MEMORY);
    match statvfs(memory) {
        Ok(disk) if disk.blocks_available() * disk.fragment_size() > ROOM_WANTED => memory.to_path_buf(),
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
    fn the_build_folder_is_found() {
        let home = Folder::fresh().unwrap();
        let exe = home.path().join("debug/deps/tests");
        assert_eq!(build_folder_above(&exe), None);
        fs::write(home.path().join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(build_folder_above(&exe).unwrap(), home.path());

        assert_eq!(from_variable(Path::new("/w"), OsStr::new("out")), Path::new("/w/out"));
        assert_eq!(from_variable(Path::new("/w"), OsStr::new("/out")), Path::new("/out"));
    }
}
