//! Drops as used by services and operators.

use reqwest::redirect::Policy;
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use testkit::{Folder, eventually};

use super::shop::{self, POOR_TOKEN, Shop, TOKEN};
use super::*;

const UNKNOWN: &str = "0198c0de-0000-7000-8000-000000000001";
const PREFIX: &str = "urn:playhouse:problem:";

/// A process with embedded stores.
struct TestProcess {
    folder: Folder,
    running: RunningProgram,
    admin: String,
    shop: Shop,
}

impl TestProcess {
    async fn start() -> Self {
        Self::start_in(Folder::fresh().unwrap()).await
    }

    async fn start_in(folder: Folder) -> Self {
        let running = shop::embedded(&folder).start().unwrap();
        let at = addresses(&running).await;
        Self { folder, running, admin: at["admin"].clone(), shop: Shop::at(&at["service_api"]) }
    }

    /// Stops the process, changes its database and starts it again.
    async fn restart_with(self, change: &str) -> Self {
        let Self { folder, running, .. } = self;
        running.sigterm();
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
        let file = folder.path().join("playhouse.db");
        let mut db = SqliteConnectOptions::new().filename(file).connect().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(change.to_owned())).execute(&mut db).await.unwrap();
        db.close().await.unwrap();
        Self::start_in(folder).await
    }

    /// Signs an operator in at the console.
    async fn console(&self) -> Console {
        let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        let origin = format!("http://{}", self.admin);
        let sign_in = client.post(format!("{origin}/console/sign-in/token")).header("origin", &origin);
        let signed_in = form(sign_in, &[("token", shop::OPERATOR_TOKEN)]).send().await.unwrap();
        let cookie =
            signed_in.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        Console { client, origin, cookie }
    }

    /// Returns the exit code and the output: stdout, or stderr if stdout is empty.
    async fn run(&self, args: &[&str]) -> (i32, String) {
        let program = playhouse(&["drops"]).args(args.iter().copied()).args(["--admin", &self.admin]);
        let (code, out, errors) = run(program).await;
        (code, if out.is_empty() { errors } else { out })
    }

    /// Runs a command that must succeed.
    async fn run_ok(&self, args: &[&str]) -> String {
        let (code, out) = self.run(args).await;
        assert_eq!(code, 0, "{args:?}: {out}");
        out
    }

    async fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.run_ok(&args).await).unwrap()
    }

    /// Creates a draft with ten units and returns its id.
    async fn create(&self, name: &str, more: &[&str]) -> String {
        let args = [
            "create",
            "--name",
            name,
            "--item",
            "skin",
            "--stock",
            "10",
            "--price",
            "1999",
            "--currency",
            "EUR",
        ];
        let args: Vec<&str> = args.into_iter().chain(more.iter().copied()).collect();
        self.json(&args).await["drop_id"].as_str().unwrap().to_owned()
    }

    /// Sends a request of the service `shop` that must be refused. Returns the status and the problem type without its prefix.
    async fn send_refused(
        &self,
        method: reqwest::Method,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> (u16, String) {
        let mut request = reqwest::Client::new().request(method, self.shop.url(path)).bearer_auth(TOKEN);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = if body.is_null() { request } else { request.json(body) }.send().await.unwrap();
        let status = response.status().as_u16();
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
        let problem: Value = response.json().await.unwrap();
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        (status, problem["type"].as_str().unwrap().trim_start_matches(PREFIX).to_owned())
    }
}

/// An operator who is signed in at the console.
struct Console {
    client: reqwest::Client,
    origin: String,
    cookie: String,
}

impl Console {
    /// Returns the HTML of a page.
    async fn page(&self, path: &str) -> String {
        let request = self.client.get(format!("{}{path}", self.origin)).header("cookie", &self.cookie);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        response.text().await.unwrap()
    }
}

