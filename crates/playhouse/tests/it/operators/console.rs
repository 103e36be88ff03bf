//! Sign-in at the console, and who may load its pages and send its forms.

use reqwest::header::{ACCEPT, CONTENT_SECURITY_POLICY, COOKIE, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode, Url};
use service::{Access, Credential};
use testkit::eventually;

use super::super::shop::TOKEN;
use super::*;

/// A browser at the console: it keeps cookies and follows no redirect.
pub(super) struct Browser<'a> {
    process: &'a TestProcess,
    client: Client,
    pub(super) cookies: HashMap<String, String>,
}

impl<'a> Browser<'a> {
    fn new(process: &'a TestProcess) -> Self {
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        Self { process, client, cookies: HashMap::new() }
    }

    pub(super) async fn signed_in(process: &'a TestProcess, token: &str) -> Self {
        let mut browser = Self::new(process);
        let response = browser.post("/console/sign-in/token", &[("token", token)]).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        browser
    }

    pub(super) fn request(&self, method: Method, url: &str) -> RequestBuilder {
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = self.client.request(method, url).header(ACCEPT, "text/html");
        if cookies.is_empty() { request } else { request.header(COOKIE, cookies.join("; ")) }
    }

    async fn send(&mut self, request: RequestBuilder) -> Response {
        let response = request.send().await.unwrap();
        for line in response.headers().get_all(SET_COOKIE) {
            let line = line.to_str().unwrap();
            let (name, value) = line.split(';').next().unwrap().split_once('=').unwrap();
            if line.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        response
    }

    pub(super) async fn open(&mut self, path: &str) -> Response {
        let url = self.process.url("admin", path);
        self.send(self.request(Method::GET, &url)).await
    }

    pub(super) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Response {
        let url = self.process.url("admin", path);
        let request = self.request(Method::POST, &url).header(ORIGIN, self.process.url("admin", ""));
        self.send(form(request, fields)).await
    }

    /// Signs in at the builtin issuer. Returns the response to the issuer's redirect back.
    async fn sign_in_at_issuer(&mut self, user: &str, role: &str) -> Response {
        let back = self.issuer_redirect(user, role).await;
        self.send(self.request(Method::GET, &back)).await
    }

    /// Begins a sign-in and picks a user at the issuer. Returns where the issuer sends the browser.
    async fn issuer_redirect(&mut self, user: &str, role: &str) -> String {
        let response = self.open("/console/sign-in/issuer?return_to=/console/players").await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        let picker = location(&response);
        assert!(picker.contains("/issuer/authorize"), "{picker}");
        let picked = form(self.client.post(picker), &[("pick", user), ("role", role)]);
        let picked = picked.send().await.unwrap();
        assert_eq!(picked.status(), StatusCode::SEE_OTHER);
        location(&picked)
    }
}

fn location(response: &Response) -> String {
    response.headers()[LOCATION].to_str().unwrap().to_owned()
}

async fn text_of(response: Response) -> String {
    response.text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_with_a_token_signs_in_and_out() {
    let process = TestProcess::start().await;
    let mut browser = Browser::new(&process);
    let live = browser.client.get(process.url("admin", "/console/live?at=/console"));
    let live = live.header(ACCEPT, "text/event-stream").send().await.unwrap();
    assert_eq!(live.status(), StatusCode::UNAUTHORIZED);
    let response = browser.open("/console/players?search=ada").await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER, "the sign-in page");
    let sign_in = location(&response);
    assert_eq!(sign_in, "/console/sign-in?return_to=%2Fconsole%2Fplayers%3Fsearch%3Dada");
    let page = text_of(browser.open(&sign_in).await).await;
    assert!(page.contains("value=\"/console/players?search=ada\""), "{page}");

    let refused = browser.post("/console/sign-in/token", &[("token", "ph_wrong")]).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(text_of(refused).await.contains("No operator has this token"));
    assert!(browser.cookies.is_empty());

    let fields = [("token", OPERATOR_TOKEN), ("return_to", "/console/players?search=ada")];
    let response = browser.post("/console/sign-in/token", &fields).await;
    assert_eq!((response.status(), location(&response).as_str()), (StatusCode::SEE_OTHER, fields[1].1));
    let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
    for attribute in ["Path=/console", "HttpOnly", "SameSite=Lax"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let page = browser.open("/console").await;
    assert_eq!(page.status(), StatusCode::OK);
    let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
    for rule in ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(text_of(page).await.contains("tester"));

    let stolen = browser.cookies.clone();
    let response = browser.post("/console/sign-out", &[]).await;
    assert_eq!(location(&response), "/console/sign-in");
    assert!(browser.cookies.is_empty());
    browser.cookies = stolen;
    assert_eq!(browser.open("/console").await.status(), StatusCode::SEE_OTHER, "the session has ended");

    let entries = process.audit_log("action=sign in at the console").await;
    let found: Vec<_> = entries.iter().map(|entry| (&entry["actor"]["name"], &entry["outcome"])).collect();
    assert_eq!(found, [(&json!("tester"), &json!("done"))]);
    let text = serde_json::to_string(&entries).unwrap();
    assert!(!text.contains(OPERATOR_TOKEN), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_signs_in_at_the_issuer() {
    let process = TestProcess::start().await;
    let mut browser = Browser::new(&process);
    let response = browser.sign_in_at_issuer("olga", "operator").await;
    assert_eq!(
        (response.status(), location(&response).as_str()),
        (StatusCode::SEE_OTHER, "/console/players")
    );
    assert!(text_of(browser.open("/console/players").await).await.contains("olga"));
    assert_eq!(browser.cookies.len(), 1, "the cookie of the attempt is gone: {:?}", browser.cookies);

    let mut player = Browser::new(&process);
    let response = player.sign_in_at_issuer("pavel", "player").await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(text_of(response).await.contains("pavel is not an operator"));
    assert!(player.cookies.is_empty());
    let entries = process.audit_log("action=sign in at the console").await;
    let found: Vec<_> = entries.iter().map(|entry| (&entry["actor"]["name"], &entry["outcome"])).collect();
    assert_eq!(found, [(&json!("pavel"), &json!("refused")), (&json!("olga"), &json!("done"))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_role_counts_at_the_next_sign_in() {
    let process = TestProcess::start().await;
    let mut browser = Browser::new(&process);
    browser.sign_in_at_issuer("olga", "operator").await;
    // The issuer takes the role away. The session goes on until it ends.
    let mut elsewhere = Browser::new(&process);
    assert_eq!(elsewhere.sign_in_at_issuer("olga", "player").await.status(), StatusCode::FORBIDDEN);
    assert_eq!(browser.open("/console").await.status(), StatusCode::OK);
    browser.post("/console/sign-out", &[]).await;
    assert_eq!(browser.sign_in_at_issuer("olga", "player").await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_browser_that_began_a_sign_in_finishes_it() {
    let process = TestProcess::start().await;
    let mut browser = Browser::new(&process);
    let back = browser.issuer_redirect("olga", "operator").await;
    let mut other = Browser::new(&process);
    let response = other.send(other.request(Method::GET, &back)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(other.cookies.is_empty());

    let forged = |name: &str, value: &str| {
        let mut url = Url::parse(&back).unwrap();
        let kept = url.query_pairs().filter(|(found, _)| found != name);
        let pairs: Vec<(String, String)> = kept.map(|(a, b)| (a.into_owned(), b.into_owned())).collect();
        url.query_pairs_mut().clear().extend_pairs(pairs).append_pair(name, value);
        url.to_string()
    };
    let kept = browser.cookies.clone();
    for url in [forged("state", "x"), forged("iss", "https://evil.example"), forged("code", "x")] {
        browser.cookies = kept.clone();
        let response = browser.send(browser.request(Method::GET, &url)).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{url}");
        assert!(browser.cookies.is_empty(), "{url}");
    }
    browser.cookies = kept;
    let response = browser.send(browser.request(Method::GET, &back)).await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
}

#[tokio::test(flavor = "multi_thread")]
async fn session_opens_the_pages_of_the_console_and_nothing_else() {
    let process = TestProcess::start().await;
    let mut browser = Browser::signed_in(&process, READER_TOKEN).await;
    let player = process.issued_token("pavel", "player").await;
    for row in playhouse::operator_rows() {
        let url = process.url("admin", &callers::concrete(row.path()));
        let what = format!("{} {}", row.method(), row.path());
        match (row.credential(), row.access()) {
            (Credential::Token, _) => {
                let status = browser.send(browser.request(row.method().into(), &url)).await.status();
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{what} accepts the cookie");
            }
            (Credential::ConsoleSession, Access::Open) => {}
            (Credential::ConsoleSession, _) => {
                for token in [&player[..], OPERATOR_TOKEN, TOKEN] {
                    let bearer = browser.client.request(row.method().into(), &url).bearer_auth(token);
                    let response = bearer.send().await.unwrap();
                    assert_eq!(response.status(), StatusCode::SEE_OTHER, "{what} accepts a token");
                    assert!(location(&response).starts_with("/console/sign-in?"), "{what}");
                }
                // These end the session, or do not end.
                if matches!(row.path(), "/console/sign-out" | "/console/live") {
                    continue;
                }
                let status = browser.send(browser.request(row.method().into(), &url)).await.status();
                assert!(
                    status != StatusCode::UNAUTHORIZED && status != StatusCode::SEE_OTHER,
                    "{what}: {status}"
                );
            }
        }
    }
}

/// The fields of the form that ends all sessions of a user.
fn end_sessions(user: &str) -> [(&str, &str); 4] {
    [
        ("route", "POST /users/{user_id}/end-sessions"),
        ("p.user_id", user),
        ("note", "asked by phone"),
        ("back", "/console/players"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn form_changes_something_in_the_name_of_its_operator() {
    let process = TestProcess::start().await;
    let user = process.signed_in_user("ada").await;
    let mut reader = Browser::signed_in(&process, READER_TOKEN).await;
    assert_eq!(reader.post("/console/actions", &end_sessions(&user)).await.status(), StatusCode::FORBIDDEN);
    let mut browser = Browser::signed_in(&process, OPERATOR_TOKEN).await;
    let response = browser.post("/console/actions", &end_sessions(&user)).await;
    assert_eq!(
        (response.status(), location(&response).as_str()),
        (StatusCode::SEE_OTHER, "/console/players")
    );

    let entries = process.audit_log("action=end-sessions").await;
    let found: Vec<_> =
        entries.iter().map(|entry| (&entry["actor"]["name"], &entry["outcome"], &entry["note"])).collect();
    let note = json!("asked by phone");
    let (done, refused) = (json!("done"), json!("refused"));
    assert_eq!(found, [(&json!("tester"), &done, &note), (&json!("reader"), &refused, &note)]);
    assert!(entries.iter().all(|entry| entry["address"] == "127.0.0.1"), "{entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn form_of_another_site_is_refused() {
    let process = TestProcess::start().await;
    let user = process.signed_in_user("ada").await;
    let browser = Browser::signed_in(&process, OPERATOR_TOKEN).await;
    let url = process.url("admin", "/console/actions");
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let request = browser.request(Method::POST, &url).header(name, value);
        let (status, problem) = send(form(request, &end_sessions(&user))).await;
        assert_eq!(status, 403, "{name}: {value}: {problem}");
        assert_eq!(problem["type"], "urn:playhouse:problem:foreign-origin");
    }
    assert!(process.audit_log("action=end-sessions").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_console_offers_and_accepts_no_action() {
    let process = TestProcess::start_with(|program| program.env("PLAYHOUSE_CONSOLE_READ_ONLY", "true")).await;
    let user = process.signed_in_user("ada").await;
    let mut browser = Browser::signed_in(&process, OPERATOR_TOKEN).await;
    let response = browser.post("/console/actions", &end_sessions(&user)).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let page = text_of(browser.open(&format!("/console/players/{user}")).await).await;
    assert!(page.contains(&user) && !page.contains("/console/action?"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_console_has_no_page() {
    let process = TestProcess::start_with(|program| program.env("PLAYHOUSE_CONSOLE_ENABLED", "false")).await;
    let mut browser = Browser::new(&process);
    for path in ["/console", "/console/sign-in"] {
        assert_eq!(browser.open(path).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
}

/// A profile with a rule set, in which nobody sends `level`.
const RANKED: &str = r#"
[matchmaking.profiles.ranked]
function = "rules"
assigner = "one_each"
max_wait = "1s"
rules = """
name = "ranked"
[attributes.skill]
type = "number"
[attributes.level]
type = "number"
default = 1
[teams.side]
count = 2
max = 1
[rules.fair]
type = "batch-distance"
attribute = "skill"
max = 50
relax = [{ after = 3600, max = 100 }]
[rules.grown]
type = "total"
attribute = "level"
max = 10
"""
[matchmaking.assigners.one_each]
addresses = ["{match_id}.test:7777"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn reasons_why_a_ticket_waits_are_shown_by_route_command_and_console() {
    let process = TestProcess::start_with_config(RANKED).await;
    let url = process.url("open_match", "/v1/frontendservice/tickets");
    let create = async |skill: f64| {
        let ticket = json!({ "ticket": { "search_fields": { "double_args": { "skill": skill } } } });
        let made: Value = process.client.post(&url).json(&ticket).send().await.unwrap().json().await.unwrap();
        made["id"].as_str().unwrap().to_owned()
    };
    let (anna, ben) = (create(1_000.0).await, create(1_080.0).await);

    let why = eventually("the ticket starves", PATIENCE, async || {
        let request = process.client.get(process.url("admin", &format!("/tickets/{anna}/why")));
        let why: Value = request.bearer_auth(READER_TOKEN).send().await.unwrap().json().await.unwrap();
        (why["profiles"][0]["is_starving"] == true).then_some(why.clone()).ok_or(why)
    })
    .await;
    let rules = &why["profiles"][0]["pools"][0]["rules"];
    assert_eq!(rules["reason"], json!({ "code": "rule", "rule": "fair" }));
    assert_eq!((&rules["rules"][0]["passed"], &rules["rules"][0]["failed"]), (&json!(0), &json!(1)));
    let miss = json!({ "ticket": ben, "value": 80.0, "limit": 50.0, "by": 30.0 });
    assert_eq!(rules["rules"][0]["nearest_miss"], miss);
    assert_eq!(rules["unsent"][0]["attribute"], "level");
    let unknown = process.client.get(process.url("admin", "/tickets/unknown/why")).bearer_auth(READER_TOKEN);
    assert_eq!(unknown.send().await.unwrap().status(), StatusCode::NOT_FOUND);

    let admin = process.url("admin", "");
    let command = |args: &[&str]| {
        let command = playhouse(&["tickets", "--admin", &admin]).args(args.iter().copied());
        command.env("PLAYHOUSE_OPERATOR_TOKEN", READER_TOKEN)
    };
    let (code, shown, errors) = run(command(&["why", &anna])).await;
    assert_eq!(code, 0, "{errors}");
    for line in [
        "2 tickets in matchmaking",
        "profile ranked, pool all: blocked by rule fair",
        &format!("nearest miss: 80 with ticket {ben}, 30 off"),
        "no waiting ticket sends level",
        "it has waited for longer than max_wait",
    ] {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
    let (_, shown, _) = run(command(&["--json", "why", &anna])).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["profiles"][0]["pools"][0]["rules"]["rules"][0]["nearest_miss"], miss);

    let mut browser = Browser::signed_in(&process, READER_TOKEN).await;
    let page = text_of(browser.open(&format!("/console/tickets/{anna}")).await).await;
    for part in ["blocked by rule fair", "max 50 (100 in", "batch-distance", "80 with ticket"] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    assert!(page.contains(&format!("/console/tickets/{ben}")), "the nearest candidate is a link");
    let page = text_of(browser.open("/console/matchmaking").await).await;
    assert!(page.contains("Profile ranked: no waiting ticket sends level, which grown reads"), "{page}");

    let metrics = process.client.get(process.url("admin", "/metrics")).send().await.unwrap();
    let starving = "playhouse_matchmaking_starving_tickets{profile=\"ranked\"} 2";
    let metrics = text_of(metrics).await;
    assert!(metrics.contains(starving), "{starving} is not exported");
}
