//! Drops as services and operators meet them.

use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use testkit::{Folder, eventually};

use super::shop::{self, POOR_TOKEN, Shop, TOKEN};
use super::*;

const NOBODY: &str = "0198c0de-0000-7000-8000-000000000001";
const PREFIX: &str = "urn:playhouse:problem:";

/// A process with embedded stores.
struct Place {
    folder: Folder,
    running: Running,
    admin: String,
    shop: Shop,
}

impl Place {
    async fn start() -> Self {
        Self::start_in(Folder::fresh().unwrap()).await
    }

    async fn start_in(folder: Folder) -> Self {
        let running = shop::embedded(&folder).start().unwrap();
        let at = addresses(&running).await;
        Self { folder, running, admin: at["admin"].clone(), shop: Shop::at(&at["internal"]) }
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

    /// Returns the exit code, and what was written: to stdout, or else to stderr.
    async fn run(&self, args: &[&str]) -> (i32, String) {
        let program = playhouse(&["drops"]).args(args.iter().copied()).args(["--admin", &self.admin]);
        let (code, out, errors) = run(program).await;
        (code, if out.is_empty() { errors } else { out })
    }

    /// Runs a command that must succeed.
    async fn done(&self, args: &[&str]) -> String {
        let (code, out) = self.run(args).await;
        assert_eq!(code, 0, "{args:?}: {out}");
        out
    }

    async fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.done(&args).await).unwrap()
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

