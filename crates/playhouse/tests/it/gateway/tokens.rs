//! Access tokens of an issuer that is somewhere else: good ones get in, all others do not.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::join_all;
use testkit::eventually;

use super::*;
use testkit::issuer::{Issuer, Signer, message, now, signed_with_the_public_key};

/// How soon keys may be asked for again; far less than in real life, as keys rotate far more often here.
const COOLDOWN: Duration = Duration::from_secs(1);

/// The claims with some changed. A null takes one out.
fn changed(mut claims: Value, changes: Value) -> Value {
    for (claim, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
            value => claims[claim] = value.clone(),
        }
    }
    claims
}

async fn me(door: &Door, token: &str) -> Answer {
    sent(door.get("/v1/me").bearer_auth(token)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_no_good_is_refused_and_the_caller_is_told_why() {
    let (rsa, ec) = (Signer::rsa("rsa"), Signer::ec("ec"));
    let issuer = Issuer::start(&[&rsa, &ec]).await;
    let door = Door::of(&issuer, "").await;
    let good = issuer.claims("ada");
    for signer in [&rsa, &ec] {
        let answer = me(&door, &signer.sign(&good)).await;
        assert_eq!((answer.status, &answer.json()["display_name"]), (200, &json!("ada")), "{answer:?}");
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
        ("HS256 with the public key", signed_with_the_public_key(&alg("HS256"), &good)),
        ("RS256 that is HS256", signed_with_the_public_key(&alg("RS256"), &good)),
        ("ES256 with the name of an RSA key", ec.sign_with(&json!({ "alg": "ES256", "kid": "rsa" }), &good)),
        ("another key by the same name", Signer::ec("ec").sign(&good)),
        ("an unknown key", Signer::ec("made up").sign(&good)),
        ("another audience", with(json!({ "aud": "somebody-else" }))),
        ("no audience", with(json!({ "aud": null }))),
        ("another issuer", with(json!({ "iss": "https://evil.example" }))),
        ("an issuer with a slash more", with(json!({ "iss": format!("{}/", issuer.url) }))),
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
        ("an ID token that says nothing of itself", with(json!({ "aud": "playhouse", "nonce": "n" }))),
        // As after a refresh, where there was no sign-in to answer.
        (
            "an ID token without a nonce",
            with(json!({ "scope": null, "client_id": null, "auth_time": now() })),
        ),
        ("a token that says nothing of what it is for", with(json!({ "scope": null, "client_id": null }))),
        (
            "a logout token",
            with(json!({ "events": { "http://schemas.openid.net/event/backchannel-logout": {} } })),
        ),
        ("extensions that we do not know", {
            let header = changed(ec.header(), json!({ "crit": ["x"], "x": 1 }));
            ec.sign_with(&header, &good)
        }),
        ("garbage", "garbage".to_owned()),
        ("garbage with dots", "a.b.c".to_owned()),
        ("large garbage", format!("{}.{}.c", "a".repeat(8_000), "b".repeat(4_000))),
        ("a token of a configured service", shop::TOKEN.to_owned()),
    ];
    let mut told = Vec::new();
    for (what, token) in cases {
        let answer = me(&door, &token).await;
        assert_eq!(answer.status, 401, "{what}: {answer:?}");
        let problem = assert_problem(&answer, 401);
        let challenge = answer.header("www-authenticate");
        let description = challenge
            .strip_prefix("Bearer realm=\"playhouse\", error=\"invalid_token\", error_description=\"")
            .and_then(|rest| rest.strip_suffix('"'));
        let description = description.unwrap_or_else(|| panic!("{what}: {challenge}"));
        assert_eq!(problem["detail"], format!("The access token is not accepted: {description}."));
        told.push(format!("{what}: {description}"));
    }
    insta::assert_snapshot!(told.join("\n"));
    // Somebody who sends no token at all is told of none.
    for header in ["", "Bearer", "Basic YTpi", "Token x"] {
        let answer = sent(door.get("/v1/me").header("authorization", header)).await;
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"playhouse\"", "{header:?}");
    }
}

/// The parts of `/readyz` that are not ready.
async fn not_ready(door: &Door) -> Vec<String> {
    let (_, report) = super::super::get(format!("http://{}/readyz", door.at["admin"])).await;
    let parts = report["parts"].as_object().unwrap().clone();
    parts.into_iter().filter(|(_, part)| part["ready"] != true).map(|(name, _)| name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_comes_late_is_waited_for_and_one_that_goes_is_not_missed() {
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    issuer.network.cut().await;
    let door = Door::of(&issuer, "").await;
    let token = signer.sign(&issuer.claims("ada"));
    assert_problem(&me(&door, &token).await, 503);
    assert_eq!(not_ready(&door).await, ["identity", "issuer"]);
    for path in ["/", "/docs", "/healthz", "/openapi.json", "/v1/client-config"] {
        assert_eq!(sent(door.get(path)).await.status, 200, "{path}");
    }
    // A page, for it is a person who wants to sign in.
    let login = sent(door.get("/login")).await;
    assert_eq!((login.status, login.header("content-type")), (503, "text/html; charset=utf-8"));

    issuer.network.pass().await;
    eventually("it is ready", PATIENCE, async || {
        let parts = not_ready(&door).await;
        if parts.is_empty() { Ok(()) } else { Err(format!("{parts:?}")) }
    })
    .await;
    assert_eq!(me(&door, &token).await.status, 200);

    issuer.network.cut().await;
    assert_eq!(me(&door, &token).await.status, 200, "a token that was seen");
    let another = signer.sign(&issuer.claims("grace"));
    assert_eq!(me(&door, &another).await.status, 200, "a token that was not seen");
    assert_eq!(me(&door, &Signer::ec("two").sign(&issuer.claims("ada"))).await.status, 401, "an unknown key");
    assert!(!not_ready(&door).await.contains(&"identity".to_owned()), "its keys stay known");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_rotate_under_load_and_nobody_notices() {
    let first = Arc::new(Signer::ec("0"));
    let issuer = Issuer::start(&[&first]).await;
    let door = Door::of(&issuer, &format!("keys_cooldown = \"{}s\"\n", COOLDOWN.as_secs())).await;
    let door = Arc::new(door);
    let newest = Arc::new(Mutex::new(first.clone()));
    let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let claims = issuer.claims("ada");
    let callers = (0..8).map(|caller| {
        let (door, newest, stop, good) = (door.clone(), newest.clone(), stop.clone(), good.clone());
        let mut claims = claims.clone();
        claims["sub"] = format!("player-{caller}").into();
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                // Another one each time, so that none is remembered.
                claims["jti"] = number.into();
                let signer = newest.lock().unwrap().clone();
                let answer = me(&door, &signer.sign(&claims)).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                good.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let some_more = async || {
        let before = good.load(Ordering::SeqCst);
        eventually("calls go on", PATIENCE, async || {
            // Those who are told nothing at all have failed.
            assert!(!callers.iter().any(tokio::task::JoinHandle::is_finished), "a caller has failed");
            good.load(Ordering::SeqCst) > before + 50
        })
        .await;
    };
    some_more().await;
    let mut old = first.clone();
    for number in 1..=3 {
        // Not hope: that much lies between two answers of the issuer.
        tokio::time::sleep(COOLDOWN).await;
        let next = Arc::new(Signer::ec(&number.to_string()));
        issuer.publish(&[&old, &next]);
        *newest.lock().unwrap() = next.clone();
        some_more().await;
        // The issuer forgets the old one, and we hear of it with the next.
        issuer.publish(&[&next]);
        some_more().await;
        old = next;
    }
    stop.store(true, Ordering::SeqCst);
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    // The one before the last is gone by now, and what it signed with it.
    let before = issuer.claims("ada");
    assert_eq!(me(&door, &first.sign(&before)).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_come_with_tokens_of_the_issuer_too() {
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    let door = Door::of(&issuer, "").await;
    let with = |roles: &[&str], changes: Value| {
        let claims =
            changed(issuer.claims("shop"), json!({ "azp": "shop", "realm_access": { "roles": roles } }));
        signer.sign(&changed(claims, changes))
    };
    let user = "0198c0de-0000-7000-8000-000000000001";
    let read = async |token: &str| {
        let url = format!("http://{}/internal/v1/users/{user}", door.at["internal"]);
        sent(door.client.get(url).bearer_auth(token)).await
    };
    let grant = async |token: &str| {
        let url = format!("http://{}/internal/v1/entitlements/grant", door.at["internal"]);
        let request = door.client.post(url).bearer_auth(token).header("idempotency-key", "k");
        let body = json!({
            "user_id": user, "account_id": user, "resource": "sword", "occurred_at": "2026-03-01T12:00:00Z",
        });
        sent(request.json(&body)).await
    };
    let reader = with(&["playhouse-service", "playhouse-may-read"], json!({}));
    // It may look, and finds nobody.
    assert_problem(&read(&reader).await, 404);
    let refused = assert_problem(&grant(&reader).await, 403);
    assert!(
        refused["detail"].as_str().unwrap().contains("\"shop\" lacks the right \"entitlements\""),
        "{refused}"
    );
    let seller = with(&["playhouse-service", "playhouse-may-entitlements"], json!({}));
    assert_problem(&grant(&seller).await, 404);
    assert_problem(&read(&seller).await, 403);
    let powerless = with(&["playhouse-service"], json!({}));
    assert_problem(&read(&powerless).await, 403);

    for (what, token) in [
        ("a player", with(&["player"], json!({}))),
        ("a player with a right", with(&["playhouse-may-read"], json!({}))),
        ("an operator", with(&["playhouse-operator", "playhouse-may-read"], json!({}))),
        ("expired", with(&["playhouse-service", "playhouse-may-read"], json!({ "exp": now() - 60 }))),
        ("for somebody else", with(&["playhouse-service", "playhouse-may-read"], json!({ "aud": "other" }))),
        ("of somebody else", Signer::ec("one").sign(&issuer.claims("shop"))),
    ] {
        let answer = read(&token).await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{what}: {answer:?}");
    }
    // A service that the configuration knows does not depend on the issuer.
    issuer.network.cut().await;
    assert_problem(&read(shop::TOKEN).await, 404);
}
