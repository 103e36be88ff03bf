//! Virtual environments for tools that are Python packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::shell::step;

/// Returns the folder of programs of a virtual environment in `home`, which is recreated when the requirements change.
/// Needs Python with its package `venv`: `install::for_python`.
pub(crate) fn environment(home: &Path, requirements: &str) -> Result<PathBuf> {
    let (environment, done) = (home.join("venv"), home.join("installed.txt"));
    let programs = environment.join("bin");
    if fs::read_to_string(&done).is_ok_and(|text| text == requirements) && programs.exists() {
        return Ok(programs);
    }
    fs::create_dir_all(home)?;
    let wanted = home.join("requirements.txt");
    fs::write(&wanted, requirements)?;
    step("python3 -m venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let mut pip = Command::new(programs.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&wanted);
    step("pip install", &mut pip)?;
    fs::write(&done, requirements)?;
    Ok(programs)
}
