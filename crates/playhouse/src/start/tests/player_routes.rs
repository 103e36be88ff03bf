//! Routes that a service adds to the gateway, in a process with real listeners.

use axum::response::IntoResponse;
use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt};
use http_server::JsonBody;
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder};
use serde::Deserialize;
use serde_json::Value;
use service::{
    AllowedCallers, HomePart, Open, PlayerEvents, PlayerRoute, RateClass, RouteMethod, Row, Service,
    SignedInPlayer, SignedInUser,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use utoipa::{OpenApi, ToSchema};

use super::*;

const PATH: &str = "/v1/echo";
/// A route with a smaller limit for bodies.
const SMALL: &str = "/v1/echo/small";
const SMALL_BODY: usize = 64;
/// A stream with one event.
const EVENTS: &str = "/v1/echo/events";
/// A route that answers later than a request usually may.
const LATE: &str = "/v1/echo/late";
/// Another origin that may call.
const SITE: &str = "https://www.example.com";

/// A service with a route for each method. They return the caller and the length of the text.
struct Echo;

/// A value that the service provides and its routes use.
#[derive(Clone)]
struct Greeting(&'static str);

#[derive(Deserialize, ToSchema)]
struct EchoRequest {
    text: String,
}

#[derive(ToSchema, serde::Serialize)]
struct EchoHome {
    user_id: String,
    accounts: usize,
    roles: Vec<String>,
}

#[derive(OpenApi)]
#[openapi(paths(read, write), components(schemas(EchoHome)), tags((name = "echo", description = "Echoes the request")))]
struct Api;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn gateway_api(&self) -> Option<utoipa::openapi::OpenApi> {
        Some(Api::openapi())
    }

    fn player_routes(&self) -> Vec<PlayerRoute> {
        let changing = RouteMethod::ALL.into_iter().filter(|method| !method.is_safe());
        let changing =
            changing.map(|method| Row::new(method, PATH, AllowedCallers::Player, RateClass::Write));
        let small = Row::post(SMALL, AllowedCallers::Player, RateClass::Write).with_max_body(SMALL_BODY);
        let changing = changing.chain([small]).map(|row| PlayerRoute::new(row, write));
        let read = PlayerRoute::new(Row::get(PATH, AllowedCallers::SignedIn, RateClass::Read), read);
        let events = PlayerRoute::new(Row::get(EVENTS, AllowedCallers::Player, RateClass::Stream), events);
        let waiting = Row::get(LATE, AllowedCallers::Player, RateClass::Read).with_extra_timeout(PATIENCE);
        changing.chain([read, events, PlayerRoute::new(waiting, late)]).collect()
    }

    fn home_parts(&self) -> Vec<HomePart> {
        let echo = HomePart::new("echo", "EchoHome", async |_, player: SignedInPlayer| {
            let roles = player.roles.iter().map(|role| (*role).to_owned()).collect();
            let home = EchoHome { user_id: player.user.to_string(), accounts: player.accounts.len(), roles };
            Ok(serde_json::to_value(home).unwrap())
        });
        let silent = HomePart::new("silent", "EchoHome", |_, _| std::future::pending());
        vec![echo, silent]
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async {
            context.provide(Greeting("hello"))?;
            Ok(ServiceParts::default())
        }
        .boxed_local()
    }
}

/// Return the caller
#[utoipa::path(get, path = "/v1/echo", tag = "echo", responses((status = 200, description = "The caller")))]
async fn read(SignedInUser(user): SignedInUser, Open(Greeting(greeting)): Open<Greeting>) -> Json<Value> {
    Json(json!({ "user_id": user.to_string(), "greeting": greeting }))
}

/// Return the caller and the length of the text
#[utoipa::path(
    post, path = "/v1/echo", tag = "echo", request_body = EchoRequest, responses((status = 200, description = "The caller"))
)]
async fn write(SignedInUser(user): SignedInUser, JsonBody(sent): JsonBody<EchoRequest>) -> impl IntoResponse {
    Json(json!({ "user_id": user.to_string(), "length": sent.text.len() }))
}

async fn events() -> PlayerEvents {
    let first = service::event(Some(7), "echo", &json!({ "text": "hi" }));
    PlayerEvents::new(futures::stream::iter([first]).chain(futures::stream::pending()))
}

/// Answers after the timeout of other requests.
async fn late() -> &'static str {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    "at last"
}

const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";

/// A process with the services of the product and [`Echo`].
struct TestProcess {
    client: Client,
    gateway: String,
    admin: String,
    _process: Process,
    _folder: TempDir,
}

struct Response {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl TestProcess {
    async fn start(file: &str) -> Self {
        Self::try_start(file, Self::SERVICES).await.unwrap()
    }

