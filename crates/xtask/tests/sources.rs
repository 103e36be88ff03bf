//! Rules over the text of our sources that no lint can check.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap()
}

/// All files of the product with this extension, each with its path below `crates` and its text.
fn sources(extension: &str) -> Vec<(String, String)> {
    let crates = root().join("crates");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let name = path.strip_prefix(&crates).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

/// What is wrong with the comment that a script begins with.
fn missing_in_header(name: &str, text: &str) -> Vec<&'static str> {
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("-- ")).collect();
    let is_part = name.contains("/parts/");
    let mut wanted = vec!["-- KEYS", "-- ARGV", if is_part { "-- Defines:" } else { "-- Reply:" }];
    // The first line says what it does.
    wanted.retain(|start| !header.iter().skip(1).any(|line| line.starts_with(start)));
    wanted
}

#[test]
fn every_script_says_its_keys_arguments_and_reply() {
    for (name, text) in sources("lua") {
        let missing = missing_in_header(&name, &text);
        assert!(missing.is_empty(), "{name} lacks {missing:?} in its header");
    }
}

#[test]
fn a_header_that_lacks_something_is_noticed() {
    let whole = "-- Does it.\n-- KEYS[1] a.\n-- ARGV: none.\n-- Reply: OK.\nreturn 1\n";
    assert!(missing_in_header("a/src/b.lua", whole).is_empty());
    assert_eq!(missing_in_header("a/src/parts/b.lua", whole), ["-- Defines:"]);
    assert_eq!(missing_in_header("a/src/b.lua", &whole.replace("-- KEYS", "-- keys")), ["-- KEYS"]);
    let late = "-- Does it.\nlocal x\n-- KEYS[1] a.\n-- ARGV: none.\n-- Reply: OK.\n";
    assert_eq!(missing_in_header("a/src/b.lua", late).len(), 3);
}

/// Only what is declared by `redis_store::script!` has its keys checked.
#[test]
fn every_script_is_declared_in_the_one_way() {
    let code = sources("rs");
    for (name, _) in sources("lua") {
        let (krate, _) = name.split_once('/').unwrap();
        let file = Path::new(&name).file_name().unwrap().to_str().unwrap();
        let is_declared = code
            .iter()
            .any(|(of, text)| of.starts_with(&format!("{krate}/")) && text.contains(&format!("/{file}\"")));
        assert!(is_declared, "{name} is no part of a script");
    }
    for (name, text) in
        code.iter().filter(|(name, _)| !name.starts_with("redis-store/") && !name.starts_with("testkit/"))
    {
        for other in ["redis::Script", "EVALSHA", "include_str!(\"scripts/"] {
            assert!(!text.contains(other), "{name} runs a script past redis_store::script!: {other}");
        }
    }
}

/// Where the machine's clock is read, and why it is no parameter there.
const CLOCK_READERS: [(&str, &str); 5] = [
    ("playhouse/src/commands/", "a command begins: the clock is made here and handed on"),
    (
        "hierlock/src/in_process.rs",
        "once at start: fencing tokens must exceed those of an earlier process on this machine",
    ),
    (
        "work-queue/src/queue.rs",
        "an item that is handed over in process, before the store's time of it can be read",
    ),
    ("base/src/clock.rs", "defines it"),
    ("testkit/src/", "is no part of the product"),
];

#[test]
fn nothing_reads_the_system_clock_but_what_is_listed_here() {
    let mut readers: Vec<&str> = Vec::new();
    for (name, text) in sources("rs") {
        let product = text.split("#[cfg(test)]").next().unwrap();
        if product.contains("Clock::system()") || product.contains("SystemTime::now()") {
            let listed = CLOCK_READERS.iter().find(|(path, _)| name.starts_with(path));
            let (path, _) =
                listed.unwrap_or_else(|| panic!("{name} reads the system clock: take a base::Clock"));
            readers.push(path);
        }
    }
    for (path, reason) in CLOCK_READERS.iter().filter(|(path, _)| *path != "base/src/clock.rs") {
        assert!(readers.contains(path), "{path} reads no clock any more ({reason}): take it off the list");
    }
}
