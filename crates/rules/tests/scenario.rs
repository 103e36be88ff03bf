//! Test files of studios: what their expectations say, and how a wrong one is reported.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use rules::{RuleSet, Scenario};

const RULES: &str = r#"
name = "raid"
role_attribute = "roles"
[attributes.roles]
type = "string-list"
[teams.red]
min = 2
max = 3
roles = { tank = 1, healer = { min = 1, max = 2 } }
[teams.blue]
min = 2
max = 3
roles = { tank = 1, healer = { min = 1, max = 2 } }
[rules.region]
type = "latency"
max = 80
"#;

/// A party of two and four single players, who fill both teams up to two or three players.
const CASE: &str = r#"
rules = "raid.toml"
[[case]]
name = "raid"
[[case.ticket]]
id = "pair"
players = [{ attributes = { roles = ["healer"] } }, { attributes = { roles = ["tank"] } }]
latency = { eu = 50, us = 20, ap = 81 }
[[case.ticket]]
id = "tank"
joined = 1
attributes = { roles = ["tank"] }
latency = { eu = 50, us = 20 }
[[case.ticket]]
id = "healer"
joined = 1
count = 2
attributes = { roles = ["healer"] }
latency = { eu = 50, us = 20 }
[[case.step]]
at = 1
"#;

fn failures(expected: &str) -> Vec<String> {
    let scenario = Scenario::parse(&format!("{CASE}{expected}")).unwrap_or_else(|m| panic!("{m}"));
    scenario.run(&RuleSet::parse(RULES).unwrap()).remove(0).failures
}

#[test]
fn every_field_of_a_match_can_be_expected() {
    let held = failures(
        r#"[[case.step.made]]
        players = 5
        teams.red = ["pair"]
        teams.blue = { tank = 1, healer = 2 }
        regions = ["us", "eu"]
        roles = { pair = ["healer", "tank"], tank = "tank", healer = "healer", healer-1 = "healer" }
        open = { red = 1, blue = 0 }
        "#,
    );
    assert_eq!(held, Vec::<String>::new());
    assert_eq!(
        failures(
            "made = [{ players = [\"pair\", \"tank\", \"healer-1\", \"healer-2\"], teams = { red = 2, blue = 3 }, open = 1 }]"
        ),
        Vec::<String>::new()
    );
}

#[test]
fn every_difference_of_a_match_is_reported() {
    for (expected, reported) in [
        ("{ players = 6 }", "at 1 s: match 1: players: expected 6; found 5"),
        ("{ players = [\"pair\"] }", "players: expected [pair]; found [healer-1, healer-2, pair, tank]"),
        (
            "{ players = { pair = 2 } }",
            "players: expected { pair = 2 }; found { healer = 2, pair = 1, tank = 1 }",
        ),
        ("{ teams = { red = 3 } }", "teams.red: expected 3; found 2"),
        ("{ teams = { green = 2 } }", "teams.green: there is no such team; known: red, blue"),
        ("{ teams = { blue = [\"tank\"] } }", "teams.blue: expected [tank]; found [healer-"),
        ("{ regions = [\"eu\", \"us\"] }", "regions: expected [\"eu\", \"us\"]; found [\"us\", \"eu\"]"),
        ("{ roles = { tank = \"healer\" } }", "roles.tank: expected [\"healer\"]; found [\"tank\"]"),
        ("{ roles = { bard = \"bard\" } }", "roles.bard: it is not in the match"),
        ("{ open = 0 }", "open: expected 0; found 1"),
        ("{ open = { blue = 1 } }", "open.blue: expected 1; found 0"),
        ("{ open = { green = 0 } }", "open.green: there is no such team; known: red, blue"),
    ] {
        let found = failures(&format!("made = [{expected}]"));
        assert_eq!(found.len(), 1, "{expected}: {found:?}");
        assert!(found[0].contains(reported), "{expected}: {found:?}");
    }
    assert_eq!(failures("made = []"), ["at 1 s: expected 0 matches; found 1"]);
    assert_eq!(failures("made = [{}, {}]"), ["at 1 s: expected 2 matches; found 1"]);
}

#[test]
fn mistakes_in_expectations_are_reported_together() {
    let text = format!(
        "{CASE}made = [{{ players = \"all\", teams = {{ red = 0.5 }}, roles = {{ tank = 1 }}, open = \"none\", regoins = [] }}]"
    );
    let mistakes = Scenario::parse(&text).unwrap_err().to_string();
    for said in [
        "players: expected a number of players, a list of tickets, or a table such as { medic = 5 }, found \"all\"",
        "teams.red: expected a number of players",
        "roles.tank: expected a role, or a list of roles, found 1",
        "open: expected a number of places, or a table such as { red = 1 }",
        "no such field: regoins; did you mean `regions`?",
    ] {
        assert!(mistakes.contains(said), "{said}:\n{mistakes}");
    }
}
