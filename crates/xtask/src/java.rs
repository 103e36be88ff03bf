//! The installed Java.

use std::process::Command;

use crate::shell::find_program;

/// What tests need, for messages.
pub(crate) const NEEDED: &str = "Java 17";
const OLDEST: u32 = 17;

/// Returns whether Java is installed and new enough.
pub(crate) fn is_current() -> bool {
    major().is_some_and(|major| major >= OLDEST)
}

/// Returns the major version of Java, from `openjdk version "17.0.15" 2025-04-15`.
fn major() -> Option<u32> {
    let output = Command::new(find_program("java")?).arg("-version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stderr).into_owned();
    version.split('"').nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
}
