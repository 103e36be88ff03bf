//! The tests on a real Keycloak. They are slow, and the only ones that need Java.
//!
//! `cargo xtask test` runs them if Java, Maven and Keycloak are available, and otherwise prints that they were skipped. The tests on
//! the small identity provider run everywhere.

use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, find_program, root, step};
use crate::{install, java};

/// The Maven coordinates. The test kit reads the same file.
const ARTIFACT: &str = include_str!("../../testkit/src/keycloak/artifact");

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
    if !java::is_current() {
        return Some(java::NEEDED.to_owned());
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
