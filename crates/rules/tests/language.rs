//! The language: what is read, and what is refused with which words.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use rules::RuleSet;

fn mistakes(text: &str) -> String {
    RuleSet::parse(text).unwrap_err().to_string()
}

#[test]
fn all_mistakes_are_reported_at_once_a_line_each_with_suggestions() {
    let text = r#"
nmae = "x"
[attributes.skill]
type = "numbr"
[teams.red]
min = 6
max = 5
[rules.a]
type = "batch-distanse"
[rules.b]
type = "batch-distance"
attribute = "skil"
max = 5
[rules.c]
type = "comparison"
measurements = "avg(teams[rde].players.attributes[skill])"
operation = "<"
reference = 5
[rules.d]
type = "compound"
statement = "and(b, nope)"
"#;
    let found = mistakes(text);
    let lines: Vec<&str> = found.lines().collect();
    for (at, expected) in [
        "1:1: : `name` is required",
        "2:1: no such field: nmae; did you mean `name`?",
        "4:1: attributes.skill: type: unknown value: numbr; did you mean `number`?",
        "5:8: teams.red: min (6) is larger than max (5)",
        "9:1: rules.a: type: unknown value: batch-distanse; did you mean `batch-distance`?",
        "12:1: rules.b: attribute: no such attribute: skil; did you mean `skill`?",
        "16:1: rules.c: measurements: no such team: rde; did you mean `red`?",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(
            lines.get(at).copied().unwrap_or_default().replace(": : ", ": "),
            expected.replace(": : ", ": "),
            "{found}"
        );
    }
}

#[test]
fn json_and_toml_are_the_same() {
    let toml = "name = \"x\"\n[attributes.skill]\ntype = \"number\"\ndefault = 5\n[teams.red]\nmin = 1\nmax = 2\nrelax = [{ after = 5, min = 0 }]\n\
                [rules.s]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 10\n";
    let json = r#"{"name": "x", "attributes": {"skill": {"type": "number", "default": 5}},
        "teams": {"red": {"min": 1, "max": 2, "relax": [{"after": 5, "min": 0}]}},
        "rules": {"s": {"type": "batch-distance", "attribute": "skill", "max": 10}}}"#;
    let (toml, json) = (RuleSet::parse(toml).unwrap(), RuleSet::parse(json).unwrap());
    assert_eq!(
        (toml.attributes, toml.teams[0].min.clone(), toml.rules[0].max.clone()),
        (json.attributes, json.teams[0].min.clone(), json.rules[0].max.clone())
    );
}

#[test]
fn invalid_fields_are_refused_with_what_was_expected() {
    let base = "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[attributes.maps]\ntype = \"string-list\"\n[teams.red]\nmax = 2\n[teams.blue]\nmax = 2\n";
    let rule = |text: &str| mistakes(&format!("{base}[rules.r]\n{text}\n"));
    for (text, expected) in [
        ("type = \"batch-distance\"\nattribute = \"skill\"", "`max` is required"),
        (
            "type = \"batch-distance\"\nattribute = \"maps\"\nmax = 1",
            "maps is a string-list; expected a number or string",
        ),
        (
            "type = \"batch-distance\"\nattribute = \"skill\"\nmax = \"5\"",
            "max: expected a number, found \"5\"",
        ),
        ("type = \"batch-distance\"\nattribute = \"skill\"\nmax = 5\nmin = 3", "no such field: min"),
        (
            "type = \"batch-distance\"\nattribute = \"skill\"\nmax = 5\nrelax = [{ after = 5 }]",
            "changes nothing: set one of max, off",
        ),
        (
            "type = \"batch-distance\"\nattribute = \"skill\"\nmax = 5\nrelax = [{ after = 5, max = 6 }, { after = 5, max = 7 }]",
            "must be later",
        ),
        (
            "type = \"batch-distance\"\nattribute = \"skill\"\nmax = 5\nrelax = [{ after = 5, max = { by = 0, every = 1, limit = 9 } }]",
            "by must not be 0",
        ),
        (
            "type = \"distance\"\nmeasurements = \"avg(teams[*].players.attributes[maps])\"\nreference = 5\nmax = 1",
            "avg: expected a list of numbers",
        ),
        (
            "type = \"distance\"\nmeasurements = \"teams[red].players\"\nreference = 5\nmax = 1",
            "yields players: count them",
        ),
        (
            "type = \"distance\"\nmeasurements = \"mean(teams[red].players.attributes[skill])\"\nreference = 5\nmax = 1",
            "expected `teams[…]` or a function",
        ),
        (
            "type = \"comparison\"\nmeasurements = \"teams[red].players.attributes[skill]\"\noperation = \"<\"",
            "without a reference only = and !=",
        ),
        (
            "type = \"comparison\"\nmeasurements = \"teams[red].players.attributes[skill]\"\noperation = \"=\"\nreference = \"five\"",
            "are of different types",
        ),
        (
            "type = \"collection\"\nmeasurements = \"teams[red].players.attributes[maps]\"\noperation = \"contains\"\nmin = 1",
            "`reference` is required",
        ),
        ("type = \"latency\"", "`max` or `max_distance` is required"),
        ("type = \"compound\"\nstatement = \"and(r, r)\"", "no such rule above this one: r"),
        ("type = \"absolute-sort\"\nattribute = \"skill\"\ndirection = \"up\"", "unknown value: up"),
        ("type = \"total\"\nattribute = \"skill\"\nmin = 9\nmax = 5", "min (9) is larger than max (5)"),
    ] {
        let found = rule(text);
        assert!(found.contains(expected), "{text}:\n{found}");
    }
    assert!(mistakes("name = \"x\"").contains("at least one table [teams.NAME]"));
    assert!(mistakes("name = \"x\"\n[teams.a]\nmax = 600\ncount = 2").contains("at most 1000 players"));
    assert!(
        mistakes("name = \"x\"\n[teams.a]\nmax = 2\nroles = { tank = 1 }")
            .contains("role_attribute must name")
    );
    assert!(mistakes("name = ").contains("not valid TOML"));
    assert!(mistakes("{\"name\": ").contains("not valid JSON"));
}

