//! What keeps browsers and strangers from doing what they should not.

use std::collections::BTreeSet;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const SITE: &str = "https://www.example.com";

/// One answer of each kind.
async fn answers(door: &Door) -> Vec<(&'static str, Answer)> {
    let token = door.token("ada").await;
    let session = signed_in(&door.at["gateway"], "grace").await;
    let page = |path: &str| door.get(path).header("accept", "text/html");
    let refused =
        door.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).header("cookie", &session);
    vec![
        ("an answer of the API", sent(door.get("/v1/home").bearer_auth(&token)).await),
        ("the first page", sent(page("/")).await),
        ("the description", sent(page("/docs")).await),
        (
            "a page of the issuer",
            sent(door.client.get(sent(door.get("/login")).await.header("location"))).await,
        ),
        ("a style", sent(door.get("/assets/playhouse.css")).await),
        ("a script", sent(door.get("/assets/playhouse.js")).await),
        ("the document", sent(door.get("/openapi.json")).await),
        ("health", sent(door.get("/healthz")).await),
        ("a redirect", sent(door.get("/login")).await),
        ("a sign-in that failed", sent(door.get("/login/callback?state=x")).await),
        ("nobody", sent(door.get("/v1/me")).await),
        ("somebody who may not", sent(refused).await),
        ("a mistake", sent(door.get("/v1/entitlements?limit=x").bearer_auth(&token)).await),
        ("nothing there", sent(door.get("/nope")).await),
        ("another method", sent(door.client.put(door.url("/v1/me"))).await),
        ("nothing at the issuer", sent(door.get("/issuer/nope")).await),
        ("too long", sent(door.get(&format!("/v1/me?{}", "x".repeat(9_000)))).await),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_answer_is_hardened() {
    let door = Door::open("").await;
    for (what, answer) in answers(&door).await {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            // The gateway is found by http here, and a browser would not find it again.
            ("strict-transport-security", ""),
        ] {
            assert_eq!(answer.header(name), value, "{what}: {answer:?}");
        }
        let caching = if what.starts_with("a s") && answer.status == 200 { "no-cache" } else { "no-store" };
        assert_eq!(answer.header("cache-control"), caching, "{what}");
        assert!(!answer.header("x-request-id").is_empty(), "{what}");
        assert_eq!(answer.header("server"), "", "{what}: nobody needs to know");
        let policy = answer.header("content-security-policy");
        let directives: BTreeSet<&str> = policy.split(';').map(str::trim).collect();
        for needed in ["default-src 'none'", "frame-ancestors 'none'"] {
            assert!(directives.contains(needed), "{what}: {policy}");
        }
        for loose in ["unsafe", "*", "data:", "http:", "blob:"] {
            let is_loose = policy.replace("form-action 'self' http://127.0.0.1", "").contains(loose);
            assert!(!is_loose, "{what}: {policy}");
        }
        if answer.header("content-type").starts_with("text/html") {
            assert!(directives.contains("base-uri 'none'"), "{what}: {policy}");
            assert!(policy.contains("form-action"), "{what}: {policy}");
            // Nothing that the policy would keep from working.
            for inline in ["<style", "style=", "onclick", "onload", "javascript:"] {
                assert!(!answer.body.contains(inline), "{what}: {inline}");
            }
            for script in answer.body.split("<script").skip(1) {
                let (tag, rest) = script.split_once('>').unwrap();
                assert!(tag.contains(" src=\"/assets/") && rest.starts_with("</script>"), "{what}: {tag}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_players_come_by_https_they_always_do() {
    let door = Door::open("[gateway]\npublic_url = \"https://localhost:8443\"\n").await;
    for path in ["/", "/v1/me", "/nope", "/assets/playhouse.css", "/login"] {
        let answer = sent(door.get(path)).await;
        assert_eq!(answer.header("strict-transport-security"), "max-age=63072000", "{path}: {answer:?}");
    }
    let login = sent(door.get("/login").header("host", "localhost:8443")).await;
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
async fn pages_of_known_origins_may_call_and_no_others() {
    let door = Door::open(&format!("[gateway]\ncors_origins = [\"{SITE}\"]\n")).await;
    let closed = Door::open("").await;
    let session = signed_in(&door.at["gateway"], "ada").await;
    let token = door.token("ada").await;
    let from = |request: RequestBuilder, origin: &str| request.header("origin", origin);

    let preflight = |door: &Door, origin: &str| {
        let request = door.client.request(Method::OPTIONS, door.url("/v1/matchmaking/tickets"));
        let request = request.header("access-control-request-method", "POST");
        from(request.header("access-control-request-headers", "content-type,x-playhouse-csrf"), origin)
    };
    let allowed = sent(preflight(&door, SITE)).await;
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

    // Errors can be read too, or a page could not tell what is wrong.
    for (request, status) in [
        (door.get("/v1/me").header("cookie", &session), 200),
        (door.get("/v1/me").bearer_auth(&token), 200),
        (door.get("/v1/me"), 401),
        (door.get("/nope"), 404),
    ] {
        let answer = sent(from(request, SITE)).await;
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (status, SITE),
            "{answer:?}"
        );
        assert_eq!(answer.header("access-control-allow-credentials"), "true");
        assert!(answer.header("access-control-expose-headers").contains("retry-after"), "{answer:?}");
        assert!(answer.header("vary").contains("origin"), "{answer:?}");
    }
    for origin in
        ["https://evil.example", "https://www.example.com.evil.example", "http://www.example.com", "null"]
    {
        for (at, request) in [
            ("preflight", preflight(&door, origin)),
            ("call", from(door.get("/v1/me").header("cookie", &session), origin)),
        ] {
            let answer = sent(request).await;
            assert_eq!(answer.header("access-control-allow-origin"), "", "{at} of {origin}: {answer:?}");
        }
    }
    let nobody_known = sent(preflight(&closed, SITE)).await;
    assert_eq!((nobody_known.status, nobody_known.header("access-control-allow-origin")), (405, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_a_size_and_a_form() {
    let door = Door::open("[gateway]\nmax_body = \"1KiB\"\n").await;
    let token = door.token("ada").await;
    let post = |kind: &str, body: String| {
        let request = door.client.post(door.url("/v1/matchmaking/tickets")).bearer_auth(&token);
        sent(request.header("content-type", kind).body(body))
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
    for (body, said) in [
        ("{\"queue\":\"duel\"", "EOF while parsing an object at line 1 column 15"),
        ("", "EOF while parsing"),
        ("{\"queue\":1}", "queue: invalid type: integer `1`, expected a string"),
        ("{}", "missing field `queue`"),
        ("{\"queue\":\"duel\",\"colour\":\"red\"}", "unknown field `colour`"),
        ("[]", "expected an object"),
        ("1", "invalid type: integer `1`, expected an object"),
        ("\u{feff}{}", "expected value"),
    ] {
        let problem = assert_problem(&post(JSON, body.to_owned()).await, 400);
        assert!(problem["detail"].as_str().unwrap().contains(said), "{body}: {problem}");
    }
    let problem = assert_problem(&post(JSON, json!({ "queue": "chess" }).to_string()).await, 400);
    assert!(problem["detail"].as_str().unwrap().contains("chess"), "{problem}");

    let uri = |length: usize| format!("/v1/client-config?{}", "x".repeat(length - 18));
    assert_eq!(sent(door.get(&uri(8192))).await.status, 200);
    assert_problem(&sent(door.get(&uri(8193))).await, 414);
    assert_problem(&sent(door.get(&format!("/{}", "x".repeat(9_000)))).await, 414);
    let large = door.get("/v1/client-config").header("x-large", "x".repeat(17 * 1024));
    assert_eq!(sent(large).await.status, 431);
}

/// Sent as they stand, because a client would not.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_has_a_size_too() {
    let door = Door::open("[gateway]\nmax_body = \"1KiB\"\n").await;
    let token = door.token("ada").await;
    let mut stream = TcpStream::connect(&door.at["gateway"]).await.unwrap();
    let head = format!(
        "POST /v1/matchmaking/tickets HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
    stream.write_all(chunk.repeat(2).as_bytes()).await.unwrap();
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_proxies_of_ours_say_who_the_client_is() {
    let limit = "[gateway.limits]\naddress = \"1/m burst 3\"\n";
    let ask = async |door: &Door, said: &str| {
        let request = door.get("/healthz");
        let request = if said.is_empty() { request } else { request.header("x-forwarded-for", said) };
        sent(request).await.status
    };
    for (trusted, expected) in [
        // Everything is from one address, whatever is said.
        ("", [200, 200, 200, 429, 429, 429]),
        ("[listen]\ntrusted_proxies = [\"10.0.0.0/8\"]\n", [200, 200, 200, 429, 429, 429]),
        ("[listen]\ntrusted_proxies = [\"127.0.0.0/8\"]\n", [200, 200, 200, 429, 200, 429]),
    ] {
        let door = Door::with(&format!("{limit}{trusted}"), |program| program).await;
        let mut seen = Vec::new();
        // Only the last one is written by the proxy; and one /64 of IPv6 is one address.
        for said in [
            "192.0.2.1",
            "198.51.100.7, 192.0.2.1",
            "10.0.0.1,192.0.2.1",
            "192.0.2.1",
            "2001:db8::1",
            "192.0.2.1",
        ] {
            seen.push(ask(&door, said).await);
        }
        assert_eq!(seen, expected, "{trusted}");
        if trusted.contains("127.0.0.0") {
            for (said, status) in [
                ("2001:db8::2", 200),
                ("2001:db8::ffff", 200),
                ("2001:db8::3", 429),
                ("2001:db8:0:1::3", 200),
            ] {
                assert_eq!(ask(&door, said).await, status, "{said}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_is_the_clients_delay_and_not_ours() {
    let door = Door::open("[gateway]\nrequest_timeout = \"1s\"\npart_timeout = \"500ms\"\n").await;
    let token = door.token("ada").await;
    let mut socket = TcpStream::connect(&door.at["gateway"]).await.unwrap();
    let head = format!(
        "POST /v1/matchmaking/tickets HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: \
         application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    tokio::time::timeout(PATIENCE, socket.read_exact(&mut start)).await.unwrap().unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
}

/// On a listener for both, addresses of IPv4 are written as ones of IPv6, and are not all the same for that.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_ipv4_do_not_share_a_limit_on_a_listener_for_both() {
    let door = Door::with(
        "[listen]\ntrusted_proxies = [\"127.0.0.1\"]\n[gateway.limits]\naddress = \"1/h\"\nread = \"1/h\"\n",
        |program| program,
    )
    .await;
    let ask =
        async |from: &str| sent(door.get("/v1/client-config").header("x-forwarded-for", from)).await.status;
    for (from, status) in [
        ("::ffff:10.0.0.1", 200),
        ("10.0.0.1", 429),
        ("::ffff:10.0.0.2", 200),
        ("2001:db8::1", 200),
        ("2001:db8::2", 429),
        ("2001:db8:0:1::1", 200),
    ] {
        assert_eq!(ask(from).await, status, "{from}");
    }
}
