//! minimatch, built from `bench/peers/minimatch` if Go and the module can be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Program, Redis, Running, target};

/// One that was built elsewhere.
pub(crate) const VARIABLE: &str = "MINIMATCH_PEER";
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/peers/minimatch");

const LINES_SHOWN: usize = 2;

/// The program, or nothing and the reason on stderr.
pub(crate) fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(VARIABLE) {
        return Some(program.into());
    }
    match build() {
        Ok(program) => Some(program),
        Err(why) => {
            eprintln!("without minimatch: {}", why.trim());
            None
        }
    }
}

/// In a copy, since Go writes the checksums of what it has fetched beside the source.
fn build() -> Result<PathBuf, String> {
    let folder = target().join("bench").join("peers").join("minimatch");
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
    // It says the same about everything that it would have to build.
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    Err(format!("go build: {}", said.lines().take(LINES_SHOWN).collect::<Vec<_>>().join("\n")))
}

pub(crate) fn frontend(program: &Path, redis: &Redis, rpc: &str) -> Running {
    let args = ["frontend", "--rpc", rpc, "--redis"];
    Program::new(program).args(args).arg(redis.addr().to_string()).start().unwrap()
}

pub(crate) fn backend(program: &Path, redis: &Redis) -> Running {
    Program::new(program).args(["backend", "--redis"]).arg(redis.addr().to_string()).start().unwrap()
}
