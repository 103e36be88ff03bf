//! Rate limits on the wire.

use std::time::Instant;

use testkit::issuer::Signer;
use testkit::{Proxy, Redis, eventually, need};

use super::*;

/// Slow enough that nothing refills while a burst is sent.
const SLOW: &str =
    "[gateway.limits]\naddress = \"100/s burst 1000\"\nread = \"1/m burst 5\"\nwrite = \"1/m burst 2\"\n";

/// What a header of the draft says of one policy: `"read";q=5;w=10`.
fn parameters(header: &str, policy: &str) -> HashMap<String, u64> {
    let item = header.split(", ").find(|item| item.starts_with(&format!("\"{policy}\""))).unwrap_or_default();
    let pairs = item.split(';').skip(1).map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_goes_through_then_it_is_told_when_to_come_back() {
    // Slow, but not so slow that nobody wants to wait for the next one.
    let settings = SLOW.replace("read = \"1/m", "read = \"12/m");
    let door = Door::with(&settings, |program| program).await;
    let token = door.token("ada").await;
    let ask = async || sent(door.get("/v1/me").bearer_auth(&token)).await;
    for left in (0..5).rev() {
        let answer = ask().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // As draft-ietf-httpapi-ratelimit-headers has it: names in quotes, quota and window, rest and time.
        assert_eq!(answer.header("ratelimit-policy"), "\"address\";q=1000;w=10, \"read\";q=5;w=25");
        let rest = parameters(answer.header("ratelimit"), "read");
        assert_eq!(rest["r"], left, "{answer:?}");
        assert!((1..=25).contains(&rest["t"]) && rest.len() == 2, "{answer:?}");
        assert!(answer.header("retry-after").is_empty());
    }
    let refused = ask().await;
    let at = Instant::now();
    let problem = assert_problem(&refused, 429);
    assert_eq!(problem["type"], "urn:playhouse:problem:rate-limited");
    assert_eq!(parameters(refused.header("ratelimit"), "read")["r"], 0);
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=5).contains(&wait), "12 a minute is one in five seconds: {refused:?}");
    // It counts for the address, so that a client that does not slow down is stopped before any work is done.
    let address = parameters(refused.header("ratelimit"), "address")["r"];
    assert!(address >= 1000 - 7, "{refused:?}");
    // Whoever comes back when told to is let in, once.
    tokio::time::sleep(Duration::from_secs(wait).saturating_sub(at.elapsed())).await;
    assert_eq!(ask().await.status, 200);
    assert_eq!(ask().await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn players_do_not_disturb_each_other_nor_do_classes() {
    let door = Door::with(SLOW, |program| program).await;
    let (ada, grace) = (door.token("ada").await, door.token("grace").await);
    let drain = async |token: &str| {
        let mut count = 0;
        while sent(door.get("/v1/me").bearer_auth(token)).await.status == 200 {
            count += 1;
        }
        count
    };
    // A session of hers counts with her tokens.
    let session = signed_in(&door.at["gateway"], "ada").await;
    assert_eq!(sent(door.get("/v1/me").header("cookie", &session)).await.status, 200);
    assert_eq!(drain(&ada).await, 4);
    assert_eq!(sent(door.get("/v1/me").header("cookie", &session)).await.status, 429);
    assert_eq!(drain(&grace).await, 5);
    // Other classes have their own; whoever is nobody counts by address.
    let ticket = door.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).bearer_auth(&ada);
    assert_eq!(sent(ticket).await.status, 201);
    for expected in [200, 200, 200, 200, 200, 429] {
        assert_eq!(sent(door.get("/v1/client-config")).await.status, expected);
    }
    // A bad token costs the address as much as no token.
    assert_eq!(sent(door.get("/v1/me").bearer_auth("garbage")).await.status, 429);
    assert_eq!(sent(door.get("/healthz")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_one_limit_for_everything_but_the_issuer() {
    let door = Door::with("[gateway.limits]\naddress = \"1/m burst 5\"\n", |program| program).await;
    let token = door.token("ada").await;
    let expected = [
        ("/healthz", 200),
        ("/v1/me", 200),
        ("/docs", 200),
        ("/nope", 404),
        ("/v1/client-config", 200),
        ("/v1/me", 429),
        ("/", 429),
        ("/nope", 429),
        // The builtin issuer is asked by the gateway itself, which is at the same address.
        ("/issuer/jwks", 200),
    ];
    for (path, status) in expected {
        let answer = sent(door.get(path).bearer_auth(&token)).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    // The issuer is never kept from ending sessions; what it says is judged as always.
    let form = door.client.post(door.url("/logout/backchannel"));
    let form = form.header("content-type", "application/x-www-form-urlencoded").body("logout_token=junk");
    let answer = sent(form).await;
    assert_eq!((answer.status, answer.header("ratelimit")), (400, ""), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_beyond_its_limit_costs_no_token_check_and_no_session_read() {
    let (signer, stranger) = (Signer::ec("key"), Signer::ec("stranger"));
    let issuer = Issuer::start(&[&signer]).await;
    let settings =
        format!("[identity]\nissuer = \"{}\"\n[gateway.limits]\naddress = \"1/h burst 3\"\n", issuer.url);
    let door = Door::with(&settings, |program| program).await;
    let good = signer.sign(&issuer.claims("ada"));
    for expected in [200, 200, 200, 429] {
        assert_eq!(sent(door.get("/v1/me").bearer_auth(&good)).await.status, expected);
    }
    // Whatever is sent is refused alike: nobody looked at it. A check would say 401, and a session that cannot be read 401 or 503.
    let bad = stranger.sign(&issuer.claims("ada"));
    let checked =
        async || door.metric("playhouse_gateway_security_events_total{event=\"token_refused\"}").await;
    for request in [
        door.get("/v1/me").bearer_auth(&bad),
        door.get("/v1/me").bearer_auth("junk"),
        door.get("/v1/me").header("cookie", "playhouse=bWFkZS11cA"),
    ] {
        let refused = sent(request).await;
        assert_problem(&refused, 429);
        assert_eq!(parameters(refused.header("ratelimit"), "address")["r"], 0);
        assert!(!refused.header("ratelimit").contains("read"), "no class was asked: {refused:?}");
    }
    assert_eq!(checked().await, 0.0);
}

/// Two processes on one Redis, which is behind a network that can be cut.
async fn pair(redis: &str) -> [Door; 2] {
    let settings = format!(
        "[hot]\nurl = \"{redis}\"\n[gateway]\nrequest_timeout = \"2s\"\n{}",
        "[gateway.limits]\naddress = \"10000/s burst 10000\"\nread = \"1/m burst 10\"\ntimeout = \"1s\"\n"
    );
    [Door::with(&settings, |program| program).await, Door::with(&settings, |program| program).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_their_limits_and_without_redis_each_has_its_own() {
    let redis = need!(Redis::private().await);
    let address = redis.url().trim_start_matches("redis://").parse().unwrap();
    let network = Proxy::to(address).await;
    let doors = pair(&network.url(&redis.url())).await;
    let ask = async |door: &Door| sent(door.get("/v1/client-config")).await;
    for number in 0..10 {
        let answer = ask(&doors[number % 2]).await;
        assert_eq!(answer.status, 200, "{number}: {answer:?}");
        assert_eq!(parameters(answer.header("ratelimit"), "read")["r"], 9 - number as u64);
    }
    for door in &doors {
        assert_problem(&ask(door).await, 429);
        assert_eq!(door.metric("playhouse_limits_local_total").await, 0.0);
    }

    network.cut().await;
    for door in &doors {
        // Each begins with a full bucket of its own, and no request waits for Redis.
        let mut let_in = 0;
        loop {
            let started = Instant::now();
            let answer = ask(door).await;
            assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
            if answer.status != 200 {
                assert_problem(&answer, 429);
                break;
            }
            let_in += 1;
        }
        assert_eq!(let_in, 10);
        assert!(door.metric("playhouse_limits_local_total").await >= 11.0);
        assert_eq!(sent(door.get("/healthz")).await.status, 200);
        // Tokens need no Redis.
        let token = door.token("ada").await;
        assert_eq!(sent(door.get("/v1/me").bearer_auth(&token)).await.status, 200);
    }

    network.pass().await;
    for door in &doors {
        eventually("the shared limit is back", PATIENCE, async || {
            let before = door.metric("playhouse_limits_local_total").await;
            assert_eq!(ask(door).await.status, 429);
            door.metric("playhouse_limits_local_total").await == before
        })
        .await;
    }
}
