//! Every route: who may call it, and how other callers are refused.

use std::collections::BTreeSet;

use playhouse::gateway_rows as rows;
use service::{AllowedCallers, Row};

use super::*;
use testkit::issuer::{Issuer, Signer, now};

const REALM: &str = "Bearer realm=\"playhouse\"";

/// The rows that need credentials.
fn guarded() -> impl Iterator<Item = Row> {
    rows().into_iter().filter(|row| row.callers != AllowedCallers::Anyone)
}

fn named(row: &Row) -> String {
    format!("{} {}", row.method, row.path)
}

#[test]
fn allowed_callers_of_every_route() {
    let line = |row: &Row| {
        let (method, callers) = (row.method, format!("{:?}", row.callers));
        format!("{method:<7} {:<44} {callers:<9} {:?}", row.path, row.class)
    };
    let table: Vec<String> = rows().iter().map(line).collect();
    insta::assert_snapshot!(table.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_document_describes_every_route() {
    let gateway = Gateway::start("").await;
    let document = send(gateway.get("/openapi.json")).await.json();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<String> = paths
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let existing: BTreeSet<String> =
        rows().iter().filter(|row| row.path.starts_with("/v1/")).map(named).collect();
    assert_eq!(described, existing);
    // Exactly the open routes are described as open.
    for row in rows().iter().filter(|row| row.path.starts_with("/v1/")) {
        let operation = &document["paths"][row.path][row.method.to_string().to_lowercase()];
        let is_open = operation["security"] == json!([{}]);
        assert_eq!(is_open, row.callers == AllowedCallers::Anyone, "{}", named(row));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guarded_routes_need_credentials() {
    let gateway = Gateway::start("").await;
    for row in guarded() {
        for cookie in
            [None, Some("playhouse=bWFkZSB1cA"), Some("playhouse="), Some("playhouse=a; playhouse=a")]
        {
            let request = cookie
                .iter()
                .fold(gateway.request(&row), |request, cookie| request.header("cookie", *cookie));
            let response = send(request.header("x-playhouse-csrf", "1")).await;
            assert_problem(&response, 401);
            assert_eq!(response.header("www-authenticate"), REALM, "{}: {cookie:?}", named(&row));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_token_is_refused_with_a_reason() {
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    let gateway = Gateway::with_issuer(&issuer, "").await;
    let mut claims = issuer.claims("ada");
    claims["exp"] = (now() - 60).into();
    let token = signer.sign(&claims);
    for row in guarded() {
        let response = send(gateway.request(&row).bearer_auth(&token)).await;
        assert_problem(&response, 401);
        let expected =
            format!("{REALM}, error=\"invalid_token\", error_description=\"the token has expired\"");
        assert_eq!(response.header("www-authenticate"), expected, "{}", named(&row));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_cannot_use_player_routes() {
    let gateway = Gateway::start("").await;
    let token = gateway.token_as("shop", "service").await;
    for row in guarded() {
        let response = send(gateway.request(&row).bearer_auth(&token)).await;
        match row.callers {
            AllowedCallers::Player => {
                assert_problem(&response, 403);
                assert!(response.header("ratelimit").contains(";r="), "{}: {response:?}", named(&row));
            }
            _ => assert_eq!(response.status, 200, "{}: {response:?}", named(&row)),
        }
    }
    let me = send(gateway.get("/v1/me").bearer_auth(&token)).await.json();
    assert_eq!(me["roles"], json!(["service"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn banned_player_gets_the_reason() {
    let gateway = Gateway::start("[gateway]\nuser_cache = \"0s\"\n").await;
    let session = session_cookie(&gateway.at["gateway"], "ada").await;
    let token = gateway.token("ada").await;
    let me = send(gateway.get("/v1/me").bearer_auth(&token)).await.json();
    let ban = format!("/users/{}/ban", me["user_id"].as_str().unwrap());
    let banned = gateway.shop().status_of_post(&ban, &json!({ "reason": "aims too well" })).await;
    assert!((200..300).contains(&banned), "{banned}");
    for row in guarded() {
        let by_token = gateway.request(&row).bearer_auth(&token);
        let by_session = gateway.request(&row).header("cookie", &session).header("x-playhouse-csrf", "1");
        for request in [by_token, by_session] {
            let problem = assert_problem(&send(request).await, 403);
            assert_eq!(problem["detail"], "This account is banned: aims too well", "{}", named(&row));
        }
    }
    // A new sign-in fails with the same reason.
    let (attempt, back) = choose_user(&gateway.at["gateway"], "ada").await;
    let refused = send(gateway.client.get(back).header("cookie", attempt)).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("aims too well") && refused.cookie("playhouse=").is_none(), "{refused:?}");

    // After the ban a token is valid again. The session ended with the ban.
    gateway.shop().status_of_post(&ban.replace("/ban", "/unban"), &json!({})).await;
    let by_session = async |session: &str| send(gateway.get("/v1/me").header("cookie", session)).await.status;
    assert_eq!(send(gateway.get("/v1/me").bearer_auth(&token)).await.status, 200);
    assert_eq!(by_session(&session).await, 401);
    let again = session_cookie(&gateway.at["gateway"], "ada").await;
    assert_eq!(by_session(&again).await, 200);

    // All sessions can be ended without a ban.
    gateway.shop().status_of_post(&ban.replace("/ban", "/end-sessions"), &json!({})).await;
    assert_eq!(by_session(&again).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn ban_ends_open_streams() {
    let gateway = Gateway::start("[gateway]\nuser_cache = \"0s\"\nstream_heartbeat = \"100ms\"\n").await;
    let session = session_cookie(&gateway.at["gateway"], "ada").await;
    let token = gateway.token("ada").await;
    let ticket =
        send(gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).bearer_auth(&token)).await;
    let path = format!("/v1/matchmaking/tickets/{}/stream", ticket.json()["ticket_id"].as_str().unwrap());
    let by_token = gateway.get(&path).bearer_auth(&token).send().await.unwrap();
    let by_session = gateway.get(&path).header("cookie", &session).send().await.unwrap();
    let me = send(gateway.get("/v1/me").bearer_auth(&token)).await.json();
    let ban = format!("/users/{}/ban", me["user_id"].as_str().unwrap());
    gateway.shop().status_of_post(&ban, &json!({ "reason": "aims too well" })).await;
    for stream in [by_token, by_session] {
        let events = tokio::time::timeout(PATIENCE, stream.text()).await.unwrap().unwrap();
        assert!(
            events
                .trim_end()
                .ends_with("event: end\ndata: {\"code\":\"banned\",\"why\":\"this account is banned\"}"),
            "{events}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_sign_in_of_the_browser_replaces_its_session_on_open_streams() {
    let gateway = Gateway::start("").await;
    let at = &gateway.at["gateway"];
    let old = session_cookie(at, "ada").await;
    let stream = gateway.get("/v1/stream").header("cookie", &old).send().await.unwrap();
    let (attempt, callback) = choose_user(at, "grace").await;
    let ended = send(plain_client().get(callback).header("cookie", format!("{attempt}; {old}"))).await;
    assert_eq!(ended.status, 303, "{ended:?}");
    let events = tokio::time::timeout(PATIENCE, stream.text()).await.unwrap().unwrap();
    let end = "event: end\ndata: {\"code\":\"replaced\",\"why\":\"the same browser signed in again\"}";
    assert!(events.trim_end().ends_with(end), "{events}");
}

/// Refuses the host names of proxies and of DNS rebinding.
#[tokio::test(flavor = "multi_thread")]
async fn builtin_issuer_answers_only_to_local_host_names() {
    let gateway = Gateway::start("").await;
    let discovery = "/issuer/.well-known/openid-configuration";
    for (host, status) in
        [("localhost", 200), ("127.0.0.1:8080", 200), ("play.example.com", 403), ("evil.example:80", 403)]
    {
        assert_eq!(send(gateway.get(discovery).header("host", host)).await.status, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_returns_only_to_allowed_urls() {
    let gateway = Gateway::start("[gateway]\ncors_origins = [\"https://www.example.com\"]\n").await;
    let long = format!("/{}", "a".repeat(1024));
    for (return_to, location) in [
        ("/docs?x=1", "/docs?x=1"),
        ("https://www.example.com/lobby", "https://www.example.com/lobby"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        (&long, "/"),
    ] {
        let url = Url::parse_with_params(&gateway.url("/login"), [("return_to", return_to)]).unwrap();
        let (attempt, back) = choose_user_from(gateway.client.get(url), "ada").await;
        let ended = send(gateway.client.get(back).header("cookie", attempt)).await;
        assert_eq!(ended.header("location"), location, "{return_to}");
    }
}

/// RFC 9207: the builtin issuer announces the parameter `iss`, so a callback without it comes from elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn callback_of_another_issuer_is_refused() {
    let gateway = Gateway::start("").await;
    let address = &gateway.at["gateway"];
    for other in [None, Some("https://evil.example".to_owned()), Some(format!("http://{address}/issuer/"))] {
        let (attempt, back) = choose_user(address, "ada").await;
        let kept = back.query_pairs().into_owned().filter(|(name, _)| name != "iss");
        let parameters: Vec<(String, String)> =
            kept.chain(other.map(|iss| ("iss".to_owned(), iss))).collect();
        let mut forged = back.clone();
        forged.query_pairs_mut().clear().extend_pairs(parameters);
        let refused = send(gateway.client.get(forged).header("cookie", &attempt)).await;
        assert_eq!((refused.status, refused.cookie("playhouse=")), (403, None), "{refused:?}");
        // The code was not sent to anyone, so it is still valid.
        let ended = send(gateway.client.get(back).header("cookie", &attempt)).await;
        assert_eq!(ended.status, 303, "{ended:?}");
    }
}

/// Responses for another player's ids and for unknown ids differ only in the id.
#[tokio::test(flavor = "multi_thread")]
async fn data_of_other_players_looks_missing() {
    let gateway = Gateway::start("").await;
    let (ada, grace) = (gateway.token("ada").await, gateway.token("grace").await);
    let ticket =
        send(gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).bearer_auth(&grace)).await;
    assert_eq!(ticket.status, 201, "{ticket:?}");
    let theirs = ticket.json()["ticket_id"].as_str().unwrap().to_owned();
    // An unknown id of the same form.
    let unknown: String = theirs
        .char_indices()
        .map(|(at, c)| {
            if at != 5 {
                c
            } else if c == '0' {
                '1'
            } else {
                '0'
            }
        })
        .collect();
    assert_ne!(theirs, unknown);
    let account = send(gateway.get("/v1/accounts").bearer_auth(&grace)).await.json();
    let account = account["accounts"][0]["account_id"].as_str().unwrap().to_owned();
    let no_account = "01a1e4c0-0000-7000-8000-000000000001".to_owned();
    for (method, path, theirs, unknown) in [
        (Method::GET, "/v1/matchmaking/tickets/ID", &theirs, &unknown),
        (Method::GET, "/v1/matchmaking/tickets/ID/stream", &theirs, &unknown),
        (Method::DELETE, "/v1/matchmaking/tickets/ID", &theirs, &unknown),
        (Method::POST, "/v1/matchmaking/tickets/ID/accept", &theirs, &unknown),
        (Method::POST, "/v1/matchmaking/tickets/ID/decline", &theirs, &unknown),
        (Method::GET, "/v1/entitlements?account_id=ID", &account, &no_account),
    ] {
        let response_for = async |id: &String| {
            let url = gateway.url(&path.replace("ID", id));
            let mut response = send(gateway.client.request(method.clone(), url).bearer_auth(&ada)).await;
            if method != Method::DELETE {
                assert_problem(&response, 404);
            }
            let request = response.header("x-request-id").to_owned();
            for varying in ["x-request-id", "ratelimit", "date"] {
                response.headers.remove(varying);
            }
            format!("{response:?}").replace(&request, "REQUEST").replace(id, "ID")
        };
        assert_eq!(response_for(theirs).await, response_for(unknown).await, "{method} {path}");
    }
    let kept = send(gateway.get(&format!("/v1/matchmaking/tickets/{theirs}")).bearer_auth(&grace)).await;
    assert_eq!(kept.json()["state"], "WAITING", "another player cancelled the ticket");
}

/// Returns whether the guard passed a request on: it succeeded, or a handler of drops, parties or matchmaking refused it.
fn is_handled(response: &TestResponse) -> bool {
    let refusals = ["urn:playhouse:problem:drops:", "urn:playhouse:problem:parties:", "there is no ticket"];
    (200..300).contains(&response.status) || refusals.iter().any(|refusal| response.body.contains(refusal))
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_page_cannot_change_anything() {
    let gateway = Gateway::start("[gateway]\ncors_origins = [\"https://www.example.com\"]\n").await;
    let address = &gateway.at["gateway"];
    let session = session_cookie(address, "ada").await;
    for row in guarded().filter(|row| !row.method.is_safe()) {
        let with_session = || gateway.request(&row).header("cookie", &session);
        let foreign = ["https://evil.example", "null", "", "https://www.example.com.evil.example"];
        let without = send(with_session()).await;
        let problem = assert_problem(&without, 403);
        assert!(problem["detail"].as_str().unwrap().contains("x-playhouse-csrf: 1"), "{problem}");
        for origin in foreign {
            let request = with_session().header("x-playhouse-csrf", "1").header("origin", origin);
            assert_problem(&send(request).await, 403);
        }
        let own = format!("http://{address}");
        for origin in [None, Some(own.as_str()), Some("https://www.example.com")] {
            let request = with_session().header("x-playhouse-csrf", "1");
            let request = origin.iter().fold(request, |request, origin| request.header("origin", *origin));
            let response = send(request).await;
            assert!(is_handled(&response), "{}: {response:?}", named(&row));
        }
        // Browsers do not send tokens on their own, so a token needs no header.
        let token = gateway.token("grace").await;
        let response =
            send(gateway.request(&row).bearer_auth(&token).header("origin", "https://evil.example")).await;
        assert!(is_handled(&response), "{}: {response:?}", named(&row));
    }
    // Reads need no header.
    assert_eq!(send(gateway.get("/v1/me").header("cookie", &session)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_get_problem_documents() {
    let gateway = Gateway::start("").await;
    for path in [
        "/nope",
        "/v1",
        "/v1/",
        "/v1/nope",
        "/v1/me/",
        "/assets/nope.css",
        "/assets/a/b",
        "/issuer/nope",
        "/issuer",
    ] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            if method != Method::GET && path == "/assets/nope.css" {
                continue;
            }
            assert_problem(&send(gateway.client.request(method, gateway.url(path))).await, 404);
        }
    }
    let paths: BTreeSet<&str> = rows().iter().map(|row| row.path).collect();
    for path in paths.into_iter().chain(["/issuer/token", "/issuer/authorize"]) {
        let existing: BTreeSet<String> =
            rows().iter().filter(|row| row.path == path).map(|row| row.method.to_string()).collect();
        let response =
            send(gateway.client.request(Method::PUT, gateway.url(&path.replace(['{', '}'], "")))).await;
        assert_problem(&response, 405);
        let allowed: BTreeSet<String> = response
            .header("allow")
            .split(',')
            .map(str::trim)
            .filter(|word| *word != "HEAD")
            .map(ToOwned::to_owned)
            .collect();
        assert!(!allowed.is_empty() && existing.is_subset(&allowed), "{path}: {response:?}");
        assert!(path.starts_with("/issuer/") || existing == allowed, "{path}: {response:?}");
    }
    let token = gateway.token("ada").await;
    for path in [
        "/v1/matchmaking/tickets/%FF",
        "/v1/entitlements?account_id=1",
        "/v1/entitlements?limit=all",
        "/v1/entitlements?all=1&all=1",
        "/login?return_to=a&return_to=b",
        "/login/callback?state=a&state=b",
        "/logout?session=a&session=b",
    ] {
        assert_problem(&send(gateway.get(path).bearer_auth(&token)).await, 400);
    }
}
