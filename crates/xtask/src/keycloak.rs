//! The tests on a real Keycloak. They are slow, and the only ones that need Java.
//!
//! `cargo xtask test` runs them if Java, Maven and Keycloak are available, and otherwise prints that they were skipped. The tests on
//! the small identity provider run everywhere.

use std::process::Command;

use anyhow::Result;

use crate::install;
use crate::shell::{cargo, find_program, root, step};

/// The Maven coordinates. The test kit reads the same file.
const ARTIFACT: &str = include_str!("../../testkit/src/keycloak/artifact");
const OLDEST_JAVA: u32 = 17;

/// Installs what the tests need and runs them.
pub(crate) fn run() -> Result<()> {
    install::for_keycloak()?;
    // With `CI` a missing server is an error.
    step("Keycloak", tests().env("CI", "true"))
}

/// Runs the tests if Java, Maven and the distribution are available. Otherwise prints what is missing.
pub(crate) fn run_if_possible() -> Result<()> {
    match missing() {
        None => run(),
        Some(what) => {
            eprintln!(
                "== Keycloak: NOT TESTED, {what} is missing; `cargo xtask test-keycloak` installs what it needs"
            );
            Ok(())
        }
    }
}

fn tests() -> Command {
    cargo(&["test", "--locked", "--workspace", "--test", "keycloak"])
}

fn missing() -> Option<String> {
    if java().is_none_or(|major| major < OLDEST_JAVA) {
        return Some(format!("Java {OLDEST_JAVA}"));
    }
    let Some(maven) = find_program("mvn") else { return Some("Maven".to_owned()) };
    let artifact = ARTIFACT.trim();
    let mut fetch = Command::new(maven);
    // Only the archive: its dependencies would be hundreds of files.
    fetch.args(["--batch-mode", "--quiet", "dependency:get", "-Dtransitive=false"]);
    fetch.arg(format!("-Dartifact={artifact}"));
    let fetched = fetch.current_dir(root()).output().is_ok_and(|done| done.status.success());
    if fetched { None } else { Some(format!("the artifact {artifact}")) }
}

/// Returns the major version of Java, from `openjdk version "17.0.15" 2025-04-15`.
fn java() -> Option<u32> {
    let output = Command::new(find_program("java")?).arg("-version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stderr).into_owned();
    version.split('"').nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
}
