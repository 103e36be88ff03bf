mod shutdown;
mod shutdown_race;

use std::sync::Arc;

use ::http::HeaderMap;
use axum::body::{Body, to_bytes};
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::*;

fn routes() -> (ListenerRoutes, Metrics) {
    async fn panics() -> String {
        panic!("secret inside")
    }
    let metrics = Metrics::new("0");
    let router = Router::new()
        .route("/gone", post(async || Problem::new(Code::NotFound)))
        .route("/unavailable", get(async || Problem::new(Code::Unavailable)))
        .route("/sold-out", get(async || Problem::new(Code::Conflict).cause("shop:sold-out")))
        .route("/hello/{name}", get(async || "hello"))
        .route("/panic", get(panics))
        .route(
            "/busy",
            get(async || ([("retry-after", "3")], Problem::new(Code::Unavailable).detail("Try later."))),
        );
    let router = router
        .route("/body", post(async |_: crate::JsonBody<u64>| "read").layer(DefaultBodyLimit::max(10)))
        .route(
            "/old",
            get(async || Problem::new(Code::UpgradeRequired).with("minimum", "1.2").with("status", 1)),
        );
    let router = router.route("/limited", get(async || limited()));
    let prepared = Arc::new(PreparedProblem::new(limited()));
    let refuse = move |request: &Request| {
        let refusal = EarlyRefusal { problem: prepared.clone(), headers: HeaderMap::new() };
        (request.uri().path() == "/early").then_some(refusal)
    };
    let routes = Routes::new(router)
        .refuse_early(refuse)
        .direct("/direct/hello", |_| Box::pin(async { "hello".into_response() }))
        .direct("/direct/gone", |_| Box::pin(async { Problem::new(Code::NotFound).into_response() }))
        .direct("/direct/panic", |_| Box::pin(async { panics().await.into_response() }));
    (Middleware::new(Clock::system(), &metrics).wrap("test", Site::new([], &[]), routes), metrics)
}

fn limited() -> Problem {
    Problem::new(Code::RateLimited).cause("test:limited").detail("Too many requests: \"wait\", `r1`.")
}

async fn send(request: ::http::request::Builder) -> (Response, Metrics) {
    let (routes, metrics) = routes();
    (routes.answer(request.body(Body::empty()).unwrap()).await, metrics)
}

async fn json_of(response: Response) -> Value {
    serde_json::from_slice(&to_bytes(response.into_body(), 10_000).await.unwrap()).unwrap()
}

#[tokio::test]
async fn valid_request_id_is_returned_and_an_invalid_one_replaced() {
    for (given, kept) in [("abc-123", true), ("has space", false), (&"x".repeat(100), false)] {
        let (response, _) = send(Request::builder().uri("/hello/a").header("x-request-id", given)).await;
        let returned = response.headers()["x-request-id"].to_str().unwrap();
        assert_eq!(returned == given, kept, "{given} -> {returned}");
        assert!(!returned.is_empty());
    }
}

#[tokio::test]
async fn errors_are_problem_documents() {
    let (response, _) = send(Request::builder().uri("/nothing").header("x-request-id", "r1")).await;
    assert_eq!(response.status(), 404);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let expected = json!({
        "type": "urn:playhouse:problem:not-found", "title": "Not found", "status": 404,
        "detail": "There is nothing at this address.", "request_id": "r1",
    });
    assert_eq!(json_of(response).await, expected);

    let (response, _) = send(Request::builder().method("DELETE").uri("/hello/a")).await;
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["allow"], "GET,HEAD");
    assert_eq!(json_of(response).await["type"], "urn:playhouse:problem:method-not-allowed");

    let (response, _) = send(Request::builder().uri("/busy")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &HeaderValue::from(3))
    );
    let (response, _) = send(Request::builder().uri("/unavailable")).await;
    assert_eq!(response.headers()["retry-after"], "1", "every 503 says when to retry");
    assert_eq!(json_of(response).await["detail"], "Temporarily unavailable", "every problem has a detail");
}

#[tokio::test]
async fn cause_has_its_own_problem_type() {
    let (response, _) = send(Request::builder().uri("/sold-out")).await;
    assert!(response.headers().get("retry-after").is_none());
    let document = json_of(response).await;
    assert_eq!(
        (&document["type"], &document["status"]),
        (&json!("urn:playhouse:problem:shop:sold-out"), &json!(409))
    );
}

#[tokio::test]
async fn problem_may_have_extra_members() {
    let (response, _) = send(Request::builder().uri("/old")).await;
    assert_eq!(response.status(), 426);
    let document = json_of(response).await;
    assert_eq!((&document["minimum"], &document["status"]), (&json!("1.2"), &json!(426)));
}

