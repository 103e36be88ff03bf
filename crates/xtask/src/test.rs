//! The test commands.

use std::path::Path;

use anyhow::Result;

use crate::shell::{cargo, find_program, step};
use crate::{clients, install, keycloak};

pub(crate) fn run(may_install: bool) -> Result<()> {
    if may_install {
        install::run()?;
    }
    step("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    step("clippy", &mut cargo(&clippy))?;
    let docs = ["doc", "--workspace", "--no-deps", "--locked"];
    step("docs", cargo(&docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    advisories()?;
    step("tests", &mut cargo(&["test", "--workspace", "--locked"]))?;
    clients::run_if_possible(may_install)?;
    keycloak::run_if_possible()
}

/// Checks for known vulnerabilities, if cargo-deny and its database are available. Does not install cargo-deny, because building it
/// takes minutes. The architecture tests check the rest of `deny.toml` without it.
fn advisories() -> Result<()> {
    if find_program("cargo-deny").is_none() {
        note("cargo-deny is not installed (`cargo install --locked cargo-deny`)");
        return Ok(());
    }
    if !cargo(&["deny", "fetch", "db"]).status()?.success() {
        note("cargo-deny cannot fetch its database");
        return Ok(());
    }
    step("supply chain", &mut cargo(&["deny", "--locked", "check"]))
}

fn note(why: &str) {
    eprintln!(
        "== NOTE: {why}, so known vulnerabilities were not checked. The tests check licences, refused crates, duplicates and sources."
    );
}

/// Runs the suites that need a SQL server, also on the given one. Fails if that is not available.
pub(crate) fn run_sql(mysqld: Option<&Path>, dsn: Option<&str>) -> Result<()> {
    install::run()?;
    let suites: [&[&str]; 2] = [
        &[
            "test",
            "--locked",
            "--package",
            "db",
            "--package",
            "hierlock",
            "--package",
            "work-queue",
            "--package",
            "account",
            "--package",
            "entitlement",
            "--test",
            "it",
        ],
        &["test", "--locked", "--package", "playhouse", "--test", "it", "locks::"],
    ];
    for suite in suites {
        let mut command = cargo(suite);
        command.env("CI", "true");
        if let Some(mysqld) = mysqld {
            command.env("TESTKIT_MYSQLD", mysqld);
        }
        if let Some(dsn) = dsn {
            command.env("MYSQL_DSN", dsn);
        }
        step("SQL suites", &mut command)?;
    }
    Ok(())
}
