//! Tests that the code follows ARCHITECTURE.md.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod alerts;
mod deny;
mod dependencies;
mod links;
mod metadata;
mod named_tests;
mod names;
mod places;
mod problems;
mod scripts;
mod workspace;

use std::collections::BTreeMap;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn document() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// Returns each file of the product with this extension by its path from `crates`, without the tests in it.
fn sources(extension: &str) -> BTreeMap<String, String> {
    fn add(folder: &Path, extension: &str, sources: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, extension, sources);
            } else if path.extension().is_some_and(|found| found == extension) {
                let text = std::fs::read_to_string(&path).unwrap();
                let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
                let name = path.strip_prefix(root().join("crates")).unwrap().to_str().unwrap().to_owned();
                sources.insert(name, product);
            }
        }
    }
    let mut sources = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path().join("src");
        if folder.is_dir() {
            add(&folder, extension, &mut sources);
        }
    }
    sources.retain(|path, _| !path.ends_with("/tests.rs") && !path.contains("/tests/"));
    assert!(!sources.is_empty(), "no .{extension} files were found");
    sources
}
