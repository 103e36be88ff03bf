//! The differences between clients.

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

fn of(request: RequestBuilder, platform: &str, version: &str) -> RequestBuilder {
    let headers = [("x-client-platform", platform), ("x-client-version", version)];
    let said = headers.iter().filter(|(_, value)| !value.is_empty());
    said.fold(request, |request, (name, value)| request.header(*name, *value))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_too_old_is_told_to_update_and_where() {
    let door = Door::open(SETTINGS).await;
    let token = door.token("ada").await;
    let ask = async |platform: &str, version: &str| {
        sent(of(door.get("/v1/me").bearer_auth(&token), platform, version)).await
    };
    for (platform, version, place) in [
        ("ios", "1.3.99", json!("https://example.com/ios")),
        ("ios", "1.4.0-beta.1", Value::Null),
        ("ios", "0", json!("https://example.com/ios")),
        ("ios", "", json!("https://example.com/ios")),
        ("console", "2.9", Value::Null),
        ("console", "", Value::Null),
    ] {
        let answer = ask(platform, version).await;
        if version == "1.4.0-beta.1" {
            assert_eq!(answer.status, 200, "what follows the numbers is not compared: {answer:?}");
            continue;
        }
        let problem = assert_problem(&answer, 426);
        assert!(answer.header("ratelimit").contains(";r="), "{answer:?}");
        let least = if platform == "ios" { "1.4.0" } else { "3" };
        assert_eq!(problem["min_version"], least, "{problem}");
        assert_eq!(problem["update_url"], place, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(least), "{problem}");
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
        assert_eq!(ask(platform, version).await.status, 200, "{platform} {version}");
    }
    // It is the first thing that an old client hears, also from routes that change something, also when it is nobody.
    let nobody =
        sent(of(door.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })), "ios", "1")).await;
    assert_problem(&nobody, 426);
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_told_what_is_configured_for_them() {
    let door = Door::open(SETTINGS).await;
    let ask = async |platform: &str, version: &str| {
        let answer = sent(of(door.get("/v1/client-config"), platform, version)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
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
        // Too old to do anything else.
        ("ios", "0.1", features(false, false)),
    ] {
        let config = ask(platform, version).await;
        assert_eq!(config["features"], expected, "{platform} {version}");
        let hidden = if platform == "ios" { 4 } else { 0 };
        assert_eq!(config["hidden"].as_array().unwrap().len(), hidden, "{config}");
        assert_eq!(
            (&config["queues"], &config["csrf_header"]),
            (&json!(["duel"]), &json!("x-playhouse-csrf"))
        );
    }
    let old = ask("ios", "0.1").await;
    assert_eq!(
        (&old["min_version"], &old["update_url"]),
        (&json!("1.4.0"), &json!("https://example.com/ios"))
    );
    assert_eq!((&old["platform"], &old["version"]), (&json!("ios"), &json!("0.1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_does_not_see_what_is_hidden_from_it() {
    let door = Door::open(SETTINGS).await;
    let token = door.token("ada").await;
    let ask = async |path: &str, platform: &str| {
        let answer = sent(of(door.get(path).bearer_auth(&token), platform, "2")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let me = ask("/v1/me", "web").await;
    let customer = shop::Customer {
        user: me["user_id"].as_str().unwrap().to_owned(),
        account: me["accounts"][0]["account_id"].as_str().unwrap().to_owned(),
    };
    door.shop().buy(&customer, "gems", "order-1").await;
    // So that nothing changes meanwhile.
    eventually("the purchase is told", PATIENCE, async || {
        ask("/v1/notifications", "web").await["unread"] == 1
    })
    .await;

    // Only what is hidden is missing, only there, and nothing else has changed.
    for platform in ["web", "", "toaster"] {
        let me = ask("/v1/me", platform).await;
        assert!(me["roles"].is_array() && me["accounts"][0]["created_at"].is_string(), "{me}");
    }
    let mut expected = ask("/v1/me", "web").await;
    expected.as_object_mut().unwrap().remove("roles").unwrap();
    expected["accounts"][0].as_object_mut().unwrap().remove("created_at").unwrap();
    assert_eq!(ask("/v1/me", "ios").await, expected);

    let mut expected = ask("/v1/home", "web").await;
    let account = &mut expected["account"]["data"]["accounts"][0];
    account.as_object_mut().unwrap().remove("name").unwrap();
    let owned = &mut expected["entitlements"]["data"]["entitlements"][0];
    assert_eq!(owned["resource"], "gems");
    owned.as_object_mut().unwrap().remove("quantity").unwrap();
    assert_eq!(ask("/v1/home", "ios").await, expected);
    // Errors stay as they are.
    let nobody = sent(of(door.get("/v1/me"), "ios", "2")).await;
    assert_problem(&nobody, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_none_is_a_mistake() {
    let door = Door::open(SETTINGS).await;
    let token = door.token("ada").await;
    for version in ["one", "1.x", "v1", "1..2", "1.2.3.4.5.6.7", "-1", "99999999999999999999999"] {
        for path in ["/v1/me", "/v1/client-config", "/v1/home"] {
            let answer = sent(of(door.get(path).bearer_auth(&token), "web", version)).await;
            let problem = assert_problem(&answer, 400);
            assert!(
                problem["detail"].as_str().unwrap().contains("x-client-version must be numbers"),
                "{problem}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_hides_what_the_ticket_hides() {
    let settings = "[gateway.platforms.ios]\nhidden = [\"tickets.expires_at\"]\n";
    let door = Door::open(settings).await;
    let token = door.token("ada").await;
    let ask = door.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" }));
    let made = sent(of(ask.bearer_auth(&token), "ios", "1")).await.json();
    assert!(made.get("expires_at").is_none() && made["state"] == "WAITING", "{made}");
    let path = format!("/v1/matchmaking/tickets/{}", made["ticket_id"].as_str().unwrap());
    for (platform, sees) in [("ios", false), ("web", true)] {
        let stream = of(door.get(&format!("{path}/stream")).bearer_auth(&token), platform, "1");
        let mut stream = stream.send().await.unwrap();
        let mut events = String::new();
        while !events.contains("WAITING") {
            events += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
        }
        assert_eq!(events.contains("expires_at"), sees, "{platform}: {events}");
    }
    // A field of a route that there is not hides nothing, and is refused at start.
    let (code, _, errors) = run(playhouse(&["serve"]).env("PLAYHOUSE_CONFIG", {
        let file = door._folder.path().join("wrong.toml");
        std::fs::write(&file, settings.replace("tickets.", "tikkets.")).unwrap();
        file
    }))
    .await;
    assert!(code == 2 && errors.contains("no route ends with \"tikkets\""), "{errors}");
}
