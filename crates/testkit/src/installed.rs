//! Finding installed programs.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where servers are installed that an ordinary user's PATH does not list.
const ALSO_LOOKED_IN: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// Every program of that name, in the order of the PATH.
pub(crate) fn find_all(name: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).chain(ALSO_LOOKED_IN.map(PathBuf::from)).collect();
    folders.into_iter().map(move |folder| folder.join(name)).filter(|file| is_program(file))
}

/// The first program that has one of the names.
pub(crate) fn find(names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| find_all(name).next())
}

/// What the program says about its version.
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
    fn programs_are_found_and_say_their_version() {
        let cargo = find(&["no-such-program", "rustc"]).expect("rustc is on the PATH");
        assert!(version(&cargo).unwrap().starts_with("rustc "));
        assert_eq!(find(&["no-such-program"]), None);
        assert!(!is_program(Path::new("/etc/passwd")));
        assert!(!is_program(Path::new("/usr")));
    }
}
