//! The kinds of rule sets that Amazon publishes as examples, written anew in its language: each is imported and behaves as its page says.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::path::Path;

use rules::{Options, Player, RuleSet, Scenario, Ticket, Value, import_flexmatch};

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

/// The page of example 8 describes the order in which 155 players are placed: 100, 22, 3 and 30.
#[test]
fn teams_of_a_large_match_fill_in_the_order_that_the_page_describes() {
    // Swaps for balance would hide the order.
    let text = import_flexmatch(&read("08.json"), None).unwrap().text.replace("balance = 1", "balance = 0");
    let ticket = |at: usize| {
        let id = format!("p{at}").into();
        // The pivot is the oldest, the others follow by the distance of their skill.
        let attributes = [("skill".into(), Value::Number(at as f64))].into();
        let player = Player { id, attributes, latency: [("eu".into(), 60.0)].into() };
        Ticket { id: player.id.clone(), created: at as i64, players: vec![player] }
    };
    let tickets: Vec<Ticket> = (0..155).map(ticket).collect();
    let pass = RuleSet::parse(&text).unwrap().find_matches(&tickets, 1_000, Options::default());
    assert_eq!(pass.matches.len(), 1);
    for team in &pass.matches[0].teams {
        let placed =
            |from: usize, to: usize| team.tickets.iter().filter(|at| (from..to).contains(*at)).count();
        let stages = [placed(0, 100), placed(100, 122), placed(122, 125), placed(125, 155)];
        let expected = if *team.name == *"monsters" { [0, 2, 3, 0] } else { [10, 2, 0, 3] };
        assert_eq!(stages, expected, "{}", team.name);
    }
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
fn import_lists_what_it_cannot_convert() {
    let rule_set = r#"{"name": "x", "future": 1,
        "playerAttributes": [{"name": "mode", "type": "string", "unit": "none"}],
        "teams": [{"name": "a", "minPlayers": 1, "maxPlayers": 2, "colour": "red"}],
        "rules": [
            {"name": "mode", "type": "comparison", "measurements": ["flatten(teams[*].players.attributes[mode])"],
             "referenceValue": "duel", "operation": "=", "weight": 2},
            {"name": "both", "type": "compound", "statement": "not(mode)", "partyAggregation": "avg"}],
        "algorithm": {"strategy": "exhaustiveSearch", "batchingPreference": "sorted", "sortByAttributes": ["x"],
             "backfillPriority": "low", "expansionAgeSelection": "median", "speed": 1},
        "expansions": [{"target": "algorithm.strategy", "steps": []},
            {"target": "rules[mode].referenceValue", "steps": [{"waitTimeSeconds": 7, "value": "race", "why": "few"}]},
            {"target": "rules[nope].maxDistance", "steps": [{"waitTimeSeconds": 5.5, "value": "7"}]}]}"#;
    let configuration = r#"{"Name": "c", "AcceptanceTimeoutSeconds": 20, "FlexMatchMode": "STANDALONE",
        "AdditionalPlayerCount": 2, "BackfillMode": "AUTOMATIC", "Surprise": 1}"#;
    let notes = import_flexmatch(rule_set, Some(configuration)).unwrap().notes.join("\n");
    for said in [
        "future is not known",
        "unit is not known",
        "colour is not known",
        "weight is not known",
        "speed is not known",
        "why is not known",
        "partyAggregation avg is not kept",
        "strategy exhaustiveSearch is not kept",
        "pool is not sorted",
        "sortByAttributes is not kept",
        "expansionAgeSelection median is not known",
        "backfillPriority: with backfill = true",
        "algorithm.strategy is not kept",
        "rules[mode].referenceValue after 7 s is not kept: \"race\" is not a number",
        "after 5.5 s is read as after 5 s",
        "rules[nope] is not kept",
        "AcceptanceTimeoutSeconds is not kept: AcceptanceRequired is not true",
        "FlexMatchMode STANDALONE is not kept",
        "AdditionalPlayerCount: to keep 2 places free",
        "AUTOMATIC: set backfill = true",
        "Surprise is not known",
        "Name has no counterpart",
    ] {
        assert!(notes.contains(said), "{said}:\n{notes}");
    }
    for (algorithm, said) in [
        ("\"strategy\": \"balanced\"", "strategy balanced is not kept"),
        ("\"strategy\": \"greedy\"", "strategy greedy is not known"),
        ("\"batchingPreference\": \"random\"", "batchingPreference random is not kept"),
        ("\"batchingPreference\": \"largestPopulation\"", "batchingPreference largestPopulation is not kept"),
        ("\"batchingPreference\": \"fastestRegion\"", "batchingPreference fastestRegion becomes"),
        ("\"batchingPreference\": \"oldest\"", "batchingPreference oldest is not known"),
        ("\"sortByAttributes\": [\"x\"]", "sortByAttributes is not kept"),
    ] {
        let text = format!(
            "{{\"name\": \"x\", \"teams\": [{{\"name\": \"a\", \"maxPlayers\": 2}}], \"algorithm\": {{{algorithm}}}}}"
        );
        let notes = import_flexmatch(&text, None).unwrap().notes.join("\n");
        assert!(notes.contains(said), "{said}:\n{notes}");
    }
    let first = r#"{"name": "x", "teams": [{"name": "a", "maxPlayers": 2}], "algorithm": {"backfillPriority": "high"}}"#;
    let notes = import_flexmatch(first, None).unwrap().notes.join("\n");
    assert!(!notes.contains("backfillPriority"), "that is the order here: {notes}");
}

