//! The route tables of all four listeners, called by everybody: refused where due, and in the audit log where due.

use std::collections::{BTreeMap, BTreeSet};

use service::{Access, Who};

use super::super::shop::{POOR_TOKEN, TOKEN};
use super::*;

const ID: &str = "0198c0de-0000-7000-8000-000000000001";

/// A path with an id for each of its parameters.
fn concrete(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { ID } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Everybody who may call, by name and token.
struct Everybody(BTreeMap<&'static str, Option<String>>);

impl Everybody {
    async fn of(place: &Place) -> Self {
        Self(BTreeMap::from([
            ("nobody", None),
            ("a player", Some(place.issued("pavel", "player").await)),
            ("a service without rights", Some(POOR_TOKEN.to_owned())),
            ("a service with all rights", Some(TOKEN.to_owned())),
            ("an operator who may only read", Some(READER_TOKEN.to_owned())),
            ("an operator", Some(OPERATOR_TOKEN.to_owned())),
            ("an operator of the issuer", Some(place.issued("olga", "operator").await)),
        ]))
    }

    /// Sends a request as each of them, under a request id of its own. Returns the statuses by name.
    async fn send(&self, id: &str, request: impl Fn() -> RequestBuilder) -> BTreeMap<&'static str, u16> {
        let mut statuses = BTreeMap::new();
        for (at, (name, token)) in self.0.iter().enumerate() {
            let request = request().header("x-request-id", format!("{id}-{at}"));
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            statuses.insert(*name, sent(request).await.0);
        }
        statuses
    }
}

const fn is_let_in(status: u16) -> bool {
    !matches!(status, 401 | 403)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_lets_in_operators_alone() {
    let place = Place::open().await;
    let everybody = Everybody::of(&place).await;
    let before = place.audit_log("limit=1000").await.len();
    let (mut refused, mut changed) = (0, 0);
    for (at, row) in playhouse::operator_rows().into_iter().enumerate() {
        let url = place.url("admin", &concrete(row.path()));
        let statuses =
            everybody.send(&format!("row-{at}"), || place.client.request(row.method().into(), &url)).await;
        let what = format!("{} {}: {statuses:?}", row.method(), row.path());
        for stranger in ["nobody", "a service without rights", "a service with all rights"] {
            assert_eq!(statuses[stranger], 401, "{what}");
        }
        assert_eq!(statuses["a player"], 403, "{what}");
        assert!(is_let_in(statuses["an operator"]), "{what}");
        assert!(is_let_in(statuses["an operator of the issuer"]), "{what}");
        match row.access() {
            Access::Open => panic!("{what}: only probes are open, and no service has any"),
            Access::Read => assert!(is_let_in(statuses["an operator who may only read"]), "{what}"),
            Access::Change => assert_eq!(statuses["an operator who may only read"], 403, "{what}"),
        }
        // The player's attempt, and of a change those of three operators.
        refused += 1;
        if row.access() == Access::Change {
            changed += 3;
        }
    }
    let entries = place.all_entries().await;
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
async fn the_service_api_lets_in_services_alone() {
    let place = Place::open().await;
    let everybody = Everybody::of(&place).await;
    let (_, document) = get(place.url("internal", "/internal/v1/openapi.json")).await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let url = place.url("internal", &concrete(path));
            let statuses = everybody.send("service", || place.client.request(method.clone(), &url)).await;
            for (name, status) in statuses {
                let is_service = name.starts_with("a service");
                assert_eq!(status == 401, !is_service, "{method} {path} by {name}: {status}");
            }
        }
    }
    // An operator's work is entered for both services, whatever came of it, and nothing else is.
    let entries = place.all_entries().await;
    let of_services = entries.iter().filter(|entry| entry["listener"] == "internal");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found: BTreeSet<(String, String)> =
        of_services.map(|entry| (text(&entry["action"]), text(&entry["actor"]["name"]))).collect();
    let audited = playhouse::audited_service_routes();
    assert!(audited.len() > 10, "{audited:?}");
    let both = |route: String| ["poor", "shop"].map(|service| (route.clone(), service.to_owned()));
    let expected: BTreeSet<(String, String)> = audited.into_iter().flat_map(both).collect();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_lets_in_those_whom_the_issuer_knows() {
    let limits = ["ADDRESS", "READ", "WRITE", "SIGN_IN", "STREAM"]
        .map(|name| format!("PLAYHOUSE_GATEWAY_LIMITS_{name}"));
    let place = Place::with(|program| {
        limits.iter().fold(program, |program, name| program.env(name, "10000/s burst 100000"))
    })
    .await;
    let everybody = Everybody::of(&place).await;
    for row in playhouse::gateway_rows().into_iter().filter(|row| row.who != Who::Anyone) {
        // Streams do not end by themselves.
        if row.class == service::Class::Stream {
            continue;
        }
        let url = place.url("gateway", &concrete(row.path));
        let statuses = everybody.send("gateway", || place.client.request(row.method.into(), &url)).await;
        for (name, status) in statuses {
            let is_known = matches!(name, "a player" | "an operator of the issuer");
            assert_eq!(status != 401, is_known, "{} {} by {name}: {status}", row.method, row.path);
        }
    }
}

/// Open Match callers have no names: everyone who reaches the listener is trusted, except pages in a browser.
#[tokio::test(flavor = "multi_thread")]
async fn open_match_is_for_those_who_reach_it_and_for_no_page() {
    let place = Place::open().await;
    let everybody = Everybody::of(&place).await;
    let url = place.url("open_match", "/v1/frontendservice/tickets");
    let create = || place.client.post(&url).json(&json!({ "ticket": {} }));
    for (name, status) in everybody.send("open-match", create).await {
        assert_eq!(status, 200, "{name}");
    }
    let page = || create().header("origin", "https://evil.example");
    for (name, status) in everybody.send("page", page).await {
        assert_eq!(status, 403, "{name}");
    }
    let rebound = || create().header("host", "evil.example");
    for (name, status) in everybody.send("rebound", rebound).await {
        assert_eq!(status, 403, "{name}");
    }
}
