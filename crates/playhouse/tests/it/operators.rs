//! Named operators and the audit log.

mod audit_log;
mod bulk;
mod callers;
mod console;
mod console_headers;
mod open_match;

use std::os::unix::fs::PermissionsExt;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::json;
use testkit::Folder;

use super::shop::{self, OPERATOR_TOKEN, READER_TOKEN};
use super::*;

/// A process with embedded stores, an operator and a read-only operator.
struct TestProcess {
    folder: Folder,
    _running: RunningProgram,
    at: HashMap<String, String>,
    client: Client,
}

impl TestProcess {
    async fn start() -> Self {
        Self::start_with(|program| program).await
    }

    /// Starts with further settings in a file.
    async fn start_with_config(config: &str) -> Self {
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("more.toml");
        std::fs::write(&file, format!("{}{config}", shop::operators())).unwrap();
        let process = Self::start_with(|program| program.args(["--config", file.to_str().unwrap()])).await;
        drop(folder);
        process
    }

    async fn start_with(change: impl FnOnce(Program) -> Program) -> Self {
        let folder = Folder::fresh().unwrap();
        let running = change(shop::embedded(&folder)).start().unwrap();
        let at = addresses(&running).await;
        Self { folder, _running: running, at, client: Client::new() }
    }

    fn url(&self, listener: &str, path: &str) -> String {
        format!("http://{}{path}", self.at[listener])
    }

    fn admin(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.client.request(method, self.url("admin", path)).bearer_auth(token)
    }

    /// Returns entries of the audit log, the newest first.
    async fn audit_log(&self, query: &str) -> Vec<Value> {
        let (status, found) = shop::admin_get(self.url("admin", &format!("/audit?{query}"))).await;
        assert_eq!(status, 200, "{found}");
        found["entries"].as_array().unwrap().clone()
    }

    /// Returns all entries of the audit log, the oldest first.
    async fn all_entries(&self) -> Vec<Value> {
        let (mut entries, mut after) = (Vec::new(), 0);
        loop {
            let page = self.audit_log(&format!("limit=1000&after={after}")).await;
            let Some(last) = page.last() else { return entries };
            after = last["number"].as_i64().unwrap();
            entries.extend(page);
        }
    }

    /// Signs a player in by an access token, as a game client does. Returns the id of the user.
    async fn signed_in_user(&self, name: &str) -> String {
        let token = self.issued_token(name, "player").await;
        let (status, me) = send(self.client.get(self.url("gateway", "/v1/me")).bearer_auth(token)).await;
        assert_eq!(status, 200, "{me}");
        me["user_id"].as_str().unwrap().to_owned()
    }

    /// Returns an access token of the builtin issuer.
    async fn issued_token(&self, user: &str, role: &str) -> String {
        let path = format!("/issuer/tokens?user={user}&role={role}");
        let (status, made) = send(self.admin(Method::POST, &path, OPERATOR_TOKEN)).await;
        assert_eq!(status, 200, "{made}");
        made["token"].as_str().unwrap().to_owned()
    }
}

