//! `playhouse trace`: the steps of one thing through every store.

use serde_json::json;
use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::shop::{OPERATOR_TOKEN, Shop, embedded, with_credentials};
use super::*;

/// A process, and the commands of an operator.
struct Traced {
    _running: RunningProgram,
    at: HashMap<String, String>,
}

impl Traced {
    async fn start(program: Program) -> Self {
        let running = program.start().unwrap();
        let at = addresses(&running).await;
        Self { _running: running, at }
    }

    async fn run(&self, args: &[&str]) -> (i32, String) {
        let (code, shown, errors) = run(playhouse(args).args(["--admin", &self.at["admin"]])).await;
        (code, shown + &errors)
    }

    /// Returns the steps of an id, each as its store, its service and its text.
    async fn trace(&self, id: &str) -> Vec<(String, String, String)> {
        let (_, shown) = self.run(&["trace", id, "--json"]).await;
        let found: Value = serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{shown}"));
        assert_eq!(found["unavailable"], json!([]), "{found}");
        let text = |step: &Value, name: &str| step[name].as_str().unwrap().to_owned();
        let steps = found["steps"].as_array().unwrap().iter();
        steps.map(|step| (text(step, "store"), text(step, "part"), text(step, "what"))).collect()
    }

    /// Waits until the trace of an id contains these steps in this order. Each is a store, a service and the beginning of a text.
    async fn wait_for_steps(&self, id: &str, expected: &[(&str, &str, &str)]) -> Vec<String> {
        eventually(&format!("{id} has all its steps"), PATIENCE, async || {
            let found = self.trace(id).await;
            let mut rest = found.iter();
            let is = |step: &(String, String, String), (store, part, what): &(&str, &str, &str)| {
                step.0 == *store && step.1 == *part && step.2.starts_with(what)
            };
            match expected.iter().find(|step| !rest.any(|found| is(found, step))) {
                None => Ok(found.into_iter().map(|(_, _, what)| what).collect()),
                Some(missing) => {
                    let (_, shown) = self.run(&["trace", id]).await;
                    Err(format!("{missing:?} is not at its place in\n{shown}"))
                }
            }
        })
        .await
    }
}

