//! Rate limits over HTTP.

use std::time::Instant;

use testkit::issuer::Signer;
use testkit::{FaultProxy, Redis, eventually, need};

use super::*;

/// Rates so low that no limit refills during a burst.
const SLOW: &str =
    "[gateway.limits]\naddress = \"100/s burst 1000\"\nread = \"1/m burst 5\"\nwrite = \"1/m burst 2\"\n";

/// Returns the parameters of one policy in a rate limit header such as `"read";q=5;w=10`.
fn parameters(header: &str, policy: &str) -> HashMap<String, u64> {
    let item = header.split(", ").find(|item| item.starts_with(&format!("\"{policy}\""))).unwrap_or_default();
    let pairs = item.split(';').skip(1).map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn burst_is_allowed_and_then_refused_with_retry_after() {
    // Faster, so that the test can wait for the next request.
    let settings = SLOW.replace("read = \"1/m", "read = \"12/m");
    let gateway = Gateway::start_with(&settings, |program| program).await;
    let token = gateway.token("ada").await;
    let fetch = async || send(gateway.get("/v1/me").bearer_auth(&token)).await;
    for left in (0..5).rev() {
        let response = fetch().await;
        assert_eq!(response.status, 200, "{response:?}");
        // In the format of draft-ietf-httpapi-ratelimit-headers: quoted names, quota and window, remainder and reset time.
        assert_eq!(response.header("ratelimit-policy"), "\"address\";q=1000;w=10, \"read\";q=5;w=25");
        let state = parameters(response.header("ratelimit"), "read");
        assert_eq!(state["r"], left, "{response:?}");
        assert!((1..=25).contains(&state["t"]) && state.len() == 2, "{response:?}");
        assert!(response.header("retry-after").is_empty());
    }
    let refused = fetch().await;
    let at = Instant::now();
    let problem = assert_problem(&refused, 429);
    assert_eq!(problem["type"], "urn:playhouse:problem:rate-limited");
    assert_eq!(parameters(refused.header("ratelimit"), "read")["r"], 0);
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=5).contains(&wait), "12 a minute is one in five seconds: {refused:?}");
    // Refusals count for the address, which stops a client that does not slow down before any work is done.
    let address = parameters(refused.header("ratelimit"), "address")["r"];
    assert!(address >= 1000 - 7, "{refused:?}");
    // After `retry-after` one more request is allowed.
    tokio::time::sleep(Duration::from_secs(wait).saturating_sub(at.elapsed())).await;
    assert_eq!(fetch().await.status, 200);
    assert_eq!(fetch().await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn players_and_rate_classes_have_separate_limits() {
    let gateway = Gateway::start_with(SLOW, |program| program).await;
    let (ada, grace) = (gateway.token("ada").await, gateway.token("grace").await);
    let drain = async |token: &str| {
        let mut count = 0;
        while send(gateway.get("/v1/me").bearer_auth(token)).await.status == 200 {
            count += 1;
        }
        count
    };
    // A player's session and tokens share a limit.
    let session = session_cookie(&gateway.at["gateway"], "ada").await;
    assert_eq!(send(gateway.get("/v1/me").header("cookie", &session)).await.status, 200);
    assert_eq!(drain(&ada).await, 4);
    assert_eq!(send(gateway.get("/v1/me").header("cookie", &session)).await.status, 429);
    assert_eq!(drain(&grace).await, 5);
    // Other classes have their own limits. Callers without credentials count by address.
    let ticket = gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).bearer_auth(&ada);
    assert_eq!(send(ticket).await.status, 201);
    for expected in [200, 200, 200, 200, 200, 429] {
        assert_eq!(send(gateway.get("/v1/client-config")).await.status, expected);
    }
    // An invalid token counts like no token.
    assert_eq!(send(gateway.get("/v1/me").bearer_auth("garbage")).await.status, 429);
    assert_eq!(send(gateway.get("/healthz")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_sees_who_is_refused_by_which_rule() {
    let gateway = Gateway::start_with(SLOW, |program| program).await;
    let ada = gateway.token("ada").await;
    let me = send(gateway.get("/v1/me").bearer_auth(&ada)).await;
    let user = me.json()["user_id"].as_str().unwrap_or_else(|| panic!("{me:?}")).to_owned();
    for expected in [200, 200, 200, 200, 429, 429] {
        assert_eq!(send(gateway.get("/v1/me").bearer_auth(&ada)).await.status, expected);
    }
    let admin = format!("http://{}", gateway.at["admin"]);
    let limits = send(gateway.client.get(format!("{admin}/limits")).bearer_auth(shop::OPERATOR_TOKEN)).await;
    let limits = limits.json();
    let rules = limits["rules"].as_array().unwrap();
    let rule = |policy: &str, kind: &str| {
        let found = rules.iter().find(|rule| rule["policy"] == policy && rule["key_kind"] == kind);
        found.unwrap_or_else(|| panic!("{limits}"))
    };
    let read = rule("read", "user");
    assert_eq!(read["limit"], "1/m burst 5", "{limits}");
    for period in ["last_minute", "last_hour", "since_start"] {
        assert_eq!((&read["allowed"][period], &read["refused"][period]), (&json!(5), &json!(2)), "{limits}");
    }
    assert_eq!(rule("write", "user")["refused"]["since_start"], 0, "{limits}");
    let worst = &limits["most_refused"][0];
    assert_eq!(
        (&worst["key"], &worst["policy"], &worst["refused"]),
        (&json!(user), &json!("read"), &json!(2))
    );
    assert_eq!(limits["most_refused"].as_array().unwrap().len(), 1, "{limits}");
    let listeners = limits["connections"]["listeners"].as_array().unwrap();
    let of_gateway = listeners.iter().find(|listener| listener["listener"] == "gateway").unwrap();
    assert!(of_gateway["open"].as_u64().unwrap() >= 1, "{limits}");

    let (code, shown, errors) = run(playhouse(&["limits", "--admin", &admin])).await;
    assert_eq!(code, 0, "{errors}");
    assert!(shown.contains(&format!("user {user}")) && shown.contains("1/m burst 5"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn address_limit_covers_everything_but_the_issuer() {
    let gateway =
        Gateway::start_with("[gateway.limits]\naddress = \"1/m burst 5\"\n", |program| program).await;
    let token = gateway.token("ada").await;
    let expected = [
        ("/healthz", 200),
        ("/v1/me", 200),
        ("/docs", 200),
        ("/nope", 404),
        ("/v1/client-config", 200),
        ("/v1/me", 429),
        ("/", 429),
        ("/nope", 429),
        // The gateway itself calls the builtin issuer, from the same address.
        ("/issuer/jwks", 200),
    ];
    for (path, status) in expected {
        let response = send(gateway.get(path).bearer_auth(&token)).await;
        assert_eq!(response.status, status, "{path}: {response:?}");
    }
    // Back-channel logouts are not limited, but they are checked as always.
    let form = gateway.client.post(gateway.url("/logout/backchannel"));
    let form = form.header("content-type", "application/x-www-form-urlencoded").body("logout_token=junk");
    let response = send(form).await;
    assert_eq!((response.status, response.header("ratelimit")), (400, ""), "{response:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn address_over_its_limit_costs_no_token_check_and_no_session_read() {
    let (signer, forger) = (Signer::ec("key"), Signer::ec("forger"));
    let issuer = Issuer::start(&[&signer]).await;
    let settings =
        format!("[identity]\nissuer = \"{}\"\n[gateway.limits]\naddress = \"1/h burst 3\"\n", issuer.url);
    let gateway = Gateway::start_with(&settings, |program| program).await;
    let good = signer.sign(&issuer.claims("ada"));
    for expected in [200, 200, 200, 429] {
        assert_eq!(send(gateway.get("/v1/me").bearer_auth(&good)).await.status, expected);
    }
    // All requests get 429 unchecked. A token check would give 401, and a session read 401 or 503.
    let bad = forger.sign(&issuer.claims("ada"));
    let checked =
        async || gateway.metric("playhouse_gateway_security_events_total{event=\"token_refused\"}").await;
    for request in [
        gateway.get("/v1/me").bearer_auth(&bad),
        gateway.get("/v1/me").bearer_auth("junk"),
        gateway.get("/v1/me").header("cookie", "playhouse=bWFkZS11cA"),
    ] {
        let refused = send(request).await;
        assert_problem(&refused, 429);
        assert_eq!(parameters(refused.header("ratelimit"), "address")["r"], 0);
        assert!(!refused.header("ratelimit").contains("read"), "a class was checked: {refused:?}");
    }
    assert_eq!(checked().await, 0.0);
    let early = "http_server_request_duration_seconds_count{listener=\"gateway\",http_request_method=\"GET\",\
                 http_route=\"refused_early\",http_response_status_code=\"429\"}";
    assert_eq!(gateway.metric(early).await, 4.0, "no refused request reached the router");
}

/// An `Origin` header does not lead a flood around the early refusal, and pages of allowed origins can read it.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_origins_are_refused_early_too() {
    const ORIGIN: &str = "https://play.example.com";
    let gateway = Gateway::start_with(
        &format!("[gateway]\ncors_origins = [\"{ORIGIN}\"]\n[gateway.limits]\naddress = \"1/h burst 2\"\n"),
        |program| program,
    )
    .await;
    let early = "http_server_request_duration_seconds_count{listener=\"gateway\",http_request_method=\"GET\",\
                 http_route=\"refused_early\",http_response_status_code=\"429\"}";
    let fetch = async |origin: &str| send(gateway.get("/v1/client-config").header("origin", origin)).await;
    fetch(ORIGIN).await;
    let allowed = fetch(ORIGIN).await;
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, ORIGIN), "{allowed:?}");

    let refused = fetch(ORIGIN).await;
    assert_problem(&refused, 429);
    assert!(!refused.header("retry-after").is_empty(), "{refused:?}");
    for name in [
        "access-control-allow-origin",
        "access-control-allow-credentials",
        "access-control-expose-headers",
        "vary",
    ] {
        assert_eq!(refused.header(name), allowed.header(name), "{name}: {refused:?}");
    }
    // Nobody else can read it.
    let foreign = fetch("https://evil.example").await;
    assert_problem(&foreign, 429);
    assert_eq!(foreign.header("access-control-allow-origin"), "", "{foreign:?}");
    assert_eq!(gateway.metric(early).await, 2.0, "no refused request reached the router");
    // A browser asks first. Without an answer the page would not see why its request is refused.
    let preflight = gateway.client.request(reqwest::Method::OPTIONS, gateway.url("/v1/me"));
    let preflight = preflight.header("origin", ORIGIN).header("access-control-request-method", "GET");
    assert_eq!(send(preflight).await.status, 200);
}

/// Starts two processes on one Redis.
async fn pair(redis: &str) -> [Gateway; 2] {
    let settings = format!(
        "[redis]\nurl = \"{redis}\"\n[gateway]\nrequest_timeout = \"2s\"\n{}",
        "[gateway.limits]\naddress = \"10000/s burst 10000\"\nread = \"1/m burst 10\"\ntimeout = \"1s\"\n"
    );
    [
        Gateway::start_with(&settings, |program| program).await,
        Gateway::start_with(&settings, |program| program).await,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_limits_and_count_alone_without_redis() {
    let redis = need!(Redis::private().await);
    let address = redis.url().trim_start_matches("redis://").parse().unwrap();
    let network = FaultProxy::to(address).await;
    let gateways = pair(&network.url(&redis.url())).await;
    let fetch = async |gateway: &Gateway| send(gateway.get("/v1/client-config")).await;
    for number in 0..10 {
        let response = fetch(&gateways[number % 2]).await;
        assert_eq!(response.status, 200, "{number}: {response:?}");
        assert_eq!(parameters(response.header("ratelimit"), "read")["r"], 9 - number as u64);
    }
    for gateway in &gateways {
        assert_problem(&fetch(gateway).await, 429);
        assert_eq!(gateway.metric("playhouse_limits_local_total").await, 0.0);
    }

    network.cut().await;
    for gateway in &gateways {
        // Each starts with its own full bucket, and no request waits for Redis.
        let mut allowed = 0;
        loop {
            let started = Instant::now();
            let response = fetch(gateway).await;
            assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
            if response.status != 200 {
                assert_problem(&response, 429);
                break;
            }
            allowed += 1;
        }
        assert_eq!(allowed, 10);
        assert!(gateway.metric("playhouse_limits_local_total").await >= 11.0);
        assert_eq!(send(gateway.get("/healthz")).await.status, 200);
        // Access tokens need no Redis.
        let token = gateway.token("ada").await;
        assert_eq!(send(gateway.get("/v1/me").bearer_auth(&token)).await.status, 200);
    }

    network.pass().await;
    for gateway in &gateways {
        eventually("the shared limit applies again", PATIENCE, async || {
            let before = gateway.metric("playhouse_limits_local_total").await;
            assert_eq!(fetch(gateway).await.status, 429);
            gateway.metric("playhouse_limits_local_total").await == before
        })
        .await;
    }
}