async fn send(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_page_cannot_use_the_admin_api() {
    let process = TestProcess::start().await;
    let mint = |token: &str| process.admin(Method::POST, "/issuer/tokens?user=eve&role=operator", token);
    let (status, _) =
        send(process.client.post(process.url("admin", "/issuer/tokens?user=eve&role=operator"))).await;
    assert_eq!(status, 401, "only an operator can mint a token");

    // A page that has learnt the token cannot either.
    let (status, problem) = send(mint(OPERATOR_TOKEN).header("host", "evil.example")).await;
    assert_eq!((status, &problem["type"]), (403, &json!("urn:playhouse:problem:unknown-host")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("listen.allowed_hosts"), "{problem}");
    let (status, problem) = send(mint(OPERATOR_TOKEN).header("origin", "https://evil.example")).await;
    assert_eq!(
        (status, &problem["type"]),
        (403, &json!("urn:playhouse:problem:foreign-origin")),
        "{problem}"
    );
    let (status, problem) = send(mint(OPERATOR_TOKEN).header("origin", "null")).await;
    assert_eq!(status, 403, "{problem}");
    let own = process.url("admin", "");
    assert_eq!(
        send(mint(OPERATOR_TOKEN).header("origin", own)).await.0,
        200,
        "the admin API's own pages may call it"
    );
    assert_eq!(send(mint(OPERATOR_TOKEN).header("host", "localhost:8082")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_listener_refuses_foreign_host_names() {
    let process = TestProcess::start_with(|program| {
        program
            .env("PLAYHOUSE_GATEWAY_PUBLIC_URL", "http://localhost:1")
            .env("PLAYHOUSE_LISTEN_ALLOWED_HOSTS", "*.games.example, api.example.com")
    })
    .await;
    let tickets = "/v1/frontendservice/tickets";
    for (listener, path) in [
        ("gateway", "/v1/client-config"),
        ("service_api", "/internal/v1/openapi.json"),
        ("admin", "/"),
        ("open_match", "/"),
    ] {
        for (host, expected) in [
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("api.example.com", 200),
            ("eu.games.example:443", 200),
            ("playhouse", 200),
            ("127.0.0.1", 200),
        ] {
            let (status, response) =
                send(process.client.get(process.url(listener, path)).header("host", host)).await;
            assert_eq!(status, expected, "{listener} as {host}: {response}");
        }
        let probe = process.client.get(process.url(listener, "/healthz")).header("host", "lb.example.net");
        assert_eq!(send(probe).await.0, 200, "{listener}: load balancers use any host name");
    }
    // Calls that bypass the router are checked too.
    let create = |host: &str, origin: Option<&str>| {
        let request = process.client.post(process.url("open_match", tickets)).json(&json!({ "ticket": {} }));
        let request = request.header("host", host);
        match origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        }
    };
    assert_eq!(send(create("127.0.0.1", None)).await.0, 200);
    assert_eq!(send(create("evil.example", None)).await.0, 403);
    assert_eq!(send(create("127.0.0.1", Some("https://evil.example"))).await.0, 403);
    // DNS rebinding over HTTP/2 as well.
    let http2 = Client::builder()
        .http2_prior_knowledge()
        .resolve("evil.example", process.at["service_api"].parse().unwrap());
    let port = process.at["service_api"].rsplit(':').next().unwrap();
    let url = format!("http://evil.example:{port}/internal/v1/openapi.json");
    assert_eq!(send(http2.build().unwrap().get(url)).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn issuer_role_decides_what_an_operator_may_do() {
    let process = TestProcess::start().await;
    for (role, read, change) in
        [("operator", 200, 200), ("operator-readonly", 200, 403), ("player", 403, 403)]
    {
        let token = process.issued_token("olga", role).await;
        let (status, response) = send(process.admin(Method::GET, "/outbox", &token)).await;
        assert_eq!(status, read, "{role}: {response}");
        let (status, response) = send(process.admin(Method::POST, "/outbox/skip?cause=none", &token)).await;
        assert_eq!(status, change, "{role}: {response}");
    }
    let (status, who) =
        send(process.admin(Method::GET, "/operator", &process.issued_token("olga", "operator").await)).await;
    assert_eq!((status, &who["name"], &who["read_only"]), (200, &json!("olga"), &json!(false)), "{who}");
    let (status, who) = send(process.admin(Method::GET, "/operator", READER_TOKEN)).await;
    assert_eq!((status, &who["name"], &who["read_only"]), (200, &json!("reader"), &json!(true)), "{who}");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_public_unless_configured_otherwise() {
    let open = TestProcess::start().await;
    let closed = TestProcess::start_with(|program| {
        program.env("PLAYHOUSE_ADMIN_HEALTH", "operators").env("PLAYHOUSE_ADMIN_METRICS", "operators")
    })
    .await;
    for path in ["/", "/healthz", "/readyz", "/metrics"] {
        assert_eq!(send(open.client.get(open.url("admin", path))).await.0, 200, "{path}");
        assert_eq!(send(closed.client.get(closed.url("admin", path))).await.0, 401, "{path}");
        assert_eq!(send(closed.admin(Method::GET, path, READER_TOKEN)).await.0, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_find_the_operator_token_of_playhouse_dev() {
    let folder = Folder::fresh().unwrap();
    let data = folder.path().join("data");
    let start = || {
        playhouse_without_token(&["dev", "--print-addresses", "--data", data.to_str().unwrap()])
            .args(ANY_PORT)
            .start()
            .unwrap()
    };
    let running = start();
    let at = addresses(&running).await;
    let file = data.join("operator-token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), at["operator_token"]);
    let service_file = data.join("service-token");
    assert_eq!(std::fs::metadata(&service_file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&service_file).unwrap().trim(), at["service_token"]);
    // The commands run in another folder and get no token.
    let execute =
        async |args: &[&str]| run(playhouse_without_token(args).args(["--admin", &at["admin"]])).await;
    let (code, out, errors) = execute(&["outbox", "list"]).await;
    assert_eq!(code, 0, "{out}{errors}");
    let (code, token, errors) = execute(&["token", "--user", "ada"]).await;
    assert!(code == 0 && token.split('.').count() == 3, "{token}{errors}");

    // A second process on the same folder does not start and does not change the token.
    let second = start();
    assert_eq!(second.wait(PATIENCE).await.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), at["operator_token"]);
    assert_eq!(std::fs::read_to_string(&service_file).unwrap().trim(), at["service_token"]);
    // A token file that others could read is replaced.
    running.sigterm();
    running.wait(PATIENCE).await;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let running = start();
    let again = addresses(&running).await;
    assert_ne!(again["operator_token"], at["operator_token"]);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_explain_token_errors() {
    let process = TestProcess::start().await;
    let execute = async |program: Program| {
        let (code, out, errors) = run(program.args(["--admin", &process.at["admin"]])).await;
        (code, out + &errors)
    };
    let (code, said) = execute(playhouse_without_token(&["outbox", "list"])).await;
    assert!(
        code == 1 && said.contains("PLAYHOUSE_OPERATOR_TOKEN") && said.contains("--operator-token-file"),
        "{said}"
    );
    let (code, said) =
        execute(playhouse_without_token(&["outbox", "list"]).env("PLAYHOUSE_OPERATOR_TOKEN", "wrong")).await;
    assert!(
        code == 1 && said.contains("does not know the operator token of PLAYHOUSE_OPERATOR_TOKEN."),
        "{said}"
    );
    let reader =
        playhouse_without_token(&["outbox", "skip", "--all"]).env("PLAYHOUSE_OPERATOR_TOKEN", READER_TOKEN);
    let (code, said) = execute(reader).await;
    assert!(code == 1 && said.contains("\"reader\" is read-only"), "{said}");

    let file = process.folder.path().join("token");
    std::fs::write(&file, format!("{OPERATOR_TOKEN}\n")).unwrap();
    let (code, said) = execute(playhouse_without_token(&[
        "outbox",
        "list",
        "--operator-token-file",
        file.to_str().unwrap(),
    ]))
    .await;
    assert_eq!(code, 0, "{said}");
    let (code, said) =
        execute(playhouse_without_token(&["outbox", "list"]).env("PLAYHOUSE_OPERATOR_TOKEN_FILE", &file))
            .await;
    assert_eq!(code, 0, "{said}");
    let (code, said) =
        execute(playhouse_without_token(&["outbox", "list", "--operator-token-file", "/nowhere"])).await;
    assert!(code == 2 && said.contains("cannot read the operator token in /nowhere"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_operator_token_is_accepted() {
    for (args, status) in [
        (vec!["token", "--operator", "grace"], 200),
        (vec!["token", "--operator", "grace", "--read-only"], 403),
    ] {
        let (code, made, errors) = run(playhouse_without_token(&args)).await;
        assert_eq!(code, 0, "{errors}");
        let token = made.lines().find(|line| line.starts_with("ph_")).unwrap().to_owned();
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        let section: Vec<&str> = made.lines().skip_while(|line| !line.starts_with("[operators.")).collect();
        std::fs::write(&file, section.join("\n")).unwrap();
        let process = TestProcess::start_with(|program| program.env("PLAYHOUSE_CONFIG", &file)).await;
        assert_eq!(send(process.admin(Method::POST, "/outbox/skip?all=true", &token)).await.0, status);
        assert_eq!(send(process.admin(Method::GET, "/outbox", &token)).await.0, 200);
    }
    let (code, _, errors) = run(playhouse_without_token(&["token", "--operator", "Grace Hopper"])).await;
    assert!(code == 2 && errors.contains("cannot be the name of an operator"), "{errors}");
}
