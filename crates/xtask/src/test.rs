//! Everything that must pass.

use anyhow::Result;

use crate::install;
use crate::shell::{cargo, step};

pub(crate) fn run(may_install: bool) -> Result<()> {
    if may_install {
        install::run()?;
    }
    step("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    step("clippy", &mut cargo(&clippy))?;
    let docs = ["doc", "--workspace", "--no-deps", "--locked"];
    step("docs", cargo(&docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    step("tests", &mut cargo(&["test", "--workspace", "--locked"]))
}
