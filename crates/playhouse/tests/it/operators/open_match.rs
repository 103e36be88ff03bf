//! Every call of Open Match on each of its ports: programs need no credentials, and pages in a browser get nothing.

use reqwest::header::{CONTENT_TYPE, HOST, ORIGIN};

use super::*;

/// The interfaces with the sources that list their REST routes. A call that is added is found here.
const SERVICES: [(&str, &str, &str); 3] = [
    (
        "frontend",
        include_str!("../../../../proto/proto/openmatch/frontend.proto"),
        include_str!("../../../../matchmaking/src/frontend/grpc.rs"),
    ),
    (
        "backend",
        include_str!("../../../../proto/proto/openmatch/backend.proto"),
        include_str!("../../../../matchmaking/src/backend/grpc.rs"),
    ),
    (
        "query",
        include_str!("../../../../proto/proto/openmatch/query.proto"),
        include_str!("../../../../matchmaking/src/query/grpc.rs"),
    ),
];
/// The forms in which a method can be called by its name: Connect, its streams, gRPC.
const FORMS: [&str; 3] = ["application/json", "application/connect+json", "application/grpc"];

/// A call: the ports that serve it, and how it is sent.
struct Call {
    service: &'static str,
    method: Method,
    path: String,
    content: &'static str,
}

/// Returns all calls of a service.
fn calls((service, proto, source): (&'static str, &str, &str)) -> Vec<Call> {
    let name =
        proto.lines().find_map(|line| line.strip_prefix("service ")?.split_whitespace().next()).unwrap();
    let methods = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
    let named = methods.flat_map(|method| {
        FORMS.map(|content| Call {
            service,
            method: Method::POST,
            path: format!("/openmatch.{name}/{method}"),
            content,
        })
    });
    let routes = source.lines().filter_map(|line| {
        let (method, rest) = line.trim().strip_prefix("RestRoute::")?.split_once("(\"")?;
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).ok()?;
        let path = callers::concrete(rest.split('"').next()?);
        Some(Call { service, method, path, content: "application/json" })
    });
    named.chain(routes).collect()
}

/// Starts a process with all ports of Open Match.
async fn start() -> TestProcess {
    let names = ["frontend", "frontend_http", "backend", "backend_http", "query", "query_http"];
    let ports = names.map(|name| format!("listen.open_match_{name}=127.0.0.1:0"));
    TestProcess::start_with(|program| program.args(ports.iter().flat_map(|port| ["--set", port.as_str()])))
        .await
}

/// Returns the ports that serve the calls of a service.
fn ports(process: &TestProcess, service: &str) -> Vec<String> {
    let ports =
        ["open_match".to_owned(), format!("open_match_{service}"), format!("open_match_{service}_http")];
    for port in &ports {
        assert!(process.at.contains_key(port), "{port} is not bound: {:?}", process.at);
    }
    ports.into()
}

/// Sends a call. Returns whether it was refused because of its caller: over gRPC the status is in a header.
async fn is_refused(process: &TestProcess, port: &str, call: &Call, header: Option<(&str, &str)>) -> bool {
    let url = process.url(port, &call.path);
    let request = process.client.request(call.method.clone(), url).header(CONTENT_TYPE, call.content);
    let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    let request = if call.method == Method::GET { request } else { request.body("{}") };
    let response = request.timeout(PATIENCE).send().await.unwrap();
    let denied = response.headers().get("grpc-status").is_some_and(|status| status == "7" || status == "16");
    denied || matches!(response.status().as_u16(), 401 | 403)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_open_match_is_open_to_programs_and_closed_to_pages() {
    let process = start().await;
    let all: Vec<Call> = SERVICES.into_iter().flat_map(calls).collect();
    let rest = all.iter().filter(|call| call.path.starts_with("/v1/")).count();
    assert!(rest >= 16 && all.len() >= 16 + 17 * FORMS.len(), "{rest} of {}", all.len());
    for call in &all {
        for port in ports(&process, call.service) {
            let what = format!("{} {} as {} at {port}", call.method, call.path, call.content);
            assert!(!is_refused(&process, &port, call, None).await, "{what} needs credentials");
            // A browser sends its origin with every change, and with every request that a page may not simply send.
            if call.method != Method::GET {
                let page = Some((ORIGIN.as_str(), "https://evil.example"));
                assert!(is_refused(&process, &port, call, page).await, "{what} accepts a page");
            }
            let rebound = Some((HOST.as_str(), "evil.example"));
            assert!(is_refused(&process, &port, call, rebound).await, "{what} accepts a foreign host name");
        }
    }
}
