//! Folders that are made once in the build folder and shared by all test processes.
//!
//! Any number of processes may need a folder at the same time, and any of them may be killed while making it. A file lock,
//! which the kernel releases, lets one process at a time make it. A rename makes the result appear complete or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::folder::{Folder, target_dir};
use crate::process::Launch;

/// Returns the folder `name`. The first call fills it with `make`. Blocks.
///
/// The name contains no dot, because a dot would start an extension. It must change with the content.
pub(crate) fn get_or_make(
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    get_or_make_in(&target_dir().join("testkit"), name, make)
}

pub(crate) fn get_or_make_in(
    home: &Path,
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let failed = |error: io::Error| Error::failed(name, error);
    let finished = home.join(name);
    if finished.exists() {
        return Ok(finished);
    }
    let unfinished = finished.with_extension("unfinished");
    fs::create_dir_all(home).map_err(failed)?;
    let lock = File::create(finished.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    // Another process may have made it while this one waited for the lock.
    if !finished.exists() {
        // Leftovers are from a machine that went down: processes clean up after themselves.
        match fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let folder = Folder::within(&unfinished).map_err(failed)?;
        make(folder.path())?;
        folder.publish(&finished).map_err(failed)?;
        let _ = fs::remove_dir(&unfinished);
    }
    Ok(finished)
}

/// Runs a command and waits for it. Its output goes to the file `log`. Fails if the exit status is not success. Blocks.
pub(crate) fn run(what: &str, launch: &Launch, log: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| Error::failed(what, error);
    let out = File::create(log).map_err(failed)?;
    let both = out.try_clone().map_err(failed)?;
    let status = launch.start(out, both).map_err(failed)?.wait();
    if status.success() {
        return Ok(());
    }
    let log = fs::read_to_string(log).unwrap_or_default();
    Err(Error::failed(what, format!("{status}; its log:\n{log}")))
}

/// Returns a hash of the texts (FNV-1a) that distinguishes versions. Not for security.
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_made_once_and_never_half_made() {
        let home = Folder::fresh().unwrap();
        let broken = get_or_make_in(home.path(), "thing", |folder| {
            fs::write(folder.join("half"), "").unwrap();
            Err(Error::Failed("no more paper".to_owned()))
        });
        assert_eq!(broken.unwrap_err().to_string(), "no more paper");
        assert!(!home.path().join("thing").exists());

        for _ in 0..2 {
            let made = get_or_make_in(home.path(), "thing", |folder| {
                assert!(!home.path().join("thing").exists(), "made a second time");
                fs::write(folder.join("whole"), "").map_err(|error| Error::failed("thing", error))
            });
            assert_eq!(fs::read_dir(made.unwrap()).unwrap().count(), 1);
        }
    }

    #[test]
    fn failed_command_shows_its_log() {
        let folder = Folder::fresh().unwrap();
        let launch = Launch::new("sh").args(["-c", "echo no paper; exit 3"]);
        let error = run("printing", &launch, &folder.path().join("log")).unwrap_err().to_string();
        assert!(error.starts_with("printing: exit status: 3; its log:\nno paper"), "{error}");
    }

    #[test]
    fn different_texts_have_different_fingerprints() {
        assert_eq!(fingerprint(&["a"]), fingerprint(&["a"]));
        assert_ne!(fingerprint(&["a", "b"]), fingerprint(&["ab"]));
    }
}
