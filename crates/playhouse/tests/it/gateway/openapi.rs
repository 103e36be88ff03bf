//! The gateway behaves as its OpenAPI document says.

use std::collections::BTreeSet;

use testkit::eventually;

use super::*;

/// Checks a value against a schema: types, required fields and allowed values.
fn check(document: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = document.pointer(reference.trim_start_matches('#')).unwrap();
        return check(document, schema, value, place);
    }
    for all in schema["allOf"].as_array().into_iter().flatten() {
        check(document, all, value, place)?;
    }
    for choice in ["oneOf", "anyOf"] {
        let Some(options) = schema[choice].as_array() else { continue };
        let tried: Vec<_> = options.iter().map(|option| check(document, option, value, place)).collect();
        if !tried.iter().any(Result::is_ok) {
            return Err(format!("{place} matches no alternative: {tried:?}"));
        }
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{place} is {value}, none of {words:?}"));
    }
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{place}: unknown type {other}"),
    };
    let fits = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    };
    if !fits {
        return Err(format!("{place} is {value}, not {}", schema["type"]));
    }
    if let Some(fields) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(name.as_str().unwrap()) {
                return Err(format!("{place} lacks {name}"));
            }
        }
        for (name, field) in fields {
            let described = &schema["properties"][name];
            let described = if described.is_null() { &schema["additionalProperties"] } else { described };
            if described.is_object() {
                check(document, described, field, &format!("{place}.{name}"))?;
            // A problem may have extension members.
            } else if schema["properties"].is_object()
                && described.is_null()
                && schema["properties"]["request_id"].is_null()
            {
                return Err(format!("{place} has {name}, which is not described"));
            }
        }
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        check(document, &schema["items"], item, &format!("{place}[{at}]"))?;
    }
    Ok(())
}

/// Returns the example body of a request, if it has a body.
fn example(document: &Value, operation: &Value) -> Option<Value> {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    if schema.is_null() {
        return None;
    }
    let schema = schema["$ref"].as_str().map_or(schema, |place| document.pointer(&place[1..]).unwrap());
    assert!(!schema["example"].is_null(), "a request without an example: {schema}");
    Some(schema["example"].clone())
}

