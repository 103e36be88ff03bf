//! Reads `deny.toml`, the rules for dependencies.

use std::fs;

use super::root;

/// Returns the quoted texts of a list: `key = ["a", "b"]`, or the `crate = "…"` of each of its tables.
pub(crate) fn list(section: &str, key: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let found = listed(&text, section, key);
    assert!(!found.is_empty(), "deny.toml has nothing under [{section}] {key}");
    found
}

fn listed(text: &str, section: &str, key: &str) -> Vec<String> {
    let below = text.split(&format!("\n[{section}]\n")).nth(1).unwrap_or_default();
    let below = below.split("\n[").next().unwrap_or_default();
    let list =
        below.split(&format!("\n{key} = [")).nth(1).or_else(|| below.strip_prefix(&format!("{key} = [")));
    let list = list.unwrap_or_default();
    let list =
        list.split_once("\n]").map_or_else(|| list.split(']').next().unwrap_or_default(), |(list, _)| list);
    let items = list.lines().flat_map(|line| match line.trim().strip_prefix("{ crate = ") {
        Some(table) => vec![table],
        None => line.split(", ").collect(),
    });
    items.filter_map(|item| Some(item.split('"').nth(1)?.to_owned())).collect()
}

/// Every exception has a reason.
#[test]
fn refused_and_duplicate_crates_have_a_reason() {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let tables = text.lines().filter(|line| line.trim().starts_with("{ "));
    for line in tables {
        let reason = line.split("reason = \"").nth(1).and_then(|rest| rest.split('"').next());
        assert!(reason.is_some_and(|reason| reason.len() > 3), "{line}");
    }
}

#[test]
fn lists_are_parsed() {
    let text = "x\n[a]\nallow = [\n    \"one\",\n    \"two\",\n]\n\n[b]\nversion = 2\ndeny = [\n    { crate = \"c@1.0\", reason = \"r, s\" },\n]\nof = [\"p\", \"q\"]\n";
    assert_eq!(listed(text, "a", "allow"), ["one", "two"]);
    assert_eq!(listed(text, "b", "deny"), ["c@1.0"]);
    assert_eq!(listed(text, "b", "of"), ["p", "q"]);
    assert!(listed(text, "a", "deny").is_empty());
}
