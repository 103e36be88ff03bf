//! Tables named by the user.

use std::collections::BTreeMap;

use super::*;

const REFERENCE: &str = r#"
[matchmaking]
interval = "1s"

# One kind of match.
[matchmaking.profiles.NAME]
# How many players make a match. Required.
# players = 2
# What it is called, if not by its name.
# title = "Duel"
max_wait = "30s"

[matchmaking.profiles.NAME.pools.NAME]
tags = []
weight = 1.0
"#;

#[derive(Debug)]
struct Matchmaking {
    profiles: BTreeMap<String, Profile>,
}

#[derive(Debug)]
struct Profile {
    players: u32,
    title: Option<String>,
    max_wait: Duration,
    pools: BTreeMap<String, Pool>,
}

#[derive(Debug)]
struct Pool {
    tags: Vec<String>,
    weight: f64,
}

impl Section for Matchmaking {
    fn read(reader: &mut Reader<'_>) -> Self {
        let profiles: BTreeMap<String, Profile> = reader.tables("matchmaking.profiles");
        let interval: Duration = reader.get("matchmaking.interval");
        for (name, profile) in &profiles {
            let key = format!("matchmaking.profiles.{name}.max_wait");
            reader
                .check(&[&key], profile.max_wait >= interval, || "must be at least the interval".to_owned());
            let table = format!("matchmaking.profiles.{name}");
            reader.check(&[&table], name != "odd", || "is odd".to_owned());
        }
        Self { profiles }
    }
}

impl Section for Profile {
    fn read(reader: &mut Reader<'_>) -> Self {
        let pools = reader.tables("pools");
        Self {
            players: reader.required_within("players", 1..=100),
            title: reader.optional("title"),
            max_wait: reader.get("max_wait"),
            pools,
        }
    }
}

impl Section for Pool {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { tags: reader.get("tags"), weight: reader.get("weight") }
    }
}

fn with_file(text: &str) -> Layers {
    Layers::new(REFERENCE).with_file_text(Path::new("play.toml"), text)
}

fn load(text: &str) -> Loaded<Matchmaking> {
    crate::load(with_file(text)).unwrap()
}

fn problems(layers: Layers) -> Vec<String> {
    let Problems(problems) = crate::load::<Matchmaking>(layers).expect_err("the configuration is invalid");
    problems.iter().map(ToString::to_string).collect()
}

fn variable(name: &str, value: &str) -> [(String, String); 1] {
    [(name.to_owned(), value.to_owned())]
}

const DUEL: &str = "[matchmaking.profiles.duel]\nplayers = 2\n";

#[test]
fn file_names_tables_and_the_template_has_their_defaults() {
    let file = format!(
        "[matchmaking.profiles.team-5]\nplayers = 10\nmax_wait = \"1m\"\ntitle = \"Five\"\n{DUEL}\
         [matchmaking.profiles.duel.pools.us]\n[matchmaking.profiles.duel.pools.eu]\ntags = [\"eu\"]\n"
    );
    let profiles = load(&file).config.profiles;
    assert_eq!(profiles.keys().collect::<Vec<_>>(), ["duel", "team-5"]);
    let (duel, team) = (&profiles["duel"], &profiles["team-5"]);
    assert_eq!((duel.players, duel.max_wait, duel.title.as_deref()), (2, Duration::from_secs(30), None));
    assert_eq!(
        (team.players, team.max_wait, team.title.as_deref()),
        (10, Duration::from_secs(60), Some("Five"))
    );
    assert!(team.pools.is_empty());
    // A table without keys counts too.
    assert_eq!(duel.pools.keys().collect::<Vec<_>>(), ["eu", "us"]);
    assert_eq!(duel.pools["eu"].tags, ["eu"]);
    assert!(duel.pools["us"].tags.is_empty() && (duel.pools["us"].weight - 1.0).abs() < f64::EPSILON);
}

#[test]
fn template_is_not_a_table() {
    assert!(load("").config.profiles.is_empty());
    assert!(load("[matchmaking.profiles]\n").config.profiles.is_empty());
    assert!(crate::load::<Matchmaking>(Layers::new(REFERENCE)).unwrap().config.profiles.is_empty());
}