#[test]
fn lint_finds_what_cannot_work() {
    let warnings = |text: &str| {
        RuleSet::parse(text).unwrap().lint().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let base = "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\ncount = 2\nmax = 1\n";
    let rule = |more: &str| {
        warnings(&format!(
            "{base}[rules.r]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 5\n{more}"
        ))
    };
    assert_eq!(rule(""), "");
    for (more, expected) in [
        ("relax = [{ after = 5, max = 5 }]", "changes nothing: it is 5 already"),
        ("relax = [{ after = 5, max = 3 }]", "admits less than before"),
        ("relax = [{ after = 5, off = true }, { after = 10, max = 9 }]", "later relaxations have no effect"),
        ("off = true", "it is off, and nothing turns it on"),
        (
            "relax = [{ after = 5, max = { by = 5, every = 1, limit = 5 } }]",
            "its limit of 5 is reached already",
        ),
    ] {
        assert!(rule(more).contains(expected), "{more}: {}", rule(more));
    }
    assert!(warnings(base).contains("attributes.skill: nothing uses it"));
    let roles = |roles: &str| {
        warnings(&format!(
            "name = \"x\"\nrole_attribute = \"role\"\n[attributes.role]\ntype = \"string\"\n[teams.a]\nmin = 2\nmax = 3\nroles = {roles}\n"
        ))
    };
    assert_eq!(roles("{ tank = 1, healer = { max = 2 } }"), "");
    assert!(roles("{ tank = 2, healer = 2 }").contains("need 4 players"));
    assert!(roles("{ tank = 1 }").contains("admit 1 players, and it needs 2"));
    // Two rules that no match can pass together.
    let contradiction = format!(
        "{base}[rules.low]\ntype = \"comparison\"\nmeasurements = \"flatten(teams[*].players.attributes[skill])\"\noperation = \"<\"\nreference = 10\n\
         [rules.high]\ntype = \"comparison\"\nmeasurements = \"flatten(teams[*].players.attributes[skill])\"\noperation = \">\"\nreference = 20\n"
    );
    assert!(warnings(&contradiction).contains("contradict each other"));
}

#[test]
fn trials_run_beside_other_warnings() {
    let warnings = |text: &str| {
        RuleSet::parse(text).unwrap().lint().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let unused = "name = \"x\"\n[attributes.unused]\ntype = \"number\"\ndefault = 1\n[attributes.skill]\ntype = \"number\"\n";
    let skills = "type = \"comparison\"\nmeasurements = \"flatten(teams[*].players.attributes[skill])\"\n";
    let contradiction = format!(
        "{unused}[teams.a]\ncount = 2\nmax = 1\n[rules.low]\n{skills}operation = \"<\"\nreference = 10\n\
         [rules.high]\n{skills}operation = \">\"\nreference = 20\n"
    );
    let found = warnings(&contradiction);
    assert!(found.contains("attributes.unused: nothing uses it"), "{found}");
    assert!(found.contains("contradict each other"), "{found}");
    let without_place = warnings(
        "name = \"x\"\n[attributes.unused]\ntype = \"number\"\n[teams.a]\nmax = 3\n[teams.b]\nmax = 1\n\
         [rules.premades]\ntype = \"premade-similarity\"\nmax = 0\n",
    );
    assert!(without_place.contains("nothing uses it"), "{without_place}");
    assert!(
        without_place.contains("a party of 2") && without_place.contains("a party of 3"),
        "{without_place}"
    );
}

#[test]
fn relaxation_after_the_end_of_every_ticket_is_found() {
    let rules = RuleSet::parse(
        "name = \"x\"\n[attributes.skill]\ntype = \"number\"\n[teams.a]\ncount = 2\nmin = 1\nmax = 2\n\
         relax = [{ after = 60, min = 0 }]\n[rules.r]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 5\n\
         relax = [{ after = 59, max = 6 }, { after = 90, max = { by = 1, every = 1, limit = 9 } }, { after = 120, off = true }]\n",
    )
    .unwrap();
    let warnings = |seconds: u64| -> Vec<String> {
        let found = rules.lint_lifetime(std::time::Duration::from_secs(seconds));
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        warnings(60),
        [
            "4:8: teams.a: min: the relaxation after 60 s has no effect: tickets live for 60 s",
            "9:8: rules.r: max: the relaxation after 90 s has no effect: tickets live for 60 s",
            "9:8: rules.r: off: the relaxation after 120 s has no effect: tickets live for 60 s",
        ]
    );
    assert_eq!(warnings(121), [""; 0]);
}
