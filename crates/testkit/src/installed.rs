//! Search for installed programs.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders with servers that are not on the PATH of an ordinary user.
const EXTRA_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// Finds every program of that name, in the order of the PATH.
pub(crate) fn find_all(name: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).chain(EXTRA_FOLDERS.map(PathBuf::from)).collect();
    folders.into_iter().map(move |folder| folder.join(name)).filter(|file| is_program(file))
}

/// Finds the first program that has one of the names.
pub(crate) fn find(names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| find_all(name).next())
}

/// Returns the output of `PROGRAM --version`.
pub(crate) fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_their_versions_are_found() {
        let cargo = find(&["no-such-program", "rustc"]).expect("rustc is on the PATH");
        assert!(version(&cargo).unwrap().starts_with("rustc "));
        assert_eq!(find(&["no-such-program"]), None);
        assert!(!is_program(Path::new("/etc/passwd")));
        assert!(!is_program(Path::new("/usr")));
    }
}
