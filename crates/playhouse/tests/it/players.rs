//! Operators find players, purchases and tickets with the same result at every process.

use std::collections::BTreeMap;

use serde_json::json;
use sqlx::Connection;
use testkit::{Folder, RunningProgram, eventually, need};

use super::fleet::Fleet;
use super::shop::{self, Shop, with_credentials};
use super::*;

async fn start(fleet: &Fleet, roles: &str) -> (RunningProgram, HashMap<String, String>) {
    let program = fleet.serve(&["--roles", roles, "--set", "db.migrate=true"]);
    let running = with_credentials(program).start().unwrap();
    let addresses = addresses(&running).await;
    (running, addresses)
}

/// Runs a command against both processes, which must give the same result.
async fn run_at_both(fleet: &Fleet, admins: &[&str; 2], args: &[&str]) -> (i32, String) {
    let mut results = Vec::new();
    for admin in admins {
        let (code, shown, errors) = run(with_credentials(fleet.run(args)).args(["--admin", admin])).await;
        results.push((code, shown + &errors));
    }
    assert_eq!(results[0], results[1], "{args:?}");
    results.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_finds_a_player_and_their_purchases() {
    let fleet = need!(Fleet::start().await);
    let (_gateway, gateway) = start(&fleet, "gateway,service-api").await;
    let (_engine, engine) = start(&fleet, "matchmaking-engine").await;
    let admins = [gateway["admin"].as_str(), engine["admin"].as_str()];
    let shop = Shop::at(&gateway["service_api"]);
    let sign_in = json!({ "issuer": "https://id.example.com", "subject": "ada-1", "display_name": "Ada L" });
    let (_, user) = shop.try_post("/sign-ins", None, &sign_in).await.unwrap();
    let user = user["user"]["user_id"].as_str().unwrap().to_owned();

    for text in ["Ada L", "ada-1", &user] {
        let (code, found) = run_at_both(&fleet, &admins, &["users", "find", text]).await;
        assert!(code == 0 && found.contains(&user) && found.contains("Ada L"), "{text}: {found}");
    }
    let (code, shown) = run_at_both(&fleet, &admins, &["users", "show", &user]).await;
    assert!(code == 0 && shown.contains("signs in as ada-1 at https://id.example.com"), "{shown}");
    let account = shown.lines().find_map(|line| line.trim().strip_prefix("account ")).unwrap();
    let account = account.split_whitespace().next().unwrap().to_owned();
    let (code, found) = run_at_both(&fleet, &admins, &["users", "find", &account]).await;
    assert!(code == 0 && found.contains(&user), "{found}");
    let (code, found) = run_at_both(&fleet, &admins, &["users", "find", "an unknown name"]).await;
    assert!(code == 1 && found.contains("No user found."), "{found}");

    let grant = |resource: &str, reference: &str| {
        json!({
            "user_id": user, "account_id": account, "resource": resource,
            "occurred_at": "2026-03-01T12:00:00Z", "reference": reference,
        })
    };
    for (resource, reference) in [("skin:a", "order-1"), ("skin:b", "order-2"), ("skin:c", "order-2")] {
        let key = format!("key-{resource}");
        let (status, _) =
            shop.try_post("/entitlements/grant", Some(&key), &grant(resource, reference)).await.unwrap();
        assert_eq!(status, 200);
    }
    let (code, listed) = run_at_both(&fleet, &admins, &["entitlements", "list", "--user", &user]).await;
    assert!(code == 0 && ["skin:a", "skin:b", "skin:c"].iter().all(|name| listed.contains(name)), "{listed}");
    let args = ["entitlements", "list", "--user", &user, "--limit", "2", "--json"];
    let (_, page) = run_at_both(&fleet, &admins, &args).await;
    let page: Value = serde_json::from_str(&page).unwrap();
    let next = page["next"].as_str().unwrap();
    let args = ["entitlements", "list", "--user", &user, "--limit", "2", "--after", next];
    let (_, rest) = run_at_both(&fleet, &admins, &args).await;
    assert!(rest.contains("skin:c") && !rest.contains("skin:b"), "{rest}");

    let (code, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--reference", "order-2"]).await;
    let fits = found.contains("skin:b") && found.contains("skin:c") && !found.contains("skin:a");
    assert!(
        code == 0 && fits && found.contains(&user) && found.contains("sent by shop as order-2"),
        "{found}"
    );
    let (_, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--user", &user, "--account", &account])
            .await;
    assert_eq!(found.matches("grant skin:").count(), 3, "{found}");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let mut args = vec!["entitlements", "history", "--user", &user, "--limit", "1", "--json"];
        args.extend(after.iter().flat_map(|next: &String| ["--after", next.as_str()]));
        let (_, page) = run_at_both(&fleet, &admins, &args).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        let entries = page["entries"].as_array().unwrap();
        seen.extend(entries.iter().map(|entry| entry["resource"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = Some(next.to_owned());
    }
    seen.sort();
    assert_eq!(seen, ["skin:a", "skin:b", "skin:c"], "each record is on one page");

    // Also by idempotency key, with or without the name of the service.
    for args in
        [&["--idempotency-key", "key-skin:a"][..], &["--idempotency-key", "key-skin:a", "--caller", "shop"]]
    {
        let (code, found) =
            run_at_both(&fleet, &admins, &[&["entitlements", "history"], args].concat()).await;
        assert!(code == 0 && found.contains("applied: skin:a") && found.contains(&user), "{found}");
    }
    let (code, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--idempotency-key", "key-lost"]).await;
    assert!(code == 1 && found.contains("it never arrived, was refused"), "{found}");
    let (code, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--reference", "order-9"]).await;
    assert!(code == 0 && found.contains("No changes found:"), "{found}");
}

/// The player's id is text, also at a process without a frontend.
#[tokio::test(flavor = "multi_thread")]
async fn every_process_shows_the_player_of_a_ticket() {
    let fleet = need!(Fleet::start().await);
    let (_frontend, frontend) = start(&fleet, "matchmaking-frontend").await;
    let (_relay, relay) = start(&fleet, "outbox-relay").await;
    let user = "0198c0de-0000-7000-8000-000000000001";
    let owner = json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": user });
    let ticket = json!({ "ticket": { "persistentField": { "user_id": owner } } });
    let url = format!("http://{}/v1/frontendservice/tickets", frontend["open_match"]);
    let made: Value =
        reqwest::Client::new().post(url).json(&ticket).send().await.unwrap().json().await.unwrap();
    let id = made["id"].as_str().unwrap();
    for admin in [&frontend["admin"], &relay["admin"]] {
        let (code, shown, errors) =
            run(fleet.run(&["tickets", "--json", "show", id, "--admin", admin])).await;
        assert_eq!(code, 0, "{errors}");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["ticket"]["persistentField"]["user_id"]["value"], user, "at {admin}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_of_a_player_are_listed() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let addresses = addresses(&running).await;
    let admin = addresses["admin"].as_str();
    let (_, token, _) = run(playhouse(&["token", "--user", "ada", "--admin", admin])).await;
    let client = reqwest::Client::new();
    let url = format!("http://{}/v1/matchmaking/tickets", addresses["gateway"]);
    let request = client.post(url).bearer_auth(token.trim()).json(&json!({ "queue": "duel" }));
    let ticket: Value = request.send().await.unwrap().json().await.unwrap();
    let id = ticket["ticket_id"].as_str().unwrap_or_else(|| panic!("{ticket}")).to_owned();
    let (_, found, _) = run(playhouse(&["users", "find", "ada", "--json", "--admin", admin])).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let user = found["users"][0]["user_id"].as_str().unwrap();
    eventually("the ticket is listed", PATIENCE, async || {
        let (_, listed, _) = run(playhouse(&["tickets", "list", "--user", user, "--admin", admin])).await;
        (listed.contains(&id) && listed.contains("1 of 1 ticket of the player")).then_some(()).ok_or(listed)
    })
    .await;
    let unknown = "0198c0de-0000-7000-8000-000000000001";
    let (code, listed, _) = run(playhouse(&["tickets", "list", "--user", unknown, "--admin", admin])).await;
    assert!(code == 0 && listed.contains("0 of 0 tickets of the player"), "{listed}");
    let (code, _, errors) = run(playhouse(&["tickets", "list", "--user", "ada", "--admin", admin])).await;
    assert!(code == 1 && errors.contains("user_id must be a UUID"), "{errors}");
}

/// Where the export has the rows that the erasure of a user removes, by table.
const EXPORTED: [(&str, &str); 13] = [
    ("accounts", "/accounts"),
    ("drop_entries", "/drops/entries"),
    ("drop_orders", "/drops/orders"),
    ("drop_reservations", "/drops/reservations"),
    ("identities", "/identities"),
    ("notification", "/notifications/inbox"),
    ("notification_dlq", "/notifications/dead_letters"),
    ("notification_live", "/notifications/deliveries"),
    ("notification_log", "/notifications/deliveries"),
    ("notification_webhook", "/notifications/deliveries"),
    ("session_ends", "/sessions"),
    ("session_refreshes", "/sessions"),
    ("user_notes", "/notes"),
];

/// A process of `playhouse dev` whose database the test reads.
struct Dev {
    client: reqwest::Client,
    at: HashMap<String, String>,
    db: sqlx::SqliteConnection,
    user: uuid::Uuid,
    token: String,
}

impl Dev {
    async fn as_player(&self, method: reqwest::Method, path: &str, body: &Value) -> Value {
        let url = format!("http://{}{path}", self.at["gateway"]);
        let request = self.client.request(method, url).bearer_auth(&self.token).json(body);
        let response = request.header("idempotency-key", path).send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {response:?}");
        response.json().await.unwrap_or_default()
    }

    async fn as_operator(&self, path: &str, body: &Value) -> Value {
        let url = format!("http://{}{path}", self.at["admin"]);
        let request = self.client.post(url).bearer_auth(shop::OPERATOR_TOKEN).json(body);
        let response = request.header("idempotency-key", path).send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {response:?}");
        response.json().await.unwrap()
    }

    async fn export(&self) -> Value {
        let path = format!("http://{}/users/{}/export", self.at["admin"], self.user);
        let (status, export) = shop::admin_get(path).await;
        assert_eq!(status, 200, "{export}");
        export
    }

    async fn sql(&mut self, text: &str) {
        let bytes = format!("X'{}'", self.user.simple());
        let text = text.replace("{user}", &bytes);
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut self.db).await.unwrap();
    }

    /// Counts the rows of the user in every table that has the id of a user. Tables without such rows are left out.
    async fn rows(&mut self) -> BTreeMap<String, i64> {
        let tables = "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c ON c.name = 'user_id' WHERE m.type = 'table'";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut self.db).await.unwrap();
        let mut rows = BTreeMap::new();
        for table in tables {
            let text = format!("SELECT COUNT(*) FROM {table} WHERE user_id = ?");
            let query = sqlx::query_scalar(sqlx::AssertSqlSafe(text)).bind(self.user.as_bytes().to_vec());
            let count: i64 = query.fetch_one(&mut self.db).await.unwrap();
            rows.extend((count > 0).then_some((table, count)));
        }
        rows
    }
}

/// Whatever a service stores about users, and removes with them, is in the export of the user.
#[tokio::test(flavor = "multi_thread")]
async fn export_has_everything_that_erase_removes() {
    let folder = Folder::fresh().unwrap();
    let running = dev(&["--data", folder.path().to_str().unwrap()]).start().unwrap();
    let at = addresses(&running).await;
    let (_, token, _) = run(playhouse(&["token", "--user", "ada", "--admin", &at["admin"]])).await;
    let file = format!("sqlite:{}", folder.path().join("playhouse.db").display());
    let db = sqlx::SqliteConnection::connect(&file).await.unwrap();
    let (client, token) = (reqwest::Client::new(), token.trim().to_owned());
    let mut dev = Dev { client, at, db, user: uuid::Uuid::nil(), token };
    let me = dev.as_player(reqwest::Method::GET, "/v1/me", &Value::Null).await;
    dev.user = me["user_id"].as_str().unwrap().parse().unwrap();

    let post = reqwest::Method::POST;
    dev.as_operator(&format!("/users/{}/notes", dev.user), &json!({ "note": "Called support." })).await;
    let account = &me["accounts"][0]["account_id"];
    let grant = json!({ "account_id": account, "resource": "skin:gold", "reason": "a test" });
    dev.as_operator("/entitlements/grant", &grant).await;
    dev.as_operator("/try-it/players/ada/notify", &json!({ "title": "Hello" })).await;
    let ticket = dev.as_player(post.clone(), "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
    let party = dev.as_player(post.clone(), "/v1/parties", &json!({})).await;
    let listed = dev.as_player(reqwest::Method::GET, "/v1/drops", &Value::Null).await;
    let drop = listed["drops"][0]["drop_id"].as_str().unwrap_or_else(|| panic!("{listed}")).to_owned();
    dev.as_operator(&format!("/drops/{drop}/open"), &Value::Null).await;
    dev.as_player(post.clone(), &format!("/v1/drops/{drop}/join"), &json!({})).await;
    let admission = eventually("admitted", PATIENCE, async || {
        let place =
            dev.as_player(reqwest::Method::GET, &format!("/v1/drops/{drop}/place"), &Value::Null).await;
        place["admission"]["token"].as_str().map(str::to_owned).ok_or_else(|| place.to_string())
    })
    .await;
    let body = json!({ "quantity": 1, "admission": admission });
    let held = dev.as_player(post.clone(), &format!("/v1/drops/{drop}/reservations"), &body).await;
    let held = held["reservation_id"].as_str().unwrap();
    dev.as_player(post, &format!("/v1/drops/{drop}/reservations/{held}/pay"), &json!({})).await;
    eventually("the notification is delivered", PATIENCE, async || {
        let export = dev.export().await;
        (export["notifications"]["deliveries"][0]["state"] == "SENT").then_some(()).ok_or(export)
    })
    .await;
    // What takes long to bring about: deliveries to other channels, a dead letter, and sessions.
    dev.sql("INSERT INTO notification_log SELECT * FROM notification_live WHERE user_id = {user} LIMIT 1")
        .await;
    dev.sql(
        "INSERT INTO notification_webhook SELECT * FROM notification_live WHERE user_id = {user} LIMIT 1",
    )
    .await;
    dev.sql(
        "INSERT INTO notification_dlq (letter_id, kind, destination, user_id, attempts, cause, payload, created_at, died_at) \
         VALUES (randomblob(16), 'webhook', 'webhook:partner', {user}, 3, 'it answered 500', X'', 1, 2)",
    )
    .await;
    dev.sql("INSERT INTO session_ends VALUES (randomblob(32), {user}, 1, 9000000000000)").await;
    dev.sql("INSERT INTO session_refreshes VALUES (randomblob(32), {user}, 2, 9000000000000)").await;

    let (before, export) = (dev.rows().await, dev.export().await);
    dev.as_operator(&format!("/users/{}/erase", dev.user), &Value::Null).await;
    let (after, erased) = (dev.rows().await, dev.export().await);
    let is_removed = |(table, count): &(&String, &i64)| after.get(*table).is_none_or(|left| left < count);
    let removed: Vec<&str> = before.iter().filter(is_removed).map(|(table, _)| table.as_str()).collect();
    let exported: Vec<&str> = EXPORTED.iter().map(|(table, _)| *table).collect();
    assert_eq!(removed, exported, "the tables that the erasure clears; add where the export has their rows");
    let length = |export: &Value, place: &str| {
        let found = export.pointer(place).and_then(Value::as_array);
        found.unwrap_or_else(|| panic!("the export has no {place}: {export:#}")).len()
    };
    for (table, place) in EXPORTED {
        let rows: i64 =
            EXPORTED.iter().filter(|(_, other)| *other == place).map(|(table, _)| before[*table]).sum();
        assert_eq!(length(&export, place) as i64, rows, "{table}: {export:#}");
        assert_eq!(length(&erased, place), 0, "{table} is exported after the erasure: {erased:#}");
    }
    let text = export.to_string();
    for known in ["Called support.", "skin:gold", "Hello", held] {
        assert!(text.contains(known), "{known} is not in {export:#}");
    }
    assert_eq!(export["matchmaking"]["tickets"][0]["ticket_id"], ticket["ticket_id"], "{export:#}");
    assert_eq!(export["matchmaking"]["party"]["party_id"], party["party_id"], "{export:#}");
}

/// Operators see who is in a party, by party and by player. The code, which admits everyone who knows it, is nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn party_is_shown_without_its_code() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let at = addresses(&running).await;
    let client = reqwest::Client::new();
    let as_player = async |name: &str, path: &str, body: &Value| {
        let (_, token, _) = run(playhouse(&["token", "--user", name, "--admin", &at["admin"]])).await;
        let request = client.post(format!("http://{}{path}", at["gateway"])).bearer_auth(token.trim());
        let response = request.json(body).send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {response:?}");
        response.json::<Value>().await.unwrap()
    };
    let made = as_player("ada", "/v1/parties", &json!({})).await;
    let code = made["code"].as_str().unwrap_or_else(|| panic!("{made}"));
    let joined = as_player("grace", "/v1/parties/join", &json!({ "code": code })).await;
    let (party, ada) = (made["party_id"].as_str().unwrap(), &made["leader"]);
    let members = joined["members"].as_array().unwrap();
    assert_eq!(members.len(), 2, "{joined}");
    let ada = ada.as_str().unwrap();

    for name in [party, ada] {
        let (exit, shown, errors) = run(playhouse(&["parties", "show", name, "--admin", &at["admin"]])).await;
        assert_eq!(exit, 0, "{errors}");
        assert!(
            shown.contains(party) && shown.contains(&format!("{ada}  Ada Lovelace  (leader)")),
            "{shown}"
        );
        assert!(!shown.contains(code), "{shown}");
    }
    for path in [format!("/parties/{party}"), format!("/parties?user={ada}"), format!("/users/{ada}/export")]
    {
        let (status, shown) = shop::admin_get(format!("http://{}{path}", at["admin"])).await;
        assert_eq!(status, 200, "{path}: {shown}");
        assert!(shown.to_string().contains(party) && !shown.to_string().contains(code), "{path}: {shown}");
    }
    let (exit, _, errors) =
        run(playhouse(&["parties", "show", "dbt8pcfejq8o287bsa0g", "--admin", &at["admin"]])).await;
    assert!(exit == 1 && errors.contains("there is no party"), "{errors}");
    let (status, problem) = shop::admin_get(format!("http://{}/parties?user=ada", at["admin"])).await;
    assert_eq!(status, 400, "{problem}");
}
