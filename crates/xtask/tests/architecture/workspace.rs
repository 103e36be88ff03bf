//! The crates of the workspace: dependencies, code map, default program.

use std::collections::{BTreeMap, BTreeSet};

use super::metadata::{items, metadata, text};
use super::{document, root};

/// Parses the list under "The direction of dependencies": each crate with the crates that it uses in the product.
fn edges(document: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let (_, section) = document.split_once("## The direction of dependencies").unwrap();
    let list = section.split("```").nth(1).unwrap();
    let mut edges: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        // A line without an arrow continues the line before it.
        let used = match line.split_once('→') {
            Some((name, used)) => {
                edges.push((name.trim(), BTreeSet::new()));
                used
            }
            None => line,
        };
        let used =
            used.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "nothing of ours");
        edges.last_mut().unwrap().1.extend(used);
    }
    edges
}

/// The README uses a bare `cargo run`, which must run the product.
#[test]
fn default_members_have_one_program() {
    let metadata = metadata(&["--no-deps"]);
    let default: BTreeSet<&str> = items(&metadata["workspace_default_members"]).map(text).collect();
    let packages = items(&metadata["packages"]).filter(|package| default.contains(text(&package["id"])));
    let programs: Vec<&str> = packages
        .flat_map(|package| items(&package["targets"]))
        .filter(|target| items(&target["kind"]).any(|kind| kind == "bin"))
        .map(|target| text(&target["name"]))
        .collect();
    assert_eq!(programs, ["playhouse"]);
}

#[test]
fn dependencies_between_crates_point_down() {
    let metadata = metadata(&["--no-deps"]);
    let names: BTreeSet<&str> = items(&metadata["packages"]).map(|package| text(&package["name"])).collect();
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in items(&metadata["packages"]) {
        let edges = found.entry(text(&package["name"])).or_default();
        for dependency in items(&package["dependencies"]) {
            let name = text(&dependency["name"]);
            if names.contains(name) && text(&dependency["kind"]) != "dev" {
                edges.insert(name);
            }
        }
    }
    let document = document();
    let documented = edges(&document);
    for (at, (name, edges)) in documented.iter().enumerate() {
        let below: BTreeSet<&str> = documented[at + 1..].iter().map(|(name, _)| *name).collect();
        let up: Vec<&&str> = edges.iter().filter(|edge| !below.contains(*edge)).collect();
        assert!(up.is_empty(), "{name} uses {up:?}, which ARCHITECTURE.md lists above it or not at all");
    }
    let documented: BTreeMap<&str, BTreeSet<&str>> = documented.into_iter().collect();
    assert_eq!(found, documented, "add the dependency to the list in ARCHITECTURE.md, or remove it");
}

#[test]
fn every_crate_is_on_the_code_map_and_uses_the_workspace_lints() {
    let map = document();
    for (name, _) in edges(&map) {
        assert!(map.contains(&format!("| `{name}` |")), "{name} is not on the code map of ARCHITECTURE.md");
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not use the workspace's lints");
    }
}