/// A body that creates a drop.
fn new_drop(name: &str) -> Value {
    json!({
        "name": name, "resource": "skin", "stock": 10,
        "terms": {
            "price": { "amount": 1999, "currency": "EUR" }, "per_player": 1, "reservation_ms": 300_000,
            "admission": { "batch": 50, "capacity": 500, "lifetime_ms": 600_000, "arrive_within_ms": 60_000 },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_runs_a_drop_with_commands() {
    let process = TestProcess::start().await;
    assert!(process.run_ok(&["list"]).await.contains("No drops found."));
    let drop = process.create("summer", &["--message", "Soon", "--key", "summer-1"]).await;
    let again = process.create("summer", &["--message", "Soon", "--key", "summer-1"]).await;
    assert_eq!(again, drop, "the same key creates one drop");
    let drop = drop.as_str();

    let listed = process.run_ok(&["list", "--state", "draft"]).await;
    assert!(listed.contains(drop) && listed.contains("summer"), "{listed}");
    let scheduled = process.run_ok(&["schedule", drop, "--in", "1h"]).await;
    assert!(scheduled.contains("SCHEDULED and opens at"), "{scheduled}");
    assert!(process.run_ok(&["message", drop, "Nearly there"]).await.contains("Nearly there"));
    assert!(!process.run_ok(&["message", drop, "--clear"]).await.contains("message"));
    assert!(process.run_ok(&["everyone-waits", drop, "on"]).await.contains("everyone waits"));
    assert!(!process.run_ok(&["everyone-waits", drop, "off"]).await.contains("everyone waits"));
    for (args, state) in [(["open", drop], "OPEN"), (["pause", drop], "PAUSED"), (["resume", drop], "OPEN")] {
        assert_eq!(process.run_ok(&args).await.trim(), format!("{drop} is {state}"));
    }

    let stock = process.run_ok(&["stock", drop, "--by", "-3", "--reason", "damaged", "--key", "a1"]).await;
    assert!(stock.contains("7 available") && stock.contains("adjusted -3"), "{stock}");
    let again = process.run_ok(&["stock", drop, "--by", "-3", "--reason", "damaged", "--key", "a1"]).await;
    assert_eq!(again, stock, "the same key adjusts once");
    assert_eq!(process.run_ok(&["stock", drop]).await, stock);
    let ledger = process.run_ok(&["ledger", drop]).await;
    for said in ["ADJUSTED", "by operator:tester: damaged", "CREATED"] {
        assert!(ledger.contains(said), "{ledger} lacks {said}");
    }
    let page = process.json(&["ledger", drop, "--limit", "1"]).await;
    assert_eq!((&page["entries"][0]["adjusted"], &page["next"]), (&json!(-3), &json!("2.0")));

    process.run_ok(&["pace", drop, "--batch", "20", "--period", "5s"]).await;
    let (code, said) = process.run(&["pace", drop, "--capacity", "0"]).await;
    assert!(code == 1 && said.contains("admission.capacity must be 1 to"), "{code} {said}");
    assert_eq!(process.run(&["pace", drop]).await.0, 2, "a pace without a number is a usage error");
    let shown = process.run_ok(&["show", drop]).await;
    for said in ["OPEN", "7 available, 0 reserved, 0 sold", "0 waiting, 0 inside", "20 per 5 s", "seed hash"]
    {
        assert!(shown.contains(said), "{shown} lacks {said}");
    }
    assert!(process.run_ok(&["audit", drop]).await.contains("balanced"));
    assert!(process.run_ok(&["rebuild", drop]).await.contains("0 players waiting"));
    assert!(process.run_ok(&["verify-order", drop]).await.contains("0 places checked"));
    assert!(process.run_ok(&["orders"]).await.contains("No orders found."));
    assert!(process.run_ok(&["refunds"]).await.contains("No refunds are due."));
    assert_eq!(process.run_ok(&["close", drop]).await.trim(), format!("{drop} is CLOSED"));
    // A closed drop cannot be changed, and the command says why.
    for args in [vec!["open", drop], vec!["pause", drop], vec!["cancel", drop], vec!["message", drop, "x"]] {
        let (code, said) = process.run(&args).await;
        assert!(code == 1 && said.contains("CLOSED"), "{args:?}: {code} {said}");
    }
    let (code, said) = process.run(&["show", UNKNOWN]).await;
    assert_eq!((code, said.trim()), (1, format!("error: there is no drop {UNKNOWN}").as_str()));
    let (code, said) = process.run(&["schedule", drop, "--opens-at", "soon"]).await;
    assert!(code == 2 && said.contains("expected a time"), "{code} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduled_drop_opens_and_closes_automatically() {
    let process = TestProcess::start().await;
    let drop = process.create("timed", &["--order", "shuffle"]).await;
    let (code, said) = process.run(&["verify-order", &drop]).await;
    assert!(code == 1 && said.contains("published when the drop opens"), "{code} {said}");
    assert!(process.json(&["show", &drop]).await["seed"].is_null(), "the seed is secret before the opening");
    let now = base::Clock::system().now();
    let (opens, closes) = (now.after(Duration::from_millis(500)), now.after(Duration::from_secs(3)));
    let (opens, closes) = (opens.to_rfc3339(), closes.to_rfc3339());
    process.run_ok(&["schedule", &drop, "--opens-at", &opens, "--closes-at", &closes]).await;
    for state in ["OPEN", "CLOSED"] {
        eventually(state, PATIENCE, async || {
            let found = process.json(&["show", &drop]).await;
            let is_reached = found["state"] == state || found["state"] == "CLOSED";
            if is_reached { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    }
    assert!(process.run_ok(&["verify-order", &drop]).await.contains("0 places checked"));
    eventually("its events are published", PATIENCE, async || {
        let published = shop::in_outbox(&process.admin, "published").await;
        if published.len() == 3 { Ok(()) } else { Err(format!("{published:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_request_has_a_problem_type_and_no_effect() {
    use reqwest::Method;
    let process = TestProcess::start().await;
    let (status, created) = process.shop.post("/drops", Some("c1"), &new_drop("one")).await;
    assert_eq!((status, &created["state"]), (201, &json!("DRAFT")), "{created}");
    let id = created["drop_id"].as_str().unwrap();
    let path = |rest: &str| format!("/drops/{id}{rest}");
    let edited = |pointer: &str, value: Value| {
        let mut body = new_drop("two");
        *body.pointer_mut(pointer).unwrap() = value;
        body
    };
    let terms = |pointer: &str, value: Value| edited(pointer, value)["terms"].clone();
    let before = (process.shop.get(&path("")).await, process.shop.get("/drops").await);

    let create = |body: Value, status: u16, cause: &'static str| {
        (Method::POST, "/drops".to_owned(), Some("c2"), body, status, cause)
    };
    let bare = |method: Method, path: String, status: u16, cause: &'static str| {
        (method, path, None, Value::Null, status, cause)
    };
    let send = |method: Method, path: String, body: Value, status: u16, cause: &'static str| {
        (method, path, Some("a1"), body, status, cause)
    };
    let time = "2030-01-01T00:00:00Z";
    let cases = [
        create(edited("/stock", json!(-1)), 400, "drops:invalid"),
        create(edited("/stock", json!(i64::MAX)), 400, "drops:invalid"),
        create(edited("/name", json!("")), 400, "drops:invalid"),
        create(edited("/resource", json!("x".repeat(300))), 400, "drops:invalid"),
        create(edited("/terms/price/amount", json!(-1)), 400, "drops:invalid-terms"),
        create(edited("/terms/price/currency", json!("euro")), 400, "drops:invalid-terms"),
        create(edited("/terms/per_player", json!(0)), 400, "drops:invalid-terms"),
        create(edited("/terms/admission/batch", json!(1_000_000)), 400, "drops:invalid-terms"),
        create(json!({ "name": "x" }), 400, "invalid-argument"),
        create(json!([]), 400, "invalid-argument"),
        create(edited("/name", json!("one")), 409, "drops:name-taken"),
        send(Method::POST, "/drops".to_owned(), Value::Null, 415, "unsupported-media-type"),
        (Method::POST, "/drops".to_owned(), None, new_drop("two"), 400, "invalid-argument"),
        (Method::POST, "/drops".to_owned(), Some("c1"), new_drop("two"), 422, "drops:key-reused"),
        (Method::POST, "/drops".to_owned(), Some("a key"), new_drop("two"), 400, "drops:bad-key"),
        bare(Method::GET, format!("/drops/{UNKNOWN}"), 404, "drops:no-such-drop"),
        bare(Method::GET, "/drops/7".to_owned(), 400, "drops:invalid"),
        bare(Method::GET, "/drops?state=lost".to_owned(), 400, "drops:invalid"),
        bare(Method::GET, "/orders?state=lost".to_owned(), 400, "drops:invalid"),
        send(
            Method::POST,
            format!("/orders/{UNKNOWN}/settle"),
            json!({ "payment_id": "p" }),
            404,
            "drops:no-such-order",
        ),
        bare(Method::GET, path("/ledger?before=2"), 400, "drops:invalid"),
        bare(Method::GET, "/drops?limit=many".to_owned(), 400, "invalid-argument"),
        bare(Method::GET, format!("/drops/{UNKNOWN}/ledger"), 404, "drops:no-such-drop"),
        bare(Method::GET, format!("/drops/{UNKNOWN}/entries"), 404, "drops:no-such-drop"),
        bare(Method::GET, path("/entries?after=7"), 400, "drops:invalid"),
        bare(Method::GET, format!("/drops/{UNKNOWN}/audit"), 404, "drops:no-such-drop"),
        bare(Method::POST, format!("/drops/{UNKNOWN}/rebuild"), 404, "drops:no-such-drop"),
        bare(Method::POST, format!("/drops/{UNKNOWN}/open"), 404, "drops:no-such-drop"),
        bare(Method::POST, path("/pause"), 409, "drops:wrong-state"),
        bare(Method::POST, path("/resume"), 409, "drops:wrong-state"),
        send(Method::POST, path("/close"), json!({}), 409, "drops:wrong-state"),
        send(Method::POST, path("/close"), json!({ "force": "yes" }), 400, "invalid-argument"),
        send(Method::POST, path("/schedule"), json!({ "opens_at": "soon" }), 400, "drops:invalid"),
        send(
            Method::POST,
            path("/schedule"),
            json!({ "opens_at": time, "closes_at": time }),
            400,
            "drops:invalid",
        ),
        send(
            Method::PUT,
            path("/message"),
            json!({ "message": "x".repeat(1_001) }),
            400,
            "drops:invalid-terms",
        ),
        send(Method::PUT, path("/everyone-waits"), json!({}), 400, "invalid-argument"),
        send(Method::PUT, path("/pace"), json!({ "period_ms": 1 }), 400, "drops:invalid-terms"),
        send(Method::PUT, path("/pace"), json!({ "batch": -1 }), 400, "invalid-argument"),
        send(Method::PUT, path("/terms"), terms("/terms/per_player", json!(0)), 400, "drops:invalid-terms"),
        send(Method::POST, path("/stock"), json!({ "by": 0, "reason": "none" }), 400, "drops:invalid"),
        send(Method::POST, path("/stock"), json!({ "by": i64::MIN, "reason": "all" }), 400, "drops:invalid"),
        send(Method::POST, path("/stock"), json!({ "by": 1, "reason": "" }), 400, "drops:invalid"),
        send(
            Method::POST,
            path("/stock"),
            json!({ "by": -11, "reason": "too many" }),
            409,
            "drops:stock-in-use",
        ),
        (Method::POST, path("/stock"), None, json!({ "by": 1, "reason": "more" }), 400, "invalid-argument"),
        send(
            Method::POST,
            format!("/drops/{UNKNOWN}/stock"),
            json!({ "by": 1, "reason": "more" }),
            404,
            "drops:no-such-drop",
        ),
    ];
    for (method, path, key, body, status, cause) in cases {
        let found = process.send_refused(method.clone(), &path, key, &body).await;
        assert_eq!(found, (status, cause.to_owned()), "{method} {path} {body}");
    }
    let after = (process.shop.get(&path("")).await, process.shop.get("/drops").await);
    assert_eq!(after, before, "a refused request changed something");

    // Terms are fixed once players can join.
    assert_eq!(process.send_refused(Method::POST, &path("/resume"), None, &Value::Null).await.0, 409);
    assert_eq!(process.shop.post(&path("/open"), None, &Value::Null).await.0, 200);
    let dearer = terms("/terms/price/amount", json!(2_999));
    let fixed = process.send_refused(Method::PUT, &path("/terms"), None, &dearer).await;
    assert_eq!(fixed, (409, "drops:fixed".to_owned()));
    assert_eq!(
        process.send_refused(Method::POST, &path("/open"), None, &Value::Null).await.1,
        "drops:wrong-state"
    );

    // A service without the right.
    let poor = reqwest::Client::new().get(process.shop.url("/drops")).bearer_auth(POOR_TOKEN).send().await;
    assert_eq!(poor.unwrap().status().as_u16(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_with_open_reservations_needs_force_and_the_audit_finds_differences() {
    let process = TestProcess::start().await;
    let drop = process.create("held", &[]).await;
    process.run_ok(&["open", &drop]).await;
    process.run_ok(&["pause", &drop]).await;
    // A reserved unit without a reservation.
    let process = process
        .restart_with("UPDATE drop_stock SET available = available - 1, reserved = reserved + 1")
        .await;
    let (code, said) = process.run(&["audit", &drop]).await;
    assert!(code == 1 && said.contains("NOT BALANCED"), "{code} {said}");
    assert!(said.contains("DIFFERS: reserved, against held reservations: expected 0, found 1"), "{said}");

    let refused =
        process.send_refused(reqwest::Method::POST, &format!("/drops/{drop}/close"), None, &json!({})).await;
    assert_eq!(refused, (409, "drops:open-reservations".to_owned()));
    for end in ["close", "cancel"] {
        let (code, said) = process.run(&[end, &drop]).await;
        assert!(code == 1 && said.contains("1 units are reserved"), "{code} {said}");
    }
    assert!(process.run_ok(&["show", &drop]).await.contains("PAUSED"), "a refused end changed the drop");
    assert_eq!(process.run_ok(&["close", &drop, "--force"]).await.trim(), format!("{drop} is CLOSED"));
}

/// Inserts orders whose payment must be refunded, each a millisecond after the one before.
fn due_refunds(drop: &str, count: usize, since: usize) -> String {
    let drop = drop.replace('-', "");
    let insert = |number: usize| {
        let at = since + number;
        format!(
            "INSERT INTO drop_orders (order_id, drop_id, reservation_id, user_id, account_id, state, quantity, amount, currency, \
             payment, created_at, changed_at, version) VALUES \
             (randomblob(16), X'{drop}', randomblob(16), randomblob(16), randomblob(16), 2, 1, 1999, 'EUR', 'pay_{at}', 1, {at}, 1);"
        )
    };
    (0..count).map(insert).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_of_a_drop_are_found_behind_many_of_another() {
    let process = TestProcess::start().await;
    let (other, drop) = (process.create("other", &[]).await, process.create("ours", &[]).await);
    let second = "INSERT INTO drop_surplus_payments (order_id, payment, state, received_at) \
        SELECT order_id, 'pay twice', 0, 500 FROM drop_orders WHERE payment = 'pay_300';";
    let orders = due_refunds(&other, 21, 100) + &due_refunds(&drop, 2, 300) + second;
    let process = process.restart_with(&orders).await;
    let console = process.console().await;

    // The older ones of the other drop do not hide ours.
    let path = format!("/console/drops/{drop}");
    let page = console.page(&path).await;
    assert!(page.contains("Refunds due"), "{page}");
    for payment in ["pay_300", "pay_301", "pay twice"] {
        assert!(page.contains(payment), "{payment}: {page}");
    }
    assert!(!page.contains("pay_100"), "{page}");
    let (_, listed) = process.run(&["refunds", "--drop", &drop]).await;
    assert_eq!(listed.matches("payment pay").count(), 3, "{listed}");

    // Every payment is on one page of the list, the oldest first.
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let after_args = after.iter().flat_map(|next| ["--after", next.as_str()]);
        let args: Vec<&str> = ["refunds", "--limit", "5"].into_iter().chain(after_args).collect();
        let page = process.json(&args).await;
        let payments = page["refunds"].as_array().unwrap().iter();
        found.extend(payments.map(|refund| refund["payment_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = Some(next.to_owned());
    }
    let expected: Vec<String> = (100..121).chain(300..302).map(|at| format!("pay_{at}")).collect();
    assert_eq!(found, [expected, vec!["pay twice".to_owned()]].concat());
    let (code, said) = process.run(&["refunds", "--after", "junk"]).await;
    assert!(code == 1 && said.contains("the `next` of an earlier page"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tampered_place_is_found() {
    let process = TestProcess::start().await;
    let drop = process.create("line", &[]).await;
    process.run_ok(&["open", &drop]).await;
    process.run_ok(&["pause", &drop]).await;
    // First come, first served in one lane: the place is the bit of the phase, then the number of the join.
    let entry = |number: u64, position: u64| {
        format!(
            "INSERT INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, changed_at) \
             SELECT drop_id, randomblob(16), randomblob(16), 0, {number}, {position}, 1, randomblob(16), 1 FROM drops;"
        )
    };
    let valid = |number: u64| entry(number, 1 << 48 | number);
    let three: String = (1..=3).map(valid).collect();
    let process = process.restart_with(&three).await;
    assert!(process.run_ok(&["verify-order", &drop]).await.contains("3 places checked"));
    eventually("the line is filled from SQL", PATIENCE, async || {
        let shown = process.run_ok(&["show", &drop]).await;
        if shown.contains("3 waiting") { Ok(()) } else { Err(shown) }
    })
    .await;
    let process = process.restart_with(&entry(4, 1 << 48)).await;
    let (code, said) = process.run(&["verify-order", &drop]).await;
    assert!(
        code == 1 && said.contains("DEVIATES") && said.contains("1 deviation among 4 places"),
        "{code} {said}"
    );
    let found = process.run(&["verify-order", &drop, "--json"]).await;
    assert!(found.1.contains(r#""entries":4"#), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_drops_have_metrics() {
    let process = TestProcess::start().await;
    let drop = process.create("gauged", &[]).await;
    process.run_ok(&["open", &drop]).await;
    eventually("the open drop has gauges", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", process.admin)).await;
        let text = metrics.as_str().unwrap().to_owned();
        let lines = [
            r#"playhouse_drops_units{drop="gauged",state="available"} 10"#,
            r#"playhouse_drops_waiting{drop="gauged"} 0"#,
            r#"playhouse_drops_inside{drop="gauged"} 0"#,
            "playhouse_drops_refunds_due 0",
        ];
        if lines.iter().all(|line| text.contains(line)) { Ok(()) } else { Err(text) }
    })
    .await;
    process.run_ok(&["close", &drop]).await;
    eventually("the closed drop has no gauges", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", process.admin)).await;
        if metrics.as_str().unwrap().contains("gauged") { Err(metrics.to_string()) } else { Ok(()) }
    })
    .await;
}
