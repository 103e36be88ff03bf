//! Protection against browsers of other sites and unauthenticated clients.

use std::collections::BTreeSet;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const SITE: &str = "https://www.example.com";

/// Returns one response of each kind.
async fn responses(gateway: &Gateway) -> Vec<(&'static str, TestResponse)> {
    let token = gateway.token("ada").await;
    let session = session_cookie(&gateway.at["gateway"], "grace").await;
    let page = |path: &str| gateway.get(path).header("accept", "text/html");
    let refused =
        gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).header("cookie", &session);
    vec![
        ("a response of the API", send(gateway.get("/v1/home").bearer_auth(&token)).await),
        ("the start page", send(page("/")).await),
        ("the API documentation", send(page("/docs")).await),
        (
            "a page of the issuer",
            send(gateway.client.get(send(gateway.get("/login")).await.header("location"))).await,
        ),
        ("a style", send(gateway.get("/assets/playhouse.css")).await),
        ("a script", send(gateway.get("/assets/playhouse.js")).await),
        ("the OpenAPI document", send(gateway.get("/openapi.json")).await),
        ("health", send(gateway.get("/healthz")).await),
        ("a redirect", send(gateway.get("/login")).await),
        ("a sign-in that failed", send(gateway.get("/login/callback?state=x")).await),
        ("no credentials", send(gateway.get("/v1/me")).await),
        ("a caller without the right", send(refused).await),
        ("an invalid query", send(gateway.get("/v1/entitlements?limit=x").bearer_auth(&token)).await),
        ("an unknown path", send(gateway.get("/nope")).await),
        ("an unknown method", send(gateway.client.put(gateway.url("/v1/me"))).await),
        ("an unknown path of the issuer", send(gateway.get("/issuer/nope")).await),
        ("a URI that is too long", send(gateway.get(&format!("/v1/me?{}", "x".repeat(9_000)))).await),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_response_is_hardened() {
    let gateway = Gateway::start("").await;
    for (what, response) in responses(&gateway).await {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            // The public URL has the scheme http here, so HSTS would lock browsers out.
            ("strict-transport-security", ""),
        ] {
            assert_eq!(response.header(name), value, "{what}: {response:?}");
        }
        let caching = if matches!(what, "a style" | "a script") && response.status == 200 {
            "no-cache"
        } else {
            "no-store"
        };
        assert_eq!(response.header("cache-control"), caching, "{what}");
        assert!(!response.header("x-request-id").is_empty(), "{what}");
        assert_eq!(response.header("server"), "", "{what}: the server software is shown");
        let policy = response.header("content-security-policy");
        let directives: BTreeSet<&str> = policy.split(';').map(str::trim).collect();
        for needed in ["default-src 'none'", "frame-ancestors 'none'"] {
            assert!(directives.contains(needed), "{what}: {policy}");
        }
        for loose in ["unsafe", "*", "data:", "http:", "blob:"] {
            let is_loose = policy.replace("form-action 'self' http://127.0.0.1", "").contains(loose);
            assert!(!is_loose, "{what}: {policy}");
        }
        if response.header("content-type").starts_with("text/html") {
            assert!(directives.contains("base-uri 'none'"), "{what}: {policy}");
            assert!(policy.contains("form-action"), "{what}: {policy}");
            // Nothing that the policy would block.
            for inline in ["<style", "style=", "onclick", "onload", "javascript:"] {
                assert!(!response.body.contains(inline), "{what}: {inline}");
            }
            for script in response.body.split("<script").skip(1) {
                let (tag, rest) = script.split_once('>').unwrap();
                assert!(tag.contains(" src=\"/assets/") && rest.starts_with("</script>"), "{what}: {tag}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn https_gateway_sends_hsts_and_secure_cookies() {
    let gateway = Gateway::start("[gateway]\npublic_url = \"https://localhost:8443\"\n").await;
    for path in ["/", "/v1/me", "/nope", "/assets/playhouse.css", "/login"] {
        let response = send(gateway.get(path)).await;
        assert_eq!(response.header("strict-transport-security"), "max-age=63072000", "{path}: {response:?}");
    }
    let login = send(gateway.get("/login").header("host", "localhost:8443")).await;
    let cookie = login.header("set-cookie");
    assert!(cookie.starts_with("__Host-Http-playhouse-sign-in-"), "{cookie}");
    for attribute in ["; Path=/", "; HttpOnly", "; SameSite=Lax", "; Secure"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains("Domain"), "{cookie}");
    let back = Url::parse(login.header("location")).unwrap();
    let back = back.query_pairs().find(|(name, _)| name == "redirect_uri").unwrap().1.into_owned();
    assert_eq!(back, "https://localhost:8443/login/callback");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_pages_of_configured_origins_may_call() {
    let gateway = Gateway::start(&format!("[gateway]\ncors_origins = [\"{SITE}\"]\n")).await;
    let closed = Gateway::start("").await;
    let session = session_cookie(&gateway.at["gateway"], "ada").await;
    let token = gateway.token("ada").await;
    let from = |request: RequestBuilder, origin: &str| request.header("origin", origin);

    let preflight = |gateway: &Gateway, origin: &str| {
        let request = gateway.client.request(Method::OPTIONS, gateway.url("/v1/matchmaking/tickets"));
        let request = request.header("access-control-request-method", "POST");
        from(request.header("access-control-request-headers", "content-type,x-playhouse-csrf"), origin)
    };
    let allowed = send(preflight(&gateway, SITE)).await;
    assert_eq!(allowed.status, 200, "{allowed:?}");
    assert_eq!(allowed.header("access-control-allow-origin"), SITE);
    assert_eq!(allowed.header("access-control-allow-credentials"), "true");
    for header in
        ["x-playhouse-csrf", "content-type", "authorization", "x-client-platform", "x-client-version"]
    {
        assert!(allowed.header("access-control-allow-headers").contains(header), "{allowed:?}");
    }
    for method in ["GET", "POST", "DELETE"] {
        assert!(allowed.header("access-control-allow-methods").contains(method), "{allowed:?}");
    }

    // Pages can read errors, too.
    for (request, status) in [
        (gateway.get("/v1/me").header("cookie", &session), 200),
        (gateway.get("/v1/me").bearer_auth(&token), 200),
        (gateway.get("/v1/me"), 401),
        (gateway.get("/nope"), 404),
    ] {
        let response = send(from(request, SITE)).await;
        assert_eq!(
            (response.status, response.header("access-control-allow-origin")),
            (status, SITE),
            "{response:?}"
        );
        assert_eq!(response.header("access-control-allow-credentials"), "true");
        assert!(response.header("access-control-expose-headers").contains("retry-after"), "{response:?}");
        assert!(response.header("vary").contains("origin"), "{response:?}");
    }
    for origin in
        ["https://evil.example", "https://www.example.com.evil.example", "http://www.example.com", "null"]
    {
        for (at, request) in [
            ("preflight", preflight(&gateway, origin)),
            ("call", from(gateway.get("/v1/me").header("cookie", &session), origin)),
        ] {
            let response = send(request).await;
            assert_eq!(response.header("access-control-allow-origin"), "", "{at} of {origin}: {response:?}");
        }
    }
    let refused = send(preflight(&closed, SITE)).await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (405, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn size_and_format_of_requests_are_limited() {
    let gateway = Gateway::start("[gateway]\nmax_body = \"1KiB\"\n").await;
    let token = gateway.token("ada").await;
    let post = |kind: &str, body: String| {
        let request = gateway.client.post(gateway.url("/v1/matchmaking/tickets")).bearer_auth(&token);
        send(request.header("content-type", kind).body(body))
    };
    const JSON: &str = "application/json";
    let padded = |length: usize| {
        let body = json!({ "queue": "duel" }).to_string();
        format!("{body}{}", " ".repeat(length - body.len()))
    };
    assert_eq!(post(JSON, padded(1024)).await.status, 201);
    assert_problem(&post(JSON, padded(1025)).await, 413);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        assert_problem(&post(kind, padded(100)).await, 415);
    }
    for (body, detail) in [
        ("{\"queue\":\"duel\"", "The body is not valid JSON: line 1, column 15."),
        ("", "The body is not valid JSON: line 1, column 0."),
        ("{\"queue\":1}", "`queue` must be a string."),
        ("{}", "`queue` is required."),
        ("{\"queue\":\"duel\",\"colour\":\"red\"}", "`colour` is not a known field."),
        ("[]", "expected an object"),
        ("1", "The body must be an object."),
        ("\u{feff}{}", "The body is not valid JSON: line 1, column 1."),
    ] {
        let problem = assert_problem(&post(JSON, body.to_owned()).await, 400);
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{body}: {problem}");
    }
    let problem = assert_problem(&post(JSON, json!({ "queue": "chess" }).to_string()).await, 400);
    assert!(problem["detail"].as_str().unwrap().contains("chess"), "{problem}");

    let uri = |length: usize| format!("/v1/client-config?{}", "x".repeat(length - 18));
    assert_eq!(send(gateway.get(&uri(8192))).await.status, 200);
    assert_problem(&send(gateway.get(&uri(8193))).await, 414);
    assert_problem(&send(gateway.get(&format!("/{}", "x".repeat(9_000)))).await, 414);
    let large = gateway.get("/v1/client-config").header("x-large", "x".repeat(17 * 1024));
    assert_eq!(send(large).await.status, 431);
}

/// Written to the socket, because the HTTP client sends no such request.
#[tokio::test(flavor = "multi_thread")]
async fn chunked_body_is_limited_too() {
    let gateway = Gateway::start("[gateway]\nmax_body = \"1KiB\"\n").await;
    let token = gateway.token("ada").await;
    let mut stream = TcpStream::connect(&gateway.at["gateway"]).await.unwrap();
    let head = format!(
        "POST /v1/matchmaking/tickets HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
    stream.write_all(chunk.repeat(2).as_bytes()).await.unwrap();
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_trusted_proxies_name_the_client() {
    let limit = "[gateway.limits]\naddress = \"1/m burst 3\"\n";
    let status = async |gateway: &Gateway, forwarded_for: &str| {
        send(gateway.get("/healthz").header("x-forwarded-for", forwarded_for)).await.status
    };
    for (trusted, expected) in [
        // All requests count for one address, whatever the header says.
        ("", [200, 200, 200, 429, 429, 429]),
        ("[listen]\ntrusted_proxies = [\"10.0.0.0/8\"]\n", [200, 200, 200, 429, 429, 429]),
        ("[listen]\ntrusted_proxies = [\"127.0.0.0/8\"]\n", [200, 200, 200, 429, 200, 429]),
    ] {
        let gateway = Gateway::start_with(&format!("{limit}{trusted}"), |program| program).await;
        let mut seen = Vec::new();
        // The proxy writes only the last address. One /64 of IPv6 is one address.
        for forwarded_for in [
            "192.0.2.1",
            "198.51.100.7, 192.0.2.1",
            "10.0.0.1,192.0.2.1",
            "192.0.2.1",
            "2001:db8::1",
            "192.0.2.1",
        ] {
            seen.push(status(&gateway, forwarded_for).await);
        }
        assert_eq!(seen, expected, "{trusted}");
        if trusted.contains("127.0.0.0") {
            for (forwarded_for, expected) in [
                ("2001:db8::2", 200),
                ("2001:db8::ffff", 200),
                ("2001:db8::3", 429),
                ("2001:db8:0:1::3", 200),
            ] {
                assert_eq!(status(&gateway, forwarded_for).await, expected, "{forwarded_for}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_body_gets_408() {
    let gateway = Gateway::start("[gateway]\nrequest_timeout = \"1s\"\npart_timeout = \"500ms\"\n").await;
    let token = gateway.token("ada").await;
    let mut socket = TcpStream::connect(&gateway.at["gateway"]).await.unwrap();
    let head = format!(
        "POST /v1/matchmaking/tickets HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: \
         application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    tokio::time::timeout(PATIENCE, socket.read_exact(&mut start)).await.unwrap().unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
}

/// A dual-stack listener sees IPv4 addresses as IPv4-mapped IPv6 addresses, which share one /64.
#[tokio::test(flavor = "multi_thread")]
async fn ipv4_clients_do_not_share_a_limit_on_a_dual_stack_listener() {
    let gateway = Gateway::start_with(
        "[listen]\ntrusted_proxies = [\"127.0.0.1\"]\n[gateway.limits]\naddress = \"1/h\"\nread = \"1/h\"\n",
        |program| program,
    )
    .await;
    let status = async |from: &str| {
        send(gateway.get("/v1/client-config").header("x-forwarded-for", from)).await.status
    };
    for (from, expected) in [
        ("::ffff:10.0.0.1", 200),
        ("10.0.0.1", 429),
        ("::ffff:10.0.0.2", 200),
        ("2001:db8::1", 200),
        ("2001:db8::2", 429),
        ("2001:db8:0:1::1", 200),
    ] {
        assert_eq!(status(from).await, expected, "{from}");
    }
}