/// Asserts that the document describes the response, with this schema.
pub(super) fn check_response(document: &Value, operation: &Value, what: &str, response: &TestResponse) {
    let described = &operation["responses"][response.status.to_string()];
    assert!(described.is_object(), "{what} is not described: {response:?}");
    let kind = response.header("content-type").split(';').next().unwrap();
    if let Some(content) = described["content"].as_object() {
        let schema = content.get(kind).unwrap_or_else(|| panic!("{what} is {kind}: {response:?}"));
        check(document, &schema["schema"], &response.json(), "the response")
            .unwrap_or_else(|why| panic!("{what}: {why}"));
    } else {
        assert!(response.body.is_empty(), "{what}: {response:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_works_and_every_response_is_described() {
    let gateway = Gateway::start("[gateway.platforms.ios]\nmin_version = \"1.0\"\n").await;
    let token = gateway.token("ada").await;
    let me = send(gateway.get("/v1/me").bearer_auth(&token)).await.json();
    let customer = shop::Customer {
        user: me["user_id"].as_str().unwrap().to_owned(),
        account: me["accounts"][0]["account_id"].as_str().unwrap().to_owned(),
    };
    gateway.shop().buy(&customer, "gems", "order-1").await;
    let session = session_cookie(&gateway.at["gateway"], "grace").await;
    let document = send(gateway.get("/openapi.json")).await.json();
    assert_eq!(document["openapi"].as_str().unwrap().split('.').take(2).collect::<Vec<_>>(), ["3", "1"]);

    // Operations that create something run first, those that delete it last.
    let order = ["post", "get", "delete"];
    let operations = document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, operation)| (path, method, operation))
    });
    // Operations on drops need an admission, a key or a signature: `gateway::drops` checks their responses. Those on parties
    // need several players, as below.
    let mut operations: Vec<_> = operations
        .filter(|(_, _, operation)| operation["tags"][0] != "drops" && operation["tags"][0] != "parties")
        .collect();
    operations.sort_by_key(|(_, method, _)| order.iter().position(|known| known == method).unwrap());
    let notification = eventually("the player is notified of the purchase", PATIENCE, async || {
        let inbox = send(gateway.get("/v1/notifications").bearer_auth(&token)).await.json();
        inbox["notifications"][0]["notification_id"].as_str().map(ToOwned::to_owned)
    })
    .await;
    let (mut ticket, mut examples) = (String::new(), 0);
    for (path, method, operation) in operations {
        let method: Method = method.to_uppercase().parse().unwrap();
        let body = example(&document, operation);
        let request_for = |ticket: &str, notification: &str| {
            let path = path.replace("{ticket_id}", ticket).replace("{notification_id}", notification);
            let bare = gateway.client.request(method.clone(), gateway.url(&path));
            body.iter().fold(bare, |request, body| request.json(body))
        };
        let request = |ticket: &str| request_for(ticket, &notification);
        let what = format!("{method} {path}");
        if path.ends_with("/stream") {
            let response = request(&ticket).bearer_auth(&token).send().await.unwrap();
            assert_eq!(
                (response.status().as_u16(), &response.headers()["content-type"]),
                (200, &"text/event-stream".parse().unwrap())
            );
            assert!(operation["responses"]["200"]["content"]["text/event-stream"].is_object());
            continue;
        }
        let response = send(request(&ticket).bearer_auth(&token)).await;
        // The ticket is in no ready check.
        let is_answer = path.ends_with("/accept") || path.ends_with("/decline");
        let is_expected = (200..300).contains(&response.status) || is_answer && response.status == 409;
        assert!(is_expected, "{what}: {response:?}");
        check_response(&document, operation, &what, &response);
        if let (Some(_), Ok(made)) = (&body, serde_json::from_str::<Value>(&response.body)) {
            ticket = made["ticket_id"].as_str().map_or(ticket, ToOwned::to_owned);
            examples += 1;
            let again = send(request(&ticket).bearer_auth(&token)).await;
            assert_eq!(again.status, 200, "{what}: {again:?}");
            check_response(&document, operation, &what, &again);
        }
        let with_session = request(&ticket).header("cookie", &session).header("x-playhouse-csrf", "1");
        for (how, varied) in [
            ("with a session", with_session),
            ("without credentials", request(&ticket)),
            (
                "for an unknown notification",
                request_for(&ticket, "01a1e4c0-0000-7000-8000-000000000001").bearer_auth(&token),
            ),
            ("by a service", request(&ticket).bearer_auth(gateway.token_as("shop", "service").await)),
            (
                "by an old client",
                request(&ticket)
                    .bearer_auth(&token)
                    .header("x-client-platform", "ios")
                    .header("x-client-version", "0.9"),
            ),
            ("with an invalid version", request(&ticket).bearer_auth(&token).header("x-client-version", "x")),
            ("for unknown ids", request_for("0000", "0000").bearer_auth(&token)),
        ] {
            let response = send(varied).await;
            check_response(&document, operation, &format!("{what} {how}"), &response);
        }
    }
    assert!(examples > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_about_parties_is_described() {
    let gateway = Gateway::start(
        "[gateway.platforms.ios]\nmin_version = \"1.0\"\n[matchmaking.queues.pair]\nmax_party = 2\n\
         [matchmaking.parties]\nmax_members = 2\n",
    )
    .await;
    let document = send(gateway.get("/openapi.json")).await.json();
    let [ada, bob, eve] =
        [gateway.token("ada").await, gateway.token("bob").await, gateway.token("eve").await];
    let id =
        async |token: &str| send(gateway.get("/v1/me").bearer_auth(token)).await.json()["user_id"].clone();
    let (bob_id, eve_id) = (id(&bob).await, id(&eve).await);
    let called = std::cell::RefCell::new(BTreeSet::new());
    // Calls a route, and checks its response and those to an old client, an invalid version and a service.
    let call = async |token: &str, method: Method, path: &str, party: &str, body: Value, status: u16| {
        let operation = &document["paths"][path][method.as_str().to_lowercase()];
        let what = format!("{method} {path}");
        called.borrow_mut().insert(what.clone());
        let request = || {
            let url = gateway.url(&path.replace("{party_id}", party));
            let request = gateway.client.request(method.clone(), url);
            if body.is_null() { request } else { request.json(&body) }
        };
        let with = |name: &str, value: &str| {
            request().bearer_auth(token).header("x-client-platform", "ios").header(name, value)
        };
        let service = gateway.token_as("shop", "service").await;
        for varied in [
            request(),
            request().bearer_auth(service),
            with("x-client-version", "0.9"),
            with("x-client-version", "x"),
        ] {
            check_response(&document, operation, &what, &send(varied).await);
        }
        let response = send(request().bearer_auth(token)).await;
        assert_eq!(response.status, status, "{what}: {response:?}");
        check_response(&document, operation, &what, &response);
        if response.body.is_empty() { Value::Null } else { response.json() }
    };
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    let (join, leave) = ("/v1/parties/join", "/v1/parties/leave");
    let (invitations, ticket) = ("/v1/parties/invitations", "/v1/parties/ticket");
    let (accept, decline) =
        ("/v1/parties/invitations/{party_id}/accept", "/v1/parties/invitations/{party_id}/decline");
    let (kick, leader, member) = ("/v1/parties/kick", "/v1/parties/leader", "/v1/parties/member");
    let pair = json!({ "queue": "pair" });
    for (path, body) in [
        (invitations, json!({ "user_id": bob_id })),
        (kick, json!({ "user_id": bob_id })),
        (leader, json!({ "user_id": bob_id })),
        (member, json!({})),
        (ticket, pair.clone()),
        (accept, json!({})),
        (join, json!({ "code": "222222" })),
    ] {
        call(&ada, post.clone(), path, "dbt8pcfejq8o287bsa0g", body, 404).await;
    }
    call(&ada, delete.clone(), ticket, "", Value::Null, 404).await;
    call(&ada, post.clone(), "/v1/parties", "", json!({ "tags": ["unknown"] }), 400).await;
    let party = call(&ada, post.clone(), "/v1/parties", "", json!({}), 201).await;
    call(&ada, post.clone(), "/v1/parties", "", json!({}), 200).await;
    let (party_id, code) = (party["party_id"].as_str().unwrap(), json!({ "code": party["code"] }));
    call(&ada, post.clone(), invitations, "", json!({ "user_id": bob_id }), 200).await;
    call(&bob, get.clone(), "/v1/parties", "", Value::Null, 200).await;
    call(&bob, post.clone(), decline, party_id, Value::Null, 204).await;
    call(&ada, post.clone(), invitations, "", json!({ "user_id": bob_id }), 200).await;
    call(&bob, post.clone(), accept, party_id, json!({}), 200).await;
    call(&bob, post.clone(), "/v1/parties", "", json!({}), 409).await;
    call(&eve, post.clone(), join, "", code.clone(), 409).await;
    call(&bob, post.clone(), member, "", json!({}), 200).await;
    call(&bob, post.clone(), member, "", json!({ "numbers": { "unknown": 1 } }), 400).await;
    call(&bob, post.clone(), kick, "", json!({ "user_id": eve_id }), 403).await;
    call(&bob, post.clone(), leader, "", json!({ "user_id": bob_id }), 403).await;
    call(&bob, post.clone(), ticket, "", pair.clone(), 403).await;
    call(&ada, post.clone(), ticket, "", json!({ "queue": "unknown" }), 400).await;
    call(&ada, post.clone(), ticket, "", json!({ "queue": "duel" }), 409).await;
    call(&ada, post.clone(), ticket, "", pair.clone(), 201).await;
    call(&ada, post.clone(), ticket, "", pair, 200).await;
    call(&bob, get.clone(), "/v1/parties", "", Value::Null, 200).await;
    call(&bob, delete, ticket, "", Value::Null, 204).await;
    call(&ada, post.clone(), leader, "", json!({ "user_id": bob_id }), 200).await;
    call(&ada, post.clone(), leave, "", Value::Null, 204).await;
    call(&eve, post.clone(), join, "", code, 200).await;
    call(&bob, post, kick, "", json!({ "user_id": eve_id }), 200).await;
    let paths =
        document["paths"].as_object().unwrap().iter().filter(|(path, _)| path.starts_with("/v1/parties"));
    let all = paths.flat_map(|(path, methods)| {
        methods.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    assert_eq!(*called.borrow(), all.collect::<BTreeSet<_>>());
}

/// Returns the values of an HTML attribute.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    html.split(&format!(" {name}=\"")).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_describe_every_operation_and_have_no_dead_links() {
    let gateway = Gateway::start("").await;
    let document = send(gateway.get("/openapi.json")).await.json();
    let docs = send(gateway.get("/docs")).await;
    assert_eq!((docs.status, docs.header("content-type")), (200, "text/html; charset=utf-8"));
    for (path, methods) in document["paths"].as_object().unwrap() {
        assert!(docs.body.contains(&format!("<code>{path}</code>")), "{path}");
        for operation in methods.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(docs.body.contains(&format!("<h3 id=\"{id}\">")), "{id}");
        }
    }
    for place in ["/docs", "/"] {
        let page = send(gateway.get(place).header("accept", "text/html")).await;
        let ids = attributes(&page.body, "id");
        assert_eq!(
            ids.iter().collect::<BTreeSet<_>>().len(),
            ids.len(),
            "{place}: an id occurs twice: {ids:?}"
        );
        let links = attributes(&page.body, "href").into_iter().chain(attributes(&page.body, "src"));
        let links: Vec<&str> = links.collect();
        assert!(!links.is_empty());
        for link in links {
            if let Some(id) = link.strip_prefix('#') {
                assert!(ids.contains(&id), "{place}: {link}");
                continue;
            }
            assert!(
                link.starts_with('/') && !link.starts_with("//"),
                "{place} has a link to another site: {link}"
            );
            let status = send(gateway.get(link)).await.status;
            assert!(matches!(status, 200 | 303), "{place}: {link} is {status}");
        }
    }
}