    /// Sends a request of the service `shop`, and returns the status and the end of the problem's type.
    async fn refused(
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
async fn an_operator_runs_a_drop_by_commands() {
    let place = Place::start().await;
    assert!(place.done(&["list"]).await.contains("no such drops"));
    let drop = place.create("summer", &["--message", "Soon", "--key", "summer-1"]).await;
    let again = place.create("summer", &["--message", "Soon", "--key", "summer-1"]).await;
    assert_eq!(again, drop, "the same key creates one drop");
    let drop = drop.as_str();

    let listed = place.done(&["list", "--state", "draft"]).await;
    assert!(listed.contains(drop) && listed.contains("summer"), "{listed}");
    let scheduled = place.done(&["schedule", drop, "--in", "1h"]).await;
    assert!(scheduled.contains("SCHEDULED and opens at"), "{scheduled}");
    assert!(place.done(&["message", drop, "Nearly there"]).await.contains("Nearly there"));
    assert!(!place.done(&["message", drop, "--clear"]).await.contains("message"));
    assert!(place.done(&["everyone-waits", drop, "on"]).await.contains("everyone waits"));
    assert!(!place.done(&["everyone-waits", drop, "off"]).await.contains("everyone waits"));
    for (args, state) in [(["open", drop], "OPEN"), (["pause", drop], "PAUSED"), (["resume", drop], "OPEN")] {
        assert_eq!(place.done(&args).await.trim(), format!("{drop} is {state}"));
    }

    let stock = place.done(&["stock", drop, "--by", "-3", "--reason", "damaged", "--key", "a1"]).await;
    assert!(stock.contains("7 available") && stock.contains("adjusted -3"), "{stock}");
    let again = place.done(&["stock", drop, "--by", "-3", "--reason", "damaged", "--key", "a1"]).await;
    assert_eq!(again, stock, "the same key adjusts once");
    assert_eq!(place.done(&["stock", drop]).await, stock);
    let ledger = place.done(&["ledger", drop]).await;
    for said in ["ADJUSTED", "by operator:tester: damaged", "CREATED"] {
        assert!(ledger.contains(said), "{ledger} lacks {said}");
    }
    let page = place.json(&["ledger", drop, "--limit", "1"]).await;
    assert_eq!((&page["entries"][0]["adjusted"], &page["next"]), (&json!(-3), &json!("2.0")));

    place.done(&["pace", drop, "--batch", "20", "--period", "5s"]).await;
    let (code, said) = place.run(&["pace", drop, "--capacity", "0"]).await;
    assert!(code == 1 && said.contains("admission.capacity must be 1 to"), "{code} {said}");
    assert_eq!(place.run(&["pace", drop]).await.0, 2, "a pace without any number is a mistake");
    let shown = place.done(&["show", drop]).await;
    for said in ["OPEN", "7 available, 0 reserved, 0 sold", "0 waiting, 0 inside", "20 per 5 s", "seed hash"]
    {
        assert!(shown.contains(said), "{shown} lacks {said}");
    }
    assert!(place.done(&["audit", drop]).await.contains("balanced"));
    assert!(place.done(&["rebuild", drop]).await.contains("0 wait"));
    assert!(place.done(&["verify-order", drop]).await.contains("all 0 places"));
    assert!(place.done(&["orders"]).await.contains("no such orders"));
    assert!(place.done(&["refunds"]).await.contains("no payment must be refunded"));
    assert_eq!(place.done(&["close", drop]).await.trim(), format!("{drop} is CLOSED"));
    // It is over: nothing more can be done with it, and the command says why.
    for args in [vec!["open", drop], vec!["pause", drop], vec!["cancel", drop], vec!["message", drop, "x"]] {
        let (code, said) = place.run(&args).await;
        assert!(code == 1 && said.contains("CLOSED"), "{args:?}: {code} {said}");
    }
    let (code, said) = place.run(&["show", NOBODY]).await;
    assert_eq!((code, said.trim()), (1, format!("error: there is no drop {NOBODY}").as_str()));
    let (code, said) = place.run(&["schedule", drop, "--opens-at", "soon"]).await;
    assert!(code == 2 && said.contains("expected a time"), "{code} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_drop_opens_and_closes_by_itself() {
    let place = Place::start().await;
    let drop = place.create("timed", &["--order", "shuffle"]).await;
    let (code, said) = place.run(&["verify-order", &drop]).await;
    assert!(code == 1 && said.contains("published when the drop opens"), "{code} {said}");
    assert!(place.json(&["show", &drop]).await["seed"].is_null(), "the seed is secret before the opening");
    let now = base::Clock::system().now();
    let (opens, closes) = (now.after(Duration::from_millis(500)), now.after(Duration::from_secs(3)));
    let (opens, closes) = (opens.to_rfc3339(), closes.to_rfc3339());
    place.done(&["schedule", &drop, "--opens-at", &opens, "--closes-at", &closes]).await;
    for state in ["OPEN", "CLOSED"] {
        eventually(state, PATIENCE, async || {
            let found = place.json(&["show", &drop]).await;
            let is_there = found["state"] == state || found["state"] == "CLOSED";
            if is_there { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    }
    assert!(place.done(&["verify-order", &drop]).await.contains("all 0 places"));
    eventually("its events are published", PATIENCE, async || {
        let published = shop::in_outbox(&place.admin, "published").await;
        if published.len() == 3 { Ok(()) } else { Err(format!("{published:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_about_drops_has_a_type_and_no_effect() {
    use reqwest::Method;
    let place = Place::start().await;
    let (status, created) = place.shop.post("/drops", Some("c1"), &new_drop("one")).await;
    assert_eq!((status, &created["state"]), (201, &json!("DRAFT")), "{created}");
    let id = created["drop_id"].as_str().unwrap();
    let path = |rest: &str| format!("/drops/{id}{rest}");
    let edited = |pointer: &str, value: Value| {
        let mut body = new_drop("two");
        *body.pointer_mut(pointer).unwrap() = value;
        body
    };
    let terms = |pointer: &str, value: Value| edited(pointer, value)["terms"].clone();
    let before = (place.shop.get(&path("")).await, place.shop.get("/drops").await);

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
        bare(Method::GET, format!("/drops/{NOBODY}"), 404, "drops:no-such-drop"),
        bare(Method::GET, "/drops/7".to_owned(), 400, "drops:invalid"),
        bare(Method::GET, "/drops?state=lost".to_owned(), 400, "drops:invalid"),
        bare(Method::GET, "/orders?state=lost".to_owned(), 400, "drops:invalid"),
        send(
            Method::POST,
            format!("/orders/{NOBODY}/settle"),
            json!({ "payment_id": "p" }),
            404,
            "drops:no-such-order",
        ),
        bare(Method::GET, path("/ledger?before=2"), 400, "drops:invalid"),
        bare(Method::GET, "/drops?limit=many".to_owned(), 400, "invalid-argument"),
        bare(Method::GET, format!("/drops/{NOBODY}/ledger"), 404, "drops:no-such-drop"),
        bare(Method::GET, format!("/drops/{NOBODY}/entries"), 404, "drops:no-such-drop"),
        bare(Method::GET, path("/entries?after=7"), 400, "drops:invalid"),
        bare(Method::GET, format!("/drops/{NOBODY}/audit"), 404, "drops:no-such-drop"),
        bare(Method::POST, format!("/drops/{NOBODY}/rebuild"), 404, "drops:no-such-drop"),
        bare(Method::POST, format!("/drops/{NOBODY}/open"), 404, "drops:no-such-drop"),
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
            format!("/drops/{NOBODY}/stock"),
            json!({ "by": 1, "reason": "more" }),
            404,
            "drops:no-such-drop",
        ),
    ];
    for (method, path, key, body, status, cause) in cases {
        let found = place.refused(method.clone(), &path, key, &body).await;
        assert_eq!(found, (status, cause.to_owned()), "{method} {path} {body}");
    }
    let after = (place.shop.get(&path("")).await, place.shop.get("/drops").await);
    assert_eq!(after, before, "what was refused changed something");

    // What is fixed once players can join, and once the drop is open.
    assert_eq!(place.refused(Method::POST, &path("/resume"), None, &Value::Null).await.0, 409);
    assert_eq!(place.shop.post(&path("/open"), None, &Value::Null).await.0, 200);
    let dearer = terms("/terms/price/amount", json!(2_999));
    let fixed = place.refused(Method::PUT, &path("/terms"), None, &dearer).await;
    assert_eq!(fixed, (409, "drops:fixed".to_owned()));
    assert_eq!(place.refused(Method::POST, &path("/open"), None, &Value::Null).await.1, "drops:wrong-state");

    // A service without the right.
    let poor = reqwest::Client::new().get(place.shop.url("/drops")).bearer_auth(POOR_TOKEN).send().await;
    assert_eq!(poor.unwrap().status().as_u16(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_with_open_reservations_needs_force_and_the_audit_finds_what_is_missing() {
    let place = Place::start().await;
    let drop = place.create("held", &[]).await;
    place.done(&["open", &drop]).await;
    place.done(&["pause", &drop]).await;
    // A unit that no reservation explains.
    let place =
        place.restart_with("UPDATE drop_stock SET available = available - 1, reserved = reserved + 1").await;
    let (code, said) = place.run(&["audit", &drop]).await;
    assert!(code == 1 && said.contains("NOT BALANCED"), "{code} {said}");
    assert!(said.contains("DIFFERS: reserved, against held reservations: expected 0, found 1"), "{said}");

    let refused =
        place.refused(reqwest::Method::POST, &format!("/drops/{drop}/close"), None, &json!({})).await;
    assert_eq!(refused, (409, "drops:open-reservations".to_owned()));
    for end in ["close", "cancel"] {
        let (code, said) = place.run(&[end, &drop]).await;
        assert!(code == 1 && said.contains("1 units are reserved"), "{code} {said}");
    }
    assert!(place.done(&["show", &drop]).await.contains("PAUSED"), "a refused end changed the drop");
    assert_eq!(place.done(&["close", &drop, "--force"]).await.trim(), format!("{drop} is CLOSED"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_was_tampered_with_is_found() {
    let place = Place::start().await;
    let drop = place.create("line", &[]).await;
    place.done(&["open", &drop]).await;
    place.done(&["pause", &drop]).await;
    // First come: the place is the number of the join in the only lane, behind the bit of the phase.
    let entry = |number: u64, place: u64| {
        format!(
            "INSERT INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, changed_at) \
             SELECT drop_id, randomblob(16), randomblob(16), 0, {number}, {place}, 1, randomblob(16), 1 FROM drops;"
        )
    };
    let honest = |number: u64| entry(number, 1 << 48 | number);
    let three: String = (1..=3).map(honest).collect();
    let place = place.restart_with(&three).await;
    assert!(place.done(&["verify-order", &drop]).await.contains("all 3 places"));
    eventually("the line is filled from SQL", PATIENCE, async || {
        let shown = place.done(&["show", &drop]).await;
        if shown.contains("3 waiting") { Ok(()) } else { Err(shown) }
    })
    .await;
    let place = place.restart_with(&entry(4, 1 << 48)).await;
    let (code, said) = place.run(&["verify-order", &drop]).await;
    assert!(code == 1 && said.contains("DEVIATES") && said.contains("1 deviations among 4"), "{code} {said}");
    let found = place.run(&["verify-order", &drop, "--json"]).await;
    assert!(found.1.contains(r#""entries":4"#), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_drops_under_way() {
    let place = Place::start().await;
    let drop = place.create("gauged", &[]).await;
    place.done(&["open", &drop]).await;
    eventually("the gauges of the drop", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", place.admin)).await;
        let text = metrics.as_str().unwrap().to_owned();
        let lines = [
            r#"drops_units{drop="gauged",state="available"} 10"#,
            r#"drops_waiting{drop="gauged"} 0"#,
            r#"drops_inside{drop="gauged"} 0"#,
            "drops_refunds_due 0",
        ];
        if lines.iter().all(|line| text.contains(line)) { Ok(()) } else { Err(text) }
    })
    .await;
    place.done(&["close", &drop]).await;
    eventually("a drop that is over has no gauges", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{}/metrics", place.admin)).await;
        if metrics.as_str().unwrap().contains("gauged") { Err(metrics.to_string()) } else { Ok(()) }
    })
    .await;
}
