//! The audit log: who changed what, with which outcome.

use std::collections::BTreeSet;

use testkit::need;

use super::super::crashes::{assert_killed, start};
use super::super::fleet::Fleet;
use super::super::shop::Shop;
use super::*;

const DRAFT: &str = "/drops";

fn draft(name: &str) -> Value {
    json!({
        "name": name, "resource": "hat", "stock": 1,
        "terms": {
            "price": { "amount": 499, "currency": "EUR" }, "per_player": 1, "reservation_ms": 60_000,
            "admission": {
                "batch": 10, "period_ms": 100, "capacity": 100, "lifetime_ms": 60_000, "arrive_within_ms": 60_000,
            },
        },
    })
}

/// Creates a drop as an operator. Returns `None` if the process dies meanwhile.
async fn create(client: &Client, admin: &str, name: &str) -> Option<u16> {
    let request = client.post(format!("http://{admin}{DRAFT}")).bearer_auth(OPERATOR_TOKEN);
    let request = request.header("idempotency-key", name).header("x-request-id", name).json(&draft(name));
    Some(request.send().await.ok()?.status().as_u16())
}

async fn entries(admin: &str) -> Vec<Value> {
    let (status, found) = shop::admin_get(format!("http://{admin}/audit?limit=1000")).await;
    assert_eq!(status, 200, "{found}");
    found["entries"].as_array().unwrap().clone()
}