    const SERVICES: Services = Services(&[
        &operators::Wiring,
        &fleet::Wiring,
        &jobs::Wiring,
        &outbox::Wiring,
        &account::Wiring,
        &entitlement::Wiring,
        &notification::Wiring,
        &matchmaking::Wiring,
        &Echo,
        &gateway::Wiring,
    ]);

    async fn try_start(file: &str, services: Services) -> Result<Self, StartError> {
        // Fails if another test has installed it.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listen = "[listen]\ngateway = \"127.0.0.1:0\"\nservice_api = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
            open_match = \"127.0.0.1:0\"\n";
        let hash = http_server::TokenHash::of(OPERATOR_TOKEN);
        let operator = format!("[operators.tester]\ntoken_hash = \"{hash}\"\n");
        let (settings, folder) = settings(&format!("{listen}{operator}{file}"));
        let mut process = Process::new(settings.lifecycle.clone(), Metrics::new(VERSION));
        let sockets = Sockets::bind(&settings).await.unwrap();
        let at: Value = serde_json::from_str(&sockets.addresses().unwrap().to_json(None)).unwrap();
        let (id, clock) = (ProcessId::generate(), Clock::system());
        Start { id, clock, settings, sockets, services }.run(&mut process).await?;
        let address = |name: &str| at[name].as_str().unwrap().to_owned();
        Ok(Self {
            client: Client::builder().redirect(Policy::none()).timeout(PATIENCE).build().unwrap(),
            gateway: address("gateway"),
            admin: address("admin"),
            _process: process,
            _folder: folder,
        })
    }

    fn request(&self, method: RouteMethod, path: &str) -> RequestBuilder {
        let request = self.client.request(method.into(), format!("http://{}{path}", self.gateway));
        if method.is_safe() { request } else { request.json(&json!({ "text": "hi" })) }
    }

