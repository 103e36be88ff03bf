use std::collections::BTreeSet;

use account::http::{Api, routes};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use http_server::{ConfiguredCaller, Credentials, Problem, Right, TokenHash};
use serde_json::json;
use testkit::need;
use tower::ServiceExt;
use utoipa::OpenApi;

use super::*;

const ALL: [Right; 4] = [Right::READ, account::RIGHT, Right::new("entitlements"), Right::OPERATOR];
const UNKNOWN_USER: &str = "0198c0de-0000-7000-8000-000000000001";

/// Returns every route with its required right, and a body for those that take one.
fn route_table() -> Vec<(&'static str, String, Right, Value)> {
    let user = |rest: &str| format!("/internal/v1/users/{UNKNOWN_USER}{rest}");
    let identity = json!({ "issuer": "i", "subject": "s" });
    vec![
        ("POST", "/internal/v1/sign-ins".to_owned(), account::RIGHT, identity.clone()),
        ("GET", "/internal/v1/users?issuer=i&subject=s".to_owned(), Right::READ, Value::Null),
        ("GET", user(""), Right::READ, Value::Null),
        ("GET", user("/accounts"), Right::READ, Value::Null),
        ("POST", user("/accounts"), account::RIGHT, json!({ "name": "chess" })),
        ("POST", user("/identities"), account::RIGHT, identity),
        ("DELETE", user("/identities?issuer=i&subject=s"), account::RIGHT, Value::Null),
        ("POST", user("/ban"), Right::OPERATOR, json!({ "reason": "r" })),
        ("POST", user("/unban"), Right::OPERATOR, Value::Null),
        ("POST", user("/end-sessions"), Right::OPERATOR, Value::Null),
        ("POST", user("/erase"), Right::OPERATOR, Value::Null),
        ("GET", user("/audit?limit=10"), Right::OPERATOR, Value::Null),
    ]
}

/// Returns the routes behind a guard with the callers `all` and, for each right, one that lacks it: `all-but-read` and so on.
fn guarded(accounts: &Accounts) -> Router {
    let mut services = vec![("all".to_owned(), ALL.to_vec())];
    for missing in ALL {
        let may = ALL.into_iter().filter(|right| *right != missing).collect();
        services.push((format!("all-but-{missing:?}"), may));
    }
    let services: Vec<(String, ConfiguredCaller)> = services
        .into_iter()
        .map(|(name, may)| (name.clone(), ConfiguredCaller { token_hash: TokenHash::of(&name), may }))
        .collect();
    let credentials = Credentials::new(services.iter().map(|(name, service)| (name.as_str(), service)));
    credentials.guard(routes(accounts.clone()))
}

struct TestResponse {
    status: StatusCode,
    /// The debug text of the problem. The listener renders its document.
    problem: String,
    body: Value,
}

