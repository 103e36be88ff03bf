//! `playhouse tickets`.

use reqwest::Client;
use serde_json::{Value, json};
use testkit::eventually;

use super::{PATIENCE, addresses, dev, playhouse, run};

#[tokio::test(flavor = "multi_thread")]
async fn operator_lists_releases_and_deletes_tickets() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let addresses = addresses(&running).await;
    let admin = format!("http://{}", addresses["admin"]);
    let url = format!("http://{}/v1/frontendservice/tickets", addresses["open_match"]);
    let create = async || {
        let response = Client::new().post(&url).json(&json!({ "ticket": {} })).send().await.unwrap();
        let ticket: Value = response.json().await.unwrap();
        ticket["id"].as_str().unwrap().to_owned()
    };
    let tickets = async |args: &[&str]| {
        run(playhouse(&["tickets", "--admin", &admin]).args(args.iter().copied())).await
    };

    let alone = create().await;
    let (code, listed, _) = tickets(&["list"]).await;
    assert!(
        code == 0 && listed.contains(&alone) && listed.contains("1 of 1 ticket in matchmaking"),
        "{listed}"
    );
    // The engine fetches it periodically, and then it is pending.
    eventually("it is shown as waiting, with the reason", PATIENCE, async || {
        let (_, shown, _) = tickets(&["show", &alone]).await;
        let why = "profile duel, pool all: admitted, with 0 other tickets";
        (shown.contains("waiting") && shown.contains(why)).then_some(()).ok_or(shown)
    })
    .await;
    let (code, released, _) = tickets(&["release", &alone]).await;
    assert!(code == 0 && released.contains("is released and can be matched"), "{released}");
    let (code, deleted, _) = tickets(&["delete", &alone]).await;
    assert!(code == 0 && deleted.contains("is deleted"), "{deleted}");

    for args in [["show", &alone], ["release", &alone], ["delete", &alone]] {
        let (code, _, error) = tickets(&args).await;
        assert!(code == 1 && error.contains(&format!("there is no ticket {alone}")), "{error}");
    }
    let (first, _) = (create().await, create().await);
    eventually("it is shown as assigned", PATIENCE, async || {
        let (_, shown, _) = tickets(&["--json", "show", &first]).await;
        shown.contains("\"state\":\"assigned\"").then_some(()).ok_or(shown)
    })
    .await;
    let (code, _, error) = tickets(&["delete", &first]).await;
    assert!(code == 1 && error.contains("already assigned"), "{error}");
}

#[tokio::test]
async fn unreachable_admin_api_is_explained() {
    let (code, _, error) = run(playhouse(&["tickets", "--admin", "http://127.0.0.1:9", "list"])).await;
    assert!(code == 1 && error.contains("--admin"), "{error}");
}
