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
async fn all_mistakes_are_printed_with_line_and_expectation_and_nothing_is_bound() {
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
async fn the_reference_is_a_configuration_and_says_what_is_in_force() {
    let (code, reference, _) = run(playhouse(&["config"])).await;
    assert_eq!(code, 0);
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("playhouse.toml");
    std::fs::write(&file, reference).unwrap();
    let program = playhouse(&["config", "--effective", "--config", file.to_str().unwrap()])
        .args(["--set", "hot.timeout=3s"])
        .env("PLAYHOUSE_HOT_URL", "redis://:hunter2@redis")
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
async fn a_file_that_cannot_be_read_is_named() {
    let (code, _, errors) = run(playhouse(&["serve", "--config", "/nowhere/x.toml"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("cannot read the configuration file /nowhere/x.toml: No such file"), "{errors}");
}

#[tokio::test]
async fn an_unknown_variable_is_refused_with_a_suggestion() {
    let (code, _, errors) = run(playhouse(&["serve"]).env("PLAYHOUSE_DB_ULR", "x")).await;
    assert_eq!(code, 2);
    assert!(errors.contains("did you mean `PLAYHOUSE_DB_URL`?"), "{errors}");
}

#[tokio::test]
async fn the_file_may_be_named_by_a_variable_and_an_empty_one_is_none() {
    let named = playhouse(&["config", "--effective"]);
    let (code, _, errors) = run(named.clone().env("PLAYHOUSE_CONFIG", "/nowhere/x.toml")).await;
    assert_eq!(code, 2, "{errors}");
    assert_eq!(run(named.env("PLAYHOUSE_CONFIG", "")).await.0, 0);
}

#[tokio::test]
async fn options_that_would_be_ignored_are_refused() {
    let (code, _, errors) = run(playhouse(&["config", "--set", "db.migrate=true"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("go with --effective"), "{errors}");
}