#[test]
fn matchmaking_configuration_becomes_settings_of_a_queue_and_a_profile() {
    let rule_set =
        r#"{"name": "x", "teams": [{"name": "a", "maxPlayers": 2, "description": "Both\nsides."}]}"#;
    let import = |configuration: &str| import_flexmatch(rule_set, Some(configuration)).unwrap();
    let imported = import(
        r#"{"AcceptanceRequired": true, "AcceptanceTimeoutSeconds": "20", "RequestTimeoutSeconds": 30}"#,
    );
    let settings = [
        "[matchmaking.queues.NAME]",
        "ticket_ttl = \"30s\"",
        "[matchmaking.profiles.NAME]",
        "function = \"rules\"",
        "rules = \"FILE\"",
        "ready_check = \"20s\"",
    ];
    assert_eq!(imported.settings, settings);
    assert!(
        settings.iter().all(|line| imported.text.contains(&format!("#   {line}\n"))),
        "{}",
        imported.text
    );
    let notes = imported.notes.join("\n");
    assert!(notes.contains("ready_check = \"20s\"") && notes.contains("ticket_ttl = \"30s\""), "{notes}");
    assert!(imported.text.contains("# Both\n# sides.\n[teams.\"a\"]"), "{}", imported.text);
    let without_time = import(r#"{"AcceptanceRequired": "true"}"#);
    assert!(without_time.notes.join("\n").contains("choose the ready_check"), "{:?}", without_time.notes);
    assert_eq!(without_time.settings.last().unwrap(), "ready_check = \"30s\"");
    assert_eq!(import(r#"{"AcceptanceRequired": false}"#).settings, [""; 0]);
    let mistakes = import_flexmatch(rule_set, Some(r#"{"AcceptanceTimeoutSeconds": "soon"}"#)).unwrap_err();
    assert!(mistakes.to_string().contains("AcceptanceTimeoutSeconds: expected a number"), "{mistakes}");
}

#[test]
fn mistakes_are_reported_together_with_their_lines() {
    let text = "{\"name\": \"x\",\n\"teams\": [{\"name\": \"a\"}],\n\"rules\": [\n{\"name\": \"r\", \"type\": \"distanse\"}]}";
    let mistakes = import_flexmatch(text, None).unwrap_err().to_string();
    assert!(mistakes.contains("2:") && mistakes.contains("maxPlayers"), "{mistakes}");
    assert!(mistakes.contains("4:") && mistakes.contains("did you mean `distance`?"), "{mistakes}");
}