    async fn token(&self, user: &str, role: &str) -> String {
        let url = format!("http://{}/issuer/tokens?user={user}&role={role}", self.admin);
        send(self.client.post(url).bearer_auth(OPERATOR_TOKEN)).await.json()["token"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Signs a browser in at the builtin issuer. Returns the cookie of its session.
    async fn session(&self, user: &str) -> String {
        let begun = send(self.client.get(format!("http://{}/login", self.gateway))).await;
        let page_url = Url::parse(begun.header(LOCATION.as_str())).unwrap();
        let page = send(self.client.get(page_url.clone())).await;
        let (_, form) = page.body.split_once("action=\"").unwrap();
        let action = form.split('"').next().unwrap().replace("&amp;", "&");
        let pick = self.client.post(page_url.join(&action).unwrap());
        let pick = pick.header("content-type", "application/x-www-form-urlencoded");
        let picked = send(pick.body(format!("user={user}&role=player"))).await;
        let back = self.client.get(picked.header(LOCATION.as_str()));
        send(back.header("cookie", begun.cookie())).await.cookie()
    }

    /// Sends half of a body. Returns the start of the response.
    async fn send_half(&self, method: RouteMethod, token: &str) -> String {
        let mut socket = TcpStream::connect(&self.gateway).await.unwrap();
        let head = format!(
            "{method} {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: 100\r\n\r\n{{"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        timeout(PATIENCE, socket.read_exact(&mut start)).await.unwrap().unwrap();
        String::from_utf8(start.to_vec()).unwrap()
    }
}

impl Response {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.body))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Returns the one cookie that the response sets to a value, as a browser sends it back.
    fn cookie(&self) -> String {
        let lines = self.headers.get_all(SET_COOKIE).iter().map(|line| line.to_str().unwrap());
        let mut pairs = lines.filter_map(|line| line.split(';').next()).filter(|pair| !pair.ends_with('='));
        pairs.next().unwrap_or_else(|| panic!("{} {:?}", self.status, self.headers)).to_owned()
    }
}

async fn send(request: RequestBuilder) -> Response {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Response { status, headers, body: response.text().await.unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn added_routes_are_behind_the_guard() {
    let process = TestProcess::start("").await;
    let (token, session) = (process.token("ada", "player").await, process.session("ada").await);
    let service = process.token("shop", "service").await;
    let me = format!("http://{}/v1/me", process.gateway);
    let user = send(process.client.get(me).bearer_auth(&token)).await.json()["user_id"].clone();
    for method in RouteMethod::ALL {
        let request = || process.request(method, PATH);
        let anonymous = send(request()).await;
        assert_eq!(
            (anonymous.status, anonymous.header("content-type")),
            (401, "application/problem+json"),
            "{method}"
        );
        assert_eq!(send(request().header("cookie", "playhouse=bWFkZSB1cA")).await.status, 401, "{method}");

        let by_token = send(request().bearer_auth(&token)).await;
        assert_eq!(by_token.status, 200, "{method}: {}", by_token.body);
        assert_eq!(by_token.json()["user_id"], user, "{method}");
        let class = if method == RouteMethod::Get { "read" } else { "write" };
        for header in ["ratelimit", "ratelimit-policy"] {
            let limits = by_token.header(header);
            assert!(
                limits.contains("\"address\";") && limits.contains(&format!("\"{class}\";")),
                "{method}: {limits}"
            );
        }

        let by_session = || request().header("cookie", &session);
        let without = send(by_session()).await;
        let forged =
            send(by_session().header("x-playhouse-csrf", "1").header("origin", "https://evil.example")).await;
        let with = send(by_session().header("x-playhouse-csrf", "1")).await;
        assert_eq!((with.status, &with.json()["user_id"]), (200, &user), "{method}: {}", with.body);
        if method == RouteMethod::Get {
            assert_eq!((without.status, forged.status), (200, 200));
        } else {
            assert_eq!((without.status, forged.status), (403, 403), "{method}: {}", without.body);
            assert!(without.body.contains("x-playhouse-csrf: 1"), "{method}: {}", without.body);
        }

        // GET is for every signed-in user, the other methods are for players.
        let expected = if method == RouteMethod::Get { 200 } else { 403 };
        assert_eq!(send(request().bearer_auth(&service)).await.status, expected, "{method}");
    }
    let greeted = send(process.request(RouteMethod::Get, PATH).bearer_auth(&token)).await;
    assert_eq!(greeted.json()["greeting"], "hello", "a handler uses what its service provides");
}

#[tokio::test(flavor = "multi_thread")]
async fn added_routes_share_the_rate_limit_of_their_class() {
    let process =
        TestProcess::start("[gateway.limits]\nread = \"1/h burst 2\"\nwrite = \"1/h burst 3\"\n").await;
    let token = process.token("ada", "player").await;
    for (method, expected) in [
        (RouteMethod::Get, [200, 200, 429, 429]),
        (RouteMethod::Put, [200, 200, 200, 429]),
        // All methods share the class.
        (RouteMethod::Delete, [429; 4]),
    ] {
        for status in expected {
            let sent = send(process.request(method, PATH).bearer_auth(&token)).await;
            assert_eq!(sent.status, status, "{method}: {}", sent.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_every_method_are_limited_in_size_and_time() {
    let limits = "[gateway]\nmax_body = \"1KiB\"\nrequest_timeout = \"1s\"\npart_timeout = \"500ms\"\n";
    let process = TestProcess::start(limits).await;
    let token = process.token("ada", "player").await;
    let send = async |method: RouteMethod, path: &str, size: usize| {
        let frame = json!({ "text": "" }).to_string().len();
        let body = json!({ "text": "x".repeat(size - frame) });
        send(process.request(method, path).json(&body).bearer_auth(&token)).await.status
    };
    for method in RouteMethod::ALL.into_iter().filter(|method| !method.is_safe()) {
        assert_eq!(send(method, PATH, 1024).await, 200, "{method}");
        assert_eq!(send(method, PATH, 1025).await, 413, "{method}");
        assert_eq!(process.send_half(method, &token).await, "HTTP/1.1 408", "{method}");
    }
    assert_eq!(send(RouteMethod::Post, SMALL, SMALL_BODY).await, 200);
    assert_eq!(send(RouteMethod::Post, SMALL, SMALL_BODY + 1).await, 413, "a route may have a smaller limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_origins_may_use_the_methods_of_added_routes() {
    let process = TestProcess::start(&format!("[gateway]\ncors_origins = [\"{SITE}\"]\n")).await;
    let url = format!("http://{}{PATH}", process.gateway);
    for method in RouteMethod::ALL {
        let preflight = process.client.request(Method::OPTIONS, &url).header("origin", SITE);
        let preflight = preflight.header("access-control-request-headers", "idempotency-key");
        let allowed = send(preflight.header("access-control-request-method", method.to_string())).await;
        let headers: Vec<&str> = allowed.header("access-control-allow-headers").split(',').collect();
        assert!(headers.contains(&"idempotency-key"), "{method}: {headers:?}");
        let methods: Vec<&str> = allowed.header("access-control-allow-methods").split(',').collect();
        assert_eq!(allowed.status, 200, "{method}");
        assert!(methods.contains(&method.to_string().as_str()), "{method}: {methods:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn added_routes_are_described_and_refuse_other_methods() {
    let process = TestProcess::start("").await;
    let get = async |path: &str| send(process.request(RouteMethod::Get, path)).await;
    let document = get("/openapi.json").await.json();
    assert_eq!(document["paths"][PATH]["get"]["summary"], "Return the caller");
    let refusals = document["paths"][PATH]["post"]["responses"].as_object().unwrap();
    for status in ["401", "403", "408", "413", "429"] {
        assert!(refusals.contains_key(status), "{status}: {refusals:?}");
    }
    assert!(get("/docs").await.body.contains(PATH));
    let refused = send(process.request(RouteMethod::Put, SMALL)).await;
    assert_eq!((refused.status, refused.header("allow")), (405, "POST"));
}

/// A service that adds one route.
struct Clash(Row);

impl Service for Clash {
    fn name(&self) -> &'static str {
        "clash"
    }

    fn player_routes(&self) -> Vec<PlayerRoute> {
        vec![PlayerRoute::new(self.0, read)]
    }

    fn open<'a>(&'a self, _: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { Ok(ServiceParts::default()) }.boxed_local()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_routes_fail_the_start_and_name_their_services() {
    macro_rules! with {
        ($row:expr) => {
            const {
                Services(&[
                    &fleet::Wiring,
                    &jobs::Wiring,
                    &outbox::Wiring,
                    &account::Wiring,
                    &entitlement::Wiring,
                    &notification::Wiring,
                    &matchmaking::Wiring,
                    &Echo,
                    &Clash($row),
                    &gateway::Wiring,
                ])
            }
        };
    }
    for (services, expected) in [
        (
            with!(Row::get("/v1/me", AllowedCallers::Player, RateClass::Read)),
            ["GET /v1/me of \"gateway\"", "GET /v1/me of \"clash\""],
        ),
        (
            with!(Row::get(PATH, AllowedCallers::Player, RateClass::Read)),
            ["GET /v1/echo of \"echo\"", "GET /v1/echo of \"clash\""],
        ),
        (
            with!(Row::new(
                RouteMethod::Put,
                "/v1/matchmaking/tickets/{other}",
                AllowedCallers::Player,
                RateClass::Write
            )),
            [
                "GET /v1/matchmaking/tickets/{ticket_id} of \"gateway\"",
                "PUT /v1/matchmaking/tickets/{other} of \"clash\"",
            ],
        ),
    ] {
        let error = TestProcess::try_start("", services).await.map(|_| ()).unwrap_err();
        let text = base::error::chain(&error);
        assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    }
}

const SHORT: &str = "[gateway]\nrequest_timeout = \"1s\"\npart_timeout = \"500ms\"\nmax_streams = 1\n";

#[tokio::test(flavor = "multi_thread")]
async fn route_with_extra_timeout_may_take_longer() {
    let process = TestProcess::start(SHORT).await;
    let token = process.token("ada", "player").await;
    let late = send(process.request(RouteMethod::Get, LATE).bearer_auth(&token)).await;
    assert_eq!((late.status, late.body.as_str()), (200, "at last"));
}

#[tokio::test(flavor = "multi_thread")]
async fn added_stream_is_served_and_counted() {
    let process = TestProcess::start(SHORT).await;
    let token = process.token("ada", "player").await;
    let open = async || process.request(RouteMethod::Get, EVENTS).bearer_auth(&token).send().await.unwrap();
    let mut stream = open().await;
    assert_eq!(
        (stream.status().as_u16(), &stream.headers()["content-type"]),
        (200, &"text/event-stream".parse().unwrap())
    );
    let mut text = String::new();
    while !text.contains("hi") {
        let chunk = timeout(PATIENCE, stream.chunk()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("id: 7\nevent: echo\ndata: {\"text\":\"hi\"}\n\n"), "{text}");
    assert_eq!(open().await.status(), 429, "max_streams allows one stream");
    drop(stream);
    testkit::eventually("the stream is no longer counted", PATIENCE, async || {
        match open().await.status().as_u16() {
            200 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn added_home_parts_have_their_own_timeout_and_description() {
    let process = TestProcess::start(SHORT).await;
    let token = process.token("ada", "player").await;
    let home = send(process.request(RouteMethod::Get, "/v1/home").bearer_auth(&token)).await.json();
    let me = &home["account"]["data"];
    assert_eq!(home["echo"]["status"], "ok", "{home}");
    assert_eq!(home["echo"]["data"], json!({ "user_id": me["user_id"], "accounts": 1, "roles": ["player"] }));
    assert_eq!(home["silent"], json!({ "status": "unavailable" }));
    let document = send(process.request(RouteMethod::Get, "/openapi.json")).await.json();
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["Home"]["properties"]["echo"]["$ref"], "#/components/schemas/Part_EchoHome");
    let data = &schemas["Part_EchoHome"]["oneOf"][0]["properties"]["data"];
    assert_eq!(data["$ref"], "#/components/schemas/EchoHome");
}
