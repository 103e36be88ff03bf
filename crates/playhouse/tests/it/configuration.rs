use std::net::TcpListener;

use testkit::Folder;

use super::*;

const THREE_MISTAKES: &str = r#"[listen]
gatewey = "127.0.0.1:18080"

[db]
url = "postgres://root:hunter2@localhost/play"

[lifecycle]
grace = "soon"
"#;

#[tokio::test]
async fn all_mistakes_are_reported_and_nothing_is_bound() {
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("broken.toml");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(&file, format!("{THREE_MISTAKES}\n[telemetry]\nlog = \"info\"\n")).unwrap();
    let file = file.to_str().unwrap();
    let listen = format!("listen.gateway=127.0.0.1:{port}");
    let (code, out, errors) = run(playhouse(&["serve", "--config", file, "--set", &listen])).await;
    assert_eq!(code, 2, "{errors}");
    assert_eq!(out, "");
    let shown = errors.replace(file, "broken.toml");
    insta::assert_snapshot!("three_mistakes", shown);
    assert!(!shown.contains("hunter2"));
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the port was bound");
}

#[tokio::test]
async fn reference_is_valid_and_effective_values_show_their_origin() {
    let (code, reference, _) = run(playhouse(&["config"])).await;
    assert_eq!(code, 0);
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("playhouse.toml");
    std::fs::write(&file, reference).unwrap();
    let program = playhouse(&["config", "--effective", "--config", file.to_str().unwrap()])
        .args(["--set", "redis.timeout=3s"])
        .env("PLAYHOUSE_REDIS_URL", "redis://:hunter2@redis")
        .env("PLAYHOUSE_BUS_URL", "nats://hunter2@nats")
        .env("PLAYHOUSE_IDENTITY_ISSUER", "none:")
        .env("PLAYHOUSE_DB_URL", "mysql://root:hunter2@db/play");
    let (code, effective, _) = run(program).await;
    assert_eq!(code, 0);
    let has = |value: &str, origin: &str| {
        effective.lines().any(|line| line.starts_with(value) && line.ends_with(&format!(" # {origin}")))
    };
    assert!(has("url = \"mysql://root:***@db/play\"", "PLAYHOUSE_DB_URL"), "{effective}");
    assert!(has("timeout = \"3s\"", "--set"), "{effective}");
    assert!(!effective.contains("hunter2"));
}

#[tokio::test]
async fn error_names_an_unreadable_file() {
    let (code, _, errors) = run(playhouse(&["serve", "--config", "/nowhere/x.toml"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("cannot read the configuration file /nowhere/x.toml: No such file"), "{errors}");
}

#[tokio::test]
async fn unknown_variable_is_refused_with_a_suggestion() {
    let (code, _, errors) = run(playhouse(&["serve"]).env("PLAYHOUSE_DB_ULR", "x")).await;
    assert_eq!(code, 2);
    assert!(errors.contains("did you mean `PLAYHOUSE_DB_URL`?"), "{errors}");
}

#[tokio::test]
async fn variable_names_the_file_and_an_empty_one_is_ignored() {
    let named = playhouse(&["config", "--effective"]);
    let (code, _, errors) = run(named.clone().env("PLAYHOUSE_CONFIG", "/nowhere/x.toml")).await;
    assert_eq!(code, 2, "{errors}");
    assert_eq!(run(named.env("PLAYHOUSE_CONFIG", "")).await.0, 0);
}

#[tokio::test]
async fn options_that_would_be_ignored_are_refused() {
    let (code, _, errors) = run(playhouse(&["config", "--set", "db.migrate=true"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("need --effective"), "{errors}");
}

#[tokio::test]
async fn secrets_of_files_are_used_and_not_shown() {
    let folder = Folder::fresh().unwrap();
    let secrets = [
        ("PLAYHOUSE_DB_URL", "mysql://root:hunter2@db/play\n"),
        ("PLAYHOUSE_REDIS_URL", "redis://:hunter2@redis"),
        ("PLAYHOUSE_BUS_URL", "nats://hunter2@nats\n"),
        ("PLAYHOUSE_IDENTITY_CLIENT_SECRET", "hunter2\n"),
        (
            "PLAYHOUSE_GATEWAY_SESSION_KEYS",
            "hunter2-0123456789abcdef01234567\nhunter2-0123456789abcdef01234568\n",
        ),
        ("PLAYHOUSE_DROPS_KEYS", "hunter2-0123456789abcdef01234567\n"),
    ];
    let mut program = playhouse(&["config", "--effective"]).env("PLAYHOUSE_IDENTITY_ISSUER", "none:");
    for (name, value) in secrets {
        let file = folder.path().join(name);
        std::fs::write(&file, value).unwrap();
        program = program.env(format!("{name}_FILE"), file);
    }
    let (code, effective, errors) = run(program.clone()).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    for (name, _) in secrets {
        let line = effective.lines().find(|line| line.ends_with(&format!(" # {name}_FILE")));
        assert!(line.is_some_and(|line| line.contains("***")), "{name}: {effective}");
    }
    assert!(effective.contains(r#"keys = ["***", "***"]"#), "{effective}");
    assert!(!effective.contains("hunter2"));

    let (code, _, errors) = run(program.env("PLAYHOUSE_DB_URL_FILE", "/nowhere/db-url")).await;
    assert_eq!(code, 2);
    assert!(
        errors.contains("PLAYHOUSE_DB_URL_FILE: db.url_file: the file \"/nowhere/db-url\" cannot be read"),
        "{errors}"
    );
}

#[tokio::test]
async fn secret_on_the_command_line_causes_a_warning() {
    let with = |set: &str| run(playhouse(&["config", "--effective", "--set", set]));
    for set in ["identity.client_secret=hunter2", "redis.url=redis://:hunter2@redis"] {
        let (_, _, errors) = with(set).await;
        let (key, _) = set.split_once('=').unwrap();
        let variable = config::env_name(key);
        assert!(errors.contains(&format!("warning: --set {key}: every user of this machine")), "{errors}");
        assert!(errors.contains(&format!("{variable}_FILE=FILE")) && !errors.contains("hunter2"), "{errors}");
    }
    let (code, _, errors) = with("redis.timeout=3s").await;
    assert_eq!((code, errors.as_str()), (0, ""));
}
