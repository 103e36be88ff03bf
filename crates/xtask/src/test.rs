//! Everything that must pass.

use std::path::Path;

use anyhow::Result;

use crate::shell::{cargo, step};
use crate::{install, keycloak};

pub(crate) fn run(may_install: bool) -> Result<()> {
    if may_install {
        install::run()?;
    }
    step("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    step("clippy", &mut cargo(&clippy))?;
    let docs = ["doc", "--workspace", "--no-deps", "--locked"];
    step("docs", cargo(&docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    step("tests", &mut cargo(&["test", "--workspace", "--locked"]))?;
    keycloak::run_if_possible()
}

/// The suites that need a SQL server, also on the one that is named. It is an error if it cannot be had.
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
