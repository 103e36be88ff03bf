//! `playhouse dlq` and `playhouse webhooks`, for operators.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::json;
use testkit::{Folder, eventually};
use tokio::time::Instant;

use super::shop::{Customer, Shop};
use super::*;

/// A destination of webhooks, which answers as it is told.
#[derive(Clone)]
struct Crm {
    url: String,
    status: Arc<AtomicU16>,
    /// The ids of what it has taken.
    taken: Arc<Mutex<Vec<String>>>,
}

impl Crm {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let crm = Self { url, status: Arc::new(AtomicU16::new(410)), taken: Arc::default() };
        let router = Router::new().route("/hook", post(Self::take)).with_state(crm.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        crm
    }

    async fn take(State(crm): State<Self>, headers: HeaderMap) -> StatusCode {
        let status = StatusCode::from_u16(crm.status.load(Ordering::Relaxed)).unwrap();
        if status.is_success() {
            crm.taken.lock().unwrap().push(headers["webhook-id"].to_str().unwrap().to_owned());
        }
        status
    }
}

/// A process that sends to the CRM, and the shop that tells it what.
struct Told {
    _folder: Folder,
    running: Running,
    admin: String,
    shop: Shop,
    ada: Customer,
}

impl Told {
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
        let shop = Shop::at(&at["internal"]);
        let ada = shop.customer("ada").await;
        Self { _folder: folder, running, admin: at["admin"].clone(), shop, ada }
    }

    /// Has the CRM told something of the user.
    async fn tell(&self, key: &str) {
        let body = json!({
            "to": { "user_id": self.ada.user }, "texts": { "en": { "title": format!("News {key}") } },
            "channels": ["webhook:crm"],
        });
        let (status, answer) = self.shop.post("/notifications", Some(key), &body).await;
        assert_eq!(status, 200, "{answer}");
    }

    /// The exit code, and what was said.
    async fn run(&self, args: &[&str]) -> (i32, String) {
        let (code, out, errors) = run(playhouse(args).args(["--admin", &self.admin])).await;
        (code, if out.is_empty() { errors } else { out })
    }

    async fn letters(&self) -> Vec<Value> {
        let (code, found) = self.run(&["dlq", "list", "--json"]).await;
        assert_eq!(code, 0, "{found}");
        serde_json::from_str::<Value>(&found).unwrap()["letters"].as_array().unwrap().clone()
    }

    async fn wait_for_letters(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} dead letters"), PATIENCE, async || {
            let letters = self.letters().await;
            if letters.len() == count { Ok(letters) } else { Err(format!("{letters:#?}")) }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_dead_letters_replays_and_discards_them() {
    let crm = Crm::start().await;
    let told = Told::start(&crm).await;
    let (code, none) = told.run(&["dlq", "list"]).await;
    assert_eq!((code, none.trim()), (0, "no dead letters"));
    told.tell("1").await;
    // Deliveries to one destination have no order, and the first is looked at below.
    told.wait_for_letters(1).await;
    for key in ["2", "3", "4", "5"] {
        told.tell(key).await;
    }
    let letters = told.wait_for_letters(5).await;
    let first = letters[0]["id"].as_str().unwrap();

    // What there is, and of what kind.
    let (_, listed) = told.run(&["dlq", "list", "--kind", "webhook", "--user", &told.ada.user]).await;
    for said in ["webhook:crm", "410", "5 dead letters", "in all: webhook 5", first] {
        assert!(listed.contains(said), "{listed} lacks {said}");
    }
    let (_, few) = told.run(&["dlq", "list", "--limit", "2"]).await;
    assert!(few.contains("2 dead letters are shown; --limit shows more"), "{few}");
    let (_, none) = told.run(&["dlq", "list", "--destination", "webhook:other"]).await;
    assert!(none.contains("no dead letters"), "{none}");
    let (_, shown) = told.run(&["dlq", "show", first]).await;
    for said in [first, "webhook:crm", "410", "attempts 1", &told.ada.user, "News 1"] {
        assert!(shown.contains(said), "{shown} lacks {said}");
    }

    // Mistakes are told with what to do, and nothing happens.
    let nobody = "0198c0de-0000-7000-8000-000000000001";
    for (args, expected, said) in [
        (vec!["replay"], 2, "say which: the id of a dead letter"),
        (vec!["discard"], 2, "say which: the id of a dead letter"),
        (vec!["discard", "--all"], 2, "this throws away 5 dead letters"),
        (vec!["discard", "--kind", "webhook"], 2, "add --yes"),
        (vec!["replay", first, "--all"], 2, "cannot be used with"),
        (vec!["replay", "--all", "--rate", "0"], 2, "such as 20 or 20/s"),
        (vec!["list", "--user", "ada"], 1, "Name the user by its id"),
        (vec!["show", "17"], 1, "Name the letter by its id"),
        (vec!["show", nobody], 1, nobody),
        (vec!["replay", nobody], 1, nobody),
    ] {
        let (code, errors) = told.run(&[&["dlq"], &args[..]].concat()).await;
        assert!(code == expected && errors.contains(said), "{args:?}: {code} {errors}, not {said:?}");
    }
    told.wait_for_letters(5).await;
    let (code, discarded) = told.run(&["dlq", "discard", first]).await;
    assert_eq!((code, discarded.trim()), (0, format!("{first} is discarded").as_str()));

    // The destination is still disabled: each would die again at once.
    let (code, replayed) = told.run(&["dlq", "replay", "--all", "--rate", "20/s"]).await;
    assert!(code == 1 && replayed.starts_with("replayed 0 dead letters\n4 stay:"), "{replayed}");
    assert!(replayed.contains("enable it first with `playhouse webhooks enable crm`"), "{replayed}");
    let second = letters[1]["id"].as_str().unwrap();
    let (code, refused) = told.run(&["dlq", "replay", second]).await;
    assert!(
        code == 1 && refused.contains("enable it first with `playhouse webhooks enable crm`"),
        "{refused}"
    );
    told.wait_for_letters(4).await;

    let (_, disabled) = told.run(&["webhooks", "list"]).await;
    assert!(disabled.contains("disabled since") && disabled.contains("enable NAME"), "{disabled}");
    crm.status.store(204, Ordering::Relaxed);
    let (code, enabled) = told.run(&["webhooks", "enable", "crm"]).await;
    assert!(code == 0 && enabled.contains("playhouse dlq replay --destination webhook:crm"), "{enabled}");
    let (_, list) = told.run(&["webhooks", "list"]).await;
    assert!(list.contains("crm") && list.contains("in use"), "{list}");
    let (_, again) = told.run(&["webhooks", "enable", "crm"]).await;
    assert!(again.contains("crm was not disabled"), "{again}");
    let (code, unknown) = told.run(&["webhooks", "enable", "other"]).await;
    assert!(code == 1 && unknown.contains("[notification.webhooks.other]"), "{unknown}");

    let started = Instant::now();
    let one = told.letters().await[0]["id"].as_str().unwrap().to_owned();
    let (code, replayed) = told.run(&["dlq", "replay", &one]).await;
    assert_eq!((code, replayed.trim()), (0, format!("{one} is replayed").as_str()));
    let (code, replayed) =
        told.run(&["dlq", "replay", "--destination", "webhook:crm", "--rate", "2", "--json"]).await;
    assert_eq!((code, replayed.trim()), (0, "{\"failed\":[],\"replayed\":3}"));
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
    eventually("the CRM has all of them, each once", PATIENCE, async || {
        let taken = crm.taken.lock().unwrap().clone();
        let different: BTreeSet<&String> = taken.iter().collect();
        assert_eq!(different.len(), taken.len(), "{taken:?}");
        if taken.len() == 4 { Ok(()) } else { Err(format!("{taken:?}")) }
    })
    .await;
    told.wait_for_letters(0).await;

    // Each letter is one line of the log with what to do, and so is the destination that was disabled.
    let log = told.running.text(testkit::Stream::Stderr);
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    for letter in &letters {
        let id = letter["id"].as_str().unwrap();
        assert_eq!(
            count(&format!("`playhouse dlq show {id}`, then `playhouse dlq replay {id}`")),
            1,
            "{log}"
        );
    }
    let disabled =
        "`playhouse webhooks enable crm` and then `playhouse dlq replay --destination webhook:crm`";
    assert_eq!(count(disabled), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_until_when_a_destination_rests() {
    let crm = Crm::start().await;
    crm.status.store(500, Ordering::Relaxed);
    let told = Told::start(&crm).await;
    for key in ["1", "2", "3"] {
        told.tell(key).await;
    }
    let resting = eventually("it rests", PATIENCE, async || {
        let (_, list) = told.run(&["webhooks", "list"]).await;
        let says = ["resting until 20", "3 waiting", "500"];
        if says.iter().all(|says| list.contains(says)) { Ok(list) } else { Err(list) }
    })
    .await;
    assert!(resting.contains("tried again by itself"), "{resting}");
    crm.status.store(204, Ordering::Relaxed);
    eventually("it is in use again", PATIENCE, async || {
        let (_, list) = told.run(&["webhooks", "list"]).await;
        if list.contains("in use") { Ok(()) } else { Err(list) }
    })
    .await;
    eventually("the CRM has all of them", PATIENCE, async || crm.taken.lock().unwrap().len() == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replayed_stays_and_is_told_with_its_cause() {
    let told = Told::start(&Crm::start().await).await;
    for order in ["1", "2", "3"] {
        told.shop.buy(&told.ada, "gems", order).await;
    }
    told.wait_for_letters(3).await;
    let (code, replayed) = told.run(&["dlq", "replay", "--kind", "event", "--rate", "2/s"]).await;
    assert!(code == 1 && replayed.contains("replayed 0 dead letters\n3 stay:"), "{replayed}");
    assert!(replayed.contains("it still cannot be told") && replayed.contains("nickname"), "{replayed}");
    assert_eq!(told.letters().await.len(), 3);
    let (_, listed) = told.run(&["dlq", "list"]).await;
    assert!(listed.contains("event entitlement.granted.v1"), "{listed}");
    let (code, discarded) = told.run(&["dlq", "discard", "--kind", "event", "--yes"]).await;
    assert_eq!((code, discarded.trim()), (0, "discarded 3 dead letters"));
    assert!(told.letters().await.is_empty());
}

#[tokio::test]
async fn where_nobody_answers_the_operator_is_told_what_to_do() {
    for command in [["dlq", "list"], ["webhooks", "list"]] {
        let (code, _, error) = run(playhouse(&command).args(["--admin", "http://127.0.0.1:9"])).await;
        assert!(code == 1 && error.contains("--admin"), "{error}");
    }
}

/// The state of a delivery, as the admin port tells it.
async fn follow(told: &Told, notification: &Value) -> Value {
    let id = notification.as_str().unwrap();
    let (status, mut answer) = shop::admin_get(format!("http://{}/notifications/{id}", told.admin)).await;
    assert_eq!((status, answer["notification_id"].as_str()), (200, Some(id)), "{answer}");
    assert_eq!(answer["deliveries"].as_array().unwrap().len(), 1, "{answer}");
    answer["deliveries"][0].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_what_became_of_a_notification() {
    let crm = Crm::start().await;
    let told = Told::start(&crm).await;
    told.tell("one").await;
    let letter = told.wait_for_letters(1).await.remove(0);
    let notification = &letter["notification_id"];
    let failed = follow(&told, notification).await;
    assert_eq!((&failed["channel"], &failed["state"]), (&json!("webhook:crm"), &json!("FAILED")), "{failed}");
    assert!(failed["cause"].as_str().unwrap().contains("410"), "{failed}");
    crm.status.store(200, Ordering::Relaxed);
    assert_eq!(told.run(&["webhooks", "enable", "crm"]).await.0, 0);
    assert_eq!(told.run(&["dlq", "replay", letter["id"].as_str().unwrap()]).await.0, 0);
    eventually("it is sent", PATIENCE, async || follow(&told, notification).await["state"] == "SENT").await;
    let (status, answer) = shop::admin_get(format!(
        "http://{}/notifications/{}",
        told.admin, "00000000-0000-7000-8000-000000000000"
    ))
    .await;
    assert_eq!(status, 404, "{answer}");
}
