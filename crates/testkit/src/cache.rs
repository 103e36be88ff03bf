//! What is made once under the build folder and shared by all test processes from then on.
//!
//! Any number of processes may want it at the same time and any of them may be killed while making it: a
//! file lock, which the kernel releases, lets one at a time work, and a rename makes the result appear
//! complete or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::folder::{Folder, target};
use crate::process::Launch;

/// The folder `name`, filled by `make` if this is the first time. Blocks.
///
/// The name has no dot, which would be taken for an extension, and changes with whatever is put in.
pub(crate) fn ready(name: &str, make: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    ready_in(&target().join("testkit"), name, make)
}

pub(crate) fn ready_in(
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
    // Made by somebody else while we waited?
    if !finished.exists() {
        // Whatever is here is from a machine that went down: processes clean up after themselves.
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

/// Runs a command to its end, which must be a good one; `log` is where its output goes. Blocks.
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

/// A short name for a text, the same everywhere, by the function FNV-1a. It tells versions apart, no more.
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
    fn it_is_made_once_and_not_by_halves() {
        let home = Folder::fresh().unwrap();
        let broken = ready_in(home.path(), "thing", |folder| {
            fs::write(folder.join("half"), "").unwrap();
            Err(Error::Failed("no more paper".to_owned()))
        });
        assert_eq!(broken.unwrap_err().to_string(), "no more paper");
        assert!(!home.path().join("thing").exists());

        for _ in 0..2 {
            let made = ready_in(home.path(), "thing", |folder| {
                assert!(!home.path().join("thing").exists(), "made a second time");
                fs::write(folder.join("whole"), "").map_err(|error| Error::failed("thing", error))
            });
            assert_eq!(fs::read_dir(made.unwrap()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_command_that_fails_shows_its_log() {
        let folder = Folder::fresh().unwrap();
        let launch = Launch::new("sh").args(["-c", "echo no paper; exit 3"]);
        let error = run("printing", &launch, &folder.path().join("log")).unwrap_err().to_string();
        assert!(error.starts_with("printing: exit status: 3; its log:\nno paper"), "{error}");
    }

    #[test]
    fn texts_are_told_apart() {
        assert_eq!(fingerprint(&["a"]), fingerprint(&["a"]));
        assert_ne!(fingerprint(&["a", "b"]), fingerprint(&["ab"]));
    }
}
