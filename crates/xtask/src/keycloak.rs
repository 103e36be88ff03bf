//! The tests on a real Keycloak: large, slow, and the only ones that need Java.
//!
//! Where it can be had they are part of `cargo xtask test`. Where not, that says so and goes on: they are
//! no substitute for the tests on the small identity provider, which run everywhere.

use std::process::Command;

use anyhow::Result;

use crate::install;
use crate::shell::{cargo, find_program, root, step};

/// The coordinates of the distribution, as the test kit has them.
const ARTIFACT: &str = include_str!("../../testkit/src/keycloak/artifact");
const OLDEST_JAVA: u32 = 17;

/// Runs them, whatever it takes.
pub(crate) fn run() -> Result<()> {
    install::for_keycloak()?;
    // In CI a server that is missing is an error, and so it is here.
    step("Keycloak", tests().env("CI", "true"))
}

/// Runs them if Java, Maven and the distribution are at hand, and else says what is not.
pub(crate) fn run_if_possible() -> Result<()> {
    match missing() {
        None => run(),
        Some(what) => {
            eprintln!(
                "== Keycloak: NOT TESTED, there is no {what}; `cargo xtask test-keycloak` gets what it needs"
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
    // The archive alone: with what it was built from it would be hundreds of files.
    fetch.args(["--batch-mode", "--quiet", "dependency:get", "-Dtransitive=false"]);
    fetch.arg(format!("-Dartifact={artifact}"));
    let fetched = fetch.current_dir(root()).output().is_ok_and(|done| done.status.success());
    if fetched { None } else { Some(format!("way to fetch {artifact}")) }
}

/// The version of Java, from `openjdk version "17.0.15" 2025-04-15`.
fn java() -> Option<u32> {
    let output = Command::new(find_program("java")?).arg("-version").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.split('"').nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
}
