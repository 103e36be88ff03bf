//! Calls every route of all four listeners with every kind of caller. Checks the refusals and the audit log.

use std::collections::{BTreeMap, BTreeSet};

use service::{Access, AllowedCallers, Credential};

use super::super::shop::{CLERK_TOKEN, POOR_TOKEN, TOKEN};
use super::*;

const ID: &str = "0198c0de-0000-7000-8000-000000000001";

/// Replaces each parameter of a path by an id.
pub(super) fn concrete(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { ID } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// The token of each kind of caller, by name.
struct Callers(BTreeMap<&'static str, Option<String>>);

impl Callers {
    async fn new(process: &TestProcess) -> Self {
        Self(BTreeMap::from([
            ("no credentials", None),
            ("a player", Some(process.issued_token("pavel", "player").await)),
            ("a service without rights", Some(POOR_TOKEN.to_owned())),
            ("a service with all rights", Some(TOKEN.to_owned())),
            ("an operator who may only read", Some(READER_TOKEN.to_owned())),
            ("an operator", Some(OPERATOR_TOKEN.to_owned())),
            ("an operator of the issuer", Some(process.issued_token("olga", "operator").await)),
        ]))
    }

    /// Sends a request as each caller, each with its own request id. Returns the statuses by name.
    async fn send(&self, id: &str, request: impl Fn() -> RequestBuilder) -> BTreeMap<&'static str, u16> {
        let mut statuses = BTreeMap::new();
        for (at, (name, token)) in self.0.iter().enumerate() {
            let request = request().header("x-request-id", format!("{id}-{at}"));
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            statuses.insert(*name, send(request).await.0);
        }
        statuses
    }
}

const fn is_accepted(status: u16) -> bool {
    !matches!(status, 401 | 403)
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_api_accepts_only_operators() {
    let process = TestProcess::start().await;
    let callers = Callers::new(&process).await;
    let before = process.audit_log("limit=1000").await.len();
    let (mut refused, mut changed) = (0, 0);
    let rows = playhouse::operator_rows().into_iter().filter(|row| row.credential() == Credential::Token);
    for (at, row) in rows.enumerate() {
        let url = process.url("admin", &concrete(row.path()));
        let statuses =
            callers.send(&format!("row-{at}"), || process.client.request(row.method().into(), &url)).await;
        let what = format!("{} {}: {statuses:?}", row.method(), row.path());
        for outsider in ["no credentials", "a service without rights", "a service with all rights"] {
            assert_eq!(statuses[outsider], 401, "{what}");
        }
        assert_eq!(statuses["a player"], 403, "{what}");
        assert!(is_accepted(statuses["an operator"]), "{what}");
        assert!(is_accepted(statuses["an operator of the issuer"]), "{what}");
        match row.access() {
            Access::Open => panic!("{what}: only probes are open, and no service has one"),
            Access::Read => assert!(is_accepted(statuses["an operator who may only read"]), "{what}"),
            Access::Change => assert_eq!(statuses["an operator who may only read"], 403, "{what}"),
        }
        // One entry for the player's attempt; a change adds the entries of three operators.
        refused += 1;
        if row.access() == Access::Change {
            changed += 3;
        }
    }
    let entries = process.all_entries().await;
    assert_eq!(entries.len() - before, refused + changed);
    let unknown: Vec<&Value> = entries.iter().filter(|entry| entry["outcome"] == "unknown").collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    for (name, count) in
        [("tester", changed / 3), ("reader", changed / 3), ("olga", changed / 3), ("pavel", refused)]
    {
        let found = entries
            .iter()
            .filter(|entry| {
                entry["actor"]["name"] == name
                    && entry["request_id"].as_str().is_some_and(|id| id.starts_with("row-"))
            })
            .count();
        assert_eq!(found, count, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_api_accepts_only_services() {
    let process = TestProcess::start().await;
    let callers = Callers::new(&process).await;
    let (_, document) = get(process.url("service_api", "/internal/v1/openapi.json")).await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let url = process.url("service_api", &concrete(path));
            let statuses = callers.send("service", || process.client.request(method.clone(), &url)).await;
            for (name, status) in statuses {
                let is_service = name.starts_with("a service");
                assert_eq!(status == 401, !is_service, "{method} {path} by {name}: {status}");
            }
        }
    }
    // Exactly the operator actions are recorded, for both services and with any outcome.
    let entries = process.all_entries().await;
    let of_services = entries.iter().filter(|entry| entry["listener"] == "service_api");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found: BTreeSet<(String, String)> =
        of_services.map(|entry| (text(&entry["action"]), text(&entry["actor"]["name"]))).collect();
    let audited = playhouse::audited_service_routes();
    assert!(audited.len() > 10, "{audited:?}");
    let both = |route: String| ["poor", "shop"].map(|service| (route.clone(), service.to_owned()));
    let expected: BTreeSet<(String, String)> = audited.into_iter().flat_map(both).collect();
    assert_eq!(found, expected);
}

/// Returns a body that the schema allows: the example, or the required members with values of their types.
fn sample(document: &Value, schema: &Value) -> Value {
    if let Some(place) = schema["$ref"].as_str() {
        return sample(document, document.pointer(&place[1..]).unwrap());
    }
    if !schema["example"].is_null() {
        return schema["example"].clone();
    }
    let options = schema["oneOf"].as_array().or_else(|| schema["allOf"].as_array());
    if let Some(option) = options.and_then(|options| options.iter().find(|option| option["type"] != "null")) {
        return sample(document, option);
    }
    if let Some(words) = schema["enum"].as_array() {
        return words[0].clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match (kind, schema["format"].as_str()) {
        (Some("object"), _) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let members = required.map(|name| {
                let name = name.as_str().unwrap();
                (name.to_owned(), sample(document, &schema["properties"][name]))
            });
            Value::Object(members.collect())
        }
        (Some("array"), _) => json!([sample(document, &schema["items"])]),
        (Some("integer" | "number"), _) => json!(1),
        (Some("boolean"), _) => json!(true),
        (_, Some("uuid")) => json!(ID),
        (_, Some("date-time")) => json!("2026-03-01T12:00:00Z"),
        _ => json!("text"),
    }
}

/// A service without the right `operator` is refused by exactly the routes that do the work of an operator. Such a route that is not
/// in the audit log is found here, also if its service forgets to declare it.
#[tokio::test(flavor = "multi_thread")]
async fn every_service_route_with_the_operator_right_is_audited() {
    let process = TestProcess::start().await;
    let (_, document) = get(process.url("service_api", "/internal/v1/openapi.json")).await;
    let audited: BTreeSet<String> = playhouse::audited_service_routes().into_iter().collect();
    let mut refused = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap().iter().filter(|(name, _)| *name != "get") {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let url = process.url("service_api", &concrete(path));
            let queries = operation["parameters"].as_array().into_iter().flatten();
            let queries =
                queries.filter(|parameter| parameter["in"] == "query" && parameter["required"] == true);
            let query: Vec<(&str, &str)> =
                queries.map(|parameter| (parameter["name"].as_str().unwrap(), "text")).collect();
            let url = Url::parse_with_params(&url, query).unwrap();
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let body = (!schema.is_null()).then(|| sample(&document, schema));
            let call = async |token: &str| {
                let request = process.client.request(method.clone(), url.clone()).bearer_auth(token);
                let request = request.header("idempotency-key", format!("{method} {path}"));
                send(match &body {
                    Some(body) => request.json(body),
                    None => request,
                })
                .await
            };
            // Otherwise the request would be refused before the rights are checked, and this test would be blind to the route.
            let (status, problem) = call(POOR_TOKEN).await;
            assert_eq!(status, 403, "{method} {path} with {body:?}: {problem}");
            if call(CLERK_TOKEN).await.0 == 403 {
                refused.insert(format!("{method} {path}"));
            }
        }
    }
    assert!(refused.contains("POST /internal/v1/users/{user_id}/ban"), "{refused:?}");
    let unrecorded: Vec<&String> = refused.difference(&audited).collect();
    assert!(unrecorded.is_empty(), "not in `Service::audited_service_routes`: {unrecorded:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_accepts_only_users_of_the_issuer() {
    let limits = ["ADDRESS", "READ", "WRITE", "SIGN_IN", "STREAM"]
        .map(|name| format!("PLAYHOUSE_GATEWAY_LIMITS_{name}"));
    let process = TestProcess::start_with(|program| {
        limits.iter().fold(program, |program, name| program.env(name, "10000/s burst 100000"))
    })
    .await;
    let callers = Callers::new(&process).await;
    for row in playhouse::gateway_rows().into_iter().filter(|row| row.callers != AllowedCallers::Anyone) {
        // A stream would not end.
        if row.class == service::RateClass::Stream {
            continue;
        }
        let url = process.url("gateway", &concrete(row.path));
        let statuses = callers.send("gateway", || process.client.request(row.method.into(), &url)).await;
        for (name, status) in statuses {
            let is_known = matches!(name, "a player" | "an operator of the issuer");
            assert_eq!(status != 401, is_known, "{} {} by {name}: {status}", row.method, row.path);
        }
    }
}

/// Open Match has no callers: every client that reaches the listener is trusted, except pages in a browser.
#[tokio::test(flavor = "multi_thread")]
async fn open_match_accepts_every_caller_except_web_pages() {
    let process = TestProcess::start().await;
    let callers = Callers::new(&process).await;
    let url = process.url("open_match", "/v1/frontendservice/tickets");
    let create = || process.client.post(&url).json(&json!({ "ticket": {} }));
    for (name, status) in callers.send("open-match", create).await {
        assert_eq!(status, 200, "{name}");
    }
    let page = || create().header("origin", "https://evil.example");
    for (name, status) in callers.send("page", page).await {
        assert_eq!(status, 403, "{name}");
    }
    let rebound = || create().header("host", "evil.example");
    for (name, status) in callers.send("rebound", rebound).await {
        assert_eq!(status, 403, "{name}");
    }
}
