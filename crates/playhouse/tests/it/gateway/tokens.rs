//! Access tokens of an external issuer: only valid ones are accepted.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::join_all;
use testkit::eventually;

use super::*;
use testkit::issuer::{Issuer, Signer, message, now, sign_with_public_key};

/// How soon the keys may be requested again: short, as this issuer rotates its keys often.
const COOLDOWN: Duration = Duration::from_secs(1);

/// Returns the claims with changes. A null removes a claim.
fn changed(mut claims: Value, changes: Value) -> Value {
    for (claim, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
            value => claims[claim] = value.clone(),
        }
    }
    claims
}

async fn me(gateway: &Gateway, token: &str) -> TestResponse {
    send(gateway.get("/v1/me").bearer_auth(token)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_with_a_code_when_its_token_expires() {
    let signer = Signer::ec("key");
    let issuer = Issuer::start(&[&signer]).await;
    let gateway = Gateway::with_issuer(&issuer, "").await;
    let short = changed(issuer.claims("ada"), json!({ "exp": now() + 2 }));
    let stream = gateway.get("/v1/stream").bearer_auth(signer.sign(&short)).send().await.unwrap();
    let mut events = flows::Events::new(stream);
    let end = loop {
        let (name, data) = events.next().await.expect("the stream says why it ends");
        if name == "end" {
            break data;
        }
    };
    assert_eq!(end, json!({ "code": "token_expired", "why": "the token has expired" }));
    assert_eq!(events.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_token_is_refused_with_a_reason() {
    let (rsa, ec) = (Signer::rsa("rsa"), Signer::ec("ec"));
    let issuer = Issuer::start(&[&rsa, &ec]).await;
    let gateway = Gateway::with_issuer(&issuer, "").await;
    let good = issuer.claims("ada");
    for signer in [&rsa, &ec] {
        let response = me(&gateway, &signer.sign(&good)).await;
        assert_eq!((response.status, &response.json()["display_name"]), (200, &json!("ada")), "{response:?}");
    }

    let with = |changes: Value| ec.sign(&changed(good.clone(), changes));
    let token = ec.sign(&good);
    let (body, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = body.split_once('.').unwrap();
    let other = message(&json!({}), &changed(good.clone(), json!({ "sub": "grace" })));
    let (_, other) = other.split_once('.').unwrap();
    let flipped: String = signature.chars().rev().collect();
    let alg = |alg: &str| json!({ "alg": alg, "typ": "JWT", "kid": "rsa" });
    let cases = [
        ("alg none", format!("{}.", message(&alg("none"), &good))),
        ("alg none with a signature", format!("{}.{signature}", message(&alg("none"), &good))),
        ("alg NONE", format!("{}.", message(&alg("NONE"), &good))),
        ("HS256 with the public key", sign_with_public_key(&alg("HS256"), &good)),
        ("HS256 declared as RS256", sign_with_public_key(&alg("RS256"), &good)),
        ("ES256 with the id of an RSA key", ec.sign_with(&json!({ "alg": "ES256", "kid": "rsa" }), &good)),
        ("another key with the same id", Signer::ec("ec").sign(&good)),
        ("an unknown key", Signer::ec("made up").sign(&good)),
        ("another audience", with(json!({ "aud": "another-service" }))),
        ("no audience", with(json!({ "aud": null }))),
        ("another issuer", with(json!({ "iss": "https://evil.example" }))),
        ("an issuer with a trailing slash", with(json!({ "iss": format!("{}/", issuer.url) }))),
        ("no issuer", with(json!({ "iss": null }))),
        ("expired", with(json!({ "exp": now() - 60 }))),
        ("no expiry", with(json!({ "exp": null }))),
        ("not yet valid", with(json!({ "nbf": now() + 600 }))),
        ("issued in the future", with(json!({ "iat": now() + 600 }))),
        ("no subject", with(json!({ "sub": null }))),
        ("tampered payload", format!("{header}.{other}.{signature}")),
        ("tampered signature", format!("{body}.{flipped}")),
        ("no signature", format!("{body}.")),
        ("an ID token", with(json!({ "aud": "playhouse", "nonce": "n", "at_hash": "h", "typ": "ID" }))),
        ("an ID token without a typ", with(json!({ "aud": "playhouse", "nonce": "n" }))),
        // As after a refresh, which has no nonce.
        (
            "an ID token without a nonce",
            with(json!({ "scope": null, "client_id": null, "auth_time": now() })),
        ),
        ("a token without scope and client", with(json!({ "scope": null, "client_id": null }))),
        (
            "a logout token",
            with(json!({ "events": { "http://schemas.openid.net/event/backchannel-logout": {} } })),
        ),
        ("unknown critical extensions", {
            let header = changed(ec.header(), json!({ "crit": ["x"], "x": 1 }));
            ec.sign_with(&header, &good)
        }),
        ("garbage", "garbage".to_owned()),
        ("garbage with dots", "a.b.c".to_owned()),
        ("large garbage", format!("{}.{}.c", "a".repeat(8_000), "b".repeat(4_000))),
        ("a token of a configured service", shop::TOKEN.to_owned()),
    ];
    let mut reasons = Vec::new();
    for (what, token) in cases {
        let response = me(&gateway, &token).await;
        assert_eq!(response.status, 401, "{what}: {response:?}");
        let problem = assert_problem(&response, 401);
        let challenge = response.header("www-authenticate");
        let description = challenge
            .strip_prefix("Bearer realm=\"playhouse\", error=\"invalid_token\", error_description=\"")
            .and_then(|rest| rest.strip_suffix('"'));
        let description = description.unwrap_or_else(|| panic!("{what}: {challenge}"));
        assert_eq!(problem["detail"], format!("The access token is not accepted: {description}."));
        reasons.push(format!("{what}: {description}"));
    }
    insta::assert_snapshot!(reasons.join("\n"));
    // Without a token the challenge has no error.
    for header in ["", "Bearer", "Basic YTpi", "Token x"] {
        let response = send(gateway.get("/v1/me").header("authorization", header)).await;
        assert_eq!(response.header("www-authenticate"), "Bearer realm=\"playhouse\"", "{header:?}");
    }
}

/// Returns the parts of `/readyz` that are not ready.
async fn unready_parts(gateway: &Gateway) -> Vec<String> {
    let (_, report) = super::super::get(format!("http://{}/readyz", gateway.at["admin"])).await;
    let parts = report["parts"].as_object().unwrap().clone();
    parts.into_iter().filter(|(_, part)| part["ready"] != true).map(|(name, _)| name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn late_issuer_is_awaited_and_a_lost_one_is_not_needed() {
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    issuer.network.cut().await;
    let gateway = Gateway::with_issuer(&issuer, "").await;
    let token = signer.sign(&issuer.claims("ada"));
    assert_problem(&me(&gateway, &token).await, 503);
    assert_eq!(unready_parts(&gateway).await, ["identity", "issuer"]);
    for path in ["/", "/docs", "/healthz", "/openapi.json", "/v1/client-config"] {
        assert_eq!(send(gateway.get(path)).await.status, 200, "{path}");
    }
    // A page, because a person wants to sign in.
    let login = send(gateway.get("/login")).await;
    assert_eq!((login.status, login.header("content-type")), (503, "text/html; charset=utf-8"));

    issuer.network.pass().await;
    eventually("the process is ready", PATIENCE, async || {
        let parts = unready_parts(&gateway).await;
        if parts.is_empty() { Ok(()) } else { Err(format!("{parts:?}")) }
    })
    .await;
    assert_eq!(me(&gateway, &token).await.status, 200);

    issuer.network.cut().await;
    assert_eq!(me(&gateway, &token).await.status, 200, "a known token");
    let another = signer.sign(&issuer.claims("grace"));
    assert_eq!(me(&gateway, &another).await.status, 200, "a new token");
    assert_eq!(
        me(&gateway, &Signer::ec("two").sign(&issuer.claims("ada"))).await.status,
        401,
        "an unknown key"
    );
    assert!(!unready_parts(&gateway).await.contains(&"identity".to_owned()), "the keys were forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_rotation_under_load_fails_no_request() {
    let first = Arc::new(Signer::ec("0"));
    let issuer = Issuer::start(&[&first]).await;
    let gateway =
        Gateway::with_issuer(&issuer, &format!("keys_cooldown = \"{}s\"\n", COOLDOWN.as_secs())).await;
    let gateway = Arc::new(gateway);
    let newest = Arc::new(Mutex::new(first.clone()));
    let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let claims = issuer.claims("ada");
    let callers = (0..8).map(|caller| {
        let (gateway, newest, stop, good) = (gateway.clone(), newest.clone(), stop.clone(), good.clone());
        let mut claims = claims.clone();
        claims["sub"] = format!("player-{caller}").into();
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                // A new token each time, so that none is cached.
                claims["jti"] = number.into();
                let signer = newest.lock().unwrap().clone();
                let response = me(&gateway, &signer.sign(&claims)).await;
                assert_eq!(response.status, 200, "{response:?}");
                good.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let some_more = async || {
        let before = good.load(Ordering::SeqCst);
        eventually("calls continue", PATIENCE, async || {
            assert!(!callers.iter().any(tokio::task::JoinHandle::is_finished), "a caller has failed");
            good.load(Ordering::SeqCst) > before + 50
        })
        .await;
    };
    some_more().await;
    let mut old = first.clone();
    for number in 1..=3 {
        // The gateway requests the keys at most once per cooldown.
        tokio::time::sleep(COOLDOWN).await;
        let next = Arc::new(Signer::ec(&number.to_string()));
        issuer.publish(&[&old, &next]);
        *newest.lock().unwrap() = next.clone();
        some_more().await;
        // The issuer withdraws the old key. The gateway notices with the next request for keys.
        issuer.publish(&[&next]);
        some_more().await;
        old = next;
    }
    stop.store(true, Ordering::SeqCst);
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    // The first key is withdrawn by now, so its tokens are invalid.
    let before = issuer.claims("ada");
    assert_eq!(me(&gateway, &first.sign(&before)).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_can_use_tokens_of_the_issuer() {
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    let gateway = Gateway::with_issuer(&issuer, "").await;
    let with = |roles: &[&str], changes: Value| {
        let claims =
            changed(issuer.claims("shop"), json!({ "azp": "shop", "realm_access": { "roles": roles } }));
        signer.sign(&changed(claims, changes))
    };
    let user = "0198c0de-0000-7000-8000-000000000001";
    let read = async |token: &str| {
        let url = format!("http://{}/internal/v1/users/{user}", gateway.at["service_api"]);
        send(gateway.client.get(url).bearer_auth(token)).await
    };
    let grant = async |token: &str| {
        let url = format!("http://{}/internal/v1/entitlements/grant", gateway.at["service_api"]);
        let request = gateway.client.post(url).bearer_auth(token).header("idempotency-key", "k");
        let body = json!({
            "user_id": user, "account_id": user, "resource": "sword", "occurred_at": "2026-03-01T12:00:00Z",
        });
        send(request.json(&body)).await
    };
    let reader = with(&["playhouse-service", "playhouse-may-read"], json!({}));
    // It may read, and the user does not exist.
    assert_problem(&read(&reader).await, 404);
    let refused = assert_problem(&grant(&reader).await, 403);
    assert!(
        refused["detail"].as_str().unwrap().contains("\"shop\" lacks the right \"entitlements\""),
        "{refused}"
    );
    let seller = with(&["playhouse-service", "playhouse-may-entitlements"], json!({}));
    assert_problem(&grant(&seller).await, 404);
    assert_problem(&read(&seller).await, 403);
    let without_rights = with(&["playhouse-service"], json!({}));
    assert_problem(&read(&without_rights).await, 403);

    for (what, token) in [
        ("a player", with(&["player"], json!({}))),
        ("a player with a right", with(&["playhouse-may-read"], json!({}))),
        ("an operator", with(&["playhouse-operator", "playhouse-may-read"], json!({}))),
        ("expired", with(&["playhouse-service", "playhouse-may-read"], json!({ "exp": now() - 60 }))),
        ("another audience", with(&["playhouse-service", "playhouse-may-read"], json!({ "aud": "other" }))),
        ("another signer", Signer::ec("one").sign(&issuer.claims("shop"))),
    ] {
        let response = read(&token).await;
        assert_eq!(
            (response.status, response.header("www-authenticate")),
            (401, "Bearer"),
            "{what}: {response:?}"
        );
    }
    // A configured service does not depend on the issuer.
    issuer.network.cut().await;
    assert_problem(&read(shop::TOKEN).await, 404);
}