#[test]
fn file_template_overrides_the_defaults_of_all_tables() {
    assert!(load(REFERENCE).config.profiles.is_empty());
    let file = format!(
        "{DUEL}[matchmaking.profiles.NAME]\nmax_wait = \"9s\"\n[matchmaking.profiles.NAME.pools.NAME]\nweight = 5\n\
         [matchmaking.profiles.duel.pools.eu]\n"
    );
    let Loaded { config, effective, .. } = load(&file);
    assert_eq!(config.profiles.keys().collect::<Vec<_>>(), ["duel"]);
    assert_eq!(config.profiles["duel"].max_wait, Duration::from_secs(9));
    assert!((config.profiles["duel"].pools["eu"].weight - 5.0).abs() < f64::EPSILON);
    let shown = effective.to_string();
    assert!(
        shown.contains("max_wait = \"9s\"                                  # play.toml:4:1\n"),
        "{shown}"
    );
    assert!(!shown.contains("NAME"), "{shown}");
}

#[test]
fn mistakes_in_an_unused_template_are_reported() {
    let found = problems(with_file(
        "[matchmaking.profiles.NAME]\nmax_wait = 5\nplayerz = 2\n[matchmaking.profiles.NAME.pools.eu]\n",
    ));
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found[0].starts_with("play.toml:2:1: matchmaking.profiles.NAME.max_wait: expected a duration"));
    assert_eq!(
        found[1],
        "play.toml:3:1: matchmaking.profiles.NAME.playerz: no such key\n    did you mean `matchmaking.profiles.NAME.players`?"
    );
    assert_eq!(
        found[2],
        "play.toml:4:34: [matchmaking.profiles.NAME.pools.eu]: in a template the name must be NAME, found eu"
    );
}

#[test]
fn mistake_in_a_template_is_reported_once_for_all_tables() {
    let found = problems(with_file(&format!(
        "[matchmaking.profiles.5v5]\nplayers = 10\n{DUEL}[matchmaking.profiles.NAME]\nmax_wait = 5\n"
    )));
    assert!(found.len() == 1 && found[0].contains("profiles.NAME.max_wait"), "{found:#?}");
}

#[test]
fn template_value_is_checked_when_a_table_uses_it() {
    let template = "[matchmaking.profiles.NAME]\nplayers = 0\n";
    assert!(load(template).config.profiles.is_empty());
    assert_eq!(load(&format!("{template}{DUEL}")).config.profiles["duel"].players, 2);
    let found = problems(with_file(&format!("{template}[matchmaking.profiles.duel]\n")));
    assert_eq!(found, ["play.toml:2:1: matchmaking.profiles.duel.players: must be from 1 to 100, found 0"]);
}

#[test]
fn missing_required_key_is_reported_at_its_table() {
    let found = problems(with_file("\n[matchmaking.profiles.duel]\nmax_wait = \"5s\"\n"));
    assert_eq!(found, ["play.toml:2:23: matchmaking.profiles.duel.players: is required"]);
    // A rejected value is not reported as missing too.
    let found = problems(with_file("[matchmaking.profiles.duel]\nplayers = \"two\"\n"));
    assert_eq!(
        found,
        ["play.toml:2:1: matchmaking.profiles.duel.players: expected a whole number, found \"two\""]
    );
    let found = problems(with_file("[matchmaking.profiles.duel]\nplayers = 0\n"));
    assert_eq!(found, ["play.toml:2:1: matchmaking.profiles.duel.players: must be from 1 to 100, found 0"]);
}

#[test]
fn invalid_table_names_are_rejected_at_their_position() {
    for (written, shown) in [
        ("Duel", "Duel"),
        ("\"a.b\"", "\"a.b\""),
        ("\"\"", "\"\""),
        ("\"größe\"", "\"größe\""),
        ("\"a\\\"b.c\"", "\"a\\\"b.c\""),
    ] {
        let found = problems(with_file(&format!("\n[matchmaking.profiles.{written}]\nplayers = 2\n")));
        let expected = format!(
            "play.toml:2:23: [matchmaking.profiles.{shown}]: the name must be 1 to 64 characters of a-z, 0-9, `_` and `-`, \
             found {shown}"
        );
        assert_eq!(found, [expected]);
    }
    let name = |length: usize| format!("[matchmaking.profiles.{}]\nplayers = 2\n", "x".repeat(length));
    assert_eq!(load(&name(64)).config.profiles.len(), 1);
    assert_eq!(problems(with_file(&name(65))).len(), 1);
    // Other mistakes of the table are reported too. `NAME` is only valid where the template is.
    assert_eq!(problems(with_file("[matchmaking.profiles.Duel]\n")).len(), 2);
    let found = problems(with_file(&format!("{DUEL}[matchmaking.profiles.duel.pools.NAME]\n")));
    assert!(found.len() == 1 && found[0].contains("found NAME"), "{found:#?}");
}

