//! `playhouse status` on a real fleet: running processes, roles without a process, work for an operator.

use std::time::Instant;

use serde_json::json;
use sqlx::ConnectOptions;
use testkit::{RunningProgram, eventually, need};

use super::fleet::Fleet;
use super::*;

/// Short, so that a killed process is soon reported as gone.
const HEARTBEAT: Duration = Duration::from_millis(500);

const ALL_BUT_ENGINE: &str = "gateway,service-api,matchmaking-frontend,outbox-relay,notifier";

impl Fleet {
    fn with_roles(&self, roles: &str) -> RunningProgram {
        let heartbeat = format!("process.heartbeat={}ms", HEARTBEAT.as_millis());
        let program = self.serve(&["--roles", roles, "--set", &heartbeat, "--set", "db.migrate=true"]);
        program.start().unwrap()
    }

    async fn status(&self, admin: &str) -> (i32, String) {
        let (code, shown, errors) = run(self.run(&["status", "--admin", admin])).await;
        (code, shown + &errors)
    }

    async fn eventually_status(&self, admin: &str, code: i32, parts: &[&str]) {
        eventually(&format!("status exits with {code} and says {parts:?}"), PATIENCE, async || {
            let (found, shown) = self.status(admin).await;
            let fits = found == code && parts.iter().all(|part| shown.contains(part));
            fits.then_some(()).ok_or(format!("{found}: {shown}"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_reports_a_role_without_a_process() {
    let fleet = need!(Fleet::start().await);
    let first = fleet.with_roles(ALL_BUT_ENGINE);
    let addresses = addresses(&first).await;
    let admin = addresses["admin"].as_str();
    let missing = "no process has the role matchmaking-engine";
    fleet.eventually_status(admin, 1, &[missing, "playhouse serve --roles matchmaking-engine"]).await;
    let (code, doctor, _) = run(fleet.run(&["doctor"])).await;
    assert!(code == 1 && doctor.contains(missing), "doctor does not report the role: {doctor}");

    // A process without the engine can say why a ticket waits.
    let url = format!("http://{}/v1/frontendservice/tickets", addresses["open_match"]);
    let ticket: Value = reqwest::Client::new()
        .post(url)
        .json(&json!({ "ticket": {} }))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let ticket = ticket["id"].as_str().unwrap();
    let (_, shown, _) = run(fleet.run(&["tickets", "show", ticket, "--admin", admin])).await;
    let no_engine = "no running process has the role matchmaking-engine, so only Directors make matches";
    assert!(shown.contains(no_engine), "{shown}");

    let director = "if Directors make your matches, check that they run and call FetchMatches";
    fleet.eventually_status(admin, 1, &["tickets wait (1), and no process has the role", director]).await;

    let engine = fleet.with_roles("matchmaking-engine");
    let second = super::addresses(&engine).await;
    for admin in [admin, second["admin"].as_str()] {
        fleet
            .eventually_status(
                admin,
                0,
                &["every expected role has a process (2 running)", "matchmaking-engine"],
            )
            .await;
    }
    let (_, doctor, _) = run(fleet.run(&["doctor"])).await;
    assert!(!doctor.contains("no process has the role"), "{doctor}");

    let killed = Instant::now();
    engine.kill();
    fleet.eventually_status(admin, 1, &[missing, "has been gone for"]).await;
    assert!(killed.elapsed() >= HEARTBEAT * 2, "it was reported as gone after one late heartbeat");

    // A process that stops cleanly disappears at once.
    let another = fleet.with_roles("matchmaking-engine");
    super::addresses(&another).await;
    fleet.eventually_status(admin, 0, &["(2 running)"]).await;
    another.sigterm();
    assert_eq!(another.wait(PATIENCE).await.code(), Some(0));
    let (_, found, _) = run(fleet.run(&["status", "--json", "--admin", admin])).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let states: Vec<&str> = found["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["running", "gone"], "the process that answers and the killed one");
    assert_eq!(found["missing_roles"], json!(["matchmaking-engine"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_shows_failed_events_and_leases() {
    let fleet = need!(Fleet::start().await);
    let (gateway, rest) = (
        fleet.with_roles("gateway,service-api"),
        fleet.with_roles("matchmaking-frontend,matchmaking-engine,outbox-relay,notifier"),
    );
    let admins =
        [addresses(&gateway).await, addresses(&rest).await].map(|addresses| addresses["admin"].clone());
    fleet
        .eventually_status(&admins[0], 0, &["no event is failed or late", "there are no dead letters"])
        .await;
    let (_, found, _) = run(fleet.run(&["status", "--json", "--admin", &admins[0]])).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let holder = found["processes"][0]["process_id"].as_str().unwrap().replace('-', "");

    let server: sqlx::mysql::MySqlConnectOptions = fleet.database.url().parse().unwrap();
    let mut database = server.connect().await.unwrap();
    let insert = |id: u8, state: u8, due: &str, holder: &str| {
        format!(
            "INSERT INTO outbox (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, holder, created_at, cause, payload) \
             VALUES (UNHEX(REPEAT('0{id}', 16)), UNHEX(REPEAT('00', 16)), 'k', {id}, {state}, {due}, 1, 1, {holder}, 1, 'too large', '')"
        )
    };
    let later = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) + 600000";
    for text in [insert(1, 2, "1", "NULL"), insert(2, 0, later, &format!("UNHEX('{holder}')"))] {
        sqlx::query(sqlx::AssertSqlSafe(text)).execute(&mut database).await.unwrap();
    }
    for admin in &admins {
        let parts = [
            "failed events: 1; events blocked behind them: 0",
            "too large",
            "playhouse outbox blocked",
            "holds 1 of outbox",
        ];
        fleet.eventually_status(admin, 1, &parts).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn process_of_playhouse_dev_has_all_roles() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let addresses = addresses(&running).await;
    eventually("the process has all roles", PATIENCE, async || {
        let (code, shown, errors) = run(playhouse(&["status", "--admin", &addresses["admin"]])).await;
        let fits = code == 0 && shown.contains("every expected role has a process (1 running)");
        fits.then_some(()).ok_or(format!("{code} {shown}{errors}"))
    })
    .await;
}
