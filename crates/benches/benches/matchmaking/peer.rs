//! minimatch, built from `bench/peers/minimatch` if Go and the module are available.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Program, Redis, RunningProgram, target_dir};

/// The path of a program that was built elsewhere.
pub(crate) const VARIABLE: &str = "MINIMATCH_PEER";
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/peers/minimatch");

const LINES_SHOWN: usize = 2;

/// Returns the program. If it cannot be built, prints the reason and returns `None`.
pub(crate) fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(VARIABLE) {
        return Some(program.into());
    }
    match build() {
        Ok(program) => Some(program),
        Err(why) => {
            eprintln!("skipping minimatch: {}", why.trim());
            None
        }
    }
}

/// Builds a copy of the source, because Go writes checksums of fetched modules beside the source.
fn build() -> Result<PathBuf, String> {
    let folder = target_dir().join("bench").join("peers").join("minimatch");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    for file in fs::read_dir(SOURCE).map_err(|error| format!("{SOURCE}: {error}"))? {
        let file = file.map_err(|error| error.to_string())?.path();
        if let Some(name) = file.file_name() {
            fs::copy(&file, folder.join(name)).map_err(|error| error.to_string())?;
        }
    }
    let built = Command::new("go")
        .args(["build", "-mod=mod", "-o", "minimatch", "."])
        .current_dir(&folder)
        .output()
        .map_err(|error| format!("go: {error}"))?;
    if built.status.success() {
        return Ok(folder.join("minimatch"));
    }
    // Go repeats the error for each package.
    let errors = String::from_utf8_lossy(&built.stderr).into_owned();
    Err(format!("go build: {}", errors.lines().take(LINES_SHOWN).collect::<Vec<_>>().join("\n")))
}

pub(crate) fn frontend(program: &Path, redis: &Redis, rpc: &str) -> RunningProgram {
    let args = ["frontend", "--rpc", rpc, "--redis"];
    Program::new(program).args(args).arg(redis.addr().to_string()).start().unwrap()
}

pub(crate) fn backend(program: &Path, redis: &Redis) -> RunningProgram {
    Program::new(program).args(["backend", "--redis"]).arg(redis.addr().to_string()).start().unwrap()
}