#[tokio::test]
async fn unreadable_body_gets_the_status_of_its_error() {
    for (content_type, body, expected) in [
        ("application/json", "7", 200),
        ("application/json; charset=utf-8", "7", 200),
        ("application/vnd.game+json", "7", 200),
        ("application/json", "seven", 400),
        ("application/json", "\"7\"", 400),
        ("application/json", "70000000000", 413),
        ("text/plain", "7", 415),
        ("", "7", 415),
    ] {
        let request = Request::post("/body").header("content-type", content_type);
        let response = routes().0.answer(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(response.status(), expected, "{content_type} {body}");
    }
}

#[tokio::test]
async fn grpc_caller_gets_a_grpc_status() {
    let request = || Request::builder().method("POST").header("content-type", "application/grpc+proto");
    let (response, _) = send(request().uri("/openmatch.FrontendService/CreateTicket")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["grpc-status"], "12");
    assert_eq!(response.headers()["grpc-message"], "There is nothing at this address.");
    let (response, _) = send(request().uri("/gone")).await;
    assert_eq!(
        response.headers()["grpc-status"],
        "5",
        "an entity that a handler does not find is not an unknown method"
    );
}

#[tokio::test]
async fn panic_fails_one_request_and_reveals_nothing() {
    let (response, metrics) = send(Request::builder().uri("/panic")).await;
    assert_eq!(response.status(), 500);
    assert!(!json_of(response).await.to_string().contains("secret"));
    assert!(metrics.encode().contains("playhouse_http_panics_total{listener=\"test\"} 1"));
}

#[tokio::test]
async fn metrics_are_labelled_by_route_not_by_path_or_unknown_method() {
    let (routes, metrics) = routes();
    for uri in ["/hello/a", "/hello/b", "/x", "/y"] {
        let request = Request::builder().method(if uri == "/y" { "BREW" } else { "GET" }).uri(uri);
        routes.clone().answer(request.body(Body::empty()).unwrap()).await;
    }
    let text = metrics.encode();
    let count = |method: &str, route: &str, status: u16| {
        format!(
            "http_server_request_duration_seconds_count{{listener=\"test\",http_request_method=\"{method}\",\
             http_route=\"{route}\",http_response_status_code=\"{status}\"}}"
        )
    };
    assert!(text.contains(&format!("{} 2", count("GET", "/hello/{name}", 200))), "{text}");
    assert!(text.contains(&format!("{} 1", count("_OTHER", "unmatched", 404))), "{text}");
    assert!(text.contains("http_server_active_requests{listener=\"test\"} 0"), "{text}");
}

#[tokio::test]
async fn direct_routes_behave_like_routed_ones() {
    let (response, metrics) = send(Request::post("/direct/hello").header("x-request-id", "r1")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-request-id"]),
        (200, &"r1".parse().unwrap())
    );
    let text = metrics.encode();
    let counted = "http_server_request_duration_seconds_count{listener=\"test\",http_request_method=\"POST\",\
                   http_route=\"/direct/hello\",http_response_status_code=\"200\"} 1";
    assert!(text.contains(counted), "{text}");

    let (response, metrics) = send(Request::post("/direct/gone")).await;
    assert_eq!(response.status(), 404);
    assert!(metrics.encode().contains("http_response_status_code=\"404\"} 1"), "{}", metrics.encode());
    assert_eq!(json_of(response).await["type"], "urn:playhouse:problem:not-found");
    let grpc = Request::post("/direct/gone").header("content-type", "application/grpc");
    assert_eq!(send(grpc).await.0.headers()["grpc-status"], "5");

    let (response, metrics) = send(Request::post("/direct/panic")).await;
    assert_eq!(response.status(), 500);
    assert!(metrics.encode().contains("playhouse_http_panics_total{listener=\"test\"} 1"));
    assert!(metrics.encode().contains("http_server_active_requests{listener=\"test\"} 0"));
}

#[tokio::test]
async fn early_refusal_equals_the_problem_of_a_route() {
    for (name, value) in [("x-request-id", "r1"), ("content-type", "application/grpc")] {
        let request = |path| Request::get(path).header("x-request-id", "r1").header(name, value);
        let (early, metrics) = send(request("/early")).await;
        let (mut routed, _) = send(request("/limited")).await;
        // The router adds it; the connection does so for the others.
        routed.headers_mut().remove("content-length");
        assert_eq!(early.status(), routed.status());
        assert_eq!(early.headers(), routed.headers());
        let body = async |response: Response| to_bytes(response.into_body(), 1_000).await.unwrap();
        assert_eq!(body(early).await, body(routed).await, "{name}");
        assert!(metrics.encode().contains("http_route=\"refused_early\""), "{}", metrics.encode());
    }
}
