//! Third-party crates: refused ones, features, licences, versions and sources.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::deny::list;
use super::metadata::{items, metadata, text};
use super::root;

/// Returns the packages that a selection builds, each with the sets of features that it is built with.
fn tree(args: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--prefix=none", "--format={p}|{f}|"])
        .args(args)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let mut parts = line.split('|');
        if let (Some(package), Some(features)) = (parts.next(), parts.next()) {
            packages.entry(package.trim().to_owned()).or_default().insert(features.to_owned());
        }
    }
    packages
}

#[test]
fn refused_dependencies_are_not_linked() {
    let linked = tree(&["--workspace"]);
    let linked: BTreeSet<&str> = linked.keys().filter_map(|package| package.split(' ').next()).collect();
    assert!(linked.contains("aws-lc-rs"), "the list of linked crates could not be parsed");
    let refused: Vec<String> =
        list("bans", "deny").into_iter().filter(|name| linked.contains(name.as_str())).collect();
    assert!(refused.is_empty(), "{refused:?}: see `cargo tree -i NAME`");
}

/// With other features a dependency and all its users would be built again.
#[test]
fn every_entry_point_uses_the_same_features_of_dependencies() {
    let all = tree(&["--workspace", "--edges=normal,build,dev"]);
    // The selections of `cargo run`, `cargo build --package playhouse`, `cargo test` and `cargo bench`.
    let entries: [&[&str]; 3] = [
        &["--edges=normal,build"],
        &["--package=playhouse", "--edges=normal,build"],
        &["--edges=normal,build,dev"],
    ];
    for entry in entries {
        for (package, features) in tree(entry).iter().filter(|(package, _)| !package.contains("(/")) {
            assert_eq!(features, &all[package], "{package} with {entry:?} and with the whole workspace");
        }
    }
}

#[test]
fn licences_of_dependencies_are_accepted() {
    let allowed = list("licenses", "allow");
    let accepted = |licence: &str| allowed.iter().any(|one| one == licence.trim_matches(['(', ')', ' ']));
    let metadata = metadata(&[]);
    for package in items(&metadata["packages"]) {
        let licence = text(&package["license"]).replace('/', " OR ");
        let sound = licence.split(" OR ").any(|alternative| alternative.split(" AND ").all(accepted));
        assert!(sound, "{} has the licence {licence:?}", package["name"]);
    }
}

/// A second version of a crate is more code to build and to trust, and a fix of one version does not fix the other.
#[test]
fn every_crate_has_one_version_or_a_reason() {
    let metadata = metadata(&[]);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // Our own crates may be called like one of others that only tests use.
    for package in items(&metadata["packages"]).filter(|package| !package["source"].is_null()) {
        versions.entry(text(&package["name"])).or_default().insert(text(&package["version"]));
    }
    let skipped: BTreeSet<String> = list("bans", "skip").into_iter().collect();
    let mut known = BTreeSet::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let of_name = versions.iter().map(|version| format!("{name}@{version}"));
        let (explained, unexplained): (Vec<String>, Vec<String>) =
            of_name.partition(|version| skipped.contains(version));
        assert!(unexplained.len() <= 1, "{unexplained:?}: give deny.toml a reason for all but the newest");
        known.extend(explained);
    }
    let gone: Vec<&String> = skipped.difference(&known).collect();
    assert!(gone.is_empty(), "{gone:?}: no longer used; remove them from deny.toml");
}

#[test]
fn crates_come_from_allowed_registries() {
    let allowed = list("sources", "allow-registry");
    for package in items(&metadata(&[])["packages"]) {
        let source = package["source"].as_str();
        let is_known = |source: &str| {
            source.strip_prefix("registry+").is_some_and(|url| allowed.iter().any(|one| one == url))
        };
        assert!(source.is_none_or(is_known), "{} comes from {source:?}", package["name"]);
    }
}
