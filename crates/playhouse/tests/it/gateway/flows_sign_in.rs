//! Signing in and out applies to every process.

use reqwest::Method;
use reqwest::header::{LOCATION, SET_COOKIE};
use serde_json::json;
use testkit::need;
use url::Url;

use super::flows::{Browser, Setup};
use crate::*;

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_applies_at_every_process_and_redis_holds_no_secret() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(3).await;
    let ada = setup.sign_in("ada").await;
    let mut users = Vec::new();
    for gateway in &gateways {
        let (status, me) = ada.me(&gateway.at).await;
        assert_eq!(status, 200, "{me}");
        assert_eq!((&me["display_name"], &me["roles"]), (&json!("Player ada"), &json!(["player"])));
        users.push(me["user_id"].clone());
        assert_eq!(ada.with_new_connections().get(&gateway.at, "/v1/home").await.0, 200);
    }
    users.dedup();
    assert_eq!(users.len(), 1, "{users:?}");

    // The content of Redis does not allow anyone to impersonate a player.
    let tokens = setup.session_tokens(&ada).await;
    let secrets = [ada.secret(), &tokens.refresh, &tokens.id, tokens.id.split('.').nth(1).unwrap()];
    let content = redis_content(&setup).await;
    assert!(content.len() > 3 && content.iter().any(|text| text.contains(ada.session().as_str())));
    for text in &content {
        assert!(!text.contains("eyJ"), "possibly a token in clear text: {text}");
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} is in clear text: {text}");
        }
    }
    // Neither does the log.
    for gateway in &gateways {
        let log = gateway.running.lines();
        assert!(log.iter().all(|line| secrets.iter().all(|secret| !line.text.contains(secret))));
    }
}

/// Returns all keys and values in Redis.
async fn redis_content(setup: &Setup) -> Vec<String> {
    let keyspace = setup.fleet.redis.namespace();
    let mut redis = keyspace.connect().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.unwrap();
    let mut content = Vec::new();
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
        content.extend([key, texts(&value)]);
    }
    content
}

/// Returns all texts of a Redis reply.
fn texts(value: &redis::Value) -> String {
    match value {
        redis::Value::BulkString(bytes) => format!("{}\n", String::from_utf8_lossy(bytes)),
        redis::Value::Array(values) | redis::Value::Set(values) => values.iter().map(texts).collect(),
        redis::Value::Map(pairs) => pairs.iter().map(|(name, value)| texts(name) + &texts(value)).collect(),
        other => format!("{other:?}\n"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_out_applies_at_every_process_and_at_the_issuer() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(3).await;
    let (ada, phone) = (setup.sign_in("ada").await, setup.sign_in("ada").await);
    let tokens = setup.session_tokens(&ada).await;
    let (_, me) = ada.me(&gateways[0].at).await;
    let logout = me["session"]["logout_url"].as_str().unwrap();

    // A forged link does nothing.
    for forged in ["/logout", "/logout?session=", "/logout?session=0123456789abcdef0123456789abcdef"] {
        let response = ada.request(Method::GET, &gateways[1].at, forged).send().await.unwrap();
        assert_eq!(response.status(), 200, "{forged}");
        assert_eq!(ada.me(&gateways[1].at).await.0, 200, "{forged}");
    }

    let response = ada.request(Method::GET, &gateways[1].at, logout).send().await.unwrap();
    assert_eq!(response.status(), 303);
    let removal = response.headers()[SET_COOKIE].to_str().unwrap();
    assert!(removal.starts_with("playhouse=; ") && removal.contains("Max-Age=0"), "{removal}");
    let target = Url::parse(response.headers()[LOCATION].to_str().unwrap()).unwrap();
    assert!(target.as_str().starts_with(setup.provider.url("/session/end").as_str()), "{target}");
    let fields: HashMap<String, String> = target.query_pairs().into_owned().collect();
    assert_eq!(fields["post_logout_redirect_uri"], format!("http://{}/", setup.public()));
    assert_eq!(fields["id_token_hint"], tokens.id);

    for gateway in &gateways {
        assert_eq!(ada.me(&gateway.at).await.0, 401);
        assert_eq!(phone.me(&gateway.at).await.0, 200, "another session of the player ended");
    }
    let refresh = [("grant_type", "refresh_token"), ("refresh_token", tokens.refresh.as_str())];
    let (status, response) = setup.token(&refresh).await;
    assert_eq!(
        (status, &response["error"]),
        (400, &json!("invalid_grant")),
        "the refresh token was not revoked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_come_from_the_issuer_and_change_with_a_refresh() {
    const OPERATOR: &str = "playhouse-operator";
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(2).await;
    let (ada, root) = (setup.sign_in("ada").await, setup.sign_in("root-eve").await);
    let roles = async |player: &super::flows::Player, gateway: usize| {
        let (status, me) = player.me(&gateways[gateway].at).await;
        assert_eq!(status, 200, "{me}");
        me["roles"].clone()
    };
    assert_eq!(roles(&ada, 0).await, json!(["player"]));
    assert_eq!(roles(&root, 0).await, json!(["player", "operator"]));

    setup.provider.set_roles("ada", &["something-else", OPERATOR]).await;
    setup.provider.set_roles("root-eve", &["something-else"]).await;
    assert_eq!(roles(&ada, 1).await, json!(["player"]), "roles changed before the refresh");
    setup.make_refresh_due(&ada).await;
    setup.make_refresh_due(&root).await;
    assert_eq!(roles(&ada, 1).await, json!(["player", "operator"]));
    assert_eq!(roles(&root, 1).await, json!(["player"]));
    for player in [&ada, &root] {
        assert_eq!(roles(player, 0).await, roles(player, 1).await);
    }
    assert_eq!(setup.provider.refreshes().await, 2);

    // A game client's token contains the roles.
    setup.provider.set_roles("bob", &[OPERATOR]).await;
    assert_eq!(roles(&setup.player("bob").await, 0).await, json!(["player", "operator"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_is_completed_once_by_its_browser_at_any_process() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(2).await;
    let mut browser = Browser::stopping_at(&format!("http://{}/login/callback", setup.public()));
    let back = browser.sign_in(&format!("http://{}/login", setup.public()), "ada").await;

    let mut other_browser = Browser::default();
    assert_eq!(other_browser.visit(&back, None).await.status(), 400);
    assert_eq!(other_browser.cookie("playhouse"), None);

    let mut other_process = back.clone();
    other_process.set_port(Url::parse(&format!("http://{}", gateways[1].at)).unwrap().port()).unwrap();
    let mut copy = browser.clone();
    assert_eq!(browser.visit(&other_process, None).await.status(), 303);
    assert!(browser.cookie("playhouse").is_some());
    // The sign-in is completed.
    assert_eq!(copy.visit(&back, None).await.status(), 400);
    assert_eq!(copy.cookie("playhouse"), None);
}
