//! The rule sets of examples/rules: valid, without warnings, and as their tests say.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::path::{Path, PathBuf};

use rules::{RuleSet, Scenario};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn is_test(file: &Path) -> bool {
    file.to_string_lossy().ends_with(".test.toml")
}

#[test]
fn examples_have_no_warnings() {
    let mut count = 0;
    for file in
        files().iter().filter(|file| !is_test(file) && file.extension().is_some_and(|end| end == "toml"))
    {
        let rules = RuleSet::parse(&std::fs::read_to_string(file).unwrap())
            .unwrap_or_else(|mistakes| panic!("{}:\n{mistakes}", file.display()));
        let warnings: Vec<String> = rules.lint().iter().map(ToString::to_string).collect();
        assert!(warnings.is_empty(), "{}: {warnings:?}", file.display());
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn examples_pass_their_tests() {
    let mut failures = Vec::new();
    for file in files().iter().filter(|file| is_test(file)) {
        let scenario = Scenario::parse(&std::fs::read_to_string(file).unwrap())
            .unwrap_or_else(|mistakes| panic!("{}:\n{mistakes}", file.display()));
        let rules =
            RuleSet::parse(&std::fs::read_to_string(file.with_file_name(&scenario.rules)).unwrap()).unwrap();
        for outcome in scenario.run(&rules) {
            failures.extend(
                outcome
                    .failures
                    .iter()
                    .map(|failure| format!("{}: {}: {failure}", scenario.rules, outcome.case)),
            );
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
