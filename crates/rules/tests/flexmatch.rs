//! The kinds of rule sets that Amazon publishes as examples, written anew in its language: each is imported and behaves as its page says.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::path::Path;

use rules::{RuleSet, Scenario, import_flexmatch};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flexmatch")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

#[test]
fn imported_examples_behave_as_their_pages_describe() {
    let mut failures = Vec::new();
    for number in 1..=11 {
        let imported = import_flexmatch(&read(&format!("{number:02}.json")), None)
            .unwrap_or_else(|mistakes| panic!("{number}: {mistakes}"));
        let scenario = Scenario::parse(&read(&format!("{number:02}.toml")))
            .unwrap_or_else(|mistakes| panic!("{number}: {mistakes}"));
        for outcome in scenario.run(&imported.rules) {
            failures.extend(
                outcome.failures.iter().map(|failure| format!("{number}: {}: {failure}", outcome.case)),
            );
        }
        let again = RuleSet::parse(&imported.text).unwrap();
        assert_eq!(again, imported.rules, "{number}: the text is the rule set");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn traps_of_published_documents_are_read_and_named() {
    let imported = import_flexmatch(&read("07.json"), None).unwrap();
    assert!(imported.text.contains("default = 500\n"), "{}", imported.text);
    assert!(imported.notes.iter().any(|note| note.contains("several targets")), "{:?}", imported.notes);
    assert!(imported.notes.iter().any(|note| note.contains("newest ticket")), "{:?}", imported.notes);
    let text = imported.text.lines().filter(|line| line.starts_with("# ")).count();
    assert_eq!(text, imported.notes.len() + 1, "every note is in the text");
}

#[test]
fn what_cannot_be_kept_is_said() {
    let rule_set = r#"{"name": "x", "future": 1, "teams": [{"name": "a", "minPlayers": 1, "maxPlayers": 2, "colour": "red"}],
        "algorithm": {"strategy": "exhaustiveSearch", "batchingPreference": "sorted", "sortByAttributes": ["x"], "backfillPriority": "low"},
        "expansions": [{"target": "algorithm.strategy", "steps": []}, {"target": "rules[nope].maxDistance", "steps": [{"waitTimeSeconds": 5, "value": "7"}]}]}"#;
    let configuration = r#"{"Name": "c", "AcceptanceRequired": true, "RequestTimeoutSeconds": 30, "AdditionalPlayerCount": 2,
        "BackfillMode": "AUTOMATIC", "Surprise": 1}"#;
    let notes = import_flexmatch(rule_set, Some(configuration)).unwrap().notes.join("\n");
    for said in [
        "future is not known",
        "colour is not known",
        "pool is not sorted",
        "backfillPriority: with backfill = true",
        "algorithm.strategy is not kept",
        "rules[nope] is not kept",
        "AcceptanceRequired is not kept",
        "ticket_ttl = \"30s\"",
        "AdditionalPlayerCount: 2",
        "AUTOMATIC: set backfill = true",
        "Surprise is not known",
        "Name has no counterpart",
    ] {
        assert!(notes.contains(said), "{said}:\n{notes}");
    }
    let first = import_flexmatch(&rule_set.replace("low", "high"), None).unwrap().notes.join("\n");
    assert!(!first.contains("backfillPriority"), "that is the order here: {first}");
}

#[test]
fn mistakes_are_reported_together_with_their_lines() {
    let text = "{\"name\": \"x\",\n\"teams\": [{\"name\": \"a\"}],\n\"rules\": [\n{\"name\": \"r\", \"type\": \"distanse\"}]}";
    let mistakes = import_flexmatch(text, None).unwrap_err().to_string();
    assert!(mistakes.contains("2:") && mistakes.contains("maxPlayers"), "{mistakes}");
    assert!(mistakes.contains("4:") && mistakes.contains("did you mean `distance`?"), "{mistakes}");
}
