//! The service API as used by a shop, and the commands around it.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::{Folder, eventually};

use super::shop::{self, POOR_TOKEN, Shop, TOKEN};
use super::*;

async fn open() -> (Folder, RunningProgram, HashMap<String, String>, Shop) {
    let folder = Folder::fresh().unwrap();
    let running = shop::embedded(&folder).start().unwrap();
    let at = addresses(&running).await;
    let shop = Shop::at(&at["service_api"]);
    (folder, running, at, shop)
}

#[tokio::test(flavor = "multi_thread")]
async fn purchase_from_sign_in_to_history() {
    let (_folder, _running, at, shop) = open().await;
    let ada = shop.customer("ada").await;
    let sword = json!({
        "user_id": ada.user, "account_id": ada.account, "resource": "sword", "occurred_at": "2026-03-01T12:00:00Z",
        "valid_until": "2036-03-01T12:00:00+01:00", "reference": "order 7",
    });
    let (status, granted) = shop.post("/entitlements/grant", Some("order-7"), &sword).await;
    assert_eq!((status, &granted["effect"]), (200, &json!("applied")), "{granted}");
    let (status, again) = shop.post("/entitlements/grant", Some("order-7"), &sword).await;
    assert_eq!((status, &again), (200, &granted));

    let base = format!("/users/{}/accounts/{}/entitlements", ada.user, ada.account);
    let (_, list) = shop.get(&format!("{base}?in_force=true")).await;
    assert_eq!(list["entitlements"][0], granted["entitlement"]);
    assert_eq!(list["entitlements"][0]["valid_until"], "2036-03-01T11:00:00.000Z");
    let revoke = json!({
        "user_id": ada.user, "account_id": ada.account, "resource": "sword", "occurred_at": "2026-03-02T12:00:00Z",
    });
    shop.post("/entitlements/revoke", Some("refund-7"), &revoke).await;
    let (_, one) = shop.get(&format!("{base}/sword")).await;
    assert_eq!((&one["state"], &one["version"]), (&json!("REVOKED"), &json!(2)));
    let (_, history) = shop.get(&format!("{base}/sword/history?limit=1")).await;
    assert_eq!((&history["entries"][0]["action"], &history["next"]), (&json!("revoke"), &json!(2)));
    let (_, older) = shop.get(&format!("{base}/sword/history?before=2")).await;
    assert_eq!(older["entries"][0]["reference"], "order 7");

    let batch = json!({ "changes": [
        { "action": "grant", "user_id": ada.user, "account_id": ada.account, "resource": "a b/c", "occurred_at": "2026-03-02T12:00:00Z" },
        { "action": "revoke", "user_id": ada.user, "account_id": ada.account, "resource": "bow", "occurred_at": "2026-03-02T12:00:00Z" },
    ]});
    let (status, response) = shop.post("/entitlements/batch", Some("bundle-1"), &batch).await;
    assert_eq!((status, response["results"].as_array().unwrap().len()), (200, 2), "{response}");
    let (status, found) = shop.get(&format!("{base}/a%20b%2Fc")).await;
    assert_eq!((status, &found["resource"]), (200, &json!("a b/c")));

    eventually("all events are published", PATIENCE, async || {
        let published = shop::in_outbox(&at["admin"], "published").await;
        // One of the sign-in, two of the sword, two of the batch.
        if published.len() == 5 { Ok(()) } else { Err(format!("{published:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_explained() {
    let (_folder, _running, _, shop) = open().await;
    let ada = shop.customer("ada").await;
    let good = shop::purchase(&ada, "gems");
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let cases = [
        (400, None, good.clone(), "Send the header `Idempotency-Key`"),
        (400, Some("a b"), good.clone(), "an idempotency key has 1 to 255 visible ASCII characters"),
        (400, Some("k"), with("user_id", json!("ada")), "user_id must be a UUID"),
        (
            400,
            Some("k"),
            with("occurred_at", json!("yesterday")),
            "occurred_at is not a time: expected one such as",
        ),
        (400, Some("k"), with("occurred_at", json!("2999-01-01T00:00:00Z")), "occurred_at is in the future"),
        (400, Some("k"), with("quantity", json!(0)), "quantity must be 1 to 1000000000000, not 0"),
        (400, Some("k"), with("resource", json!("")), "resource must have 1 to 255 characters, not 0"),
        (400, Some("k"), with("colour", json!("red")), "`colour` is not a known field"),
        (404, Some("k"), with("account_id", json!(ada.user)), "has no account"),
    ];
    for (expected, key, body, detail) in cases {
        let (status, problem) = shop.post("/entitlements/grant", key, &body).await;
        assert_eq!(status, expected, "{problem}");
        assert!(problem["detail"].as_str().unwrap_or_default().contains(detail), "{problem}, not {detail:?}");
        assert!(problem["request_id"].is_string() && problem["type"].is_string(), "{problem}");
    }
    let in_batch = |action: &str, field: &str, value: Value| {
        let mut change = with(field, value);
        change["action"] = json!(action);
        json!({ "changes": [change] })
    };
    for (body, detail) in [
        (in_batch("revoke", "valid_until", json!("2036-01-01T00:00:00Z")), "valid_until is only for a grant"),
        (in_batch("grant", "colour", json!("red")), "`changes[0].colour` is not a known field"),
        (in_batch("lend", "quantity", json!(1)), "`lend`"),
    ] {
        let (status, problem) = shop.post("/entitlements/batch", Some("k"), &body).await;
        assert_eq!(status, 400, "{problem}");
        assert!(problem["detail"].as_str().unwrap_or_default().contains(detail), "{problem}, not {detail:?}");
    }
    shop.post("/entitlements/grant", Some("k"), &good).await;
    let (status, problem) = shop.post("/entitlements/grant", Some("k"), &with("quantity", json!(2))).await;
    assert_eq!(status, 422, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("was used for another request"), "{problem}");
    let mut uncounted = good.clone();
    uncounted.as_object_mut().unwrap().remove("quantity");
    let (status, problem) = shop.post("/entitlements/grant", Some("k2"), &uncounted).await;
    assert_eq!(status, 409, "{problem}");
}

/// The document lists every route. Each refuses unauthenticated callers and services without the right.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_requires_a_caller_with_the_right() {
    let (_folder, _running, at, _) = open().await;
    let service_api = &at["service_api"];
    let (status, document) = get(format!("http://{service_api}/internal/v1/openapi.json")).await;
    assert_eq!(status, 200);
    let client = reqwest::Client::new();
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let id = "0198c0de-0000-7000-8000-000000000001";
            let ids = ["{user_id}", "{account_id}", "{broadcast_id}", "{drop_id}", "{order_id}"];
            let concrete =
                ids.iter().fold(path.replace("{resource}", "sword"), |path, name| path.replace(name, id));
            let needs_query =
                path.ends_with("/users") || (path.ends_with("/identities") && method == "delete");
            let query = if needs_query { "?issuer=i&subject=s" } else { "" };
            let url = format!("http://{service_api}{concrete}{query}");
            let method_name = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let request = || client.request(method_name.clone(), &url);
            let anonymous = request().send().await.unwrap();
            assert_eq!(anonymous.status(), 401, "{method} {path}");
            assert_eq!(anonymous.headers()["www-authenticate"], "Bearer");
            let wrong = request().bearer_auth("wrong").send().await.unwrap();
            assert_eq!(wrong.status(), 401, "{method} {path}");
            // With a valid body where one is read before the right is checked.
            let body = json!({
                "user_id": id, "account_id": id, "resource": "r", "occurred_at": "2026-03-01T12:00:00Z", "issuer": "i",
                "subject": "s", "name": "n", "reason": "r", "changes": [], "to": { "all": true },
            });
            let fields: &[&str] = match path.rsplit('/').next().unwrap() {
                "grant" | "revoke" => &["user_id", "account_id", "resource", "occurred_at"],
                "batch" => &["changes"],
                "sign-ins" | "identities" => &["issuer", "subject"],
                "accounts" => &["name"],
                "ban" => &["reason"],
                "notifications" => &["to"],
                _ => &[],
            };
            let body: serde_json::Map<String, Value> =
                fields.iter().map(|field| ((*field).to_owned(), body[*field].clone())).collect();
            let request = request().bearer_auth(POOR_TOKEN).header("idempotency-key", "k");
            let poor = if method == "post" { request.json(&body) } else { request }.send().await.unwrap();
            let status = poor.status();
            assert_eq!(status, 403, "{method} {path}: {}", poor.text().await.unwrap());
            routes.insert(format!("{method} {path}"));
        }
    }
    insta::assert_snapshot!(routes.into_iter().collect::<Vec<_>>().join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_service_token_is_accepted() {
    let (code, made, _) = run(playhouse(&["token", "shop", "--may", "read,accounts"])).await;
    assert_eq!(code, 0);
    let token = made.lines().nth(1).unwrap().to_owned();
    let section: Vec<&str> = made.lines().skip_while(|line| !line.starts_with("[services")).collect();
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("play.toml");
    std::fs::write(&file, section.join("\n")).unwrap();
    let data = format!("db.url=sqlite:{}", folder.path().join("p.db").display());
    let running =
        playhouse(&["serve", "--print-addresses", "--config", file.to_str().unwrap(), "--set", &data])
            .args(
                ["gateway", "service_api", "admin", "open_match"]
                    .iter()
                    .flat_map(|name| ["--set".to_owned(), format!("listen.{name}=127.0.0.1:0")]),
            )
            .args(["--set", "db.migrate=true"])
            .start()
            .unwrap();
    let service_api = addresses(&running).await["service_api"].clone();
    let status = async |token: &str| {
        let url = format!("http://{service_api}/internal/v1/users/0198c0de-0000-7000-8000-000000000001");
        reqwest::Client::new().get(url).bearer_auth(token).send().await.unwrap().status().as_u16()
    };
    assert_eq!((status(&token).await, status(TOKEN).await), (404, 401));
    for args in [["token", "Shop", "--may", "read"], ["token", "shop", "--may", "everything"]] {
        let (code, _, errors) = run(playhouse(&args)).await;
        assert!(
            code == 2 && errors.contains("expected") || errors.contains("cannot be the name"),
            "{errors}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_inspect_and_repair_the_outbox() {
    let (folder, running, at, shop) = open().await;
    let ada = shop.customer("ada").await;
    let event = shop.buy(&ada, "gems", "order-1").await;
    eventually("it is published", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "published").await.len() == 2
    })
    .await;
    let outbox = async |args: &[&str]| {
        let (code, out, errors) =
            run(playhouse(&["outbox", "--admin", &at["admin"]]).args(args.iter().copied())).await;
        (code, if code == 0 { out } else { errors })
    };
    let (code, list) = outbox(&["list"]).await;
    assert!(
        code == 0 && list.contains(&event) && list.contains("PUBLISHED") && list.contains("2 events"),
        "{list}"
    );
    let (_, shown) = outbox(&["show", &event]).await;
    assert!(
        shown.contains("playhouse.entitlement.granted.v1") && shown.contains("\"resource\": \"gems\""),
        "{shown}"
    );
    let (_, json) = outbox(&["show", &event, "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["state"], "PUBLISHED");
    let (_, none) = outbox(&["blocked"]).await;
    assert!(none.contains("No key is blocked."), "{none}");
    for (args, said) in [
        (vec!["retry", event.as_str()], "it is finished already"),
        (vec!["skip", event.as_str()], "it is finished already"),
        (vec!["show", "4711"], "4711 is not in the outbox"),
        (vec!["show", "nonsense"], "Give the id of the event, or its number"),
        (vec!["republish", "--since", "yesterday"], "or how long ago, such as 10m"),
    ] {
        let (code, errors) = outbox(&args).await;
        assert!(code != 0 && errors.contains(said), "{errors}, not {said:?}");
    }
    let (code, usage) = outbox(&["retry"]).await;
    assert!(code == 2 && usage.contains("--cause <TEXT>"), "{usage}");

    // Unreadable rows, one of them behind another of the same key.
    let file = folder.path().join("playhouse.db");
    let mut db = sqlx::ConnectOptions::connect(&sqlx::sqlite::SqliteConnectOptions::new().filename(file))
        .await
        .unwrap();
    let nonsense = "INSERT INTO outbox (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, created_at, payload) \
                    VALUES (randomblob(16), zeroblob(16), 'broken', ?, 0, 0, 0, 0, 0, x'00')";
    for key in [1, 1, 2, 3] {
        sqlx::query(nonsense).bind(key).execute(&mut db).await.unwrap();
    }
    eventually("they have failed", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "failed").await.len() == 3
    })
    .await;
    // Each failure is logged once, with the commands to run.
    for event in shop::in_outbox(&at["admin"], "failed").await {
        let id = event["id"].as_str().unwrap();
        let commands = format!("`playhouse outbox show {id}`, then run `playhouse outbox retry {id}`");
        let line = running.wait_for_line(&commands, PATIENCE).await;
        assert!(line.contains("\"level\":\"ERROR\"") && line.contains("an event is FAILED"), "{line}");
        let lines = running.text(testkit::OutputStream::Stderr);
        assert_eq!(lines.lines().filter(|line| line.contains(&commands)).count(), 1, "{lines}");
    }
    for (args, said) in [
        (
            vec!["retry", "--cause", "no data", "--since", "1h", "--dry-run"],
            "3 failed events would be retried",
        ),
        (vec!["retry", "--cause", "too large"], "retried 0 failed events"),
        (vec!["retry", "--key", "another"], "retried 0 failed events"),
        (vec!["retry", "--until", "1h"], "retried 0 failed events"),
        (vec!["skip", "--cause", "no data", "--key", "broken"], "skipped 3 failed events"),
    ] {
        let (code, out) = outbox(&args).await;
        assert!(code == 0 && out.trim() == said, "{out}, not {said:?}");
    }
    eventually("the event behind the skipped one has failed", PATIENCE, async || {
        shop::in_outbox(&at["admin"], "failed").await.len() == 1
    })
    .await;
    let (_, out) = outbox(&["skip", "--all"]).await;
    assert_eq!(out.trim(), "skipped 1 failed event");

    let (code, again) = outbox(&["republish", "--since", "10m"]).await;
    assert!(code == 0 && again.starts_with("publishing 2 events again, published since"), "{again}");
    eventually("they are published again", PATIENCE, async || {
        let published = shop::in_outbox(&at["admin"], "published").await;
        published.len() == 2 && published.iter().all(|event| event["lease"].as_i64() >= Some(3))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_matches_the_asyncapi_document() {
    let (_folder, _running, at, shop) = open().await;
    let ada = shop.customer("ada").await;
    shop.buy(&ada, "gems", "order-1").await;
    let revoke = json!({
        "user_id": ada.user, "account_id": ada.account, "resource": "gems", "occurred_at": "2026-03-02T12:00:00Z",
        "quantity": 1, "reference": "refund",
    });
    shop.post("/entitlements/revoke", Some("refund-1"), &revoke).await;
    let until = json!({
        "user_id": ada.user, "account_id": ada.account, "resource": "pass", "occurred_at": "2026-03-02T12:00:00Z",
        "valid_until": "2030-01-01T00:00:00Z",
    });
    shop.post("/entitlements/grant", Some("order-2"), &until).await;
    let user = format!("/users/{}", ada.user);
    for (what, body) in [("ban", json!({ "reason": "cheats" })), ("unban", json!({})), ("erase", json!({}))] {
        let status = shop.status_of_post(&format!("{user}/{what}"), &body).await;
        assert!((200..300).contains(&status), "{what}: {status}");
    }

    let (_, document) = get(format!("http://{}/internal/v1/asyncapi.json", at["service_api"])).await;
    let mut kinds = BTreeSet::new();
    for event in shop::in_outbox(&at["admin"], "all").await {
        let id = event["id"].as_str().unwrap();
        let (_, shown) = shop::admin_get(format!("http://{}/outbox/{id}", at["admin"])).await;
        let kind = shown["kind"].as_str().unwrap();
        let schema = &document["components"]["messages"][kind]["payload"]["properties"]["data"];
        let data = shown["event"]["data"].as_object().unwrap();
        for required in schema["required"].as_array().unwrap() {
            assert!(data.contains_key(required.as_str().unwrap()), "{kind} lacks {required}: {data:?}");
        }
        for (name, value) in data {
            let property = &schema["properties"][name];
            assert!(property.is_object(), "{kind} has {name}, which its schema does not");
            let types = property["type"].to_string();
            let has_type = match value {
                Value::String(_) => types.contains("string"),
                Value::Number(_) => types.contains("integer"),
                other => panic!("{kind}: {name} is {other}"),
            };
            assert!(has_type, "{kind}: {name} is {value}, not {types}");
        }
        kinds.insert(kind.to_owned());
    }
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "playhouse.entitlement.granted.v1",
            "playhouse.entitlement.revoked.v1",
            "playhouse.user.banned.v1",
            "playhouse.user.erased.v1",
            "playhouse.user.registered.v1",
            "playhouse.user.unbanned.v1",
        ]
    );
}

/// The trace context survives a transaction that several requests share.
#[tokio::test(flavor = "multi_thread")]
async fn event_continues_the_trace_of_its_request() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let folder = Folder::fresh().unwrap();
    // Traces are continued although no collector listens there.
    let program = shop::embedded(&folder).env("PLAYHOUSE_TELEMETRY_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let running = program.start().unwrap();
    let at = addresses(&running).await;
    let shop = Shop::at(&at["service_api"]);
    let ada = shop.customer("ada").await;
    let granted = reqwest::Client::new()
        .post(shop.url("/entitlements/grant"))
        .bearer_auth(TOKEN)
        .header("idempotency-key", "order-1")
        .header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"))
        .json(&shop::purchase(&ada, "gems"))
        .send()
        .await
        .unwrap();
    let granted: Value = granted.json().await.unwrap();
    let (_, shown) =
        shop::admin_get(format!("http://{}/outbox/{}", at["admin"], granted["event_id"].as_str().unwrap()))
            .await;
    let traceparent = shown["event"]["traceparent"].as_str().unwrap();
    assert_eq!(traceparent.split('-').nth(1), Some(TRACE), "{shown}");
}