async fn send(router: &Router, token: Option<&str>, method: &str, path: &str, body: &Value) -> TestResponse {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = if body.is_null() {
        request.body(Body::empty())
    } else {
        request.header("content-type", "application/json").body(Body::from(body.to_string()))
    };
    let response = router.clone().oneshot(request.unwrap()).await.unwrap();
    let problem = response.extensions().get::<Problem>().map(|problem| format!("{problem:?}"));
    let status = response.status();
    let body = to_bytes(response.into_body(), 100_000).await.unwrap();
    TestResponse {
        status,
        problem: problem.unwrap_or_default(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

/// Opens a process on SQLite. Dropping the place removes its folder.
async fn sqlite() -> (Place, Process) {
    let place = Place::sqlite().unwrap();
    place.prepare().await;
    let process = place.process(Vec::new()).await;
    (place, process)
}

#[tokio::test]
async fn every_route_is_documented_and_requires_its_right() {
    let (_place, process) = sqlite().await;
    let router = guarded(&process.accounts);
    let document = serde_json::to_value(Api::openapi()).unwrap();
    let documented: BTreeSet<String> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap();
            methods.keys().map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let mut served = BTreeSet::new();
    for (method, path, right, body) in route_table() {
        let without = send(&router, None, method, &path, &body).await;
        assert_eq!(without.status, 401, "{method} {path}");
        let bare = send(&routes(process.accounts.clone()), None, method, &path, &body).await;
        assert_eq!(bare.status, 401, "{method} {path}: also without a guard");
        let lacking = send(&router, Some(&format!("all-but-{right:?}")), method, &path, &body).await;
        assert_eq!(lacking.status, 403, "{method} {path}");
        assert!(lacking.problem.contains("lacks the right"), "{}", lacking.problem);
        let allowed = send(&router, Some("all"), method, &path, &body).await;
        let expected = if path.ends_with("sign-ins") || path.contains("users?") { 200 } else { 404 };
        assert_eq!(allowed.status, expected, "{method} {path}: {}", allowed.problem);
        let route = path.split('?').next().unwrap().replace(UNKNOWN_USER, "{user_id}");
        served.insert(format!("{method} {route}"));
    }
    assert_eq!(documented, served);
    process.close().await;
}

#[tokio::test]
async fn user_life_from_first_sign_in_to_erasure() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let router = guarded(&process.accounts);
        let call = async |method: &str, path: &str, body: Value| {
            let response = send(&router, Some("all"), method, &format!("/internal/v1{path}"), &body).await;
            (response.status.as_u16(), response.body, response.problem)
        };
        let ada =
            json!({ "issuer": "https://id", "subject": "a&b", "display_name": "Ada", "roles": ["operator"] });
        let (status, first, _) = call("POST", "/sign-ins", ada.clone()).await;
        assert_eq!((status, &first["created"]), (200, &json!(true)));
        let user = first["user"].clone();
        let id = user["user_id"].as_str().unwrap().to_owned();
        let created_at: Timestamp = user["created_at"].as_str().unwrap().parse().unwrap();
        assert_eq!(created_at, process.accounts.user(id.parse().unwrap()).await.unwrap().created_at);
        let expected = json!({
            "user_id": id, "state": "ACTIVE", "display_name": "Ada", "roles": ["operator"], "ban_reason": null,
            "created_at": created_at.to_rfc3339(),
        });
        assert_eq!(user, expected);
        let (_, again, _) = call("POST", "/sign-ins", ada.clone()).await;
        assert_eq!(again, json!({ "user": user, "created": false }));
        assert_eq!(call("GET", &format!("/users/{id}"), Value::Null).await.1, user);
        assert_eq!(call("GET", "/users?issuer=https%3A%2F%2Fid&subject=a%26b", Value::Null).await.1, user);

        let path = |rest: &str| format!("/users/{id}/{rest}");
        let (status, chess, _) = call("POST", &path("accounts"), json!({ "name": "chess" })).await;
        assert_eq!((status, &chess["name"], &chess["user_id"]), (200, &json!("chess"), &json!(id)));
        let (_, list, _) = call("GET", &path("accounts"), Value::Null).await;
        assert_eq!((list["accounts"].as_array().unwrap().len(), &list["accounts"][1]), (2, &chess));

        let other = json!({ "issuer": "https://other", "subject": "x" });
        assert_eq!(call("POST", &path("identities"), other).await.0, 204);
        let other = path("identities?issuer=https://other&subject=x");
        assert_eq!(call("DELETE", &other, Value::Null).await.0, 204);
        assert_eq!(call("DELETE", &other, Value::Null).await.0, 404);
        let (status, _, problem) =
            call("DELETE", &path("identities?issuer=https://id&subject=a%26b"), Value::Null).await;
        assert_eq!(status, 409);
        assert!(
            problem.contains("FailedPrecondition") && problem.contains("link another one first"),
            "{problem}"
        );
        call("POST", "/sign-ins", json!({ "issuer": "https://id", "subject": "bob" })).await;
        let taken = json!({ "issuer": "https://id", "subject": "bob" });
        let (status, _, problem) = call("POST", &path("identities"), taken).await;
        assert!(status == 409 && problem.contains("Conflict"), "{problem}");

        assert_eq!(call("POST", &path("ban"), json!({ "reason": "sold gold" })).await.0, 204);
        let (status, _, problem) = call("POST", "/sign-ins", ada.clone()).await;
        assert!(status == 403 && problem.contains("sold gold"), "{problem}");
        assert_eq!(call("POST", &path("unban"), Value::Null).await.0, 204);
        assert_eq!(call("POST", "/sign-ins", ada).await.0, 200);
        assert_eq!(call("POST", &path("erase"), Value::Null).await.0, 204);
        assert_eq!(call("GET", &format!("/users/{id}"), Value::Null).await.1["state"], "ERASED");
        assert_eq!(call("POST", &path("unban"), Value::Null).await.0, 409);
        let (_, audit, _) = call("GET", &path("audit?limit=1"), Value::Null).await;
        let record = &audit["records"][0];
        assert_eq!(audit["records"].as_array().unwrap().len(), 1);
        assert_eq!((&record["actor"], &record["action"]), (&json!("service/all"), &json!("user.erased")));
        assert!(record["at"].as_str().unwrap().parse::<Timestamp>().is_ok());
        process.close().await;
    }
}

#[tokio::test]
async fn invalid_request_is_refused_with_its_reason() {
    let (_place, process) = sqlite().await;
    let router = guarded(&process.accounts);
    let post = |path: &'static str, body: Value| ("POST", path, body);
    let wrong = [
        (post("/internal/v1/sign-ins", json!({ "issuer": "i" })), "`subject` is required."),
        (post("/internal/v1/sign-ins", json!({ "issuer": "", "subject": "s" })), "issuer must have 1 to 500"),
        (post("/internal/v1/sign-ins", json!({ "issuer": "i", "subject": "s", "roles": ["king"] })), "king"),
        (("GET", "/internal/v1/users", Value::Null), "`issuer` is required."),
        (("GET", "/internal/v1/users/ada", Value::Null), "contain the id of a user, which is a UUID"),
        (("GET", "/internal/v1/users/%FF", Value::Null), "contain the id of a user"),
        (
            ("GET", "/internal/v1/users/0198c0de-0000-7000-8000-000000000001/audit?limit=many", Value::Null),
            "limit",
        ),
    ];
    for ((method, path, body), text) in wrong {
        let response = send(&router, Some("all"), method, path, &body).await;
        assert_eq!(response.status, 400, "{method} {path}");
        assert!(response.problem.contains(text), "{method} {path}: {}", response.problem);
    }
    process.close().await;
}

/// The cause is only logged.
#[tokio::test]
async fn database_failure_is_hidden_from_callers() {
    let (_place, process) = sqlite().await;
    let router = guarded(&process.accounts);
    let mut tx = process.db.begin().await.unwrap();
    on!(tx, raw => { sqlx::query("ALTER TABLE users RENAME COLUMN roles TO hidden").execute(raw).await.unwrap(); });
    tx.commit().await.unwrap();
    let path = format!("/internal/v1/users/{UNKNOWN_USER}");
    let response = send(&router, Some("all"), "GET", &path, &Value::Null).await;
    assert_eq!(response.status, 500);
    assert!(response.problem.contains("accounts could not be read or changed"), "{}", response.problem);
    assert!(!response.problem.contains("roles"), "{}", response.problem);
    process.db.close().await;
    let response = send(&router, Some("all"), "GET", &path, &Value::Null).await;
    assert_eq!(response.status, 503);
    assert!(response.problem.contains("try again"), "{}", response.problem);
}
