//! Platforms and versions of clients.

use testkit::eventually;

use super::*;

const SETTINGS: &str = r#"
[gateway.platforms.ios]
min_version = "1.4.0"
update_url = "https://example.com/ios"
hidden = ["me.roles", "me.accounts.created_at", "home.account.data.accounts.name", "home.entitlements.data.entitlements.quantity"]

[gateway.platforms.web]

[gateway.platforms.console]
min_version = "3"

[gateway.features.pets]
on = true
platforms = ["ios"]
min_version = "2.0"

[gateway.features.chat]
on = true

[gateway.features.beta]
on = true
min_version = "9"

[gateway.features.secret]
"#;

/// Adds the headers of a client. Empty values are left out.
fn from_client(request: RequestBuilder, platform: &str, version: &str) -> RequestBuilder {
    let headers = [("x-client-platform", platform), ("x-client-version", version)];
    let present = headers.iter().filter(|(_, value)| !value.is_empty());
    present.fold(request, |request, (name, value)| request.header(*name, *value))
}

#[tokio::test(flavor = "multi_thread")]
async fn outdated_client_must_update() {
    let gateway = Gateway::start(SETTINGS).await;
    let token = gateway.token("ada").await;
    let fetch = async |platform: &str, version: &str| {
        send(from_client(gateway.get("/v1/me").bearer_auth(&token), platform, version)).await
    };
    for (platform, version, update_url) in [
        ("ios", "1.3.99", json!("https://example.com/ios")),
        ("ios", "1.4.0-beta.1", Value::Null),
        ("ios", "0", json!("https://example.com/ios")),
        ("ios", "", json!("https://example.com/ios")),
        ("console", "2.9", Value::Null),
        ("console", "", Value::Null),
    ] {
        let response = fetch(platform, version).await;
        if version == "1.4.0-beta.1" {
            assert_eq!(response.status, 200, "a pre-release suffix is not compared: {response:?}");
            continue;
        }
        let problem = assert_problem(&response, 426);
        assert!(response.header("ratelimit").contains(";r="), "{response:?}");
        let min_version = if platform == "ios" { "1.4.0" } else { "3" };
        assert_eq!(problem["min_version"], min_version, "{problem}");
        assert_eq!(problem["update_url"], update_url, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(min_version), "{problem}");
    }
    for (platform, version) in [
        ("ios", "1.4"),
        ("ios", "1.10"),
        ("ios", "2"),
        ("web", ""),
        ("web", "0.1"),
        ("console", "3.0.0"),
        ("", ""),
        ("", "0.1"),
        ("toaster", "0.1"),
    ] {
        assert_eq!(fetch(platform, version).await.status, 200, "{platform} {version}");
    }
    // The version is checked first: also on routes that change something, and without credentials.
    let anonymous =
        send(from_client(gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })), "ios", "1"))
            .await;
    assert_problem(&anonymous, 426);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_config_depends_on_platform_and_version() {
    let gateway = Gateway::start(SETTINGS).await;
    let fetch = async |platform: &str, version: &str| {
        let response = send(from_client(gateway.get("/v1/client-config"), platform, version)).await;
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    };
    let features =
        |pets: bool, beta: bool| json!({ "pets": pets, "chat": true, "beta": beta, "secret": false });
    for (platform, version, expected) in [
        ("ios", "2.0.0", features(true, false)),
        ("ios", "1.9", features(false, false)),
        ("ios", "9", features(true, true)),
        ("ios", "", features(false, false)),
        ("web", "2.0.0", features(false, false)),
        ("web", "10.1", features(false, true)),
        ("", "2.0.0", features(false, false)),
        ("", "", features(false, false)),
        // Too old for any other route.
        ("ios", "0.1", features(false, false)),
    ] {
        let config = fetch(platform, version).await;
        assert_eq!(config["features"], expected, "{platform} {version}");
        let hidden = if platform == "ios" { 4 } else { 0 };
        assert_eq!(config["hidden"].as_array().unwrap().len(), hidden, "{config}");
        assert_eq!(
            (&config["queues"], &config["csrf_header"]),
            (&json!(["duel"]), &json!("x-playhouse-csrf"))
        );
    }
    let old = fetch("ios", "0.1").await;
    assert_eq!(
        (&old["min_version"], &old["update_url"]),
        (&json!("1.4.0"), &json!("https://example.com/ios"))
    );
    assert_eq!((&old["platform"], &old["version"]), (&json!("ios"), &json!("0.1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_fields_are_removed_for_their_platform() {
    let gateway = Gateway::start(SETTINGS).await;
    let token = gateway.token("ada").await;
    let fetch = async |path: &str, platform: &str| {
        let response = send(from_client(gateway.get(path).bearer_auth(&token), platform, "2")).await;
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    };
    let me = fetch("/v1/me", "web").await;
    let customer = shop::Customer {
        user: me["user_id"].as_str().unwrap().to_owned(),
        account: me["accounts"][0]["account_id"].as_str().unwrap().to_owned(),
    };
    gateway.shop().buy(&customer, "gems", "order-1").await;
    // Wait, so that nothing changes between the requests below.
    eventually("the player is notified of the purchase", PATIENCE, async || {
        fetch("/v1/notifications", "web").await["unread"] == 1
    })
    .await;

    // Only the hidden fields are missing, and only for their platform.
    for platform in ["web", "", "toaster"] {
        let me = fetch("/v1/me", platform).await;
        assert!(me["roles"].is_array() && me["accounts"][0]["created_at"].is_string(), "{me}");
    }
    let mut expected = fetch("/v1/me", "web").await;
    expected.as_object_mut().unwrap().remove("roles").unwrap();
    expected["accounts"][0].as_object_mut().unwrap().remove("created_at").unwrap();
    assert_eq!(fetch("/v1/me", "ios").await, expected);

    let mut expected = fetch("/v1/home", "web").await;
    let account = &mut expected["account"]["data"]["accounts"][0];
    account.as_object_mut().unwrap().remove("name").unwrap();
    let owned = &mut expected["entitlements"]["data"]["entitlements"][0];
    assert_eq!(owned["resource"], "gems");
    owned.as_object_mut().unwrap().remove("quantity").unwrap();
    assert_eq!(fetch("/v1/home", "ios").await, expected);
    // Errors are unchanged.
    let anonymous = send(from_client(gateway.get("/v1/me"), "ios", "2")).await;
    assert_problem(&anonymous, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_client_version_is_refused() {
    let gateway = Gateway::start(SETTINGS).await;
    let token = gateway.token("ada").await;
    for version in ["one", "1.x", "v1", "1..2", "1.2.3.4.5.6.7", "-1", "99999999999999999999999"] {
        for path in ["/v1/me", "/v1/client-config", "/v1/home"] {
            let response = send(from_client(gateway.get(path).bearer_auth(&token), "web", version)).await;
            let problem = assert_problem(&response, 400);
            assert!(
                problem["detail"].as_str().unwrap().contains("x-client-version must be numbers"),
                "{problem}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_hides_the_hidden_fields_of_a_ticket() {
    let settings = "[gateway.platforms.ios]\nhidden = [\"tickets.expires_at\"]\n";
    let gateway = Gateway::start(settings).await;
    let token = gateway.token("ada").await;
    let create = gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" }));
    let made = send(from_client(create.bearer_auth(&token), "ios", "1")).await.json();
    assert!(made.get("expires_at").is_none() && made["state"] == "WAITING", "{made}");
    let path = format!("/v1/matchmaking/tickets/{}", made["ticket_id"].as_str().unwrap());
    for (platform, sees) in [("ios", false), ("web", true)] {
        let stream = from_client(gateway.get(&format!("{path}/stream")).bearer_auth(&token), platform, "1");
        let mut stream = stream.send().await.unwrap();
        let mut events = String::new();
        while !events.contains("WAITING") {
            events += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
        }
        assert_eq!(events.contains("expires_at"), sees, "{platform}: {events}");
    }
    // A field of an unknown route is refused at start.
    let (code, _, errors) = run(playhouse(&["serve"]).env("PLAYHOUSE_CONFIG", {
        let file = gateway._folder.path().join("wrong.toml");
        std::fs::write(&file, settings.replace("tickets.", "tikkets.")).unwrap();
        file
    }))
    .await;
    assert!(code == 2 && errors.contains("no route ends with \"tikkets\""), "{errors}");
}