fn outcome_of<'a>(entries: &'a [Value], request: &str) -> &'a str {
    let mut of_request = entries.iter().filter(|entry| entry["request_id"] == request);
    let outcome = of_request.next().unwrap_or_else(|| panic!("{request} has no entry: {entries:?}"));
    assert!(of_request.next().is_none(), "{request} has two entries");
    outcome["outcome"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn entry_records_actor_action_time_address_note_and_outcome() {
    let process = TestProcess::start().await;
    let change = process.admin(Method::POST, "/outbox/skip?cause=a%20b", OPERATOR_TOKEN);
    let change = change.header("x-request-id", "one").header("x-audit-note", "asked for by Ada, ticket 7");
    assert_eq!(send(change).await.0, 200);
    let entry = process.audit_log("").await.remove(0);
    let actor = json!({ "kind": "operator", "name": "tester", "proof": "configured-token", "subject": null });
    assert_eq!(entry["actor"], actor, "{entry}");
    for (field, value) in [
        ("listener", "admin"),
        ("action", "POST /outbox/skip"),
        ("target", "/outbox/skip?cause=a%20b"),
        ("address", "127.0.0.1"),
        ("request_id", "one"),
        ("note", "asked for by Ada, ticket 7"),
        ("outcome", "done"),
    ] {
        assert_eq!(entry[field], value, "{field}: {entry}");
    }
    assert_eq!(entry["status"], 200);
    let time = |field: &str| entry[field].as_str().unwrap().parse::<base::Timestamp>().unwrap();
    assert!(time("at") <= time("finished"), "{entry}");

    // A refusal is an outcome too.
    assert_eq!(send(process.admin(Method::POST, "/outbox/skip", OPERATOR_TOKEN)).await.0, 400);
    let entry = process.audit_log("").await.remove(0);
    assert_eq!((&entry["outcome"], &entry["status"]), (&json!("refused"), &json!(400)), "{entry}");
    // Reads are not recorded.
    assert_eq!(send(process.admin(Method::GET, "/outbox", OPERATOR_TOKEN)).await.0, 200);
    assert_eq!(process.audit_log("").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_attempts_are_recorded_with_the_caller() {
    let process = TestProcess::start().await;
    assert_eq!(send(process.admin(Method::POST, "/outbox/skip?all=true", READER_TOKEN)).await.0, 403);
    let entry = process.audit_log("").await.remove(0);
    assert_eq!(
        (&entry["actor"]["name"], &entry["outcome"]),
        (&json!("reader"), &json!("refused")),
        "{entry}"
    );

    let player = process.issued_token("eve", "player").await;
    assert_eq!(send(process.admin(Method::GET, "/outbox", &player)).await.0, 403);
    let entry = process.audit_log("").await.remove(0);
    let actor = &entry["actor"];
    assert_eq!(
        (&actor["kind"], &actor["name"], &actor["proof"]),
        (&json!("user"), &json!("eve"), &json!("issued-token"))
    );
    assert!(actor["subject"].is_string(), "{entry}");

    // Unauthenticated requests are not recorded: any client could fill the log.
    let before = process.audit_log("").await.len();
    assert_eq!(send(process.admin(Method::POST, "/outbox/skip?all=true", "wrong")).await.0, 401);
    assert_eq!(process.audit_log("").await.len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_is_not_recorded_as_a_change() {
    let process = TestProcess::start().await;
    for (path, outcome) in
        [("/outbox/skip?all=true&dry_run=true", "dry-run"), ("/outbox/skip?all=true", "done")]
    {
        let (status, body) = send(process.admin(Method::POST, path, OPERATOR_TOKEN)).await;
        assert!((200..300).contains(&status), "{body}");
        let entry = process.audit_log("").await.remove(0);
        assert_eq!(entry["outcome"], outcome, "{entry}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_actions_of_services_are_recorded() {
    let process = TestProcess::start().await;
    let shop = Shop::at(&process.at["service_api"]);
    let ada = shop.customer("ada").await;
    shop.buy(&ada, "gems", "order-1").await;
    assert!(process.audit_log("").await.is_empty(), "purchases have their own history");

    let ban = format!("/users/{}/ban", ada.user);
    assert_eq!(shop.status_of_post(&ban, &json!({ "reason": "cheats" })).await, 204);
    let entry = process.audit_log("").await.remove(0);
    let actor = json!({ "kind": "service", "name": "shop", "proof": "service-token", "subject": null });
    assert_eq!((&entry["actor"], &entry["listener"]), (&actor, &json!("service_api")), "{entry}");
    assert_eq!(entry["action"], "POST /internal/v1/users/{user_id}/ban");
    assert_eq!((&entry["target"], &entry["outcome"]), (&json!(format!("/internal/v1{ban}")), &json!("done")));

    let poor =
        process.client.post(shop.url(&ban)).bearer_auth(shop::POOR_TOKEN).json(&json!({ "reason": "r" }));
    assert_eq!(send(poor).await.0, 403);
    let entry = process.audit_log("").await.remove(0);
    assert_eq!((&entry["actor"]["name"], &entry["outcome"]), (&json!("poor"), &json!("refused")), "{entry}");

    let (status, made) = shop.post("/drops", Some("one"), &draft("one")).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(process.audit_log("actor=shop&action=/drops&outcome=done").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_is_paged_exported_and_read_only() {
    let process = TestProcess::start().await;
    for at in 0..5 {
        let change = process.admin(Method::POST, &format!("/outbox/skip?cause=c{at}"), OPERATOR_TOKEN);
        assert_eq!(send(change).await.0, 200);
    }
    let targets = |entries: &[Value]| -> Vec<String> {
        entries
            .iter()
            .map(|entry| entry["target"].as_str().unwrap().replace("/outbox/skip?cause=", ""))
            .collect()
    };
    let newest = process.audit_log("limit=2").await;
    assert_eq!(targets(&newest), ["c4", "c3"]);
    let older = process.audit_log(&format!("limit=2&before={}", newest[1]["number"])).await;
    assert_eq!(targets(&older), ["c2", "c1"]);
    assert_eq!(
        targets(&process.audit_log(&format!("after={}", older[1]["number"])).await),
        ["c2", "c3", "c4"]
    );
    assert_eq!(targets(&process.audit_log("target=c3&actor=tester&action=skip&outcome=done").await), ["c3"]);
    for none in
        ["actor=nobody", "outcome=unknown", "until=2020-01-01T00:00:00Z", "since=2099-01-01T00:00:00Z"]
    {
        assert!(process.audit_log(none).await.is_empty(), "{none}");
    }
    for wrong in ["outcome=maybe", "since=yesterday", "before=1&after=1"] {
        let (status, problem) = shop::admin_get(process.url("admin", &format!("/audit?{wrong}"))).await;
        assert_eq!(status, 400, "{problem}");
    }

    let command = async |args: &[&str]| {
        let (code, out, errors) = run(playhouse(args).args(["--admin", &process.at["admin"]])).await;
        assert_eq!(code, 0, "{errors}");
        out
    };
    let skip = command(&["outbox", "skip", "--cause", "c9", "--note", "spring cleaning, so to say"]).await;
    assert!(skip.contains("0 failed events"), "{skip}");
    let list = command(&["audit-log", "list", "--limit", "1"]).await;
    assert!(
        list.contains("tester") && list.contains("spring cleaning") && list.contains("--before"),
        "{list}"
    );
    let exported = command(&["audit-log", "export", "--since", "1h"]).await;
    let exported: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(targets(&exported), ["c0", "c1", "c2", "c3", "c4", "c9"]);

    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(send(process.admin(method.clone(), "/audit", OPERATOR_TOKEN)).await.0, 405, "{method}");
    }
    let rows = playhouse::operator_rows();
    let access_of_log: BTreeSet<_> = rows
        .iter()
        .filter(|row| row.path().contains("audit"))
        .map(|row| row.access())
        .map(|access| format!("{access:?}"))
        .collect();
    assert_eq!(access_of_log, BTreeSet::from(["Read".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_before_the_outcome_is_visible_in_the_log_on_sqlite() {
    let folder = Folder::fresh().unwrap();
    let client = Client::new();
    for (point, request, outcome) in
        [("audit.begun", "before", "unknown"), ("audit.outcome", "after", "committed")]
    {
        let (doomed, at) = start(&shop::embedded(&folder).env("TESTKIT_FAULT", point)).await;
        assert_eq!(create(&client, &at["admin"], request).await, None);
        assert_killed(&doomed).await;
        let (next, at) = start(&shop::embedded(&folder)).await;
        assert_eq!(outcome_of(&entries(&at["admin"]).await, request), outcome);
        let (_, drops) = shop::admin_get(format!("http://{}/drops", at["admin"])).await;
        let exists = drops["drops"].as_array().unwrap().iter().any(|drop| drop["name"] == request);
        assert_eq!(exists, outcome == "committed", "{drops}");
        next.sigterm();
        next.wait(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_before_the_outcome_is_visible_in_the_log_on_a_server() {
    let fleet = need!(Fleet::start().await);
    let client = Client::new();
    let serve = || super::super::crashes::serve(&fleet, "outbox-relay");
    for (point, request, outcome) in
        [("audit.begun", "before", "unknown"), ("audit.outcome", "after", "committed")]
    {
        let (doomed, at) = start(&serve().env("TESTKIT_FAULT", point)).await;
        assert_eq!(create(&client, &at["admin"], request).await, None);
        assert_killed(&doomed).await;
        let (_next, at) = start(&serve()).await;
        assert_eq!(outcome_of(&entries(&at["admin"]).await, request), outcome);
    }
    // A change without a transaction: the attempt is recorded, its outcome is unknown.
    let (doomed, at) = start(&serve().env("TESTKIT_FAULT", "audit.outcome")).await;
    let url = format!("http://{}/tickets/dbt8pcfejq8o287bsa0g", at["admin"]);
    let request = client.delete(url).bearer_auth(OPERATOR_TOKEN).header("x-request-id", "ticket");
    assert!(request.send().await.is_err());
    assert_killed(&doomed).await;
    let (_next, at) = start(&serve()).await;
    assert_eq!(outcome_of(&entries(&at["admin"]).await, "ticket"), "unknown");
    assert_eq!(create(&client, &at["admin"], "third").await, Some(201));
    assert_eq!(outcome_of(&entries(&at["admin"]).await, "third"), "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_cannot_be_recorded_is_refused() {
    let mut fleet = need!(Fleet::start().await);
    let (_running, at) = start(&super::super::crashes::serve(&fleet, "matchmaking-frontend")).await;
    let client = Client::new();
    let tickets = format!("http://{}/v1/frontendservice/tickets", at["open_match"]);
    let (_, ticket) = send(client.post(tickets).json(&json!({ "ticket": {} }))).await;
    let url = format!("http://{}/tickets/{}", at["admin"], ticket["id"].as_str().unwrap());
    fleet.sql.kill().await.unwrap();
    let (status, problem) = send(client.delete(&url).bearer_auth(OPERATOR_TOKEN)).await;
    assert_eq!(status, 503, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("Nothing was changed"), "{problem}");
    let (status, shown) = send(client.get(&url).bearer_auth(OPERATOR_TOKEN)).await;
    assert_eq!((status, &shown["state"]), (200, &json!("waiting")), "the ticket was deleted: {shown}");
}
