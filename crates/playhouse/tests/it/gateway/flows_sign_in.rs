//! Signing in and out: once, and it holds in every process.

use reqwest::Method;
use reqwest::header::{LOCATION, SET_COOKIE};
use serde_json::json;
use testkit::need;
use url::Url;

use super::flows::{Browser, Scene};
use crate::*;

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_in_once_is_signed_in_everywhere_and_the_store_has_no_secret() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(3).await;
    let ada = scene.sign_in("ada").await;
    let mut users = Vec::new();
    for door in &doors {
        let (status, me) = ada.me(&door.at).await;
        assert_eq!(status, 200, "{me}");
        assert_eq!((&me["display_name"], &me["roles"]), (&json!("Player ada"), &json!(["player"])));
        users.push(me["user_id"].clone());
        assert_eq!(ada.elsewhere().get(&door.at, "/v1/home").await.0, 200);
    }
    users.dedup();
    assert_eq!(users.len(), 1, "{users:?}");

    // Whoever reads the store can pose as nobody.
    let held = scene.held(&ada).await;
    let secrets = [ada.secret(), &held.refresh, &held.id, held.id.split('.').nth(1).unwrap()];
    let everything = everything_in(&scene).await;
    assert!(everything.len() > 3 && everything.iter().any(|text| text.contains(ada.session().as_str())));
    for text in &everything {
        assert!(!text.contains("eyJ"), "something like a token is in clear: {text}");
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} is in clear: {text}");
        }
    }
    // Nor does the log help.
    for door in &doors {
        let log = door.running.lines();
        assert!(log.iter().all(|line| secrets.iter().all(|secret| !line.text.contains(secret))));
    }
}

/// All keys of Redis and all that is in them.
async fn everything_in(scene: &Scene) -> Vec<String> {
    let keyspace = scene.fleet.redis.keyspace();
    let mut redis = keyspace.connect().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.unwrap();
    let mut everything = Vec::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut redis).await.unwrap();
        let command = match kind.as_str() {
            "string" => redis::cmd("GET").arg(&key).to_owned(),
            "hash" => redis::cmd("HGETALL").arg(&key).to_owned(),
            "set" => redis::cmd("SMEMBERS").arg(&key).to_owned(),
            "zset" => redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).to_owned(),
            "stream" => redis::cmd("XRANGE").arg(&key).arg("-").arg("+").to_owned(),
            other => panic!("{key} is a {other}"),
        };
        let value: redis::Value = command.query_async(&mut redis).await.unwrap();
        everything.extend([key, texts(&value)]);
    }
    everything
}

/// All texts of an answer of Redis.
fn texts(value: &redis::Value) -> String {
    match value {
        redis::Value::BulkString(bytes) => format!("{}\n", String::from_utf8_lossy(bytes)),
        redis::Value::Array(values) | redis::Value::Set(values) => values.iter().map(texts).collect(),
        redis::Value::Map(pairs) => pairs.iter().map(|(name, value)| texts(name) + &texts(value)).collect(),
        other => format!("{other:?}\n"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_out_at_one_process_is_signed_out_at_all_and_at_the_issuer() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(3).await;
    let (ada, phone) = (scene.sign_in("ada").await, scene.sign_in("ada").await);
    let held = scene.held(&ada).await;
    let (_, me) = ada.me(&doors[0].at).await;
    let logout = me["session"]["logout_url"].as_str().unwrap();

    // A link that anybody could have made does nothing.
    for forged in ["/logout", "/logout?session=", "/logout?session=0123456789abcdef0123456789abcdef"] {
        let response = ada.request(Method::GET, &doors[1].at, forged).send().await.unwrap();
        assert_eq!(response.status(), 200, "{forged}");
        assert_eq!(ada.me(&doors[1].at).await.0, 200, "{forged}");
    }

    let response = ada.request(Method::GET, &doors[1].at, logout).send().await.unwrap();
    assert_eq!(response.status(), 303);
    let forgets = response.headers()[SET_COOKIE].to_str().unwrap();
    assert!(forgets.starts_with("playhouse=; ") && forgets.contains("Max-Age=0"), "{forgets}");
    let there = Url::parse(response.headers()[LOCATION].to_str().unwrap()).unwrap();
    assert!(there.as_str().starts_with(scene.provider.url("/session/end").as_str()), "{there}");
    let fields: HashMap<String, String> = there.query_pairs().into_owned().collect();
    assert_eq!(fields["post_logout_redirect_uri"], format!("http://{}/", scene.public()));
    assert_eq!(fields["id_token_hint"], held.id);

    for door in &doors {
        assert_eq!(ada.me(&door.at).await.0, 401);
        assert_eq!(phone.me(&door.at).await.0, 200, "another session of the same player");
    }
    let refresh = [("grant_type", "refresh_token"), ("refresh_token", held.refresh.as_str())];
    let (status, answer) = scene.token(&refresh).await;
    assert_eq!((status, &answer["error"]), (400, &json!("invalid_grant")), "it was revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_those_that_the_issuer_says_and_change_with_the_next_refresh() {
    const OPERATOR: &str = "playhouse-operator";
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(2).await;
    let (ada, root) = (scene.sign_in("ada").await, scene.sign_in("root-eve").await);
    let roles = async |player: &super::flows::Player, door: usize| {
        let (status, me) = player.me(&doors[door].at).await;
        assert_eq!(status, 200, "{me}");
        me["roles"].clone()
    };
    assert_eq!(roles(&ada, 0).await, json!(["player"]));
    assert_eq!(roles(&root, 0).await, json!(["player", "operator"]));

    scene.provider.set_roles("ada", &["something-else", OPERATOR]).await;
    scene.provider.set_roles("root-eve", &["something-else"]).await;
    assert_eq!(roles(&ada, 1).await, json!(["player"]), "not before the refresh");
    scene.is_due(&ada).await;
    scene.is_due(&root).await;
    assert_eq!(roles(&ada, 1).await, json!(["player", "operator"]));
    assert_eq!(roles(&root, 1).await, json!(["player"]));
    for player in [&ada, &root] {
        assert_eq!(roles(player, 0).await, roles(player, 1).await);
    }
    assert_eq!(scene.provider.refreshes().await, 2);

    // A game client's token says so by itself.
    scene.provider.set_roles("bob", &[OPERATOR]).await;
    assert_eq!(roles(&scene.player("bob").await, 0).await, json!(["player", "operator"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_ends_at_any_process_in_the_browser_that_began_it_and_once() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(2).await;
    let mut browser = Browser::stopping_at(&format!("http://{}/login/callback", scene.public()));
    let back = browser.sign_in(&format!("http://{}/login", scene.public()), "ada").await;

    let mut stranger = Browser::default();
    assert_eq!(stranger.visit(&back, None).await.status(), 400);
    assert_eq!(stranger.cookie("playhouse"), None);

    let mut at_the_other = back.clone();
    at_the_other.set_port(Url::parse(&format!("http://{}", doors[1].at)).unwrap().port()).unwrap();
    let mut copy = browser.clone();
    assert_eq!(browser.visit(&at_the_other, None).await.status(), 303);
    assert!(browser.cookie("playhouse").is_some());
    // The sign-in has been finished.
    assert_eq!(copy.visit(&back, None).await.status(), 400);
    assert_eq!(copy.cookie("playhouse"), None);
}
