//! Every route: who may call it, and what the others are told.

use std::collections::BTreeSet;

use playhouse::gateway_rows as rows;
use service::{Row, Who};

use super::*;
use testkit::issuer::{Issuer, Signer, now};

const REALM: &str = "Bearer realm=\"playhouse\"";

/// The rows that ask who calls.
fn guarded() -> impl Iterator<Item = Row> {
    rows().into_iter().filter(|row| row.who != Who::Anyone)
}

fn named(row: &Row) -> String {
    format!("{} {}", row.method, row.path)
}

#[test]
fn who_may_call_what() {
    let line = |row: &Row| {
        let (method, who) = (row.method, format!("{:?}", row.who));
        format!("{method:<7} {:<44} {who:<9} {:?}", row.path, row.class)
    };
    let table: Vec<String> = rows().iter().map(line).collect();
    insta::assert_snapshot!(table.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_of_the_routes_that_there_are() {
    let door = Door::open("").await;
    let document = sent(door.get("/openapi.json")).await.json();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<String> = paths
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let there: BTreeSet<String> =
        rows().iter().filter(|row| row.path.starts_with("/v1/")).map(named).collect();
    assert_eq!(described, there);
    // What is open to anybody says so, and nothing else does.
    for row in rows().iter().filter(|row| row.path.starts_with("/v1/")) {
        let operation = &document["paths"][row.path][row.method.to_string().to_lowercase()];
        let is_open = operation["security"] == json!([{}]);
        assert_eq!(is_open, row.who == Who::Anyone, "{}", named(row));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_in_without_a_proof() {
    let door = Door::open("").await;
    for row in guarded() {
        for cookie in
            [None, Some("playhouse=bWFkZSB1cA"), Some("playhouse="), Some("playhouse=a; playhouse=a")]
        {
            let request =
                cookie.iter().fold(door.ask(&row), |request, cookie| request.header("cookie", *cookie));
            let answer = sent(request.header("x-playhouse-csrf", "1")).await;
            assert_problem(&answer, 401);
            assert_eq!(answer.header("www-authenticate"), REALM, "{}: {cookie:?}", named(&row));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_expired_is_refused_and_the_caller_is_told() {
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    let door = Door::of(&issuer, "").await;
    let mut claims = issuer.claims("ada");
    claims["exp"] = (now() - 60).into();
    let token = signer.sign(&claims);
    for row in guarded() {
        let answer = sent(door.ask(&row).bearer_auth(&token)).await;
        assert_problem(&answer, 401);
        let expected =
            format!("{REALM}, error=\"invalid_token\", error_description=\"the token has expired\"");
        assert_eq!(answer.header("www-authenticate"), expected, "{}", named(&row));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_no_player() {
    let door = Door::open("").await;
    let token = door.token_as("shop", "service").await;
    for row in guarded() {
        let answer = sent(door.ask(&row).bearer_auth(&token)).await;
        match row.who {
            Who::Player => {
                assert_problem(&answer, 403);
                assert!(answer.header("ratelimit").contains(";r="), "{}: {answer:?}", named(&row));
            }
            _ => assert_eq!(answer.status, 200, "{}: {answer:?}", named(&row)),
        }
    }
    let me = sent(door.get("/v1/me").bearer_auth(&token)).await.json();
    assert_eq!(me["roles"], json!(["service"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_banned_is_told_why() {
    let door = Door::open("[gateway]\nuser_cache = \"0s\"\n").await;
    let session = signed_in(&door.at["gateway"], "ada").await;
    let token = door.token("ada").await;
    let me = sent(door.get("/v1/me").bearer_auth(&token)).await.json();
    let ban = format!("/users/{}/ban", me["user_id"].as_str().unwrap());
    let banned = door.shop().status_of_post(&ban, &json!({ "reason": "aims too well" })).await;
    assert!((200..300).contains(&banned), "{banned}");
    for row in guarded() {
        let by_token = door.ask(&row).bearer_auth(&token);
        let by_session = door.ask(&row).header("cookie", &session).header("x-playhouse-csrf", "1");
        for request in [by_token, by_session] {
            let problem = assert_problem(&sent(request).await, 403);
            assert_eq!(problem["detail"], "This account is banned: aims too well", "{}", named(&row));
        }
    }
    // Nor do they get in anew, and the page says the same.
    let (attempt, back) = picked(&door.at["gateway"], "ada").await;
    let refused = sent(door.client.get(back).header("cookie", attempt)).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("aims too well") && refused.cookie("playhouse=").is_none(), "{refused:?}");

    // When the ban is lifted, a token is good again; the session has ended with the ban.
    door.shop().status_of_post(&ban.replace("/ban", "/unban"), &json!({})).await;
    let by_session = async |session: &str| sent(door.get("/v1/me").header("cookie", session)).await.status;
    assert_eq!(sent(door.get("/v1/me").bearer_auth(&token)).await.status, 200);
    assert_eq!(by_session(&session).await, 401);
    let again = signed_in(&door.at["gateway"], "ada").await;
    assert_eq!(by_session(&again).await, 200);

    // All of them end without a ban, too.
    door.shop().status_of_post(&ban.replace("/ban", "/end-sessions"), &json!({})).await;
    assert_eq!(by_session(&again).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_ends_open_streams() {
    let door = Door::open("[gateway]\nuser_cache = \"0s\"\nstream_heartbeat = \"100ms\"\n").await;
    let session = signed_in(&door.at["gateway"], "ada").await;
    let token = door.token("ada").await;
    let ticket =
        sent(door.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).bearer_auth(&token)).await;
    let path = format!("/v1/matchmaking/tickets/{}/stream", ticket.json()["ticket_id"].as_str().unwrap());
    let by_token = door.get(&path).bearer_auth(&token).send().await.unwrap();
    let by_session = door.get(&path).header("cookie", &session).send().await.unwrap();
    let me = sent(door.get("/v1/me").bearer_auth(&token)).await.json();
    let ban = format!("/users/{}/ban", me["user_id"].as_str().unwrap());
    door.shop().status_of_post(&ban, &json!({ "reason": "aims too well" })).await;
    for stream in [by_token, by_session] {
        let events = tokio::time::timeout(PATIENCE, stream.text()).await.unwrap().unwrap();
        assert!(
            events.trim_end().ends_with("event: end\ndata: {\"why\":\"the session has ended\"}"),
            "{events}"
        );
    }
}

/// Through a proxy that tells its name, or by a name that somebody else's DNS leads here.
#[tokio::test(flavor = "multi_thread")]
async fn the_builtin_issuer_is_found_on_this_machine_only() {
    let door = Door::open("").await;
    let discovery = "/issuer/.well-known/openid-configuration";
    for (host, status) in
        [("localhost", 200), ("127.0.0.1:8080", 200), ("play.example.com", 403), ("evil.example:80", 403)]
    {
        assert_eq!(sent(door.get(discovery).header("host", host)).await.status, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_returns_to_places_of_ours_of_sensible_length() {
    let door = Door::open("[gateway]\ncors_origins = [\"https://www.example.com\"]\n").await;
    let long = format!("/{}", "a".repeat(1024));
    for (place, ends_at) in [
        ("/docs?x=1", "/docs?x=1"),
        ("https://www.example.com/lobby", "https://www.example.com/lobby"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        (&long, "/"),
    ] {
        let url = Url::parse_with_params(&door.url("/login"), [("return_to", place)]).unwrap();
        let (attempt, back) = picked_from(door.client.get(url), "ada").await;
        let ended = sent(door.client.get(back).header("cookie", attempt)).await;
        assert_eq!(ended.header("location"), ends_at, "{place}");
    }
}

/// RFC 9207: our issuer says that it names itself, so an answer that does not is from somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_names_another_issuer_signs_nobody_in() {
    let door = Door::open("").await;
    let gateway = &door.at["gateway"];
    for other in [None, Some("https://evil.example".to_owned()), Some(format!("http://{gateway}/issuer/"))] {
        let (attempt, back) = picked(gateway, "ada").await;
        let kept = back.query_pairs().into_owned().filter(|(name, _)| name != "iss");
        let answer: Vec<(String, String)> = kept.chain(other.map(|iss| ("iss".to_owned(), iss))).collect();
        let mut forged = back.clone();
        forged.query_pairs_mut().clear().extend_pairs(answer);
        let refused = sent(door.client.get(forged).header("cookie", &attempt)).await;
        assert_eq!((refused.status, refused.cookie("playhouse=")), (403, None), "{refused:?}");
        // Nobody but the issuer was told the code, so it is still good.
        let ended = sent(door.client.get(back).header("cookie", &attempt)).await;
        assert_eq!(ended.status, 303, "{ended:?}");
    }
}

/// What is somebody else's and what does not exist look the same, but for the id that was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_is_not_there() {
    let door = Door::open("").await;
    let (ada, grace) = (door.token("ada").await, door.token("grace").await);
    let ticket =
        sent(door.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).bearer_auth(&grace)).await;
    assert_eq!(ticket.status, 201, "{ticket:?}");
    let theirs = ticket.json()["ticket_id"].as_str().unwrap().to_owned();
    // An id of the same form that nobody has.
    let nobodys: String = theirs
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
    assert_ne!(theirs, nobodys);
    let account = sent(door.get("/v1/accounts").bearer_auth(&grace)).await.json();
    let account = account["accounts"][0]["account_id"].as_str().unwrap().to_owned();
    let no_account = "01a1e4c0-0000-7000-8000-000000000001".to_owned();
    for (method, path, theirs, nobodys) in [
        (Method::GET, "/v1/matchmaking/tickets/ID", &theirs, &nobodys),
        (Method::GET, "/v1/matchmaking/tickets/ID/stream", &theirs, &nobodys),
        (Method::DELETE, "/v1/matchmaking/tickets/ID", &theirs, &nobodys),
        (Method::GET, "/v1/entitlements?account_id=ID", &account, &no_account),
    ] {
        let ask = async |id: &String| {
            let url = door.url(&path.replace("ID", id));
            let mut answer = sent(door.client.request(method.clone(), url).bearer_auth(&ada)).await;
            if method != Method::DELETE {
                assert_problem(&answer, 404);
            }
            let request = answer.header("x-request-id").to_owned();
            for same in ["x-request-id", "ratelimit", "date"] {
                answer.headers.remove(same);
            }
            format!("{answer:?}").replace(&request, "REQUEST").replace(id, "ID")
        };
        assert_eq!(ask(theirs).await, ask(nobodys).await, "{method} {path}");
    }
    let kept = sent(door.get(&format!("/v1/matchmaking/tickets/{theirs}")).bearer_auth(&grace)).await;
    assert_eq!(kept.json()["state"], "WAITING", "somebody else has taken it back");
}

/// Whether the guard let a request through: it is done, or the handler of drops says that there is no such drop.
fn is_handled(answer: &Answer) -> bool {
    (200..300).contains(&answer.status) || answer.body.contains("urn:playhouse:problem:drops:")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_changes_nothing() {
    let door = Door::open("[gateway]\ncors_origins = [\"https://www.example.com\"]\n").await;
    let gateway = &door.at["gateway"];
    let session = signed_in(gateway, "ada").await;
    for row in guarded().filter(|row| !row.method.is_safe()) {
        let ask = || door.ask(&row).header("cookie", &session);
        let foreign = ["https://evil.example", "null", "", "https://www.example.com.evil.example"];
        let without = sent(ask()).await;
        let problem = assert_problem(&without, 403);
        assert!(problem["detail"].as_str().unwrap().contains("x-playhouse-csrf: 1"), "{problem}");
        for origin in foreign {
            let request = ask().header("x-playhouse-csrf", "1").header("origin", origin);
            assert_problem(&sent(request).await, 403);
        }
        let ours = format!("http://{gateway}");
        for origin in [None, Some(ours.as_str()), Some("https://www.example.com")] {
            let request = ask().header("x-playhouse-csrf", "1");
            let request = origin.iter().fold(request, |request, origin| request.header("origin", *origin));
            let answer = sent(request).await;
            assert!(is_handled(&answer), "{}: {answer:?}", named(&row));
        }
        // A token is not sent by a browser on its own.
        let token = door.token("grace").await;
        let answer = sent(door.ask(&row).bearer_auth(&token).header("origin", "https://evil.example")).await;
        assert!(is_handled(&answer), "{}: {answer:?}", named(&row));
    }
    // Reading needs nothing.
    assert_eq!(sent(door.get("/v1/me").header("cookie", &session)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_a_problem_as_well() {
    let door = Door::open("").await;
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
            assert_problem(&sent(door.client.request(method, door.url(path))).await, 404);
        }
    }
    let paths: BTreeSet<&str> = rows().iter().map(|row| row.path).collect();
    for path in paths.into_iter().chain(["/issuer/token", "/issuer/authorize"]) {
        let there: BTreeSet<String> =
            rows().iter().filter(|row| row.path == path).map(|row| row.method.to_string()).collect();
        let answer = sent(door.client.request(Method::PUT, door.url(&path.replace(['{', '}'], "")))).await;
        assert_problem(&answer, 405);
        let allowed: BTreeSet<String> = answer
            .header("allow")
            .split(',')
            .map(str::trim)
            .filter(|word| *word != "HEAD")
            .map(ToOwned::to_owned)
            .collect();
        assert!(!allowed.is_empty() && there.is_subset(&allowed), "{path}: {answer:?}");
        assert!(path.starts_with("/issuer/") || there == allowed, "{path}: {answer:?}");
    }
    let token = door.token("ada").await;
    for path in [
        "/v1/matchmaking/tickets/%FF",
        "/v1/entitlements?account_id=1",
        "/v1/entitlements?limit=all",
        "/v1/entitlements?all=1&all=1",
        "/login?return_to=a&return_to=b",
        "/login/callback?state=a&state=b",
        "/logout?session=a&session=b",
    ] {
        assert_problem(&sent(door.get(path).bearer_auth(&token)).await, 400);
    }
}
