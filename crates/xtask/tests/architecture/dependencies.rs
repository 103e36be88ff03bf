//! Crates of others: those we refuse, their features, their licences.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::metadata::{items, metadata, text};
use super::root;

/// A second crypto provider, the C library we do not want to link, code with open advisories; and the tables of ICU, which come with
/// `idna_adapter` 1.2: twenty crates for host names that are not ASCII. `cargo update -p idna_adapter --precise 1.1.0` keeps them out.
const REFUSED: &[&str] = &["icu_properties", "native-tls", "openssl-sys", "ring", "rsa"];

const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The packages that a selection builds, each with the sets of features that it is built with.
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
    assert!(linked.contains("aws-lc-rs"), "the list of linked crates was not understood");
    let refused: Vec<&&str> = REFUSED.iter().filter(|name| linked.contains(**name)).collect();
    assert!(refused.is_empty(), "{refused:?}: see `cargo tree -i NAME`");
}

/// A dependency with other features is built again, and all that use it.
#[test]
fn every_entry_point_wants_the_same_features_of_its_dependencies() {
    let all = tree(&["--workspace", "--edges=normal,build,dev"]);
    // What `cargo run`, `cargo build --package playhouse`, `cargo test` and `cargo bench` choose from.
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
fn licences_of_dependencies_are_ones_we_accept() {
    let accepted = |licence: &str| LICENCES.contains(&licence.trim_matches(['(', ')', ' ']));
    let metadata = metadata(&[]);
    for package in items(&metadata["packages"]) {
        let licence = text(&package["license"]).replace('/', " OR ");
        let sound = licence.split(" OR ").any(|alternative| alternative.split(" AND ").all(accepted));
        assert!(sound, "{} has the licence {licence:?}", package["name"]);
    }
}
