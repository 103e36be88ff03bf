//! The current NATS server, for the tests on clusters. It is built from its Go module, because Debian's version is too old.
//!
//! The result is kept in the user's cache, outside the build folder. If it cannot be built, the tests that need it are skipped; in CI
//! they fail.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{find_program, step};

const MODULE: &str = "github.com/nats-io/nats-server/v2";
/// The test kit reads the same file.
const VERSION: &str = include_str!("../../testkit/src/nats_server/version");
/// The oldest Go version that builds it.
const OLDEST_GO: (u32, u32) = (1, 26);
/// The Go version that an older Go downloads as a module.
const NEW_GO: &str = "1.26.0";

/// Returns whether the server is already built.
pub(crate) fn is_built() -> bool {
    folder().is_ok_and(|folder| folder.join("nats-server").is_file())
}

/// Builds the server if necessary. Needs Go 1.13 or newer.
pub(crate) fn build() -> Result<()> {
    if is_built() {
        return Ok(());
    }
    let Some(go) = find_program("go") else {
        bail!("Go is not installed");
    };
    let go = if version_of(&go)? < OLDEST_GO { fetch_go(&go)? } else { go };
    let finished = folder()?;
    // Renamed when complete, because other processes may look for it or build it at the same time.
    let unfinished = finished.with_extension(format!("unfinished-{}", std::process::id()));
    fs::create_dir_all(&unfinished).with_context(|| unfinished.display().to_string())?;
    let version = VERSION.trim();
    let built = step(
        &format!("build nats-server {version}"),
        go_in(&unfinished, &go).args(["install", "-trimpath"]).arg(format!("{MODULE}@{version}")),
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

/// Returns a Go command that does not switch to another toolchain and runs in a folder without a project.
fn go_in(folder: &Path, go: &Path) -> Command {
    let mut command = Command::new(go);
    command.current_dir(folder).env("GOBIN", folder).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    command
}

fn version_of(go: &Path) -> Result<(u32, u32)> {
    let version = output(Command::new(go).arg("version").env("GOTOOLCHAIN", "local"))?;
    parse_version(&version).with_context(|| format!("cannot parse the version of Go from {version:?}"))
}

/// Parses `go version go1.19.8 linux/amd64`.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let number = version.split_whitespace().nth(2)?.strip_prefix("go")?;
    let mut parts = number.split(['.', '-', 'r', 'b']).map_while(|part| part.parse().ok());
    Some((parts.next()?, parts.next()?))
}

/// Downloads a new Go with an old one.
fn fetch_go(old: &Path) -> Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("cannot download Go {NEW_GO} for {other}; install it yourself"),
    };
    let module = format!("golang.org/toolchain@v0.0.1-go{NEW_GO}.linux-{architecture}");
    eprintln!("== fetch Go {NEW_GO}");
    let fetch = ["mod", "download", "-json", &module];
    let module = output(go_in(&std::env::temp_dir(), old).args(fetch))?;
    let module: serde_json::Value = serde_json::from_str(&module).context("the output of go mod download")?;
    let root = Path::new(module["Dir"].as_str().with_context(|| format!("no folder in {module}"))?);
    let programs = [root.join("bin"), root.join(format!("pkg/tool/linux_{architecture}"))];
    for folder in programs {
        for program in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            // Files of modules are not executable. A newer Go sets the permissions itself.
            fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(root.join("bin/go"))
}

fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?} ended with {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_parsed() {
        assert_eq!(parse_version("go version go1.19.8 linux/amd64"), Some((1, 19)));
        assert_eq!(parse_version("go version go1.26 linux/arm64"), Some((1, 26)));
        assert_eq!(parse_version("go version go1.27rc1 linux/amd64"), Some((1, 27)));
        assert_eq!(parse_version("no go"), None);
    }
}
