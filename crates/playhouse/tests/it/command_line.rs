use super::*;

#[tokio::test]
async fn help_texts_match_the_snapshots() {
    for command in [
        "",
        "dev",
        "serve",
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
