use super::*;

#[tokio::test]
async fn help_texts_match_the_snapshots() {
    for command in [
        "",
        "dev",
        "serve",
        "simulate",
        "migrate",
        "config",
        "doctor",
        "status",
        "locks",
        "locks provision",
        "dlq",
        "dlq replay",
        "dlq discard",
        "webhooks",
        "broadcasts",
        "drops",
        "drops create",
        "drops pace",
        "drops schedule",
        "drops verify-order",
        "users",
        "entitlements",
        "entitlements history",
        "tickets",
        "rules",
        "rules set",
        "rules diff",
        "token",
        "trace",
        "completions",
    ] {
        let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let (code, help, _) = run(playhouse(&args)).await;
        assert_eq!(code, 0);
        let name = if command.is_empty() { "help".to_owned() } else { command.replace(' ', "_") };
        insta::assert_snapshot!(format!("help_{name}"), help);
    }
}

#[tokio::test]
async fn rule_sets_are_checked_tested_and_imported() {
    let example = |name: &str| format!("{}/../../examples/rules/{name}", env!("CARGO_MANIFEST_DIR"));
    let (code, found, errors) = run(playhouse(&["rules", "check", &example("ranked-5v5.toml")])).await;
    assert_eq!(code, 0, "{errors}");
    assert!(found.ends_with("ranked-5v5: 2 teams, 10 players, 4 rules\n"), "{found}");
    let (code, found, errors) = run(playhouse(&["rules", "test", &example("ladder-1v1.test.toml")])).await;
    assert_eq!(code, 0, "{errors}");
    assert!(found.contains("ok   the nearest skill is chosen"), "{found}");

    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_string_lossy().into_owned()
    };
    let bad = write("bad.toml", "name = \"bad\"\n[teams.red]\nmin = 3\nmax = 2\ncolour = 1\n");
    let (code, _, errors) = run(playhouse(&["rules", "check", &bad])).await;
    assert_eq!(code, 1);
    assert!(errors.contains("bad.toml:2:8: teams.red: min (3) is larger than max (2)"), "{errors}");
    assert!(errors.contains("bad.toml:5:1: teams.red: no such field: colour"), "{errors}");

    let late = write(
        "late.toml",
        "name = \"late\"\n[attributes.skill]\ntype = \"number\"\n[attributes.roles]\ntype = \"string-list\"\ndefault = []\n\
         [attributes.mode]\ntype = \"string\"\n[teams.side]\ncount = 2\nmax = 1\n\
         [rules.skill]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 9\nrelax = [{ after = 600, off = true }]\n\
         [rules.mode]\ntype = \"batch-distance\"\nattribute = \"mode\"\n[rules.near]\ntype = \"latency\"\nmax = 80\n\
         [rules.roles]\ntype = \"collection\"\nmeasurements = \"flatten(teams[*].players.attributes[roles])\"\n\
         operation = \"intersection\"\nmax = 9\n",
    );
    let (code, _, errors) = run(playhouse(&["rules", "check", &late])).await;
    assert_eq!(code, 1);
    assert!(errors.contains("the relaxation after 600 s has no effect: tickets live for 600 s"), "{errors}");
    assert_eq!(errors.trim().lines().count(), 1, "{errors}");
    let config = write(
        "playhouse.toml",
        "[matchmaking.queues.short]\nticket_ttl = \"5m\"\ntags = [\"roles=tank\"]\n\
         [matchmaking.queues.long]\nticket_ttl = \"601s\"\nnumbers = [\"mode\"]\n",
    );
    let (code, _, errors) = run(playhouse(&["rules", "check", &late, "--config", &config])).await;
    assert_eq!(code, 1);
    for said in [
        "no queue of the configuration sends skill, which skill reads: no ticket can be matched",
        "no queue of the configuration sends mode, which mode reads: no ticket can be matched",
        "no queue of the configuration sends latency, which near reads: no region is possible",
    ] {
        assert!(errors.contains(said), "{said}: {errors}");
    }
    assert_eq!(errors.trim().lines().count(), 3, "{errors}");
    let config = write(
        "sent.toml",
        "[matchmaking.queues.ranked]\nticket_ttl = \"601s\"\nnumbers = [\"skill\", \"latency.eu\"]\nstrings = [\"mode\", \"roles\"]\n",
    );
    let (code, _, errors) = run(playhouse(&["rules", "check", &late, "--config", &config])).await;
    assert_eq!(code, 0, "{errors}");

    let wrong =
        std::fs::read_to_string(example("ladder-1v1.test.toml")).unwrap().replace("ben\"]", "anna\"]");
    let wrong = wrong.replace("ladder-1v1.toml", &example("ladder-1v1.toml"));
    let (code, found, _) = run(playhouse(&["rules", "test", &write("wrong.test.toml", &wrong)])).await;
    assert_eq!(code, 1);
    assert!(found.contains("FAIL"), "{found}");

    let flexmatch =
        r#"{"name": "f", "teams": [{"name": "a", "minPlayers": 1, "maxPlayers": 2}], "surprise": 1}"#;
    let (code, found, errors) = run(playhouse(&["rules", "import", &write("f.json", flexmatch)])).await;
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("surprise is not known and not kept"), "{errors}");
    let (code, _, errors) = run(playhouse(&["rules", "check", &write("f.toml", &found)])).await;
    assert_eq!(code, 0, "{errors}");
}

#[tokio::test]
async fn version_is_printed() {
    let (code, version, _) = run(playhouse(&["--version"])).await;
    assert_eq!((code, version.as_str()), (0, concat!("playhouse ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[tokio::test]
async fn completions_are_generated_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(playhouse(&["completions", shell])).await;
        assert_eq!(code, 0);
        assert!(script.contains("print-addresses"), "{shell}");
    }
}

#[tokio::test]
async fn invalid_option_value_is_a_usage_error() {
    let (code, _, errors) = run(playhouse(&["serve", "--set", "nonsense"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("expected KEY=VALUE"), "{errors}");
}

#[tokio::test]
async fn output_that_cannot_be_written_fails_the_command() {
    let program = concat!("'", env!("CARGO_BIN_EXE_playhouse"), "' config > /dev/full");
    let (code, _, errors) = run(Program::new("/bin/sh").args(["-c", program])).await;
    assert_eq!(code, 1);
    assert!(errors.contains("cannot write the output"), "{errors}");
}
