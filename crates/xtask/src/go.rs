//! A current Go, for programs that Debian's version cannot build.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::find_program;

/// The oldest version that is good enough.
const OLDEST: (u32, u32) = (1, 26);
/// The version that an older Go downloads as a module.
const NEW: &str = "1.26.0";

/// Returns a current Go: the installed one, or one that it downloads, which needs Go 1.13 or newer.
pub(crate) fn current() -> Result<PathBuf> {
    let Some(go) = find_program("go") else {
        bail!("Go is not installed");
    };
    if version_of(&go)? < OLDEST { fetch(&go) } else { Ok(go) }
}

/// Returns a Go command that runs in this folder and does not switch to another toolchain.
pub(crate) fn command(go: &Path, folder: &Path) -> Command {
    let mut command = Command::new(go);
    command.current_dir(folder).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
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
fn fetch(old: &Path) -> Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("cannot download Go {NEW} for {other}; install it yourself"),
    };
    let module = format!("golang.org/toolchain@v0.0.1-go{NEW}.linux-{architecture}");
    eprintln!("== fetch Go {NEW}");
    let fetch = ["mod", "download", "-json", &module];
    let module = output(command(old, &std::env::temp_dir()).args(fetch))?;
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
