//! `playhouse dlq` and `playhouse webhooks`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};
use testkit::{Folder, eventually};
use tokio::time::Instant;

use super::shop::{Customer, Shop};
use super::*;

/// A webhook destination that responds with a configurable status.
#[derive(Clone)]
struct Crm {
    url: String,
    status: Arc<AtomicU16>,
    /// The ids of the webhooks that it accepted.
    accepted: Arc<Mutex<Vec<String>>>,
}

impl Crm {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let crm = Self { url, status: Arc::new(AtomicU16::new(410)), accepted: Arc::default() };
        let router = Router::new().route("/hook", post(Self::receive)).with_state(crm.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        crm
    }

    async fn receive(State(crm): State<Self>, headers: HeaderMap) -> StatusCode {
        let status = StatusCode::from_u16(crm.status.load(Ordering::Relaxed)).unwrap();
        if status.is_success() {
            crm.accepted.lock().unwrap().push(headers["webhook-id"].to_str().unwrap().to_owned());
        }
        status
    }
}

/// A process that sends webhooks to the CRM, and a shop that causes them.
struct TestProcess {
    _folder: Folder,
    running: RunningProgram,
    admin: String,
    shop: Shop,
    ada: Customer,
}

impl TestProcess {
    async fn start(crm: &Crm) -> Self {
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        let hash = http_server::TokenHash::of(shop::TOKEN);
        let config = format!(
            "[services.shop]\ntoken_hash = \"{hash}\"\nmay = [\"read\", \"accounts\", \"entitlements\", \"notifications\"]\n\
             [notification.webhooks.crm]\nurl = \"{}\"\nallow_networks = [\"127.0.0.1\"]\n\
             secrets = [\"whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z\"]\n\
             [notification.templates.granted]\nevent = \"playhouse.entitlement.granted.v1\"\nfields = [\"nickname\"]\n\
             [notification.templates.granted.texts.en]\ntitle = \"Well done, {{nickname}}\"\n",
            crm.url,
        );
        std::fs::write(&file, config + &shop::operators()).unwrap();
        let running = shop::embedded(&folder).env("PLAYHOUSE_CONFIG", file).start().unwrap();
        let at = addresses(&running).await;
        let shop = Shop::at(&at["service_api"]);
        let ada = shop.customer("ada").await;
        Self { _folder: folder, running, admin: at["admin"].clone(), shop, ada }
    }

    /// Sends a notification about the user to the CRM.
    async fn notify(&self, key: &str) {
        let body = json!({
            "to": { "user_id": self.ada.user }, "texts": { "en": { "title": format!("News {key}") } },
            "channels": ["webhook:crm"],
        });
        let (status, response) = self.shop.post("/notifications", Some(key), &body).await;
        assert_eq!(status, 200, "{response}");
    }

    /// Returns the exit code and the output: stdout, or stderr if stdout is empty.
    async fn run(&self, args: &[&str]) -> (i32, String) {
        let (code, out, errors) = run(playhouse(args).args(["--admin", &self.admin])).await;
        (code, if out.is_empty() { errors } else { out })
    }

    async fn dead_letters(&self) -> Vec<Value> {
        let (code, found) = self.run(&["dlq", "list", "--json"]).await;
        assert_eq!(code, 0, "{found}");
        serde_json::from_str::<Value>(&found).unwrap()["letters"].as_array().unwrap().clone()
    }

