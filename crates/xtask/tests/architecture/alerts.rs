//! The alerts for Prometheus name metrics that exist.

use std::collections::BTreeSet;

use super::{root, sources};

const ENDINGS: [&str; 5] = ["_total", "_bucket", "_count", "_sum", ""];

/// Returns the metrics that the expressions of the alerts name.
fn alerted() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("deploy/prometheus/playhouse.rules.yml")).unwrap();
    let expressions = text.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expressions.flat_map(|text| text.split(move |c| !is_word(c)));
    words.filter(|word| word.starts_with("playhouse_")).map(str::to_owned).collect()
}

/// Returns the rows of docs/reference/metrics.md: the metric and the rest.
fn documented() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
}

#[test]
fn every_metric_of_an_alert_exists() {
    let (alerted, documented) = (alerted(), documented());
    assert!(alerted.len() > 5, "{alerted:?}");
    let sources = sources("rs");
    for series in alerted {
        let name = ENDINGS.iter().find_map(|ending| {
            let name = series.strip_suffix(ending)?;
            documented.iter().any(|(known, _)| known == name).then_some(name)
        });
        let name = name.unwrap_or_else(|| panic!("an alert names a metric that no document has: {series}"));
        // A registry adds a prefix and the unit.
        let bare = name.strip_suffix("_seconds").unwrap_or(name);
        let is_declared = |text: &String| {
            let texts: BTreeSet<&str> = text.split('"').skip(1).step_by(2).collect();
            let has_rest = |prefix: &&str| {
                let rest = bare.strip_prefix(*prefix).and_then(|rest| rest.strip_prefix('_'));
                rest.is_some_and(|rest| texts.contains(rest))
            };
            text.contains("register") && (texts.contains(bare) || texts.iter().any(has_rest))
        };
        assert!(sources.values().any(is_declared), "no code registers {name}");
    }
}

#[test]
fn every_metric_that_operators_should_alert_on_has_an_alert() {
    let alerted = alerted();
    let rows = documented().into_iter().filter(|(_, rest)| rest.contains("alert "));
    let names: Vec<String> = rows.map(|(name, _)| name).collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        assert!(alerted.contains(&name), "no alert names {name}");
    }
}