#[test]
fn value_in_place_of_a_table_is_rejected() {
    let found = problems(with_file("[matchmaking.profiles]\nduel = 2\n"));
    assert_eq!(
        found,
        ["play.toml:2:1: matchmaking.profiles.duel: expected a table, as in `[matchmaking.profiles.duel]`"]
    );
    for invalid in ["[matchmaking]\nprofiles = 2\n", "[[matchmaking.profiles]]\nplayers = 2\n"] {
        let found = problems(with_file(invalid));
        assert!(found.len() == 1 && found[0].contains("as in `[matchmaking.profiles.NAME]`"), "{found:#?}");
    }
}

#[test]
fn unknown_keys_and_tables_in_a_named_table_get_a_suggestion() {
    let found = problems(with_file(&format!(
        "{DUEL}playesr = 3\nfrobnicate = 1\n[matchmaking.profiles.duel.pool.eu]\ntags = []\n\
         [matchmaking.profiles.duel.pools.eu]\ntag = []\n[matchmaking.profile.duel]\nplayers = 2\n"
    )));
    assert_eq!(
        found,
        [
            "play.toml:3:1: matchmaking.profiles.duel.playesr: no such key\n    did you mean `matchmaking.profiles.duel.players`?",
            "play.toml:4:1: matchmaking.profiles.duel.frobnicate: no such key",
            "play.toml:5:28: [matchmaking.profiles.duel.pool]: no such section\n    \
             did you mean `[matchmaking.profiles.duel.pools]`?",
            "play.toml:8:1: matchmaking.profiles.duel.pools.eu.tag: no such key\n    \
             did you mean `matchmaking.profiles.duel.pools.eu.tags`?",
            "play.toml:9:14: [matchmaking.profile]: no such section\n    did you mean `[matchmaking.profiles]`?",
        ]
    );
}

#[test]
fn environment_and_flags_override_keys_of_tables_that_the_file_names() {
    let file = format!("{DUEL}[matchmaking.profiles.team-5]\nplayers = 10\n");
    let layers = with_file(&file)
        .with_env(variable("PLAYHOUSE_MATCHMAKING_PROFILES_TEAM_5_PLAYERS", "8"))
        .with_flag("--set", "matchmaking.profiles.duel.max_wait", "7s");
    let profiles = crate::load::<Matchmaking>(layers).unwrap().config.profiles;
    assert_eq!(profiles["team-5"].players, 8);
    assert_eq!(profiles["duel"].max_wait, Duration::from_secs(7));
}

#[test]
fn environment_and_flags_cannot_name_tables() {
    let layers = with_file(DUEL)
        .with_env(variable("PLAYHOUSE_MATCHMAKING_PROFILES_FREE_FOR_ALL_PLAYERS", "8"))
        .with_flag("--set", "matchmaking.profiles.solo.players", "1");
    assert_eq!(
        problems(layers),
        [
            "PLAYHOUSE_MATCHMAKING_PROFILES_FREE_FOR_ALL_PLAYERS: no such setting\n    \
             only the file can name a table below `[matchmaking.profiles]`",
            "--set: matchmaking.profiles.solo.players: no such key\n    \
             only the file can name a table: add `[matchmaking.profiles.solo]` to it",
        ]
    );
    // They cannot change the template either.
    let layers = with_file(REFERENCE)
        .with_env(variable("PLAYHOUSE_MATCHMAKING_PROFILES_NAME_MAX_WAIT", "8s"))
        .with_flag("--set", "matchmaking.profiles.NAME.max_wait", "8s");
    assert_eq!(problems(layers).len(), 2);
}

#[test]
fn ambiguous_variable_is_rejected() {
    let file = "[matchmaking.profiles.a-b]\nplayers = 1\n[matchmaking.profiles.a_b]\nplayers = 2\n";
    assert_eq!(load(file).config.profiles.len(), 2);
    let layers = with_file(file).with_env(variable("PLAYHOUSE_MATCHMAKING_PROFILES_A_B_PLAYERS", "3"));
    assert_eq!(
        problems(layers),
        ["PLAYHOUSE_MATCHMAKING_PROFILES_A_B_PLAYERS: is ambiguous: matchmaking.profiles.a-b.players or \
          matchmaking.profiles.a_b.players\n    give one of the tables another name, or set the key in the file"]
    );
}

#[test]
fn check_points_at_the_key_or_at_its_table() {
    let found = problems(with_file(&format!("{DUEL}[matchmaking]\ninterval = \"1m\"\n")));
    assert_eq!(found, ["play.toml:1:23: matchmaking.profiles.duel.max_wait: must be at least the interval"]);
    let found = problems(with_file(&format!("{DUEL}max_wait = \"1ms\"\n")));
    assert!(found[0].starts_with("play.toml:3:1: matchmaking.profiles.duel.max_wait: "), "{found:#?}");
    let found = problems(with_file("[matchmaking.profiles.odd]\nplayers = 1\n"));
    assert_eq!(found, ["play.toml:1:23: matchmaking.profiles.odd: is odd"]);
}

