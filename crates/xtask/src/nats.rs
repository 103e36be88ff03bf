//! The current NATS server, for the tests on clusters. It is built from its Go module, because Debian's version is too old.
//!
//! The result is kept in the user's cache, outside the build folder. If it cannot be built, the tests that need it are skipped; in CI
//! they fail.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::go;
use crate::shell::step;

const MODULE: &str = "github.com/nats-io/nats-server/v2";
/// The test kit reads the same file.
const VERSION: &str = include_str!("../../testkit/src/nats_server/version");

/// Returns whether the server is already built.
pub(crate) fn is_built() -> bool {
    folder().is_ok_and(|folder| folder.join("nats-server").is_file())
}

/// Builds the server if necessary.
pub(crate) fn build() -> Result<()> {
    if is_built() {
        return Ok(());
    }
    let go = go::current()?;
    let finished = folder()?;
    // Renamed when complete, because other processes may look for it or build it at the same time.
    let unfinished = finished.with_extension(format!("unfinished-{}", std::process::id()));
    fs::create_dir_all(&unfinished).with_context(|| unfinished.display().to_string())?;
    let version = VERSION.trim();
    let built = step(
        &format!("build nats-server {version}"),
        go::command(&go, &unfinished)
            .env("GOBIN", &unfinished)
            .args(["install", "-trimpath"])
            .arg(format!("{MODULE}@{version}")),
    );
    if built.is_ok() && !is_built() {
        fs::rename(&unfinished, &finished).with_context(|| finished.display().to_string())?;
    }
    let _ = fs::remove_dir_all(&unfinished);
    built
}

/// Returns the folder where the test kit looks for this version.
fn folder() -> Result<PathBuf> {
    let set = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    let cache = cache.context("set XDG_CACHE_HOME or HOME, which contains the cache")?;
    Ok(cache.join("playhouse-testkit").join(format!("nats-server-{}", VERSION.trim())))
}
