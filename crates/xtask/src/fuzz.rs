//! Fuzz targets: tests that call `testkit::fuzz`, run for a longer time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root, step};

const MARK: &str = "testkit::fuzz(\"";

/// The crate and the test of a target.
struct Target {
    package: String,
    test: String,
}

/// Runs one target or all of them, `seconds` each. Without a name and seconds, lists them.
pub(crate) fn run(name: Option<&str>, seconds: Option<u64>) -> Result<()> {
    let targets = targets()?;
    if name.is_none() && seconds.is_none() {
        for (name, Target { package, test }) in &targets {
            eprintln!("{name:<20} {package}: {test}");
        }
        return Ok(());
    }
    let chosen: Vec<_> =
        targets.iter().filter(|(target, _)| name.is_none_or(|name| name == *target)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = targets.keys().map(String::as_str).collect();
        bail!("there is no such target; choose one of: {}", names.join(", "));
    }
    for (name, Target { package, test }) in chosen {
        let mut command =
            cargo(&["test", "--locked", "--package", package, "--lib", test, "--", "--nocapture"]);
        command.env("FUZZ_SECONDS", seconds.unwrap_or(60).to_string());
        step(&format!("fuzz {name}"), &mut command)?;
    }
    Ok(())
}

/// Finds all targets. Returns them by name.
fn targets() -> Result<BTreeMap<String, Target>> {
    let mut targets = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).context("cannot list the crates")? {
        let folder = entry?.path();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The test kit's own tests and this file contain the pattern but are no targets.
        if package != "testkit" && package != "xtask" {
            find(&folder.join("src"), &package, &mut targets)?;
        }
    }
    Ok(targets)
}

fn find(folder: &Path, package: &str, targets: &mut BTreeMap<String, Target>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, package, targets)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            for (at, _) in text.match_indices(MARK) {
                let Some((name, _)) = text[at + MARK.len()..].split_once('"') else { continue };
                let test = text[..at].rsplit("fn ").next().and_then(|rest| rest.split('(').next());
                let test = test.unwrap_or_default().to_owned();
                let target = Target { package: package.to_owned(), test };
                if targets.insert(name.to_owned(), target).is_some() {
                    bail!("two fuzz targets are called {name}");
                }
            }
        }
    }
    Ok(())
}