#[test]
fn effective_configuration_with_tables_can_be_loaded_again() {
    let file = format!("{DUEL}[matchmaking.profiles.duel.pools.eu]\ntags = [\"eu\"]\n");
    let Loaded { effective, .. } = load(&file);
    let shown = effective.to_string();
    assert_eq!(shown.matches("[matchmaking.profiles.duel]\n").count(), 1, "{shown}");
    let again = load(&shown);
    let profile = &again.config.profiles["duel"];
    assert_eq!((profile.players, profile.pools["eu"].tags.as_slice()), (2, &["eu".to_owned()][..]));
    assert!(again.effective.keys().eq(effective.keys()));
}

#[test]
fn reference_with_all_keys_sets_every_key() {
    let Loaded { effective, .. } = load(&reference_with_all_keys(REFERENCE));
    let mut read: Vec<&str> = effective.reference_keys().collect();
    read.sort_unstable();
    let mut documented: Vec<String> = reference_keys(REFERENCE).into_iter().map(|(key, _)| key).collect();
    documented.sort_unstable();
    assert_eq!(read, documented);
    assert!(effective.keys().any(|key| key == "matchmaking.profiles.name.pools.name.tags"));
}

/// Profiles, and how further ones are read.
#[derive(Debug)]
struct WithReader {
    profiles: BTreeMap<String, Profile>,
    reader: TableReader,
}

impl Section for WithReader {
    fn read(reader: &mut Reader<'_>) -> Self {
        let _: Duration = reader.get("matchmaking.interval");
        let profiles = reader.tables("matchmaking.profiles");
        Self { profiles, reader: reader.table_reader("matchmaking.profiles") }
    }
}

fn table_reader(file: &str) -> WithReader {
    crate::load(with_file(file)).unwrap().config
}

#[test]
fn table_is_read_later_with_the_same_defaults_and_checks() {
    let file = format!("{DUEL}[matchmaking.profiles.NAME]\nmax_wait = \"9s\"\n");
    let reader = table_reader(&file).reader;
    let text = "players = 4\n[pools.eu]\ntags = [\"eu\"]\n";
    let squad: Profile = reader.read("squad", "profile squad", text).unwrap();
    assert_eq!(
        (squad.players, squad.max_wait),
        (4, Duration::from_secs(9)),
        "the template of the file counts"
    );
    assert_eq!(squad.pools["eu"].tags, ["eu"]);
    assert!((squad.pools["eu"].weight - 1.0).abs() < f64::EPSILON);

    let found = |name: &str, text: &str| {
        let Problems(found) = reader.read::<Profile>(name, "profile squad", text).unwrap_err();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        found("squad", "\nplayers = 0\nplayerz = 2\nmax_wait = \"soon\"\n"),
        [
            "profile squad:2:1: matchmaking.profiles.squad.players: must be from 1 to 100, found 0",
            "profile squad:3:1: matchmaking.profiles.squad.playerz: no such key\n    \
             did you mean `matchmaking.profiles.squad.players`?",
            "profile squad:4:1: matchmaking.profiles.squad.max_wait: expected a duration such as \"250ms\", \"30s\" or \"1h30m\", \
             found \"soon\"",
        ]
    );
    assert_eq!(found("squad", ""), ["profile squad:1:1: matchmaking.profiles.squad.players: is required"]);
    assert!(found("squad", "players = \n")[0].starts_with("profile squad:1:"));
    assert!(found("Squad", "players = 2\n")[0].contains("the name must be 1 to 64 characters"));
    assert!(
        found("squad", "players = 2\n[matchmaking.profiles.NAME]\nmax_wait = \"1s\"\n")[0]
            .contains("no such section")
    );
}

#[test]
fn tables_of_the_configuration_are_texts_that_can_be_read_again() {
    let file =
        format!("{DUEL}title = \"a \\\"b\\\"\"\n[matchmaking.profiles.duel.pools.eu]\ntags = [\"eu\"]\n");
    let layers = with_file(&file).with_env(variable("PLAYHOUSE_MATCHMAKING_PROFILES_DUEL_PLAYERS", "3"));
    let WithReader { profiles, reader } = crate::load(layers).unwrap().config;
    let text = &reader.texts()["duel"];
    assert_eq!(text, "players = 3\ntitle = \"a \\\"b\\\"\"\n[pools.eu]\ntags = [\"eu\"]\n");
    let again: Profile = reader.read("duel", "profile duel", text).unwrap();
    assert_eq!(format!("{again:?}"), format!("{:?}", profiles["duel"]));
}