/// Grants a resource and traces the grant by its event, its notification, the purchase and the user.
async fn check_grant(process: &Traced) {
    let shop = Shop::at(&process.at["service_api"]);
    let sign_in = json!({ "issuer": "https://id.example.com", "subject": "ada" });
    let (_, signed_in) = shop.post("/sign-ins", None, &sign_in).await;
    let user = signed_in["user"]["user_id"].as_str().unwrap().to_owned();
    let (_, found) = shop.get(&format!("/users/{user}/accounts")).await;
    let account = found["accounts"][0]["account_id"].as_str().unwrap_or_else(|| panic!("{found}"));
    let grant = |resource: &str, reference: &str| {
        json!({
            "user_id": user, "account_id": account, "resource": resource,
            "occurred_at": "2026-03-01T12:00:00Z", "reference": reference,
        })
    };
    let (status, granted) = shop.post("/entitlements/grant", Some("k1"), &grant("skin:a", "order-1")).await;
    assert_eq!(status, 200, "{granted}");
    let event = granted["event_id"].as_str().unwrap_or_else(|| panic!("{granted}"));
    let way = [
        ("sql", "entitlement", "Granted skin:a (version 1) for shop"),
        ("sql", "outbox", "Appended playhouse.entitlement.granted.v1"),
        ("bus", "outbox", "Published playhouse.entitlement.granted.v1"),
        ("sql", "notification", "Taken in from the bus"),
        ("sql", "notification", "In the inbox"),
        ("sql", "notification", "Delivered to live"),
    ];
    let by_event = process.wait_for_steps(event, &way).await;
    assert_eq!(by_event.len(), way.len(), "nothing else belongs to the event: {by_event:#?}");
    process.wait_for_steps("order-1", &way).await;
    let registered = ("sql", "account", "Registered");
    process.wait_for_steps(&user, &[&[registered], &way[..]].concat()).await;
    let published = ("bus", "outbox", "Published playhouse.user.registered.v1");
    process.wait_for_steps(&user, &[registered, published]).await;

    let (code, shown) = process.run(&["trace", event]).await;
    assert_eq!(code, 0, "{shown}");
    assert!(shown.starts_with("time "), "{shown}");
    let published = shown.lines().find(|line| line.contains("Published")).unwrap();
    assert!(published.contains(" ms  bus    outbox        Published"), "{shown}");

    // A second grant of the same player is another story.
    shop.post("/entitlements/grant", Some("k2"), &grant("skin:b", "order-2")).await;
    assert_eq!(process.trace(event).await.len(), way.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_is_traced_through_outbox_bus_and_inbox() {
    let folder = Folder::fresh().unwrap();
    check_grant(&Traced::start(embedded(&folder)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_is_traced_on_servers() {
    let fleet = need!(Fleet::start().await);
    let roles = "gateway,service-api,outbox-relay,notifier";
    let program = fleet.serve(&["--roles", roles, "--set", "db.migrate=true"]);
    check_grant(&Traced::start(with_credentials(program)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn match_is_traced_by_its_tickets_its_id_and_its_players() {
    let process = Traced::start(dev(&["--ephemeral"])).await;
    let client = reqwest::Client::new();
    let mut tickets = Vec::new();
    for name in ["ada", "grace"] {
        let (_, token) = process.run(&["token", "--user", name]).await;
        let url = format!("http://{}/v1/matchmaking/tickets", process.at["gateway"]);
        let request = client.post(url).bearer_auth(token.trim()).json(&json!({ "queue": "duel" }));
        let ticket: Value = request.send().await.unwrap().json().await.unwrap();
        tickets.push(ticket["ticket_id"].as_str().unwrap_or_else(|| panic!("{ticket}")).to_owned());
    }
    let created = format!("Created the ticket {} in the queue duel", tickets[0]);
    let assigned = format!("The ticket {} was assigned to the match ", tickets[0]);
    let way = [
        ("redis", "matchmaking", created.as_str()),
        ("redis", "matchmaking", assigned.as_str()),
        ("sql", "outbox", "Appended playhouse.match.made.v1"),
        ("bus", "outbox", "Published playhouse.match.made.v1"),
        ("sql", "notification", "Taken in from the bus"),
        ("sql", "notification", "In the inbox"),
    ];
    let steps = process.wait_for_steps(&tickets[0], &way).await;
    let id = steps.iter().find_map(|step| step.strip_prefix(&assigned)).unwrap();
    let made = ("redis", "matchmaking", "Made a match of 2 tickets for the profile ");
    let steps = process.wait_for_steps(id, &[&[way[0], made], &way[2..]].concat()).await;
    let count = |text: &str| steps.iter().filter(|step| step.starts_with(text)).count();
    assert_eq!((count("Created the ticket "), count("In the inbox")), (2, 2), "{steps:#?}");

    let (_, found) = process.run(&["users", "find", "ada", "--json"]).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let user = found["users"][0]["user_id"].as_str().unwrap();
    process.wait_for_steps(user, &[&[("sql", "account", "Registered")], &way[..]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn change_by_an_operator_is_traced_by_the_id_of_its_request() {
    let process = Traced::start(dev(&["--ephemeral"])).await;
    let url = format!("http://{}/try-it/failed-event", process.at["admin"]);
    let request = reqwest::Client::new().post(url).bearer_auth(OPERATOR_TOKEN);
    let response = request.header("x-request-id", "case-12").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = "operator dev: POST /try-it/failed-event: done (200)";
    process.wait_for_steps("case-12", &[("sql", "operators", text)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_an_unknown_id_fails_and_says_what_can_be_traced() {
    let process = Traced::start(dev(&["--ephemeral"])).await;
    for id in ["0198c0de-0000-7000-8000-000000000001", "dbt8pcfejq8o287bsa0g", "no such/id?"] {
        let (code, shown) = process.run(&["trace", id]).await;
        assert_eq!(code, 1, "{id}: {shown}");
        for expected in ["Nothing is known of this id.", "orders", "tickets", "outbox.retention"] {
            assert!(shown.contains(expected), "{id}: {shown}");
        }
        let (code, shown) = process.run(&["trace", id, "--json"]).await;
        assert_eq!(code, 1, "{id}: {shown}");
        let found: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((&found["id"], &found["steps"]), (&json!(id), &json!([])));
    }
}