    async fn wait_for_dead_letters(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} dead letters"), PATIENCE, async || {
            let letters = self.dead_letters().await;
            if letters.len() == count { Ok(letters) } else { Err(format!("{letters:#?}")) }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_lists_replays_and_discards_dead_letters() {
    let crm = Crm::start().await;
    let process = TestProcess::start(&crm).await;
    let (code, none) = process.run(&["dlq", "list"]).await;
    assert_eq!((code, none.trim()), (0, "no dead letters"));
    process.notify("1").await;
    // Deliveries to one destination have no order, and the first letter is checked below.
    process.wait_for_dead_letters(1).await;
    for key in ["2", "3", "4", "5"] {
        process.notify(key).await;
    }
    let letters = process.wait_for_dead_letters(5).await;
    let first = letters[0]["id"].as_str().unwrap();

    // Filters and details.
    let (_, listed) = process.run(&["dlq", "list", "--kind", "webhook", "--user", &process.ada.user]).await;
    for said in ["webhook:crm", "410", "5 dead letters", "in total: webhook 5", first] {
        assert!(listed.contains(said), "{listed} lacks {said}");
    }
    let (_, few) = process.run(&["dlq", "list", "--limit", "2"]).await;
    assert!(few.contains("2 dead letters listed; --limit lists more"), "{few}");
    let (_, none) = process.run(&["dlq", "list", "--destination", "webhook:other"]).await;
    assert!(none.contains("no dead letters"), "{none}");
    let (_, shown) = process.run(&["dlq", "show", first]).await;
    for said in [first, "webhook:crm", "410", "attempts 1", &process.ada.user, "News 1"] {
        assert!(shown.contains(said), "{shown} lacks {said}");
    }

    // Invalid commands are explained and have no effect.
    let unknown = "0198c0de-0000-7000-8000-000000000001";
    for (args, expected, said) in [
        (vec!["replay"], 2, "name the dead letters: give the id of one"),
        (vec!["discard"], 2, "name the dead letters: give the id of one"),
        (vec!["discard", "--all"], 2, "this deletes 5 dead letters for good"),
        (vec!["discard", "--kind", "webhook"], 2, "add --yes"),
        (vec!["replay", first, "--all"], 2, "cannot be used with"),
        (vec!["replay", "--all", "--rate", "0"], 2, "such as 20 or 20/s"),
        (vec!["list", "--user", "ada"], 1, "The id of the user must be a UUID"),
        (vec!["show", "17"], 1, "The id of the dead letter must be a UUID"),
        (vec!["show", unknown], 1, unknown),
        (vec!["replay", unknown], 1, unknown),
    ] {
        let (code, errors) = process.run(&[&["dlq"], &args[..]].concat()).await;
        assert!(code == expected && errors.contains(said), "{args:?}: {code} {errors}, not {said:?}");
    }
    process.wait_for_dead_letters(5).await;
    let (code, discarded) = process.run(&["dlq", "discard", first]).await;
    assert_eq!((code, discarded.trim()), (0, format!("{first} is discarded").as_str()));

    // The destination is still disabled, so replays would fail again.
    let (code, replayed) = process.run(&["dlq", "replay", "--all", "--rate", "20/s"]).await;
    assert!(
        code == 1 && replayed.starts_with("replayed 0 dead letters\n4 could not be replayed:"),
        "{replayed}"
    );
    assert!(replayed.contains("enable it first with `playhouse webhooks enable crm`"), "{replayed}");
    let second = letters[1]["id"].as_str().unwrap();
    let (code, refused) = process.run(&["dlq", "replay", second]).await;
    assert!(
        code == 1 && refused.contains("enable it first with `playhouse webhooks enable crm`"),
        "{refused}"
    );
    process.wait_for_dead_letters(4).await;

    let (_, disabled) = process.run(&["webhooks", "list"]).await;
    assert!(disabled.contains("disabled since") && disabled.contains("enable NAME"), "{disabled}");
    crm.status.store(204, Ordering::Relaxed);
    let (code, enabled) = process.run(&["webhooks", "enable", "crm"]).await;
    assert!(code == 0 && enabled.contains("playhouse dlq replay --destination webhook:crm"), "{enabled}");
    let (_, list) = process.run(&["webhooks", "list"]).await;
    assert!(list.contains("crm") && list.contains("in use"), "{list}");
    let (_, again) = process.run(&["webhooks", "enable", "crm"]).await;
    assert!(again.contains("crm was not disabled"), "{again}");
    let (code, unknown) = process.run(&["webhooks", "enable", "other"]).await;
    assert!(code == 1 && unknown.contains("[notification.webhooks.other]"), "{unknown}");

    let started = Instant::now();
    let one = process.dead_letters().await[0]["id"].as_str().unwrap().to_owned();
    let (code, replayed) = process.run(&["dlq", "replay", &one]).await;
    assert_eq!((code, replayed.trim()), (0, format!("{one} is replayed").as_str()));
    let (code, replayed) =
        process.run(&["dlq", "replay", "--destination", "webhook:crm", "--rate", "2", "--json"]).await;
    let job: Value = serde_json::from_str(&replayed).unwrap();
    assert_eq!((code, &job["done"], &job["failed"]), (0, &json!(3), &json!(0)), "{replayed}");
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
    eventually("the CRM has every webhook once", PATIENCE, async || {
        let accepted = crm.accepted.lock().unwrap().clone();
        let different: BTreeSet<&String> = accepted.iter().collect();
        assert_eq!(different.len(), accepted.len(), "{accepted:?}");
        if accepted.len() == 4 { Ok(()) } else { Err(format!("{accepted:?}")) }
    })
    .await;
    process.wait_for_dead_letters(0).await;

    // Each dead letter and the disabled destination are logged once, with the commands to run.
    let log = process.running.text(testkit::OutputStream::Stderr);
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    for letter in &letters {
        let id = letter["id"].as_str().unwrap();
        assert_eq!(
            count(&format!("`playhouse dlq show {id}`, then run `playhouse dlq replay {id}`")),
            1,
            "{log}"
        );
    }
    let disabled = "`playhouse webhooks enable crm`, then `playhouse dlq replay --destination webhook:crm`";
    assert_eq!(count(disabled), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_sees_how_long_a_destination_is_paused() {
    let crm = Crm::start().await;
    crm.status.store(500, Ordering::Relaxed);
    let process = TestProcess::start(&crm).await;
    for key in ["1", "2", "3"] {
        process.notify(key).await;
    }
    let paused = eventually("the destination is paused", PATIENCE, async || {
        let (_, list) = process.run(&["webhooks", "list"]).await;
        let expected = ["paused until 20", "3 waiting", "500"];
        if expected.iter().all(|text| list.contains(text)) { Ok(list) } else { Err(list) }
    })
    .await;
    assert!(paused.contains("Then it is tried again"), "{paused}");
    crm.status.store(204, Ordering::Relaxed);
    eventually("it is in use again", PATIENCE, async || {
        let (_, list) = process.run(&["webhooks", "list"]).await;
        if list.contains("in use") { Ok(()) } else { Err(list) }
    })
    .await;
    eventually("the CRM has every webhook", PATIENCE, async || crm.accepted.lock().unwrap().len() == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_replay_keeps_the_dead_letter_and_reports_the_cause() {
    let process = TestProcess::start(&Crm::start().await).await;
    for order in ["1", "2", "3"] {
        process.shop.buy(&process.ada, "gems", order).await;
    }
    process.wait_for_dead_letters(3).await;
    let (code, replayed) = process.run(&["dlq", "replay", "--kind", "event", "--rate", "2/s"]).await;
    assert!(
        code == 1 && replayed.contains("replayed 0 dead letters\n3 could not be replayed:"),
        "{replayed}"
    );
    assert!(
        replayed.contains("the event still cannot be interpreted") && replayed.contains("nickname"),
        "{replayed}"
    );
    assert_eq!(process.dead_letters().await.len(), 3);
    let (_, listed) = process.run(&["dlq", "list"]).await;
    assert!(listed.contains("event entitlement.granted.v1"), "{listed}");
    let (code, discarded) = process.run(&["dlq", "discard", "--kind", "event", "--yes"]).await;
    assert_eq!((code, discarded.trim()), (0, "discarded 3 dead letters"));
    assert!(process.dead_letters().await.is_empty());
}

#[tokio::test]
async fn unreachable_admin_api_is_explained() {
    for command in [["dlq", "list"], ["webhooks", "list"]] {
        let (code, _, error) = run(playhouse(&command).args(["--admin", "http://127.0.0.1:9"])).await;
        assert!(code == 1 && error.contains("--admin"), "{error}");
    }
}

/// Reads the only delivery of a notification from the admin API.
async fn delivery(process: &TestProcess, notification: &Value) -> Value {
    let id = notification.as_str().unwrap();
    let (status, mut response) =
        shop::admin_get(format!("http://{}/notifications/{id}", process.admin)).await;
    assert_eq!((status, response["notification_id"].as_str()), (200, Some(id)), "{response}");
    assert_eq!(response["deliveries"].as_array().unwrap().len(), 1, "{response}");
    response["deliveries"][0].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_sees_the_deliveries_of_a_notification() {
    let crm = Crm::start().await;
    let process = TestProcess::start(&crm).await;
    process.notify("one").await;
    let letter = process.wait_for_dead_letters(1).await.remove(0);
    let notification = &letter["notification_id"];
    let failed = delivery(&process, notification).await;
    assert_eq!((&failed["channel"], &failed["state"]), (&json!("webhook:crm"), &json!("FAILED")), "{failed}");
    assert!(failed["cause"].as_str().unwrap().contains("410"), "{failed}");
    crm.status.store(200, Ordering::Relaxed);
    assert_eq!(process.run(&["webhooks", "enable", "crm"]).await.0, 0);
    assert_eq!(process.run(&["dlq", "replay", letter["id"].as_str().unwrap()]).await.0, 0);
    eventually("it is sent", PATIENCE, async || delivery(&process, notification).await["state"] == "SENT")
        .await;
    let (status, response) = shop::admin_get(format!(
        "http://{}/notifications/{}",
        process.admin, "00000000-0000-7000-8000-000000000000"
    ))
    .await;
    assert_eq!(status, 404, "{response}");
}
