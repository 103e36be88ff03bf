//! Fills the stores: inboxes, outbox and tickets to their sizes, and some of everything else that screens show.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::fleet::{Fleet, Player};
use crate::http::{bearer, request};

/// How many rows a statement inserts.
const BATCH: u64 = 10_000;
/// How many notifications each user has.
const PER_USER: u64 = 100;
/// How many events a blocked key has: one that failed, and those behind it.
const PER_BLOCKED_KEY: u64 = 10;
/// How many matches a row of the outbox holds: those that an engine made at once.
const MATCHES_PER_BATCH: usize = 100;
const CONNECTIONS: usize = 32;
/// The published events are spread over this time, which is shorter than `outbox.retention`.
const SPAN_MILLIS: u64 = 12 * 3_600_000;

/// The first hexadecimal digits of ids. The number of the row follows as twelve digits.
const USER: &str = "01990000-0000-7000-8000-";
const ACCOUNT: &str = "01990000-0001-7000-8000-";
const EVENT: &str = "01990000-0002-7000-8000-";

const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)";

/// The cause of a few dead letters, which a job discards.
const RARE_CAUSE: &str = "answered 410 Gone";

/// Events that are inserted together. Expressions are SQL, with `n` for the number of the event among them.
struct Events {
    count: u64,
    /// Which user it is about.
    user: String,
    /// Ends the ordering key.
    resource: String,
    created: String,
    state: &'static str,
    due: &'static str,
    cause: &'static str,
}

pub(crate) struct Filler<'a> {
    fleet: &'a Fleet,
    sql: MySqlConnection,
    rows: u64,
    users: u64,
    /// How many events there are so far.
    events: u64,
    began: Instant,
}

impl<'a> Filler<'a> {
    pub(crate) async fn new(fleet: &'a Fleet, rows: u64) -> Self {
        let sql = MySqlConnection::connect(fleet.database.url()).await.unwrap();
        Self { fleet, sql, rows, users: rows.div_ceil(PER_USER), events: 0, began: Instant::now() }
    }

    /// Fills the tables. The players get inboxes like all other users.
    pub(crate) async fn tables(&mut self, players: usize) {
        self.run(
            "CREATE TABLE bench_numbers (n BIGINT PRIMARY KEY) AS WITH digits AS (SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 \
             UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) \
             SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM digits a, digits b, digits c, digits e",
        )
        .await;
        self.users().await;
        self.inboxes(players).await;
        self.outbox().await;
        self.entitlements().await;
        self.dead_letters().await;
        self.webhook_deliveries().await;
        self.audit_log().await;
        self.run(
            "ANALYZE TABLE users, notification, outbox, notification_dlq, notification_webhook, audit_log",
        )
        .await;
    }

    async fn users(&mut self) {
        let (user, account) = (id(USER, "n"), id(ACCOUNT, "n"));
        for (first, rows) in batches(self.users) {
            let numbers = numbers(first, rows);
            self.run(&format!(
                "INSERT INTO users (user_id, state, display_name, roles, created_at) \
                 SELECT {user}, 'ACTIVE', CONCAT('Player ', n), '', {NOW} - 86400000 + n FROM {numbers}"
            ))
            .await;
            self.run(&format!(
                "INSERT INTO accounts (user_id, account_id, name, created_at) \
                 SELECT {user}, {account}, 'main', {NOW} - 86400000 + n FROM {numbers}"
            ))
            .await;
            self.run(&format!(
                "INSERT INTO identities (identity_hash, user_id, issuer, subject, linked_at) \
                 SELECT UNHEX(SHA2(CONCAT('bench ', n), 256)), {user}, 'https://bench', CONCAT('s', n), {NOW} FROM {numbers}"
            ))
            .await;
        }
        self.say("users");
    }

    async fn inboxes(&mut self, players: usize) {
        let each = self.rows.div_ceil(self.users + players as u64);
        for position in 1..=each {
            self.run(&format!(
                "INSERT INTO notification (user_id, position, notification_id, template, texts, data, created_at, expires_at, seen_at, \
                 read_at, archived_at, remove_at) SELECT user_id, {position}, {}, 'entitlement-granted', \
                 '{{\"en\":{{\"title\":\"You received the crystal sword\",\"body\":\"It is in your inventory.\"}},\"de\":\
                 {{\"title\":\"Du hast das Kristallschwert erhalten\",\"body\":\"Es ist in deinem Inventar.\"}}}}', \
                 '{{\"resource\":\"item-{position}\",\"version\":1,\"state\":\"ACTIVE\"}}', {NOW} - 60000 * ({each} - {position} + 1), \
                 NULL, {NOW}, IF({position} % 4 = 0, NULL, {NOW}), NULL, {NOW} + 2592000000 FROM users",
                notification(&position.to_string()),
            ))
            .await;
        }
        self.run(&format!(
            "INSERT INTO notification_head (user_id, position) SELECT user_id, {each} FROM users"
        ))
        .await;
        self.say("inboxes");
    }

    async fn outbox(&mut self) {
        let users = self.users;
        let blocked = (self.rows / 100).max(PER_BLOCKED_KEY);
        let (hot, published) = (self.rows / 100, self.rows - self.rows / 100 - blocked);
        self.events(&Events {
            count: published,
            user: format!("n % {users}"),
            resource: format!("CONCAT('item-', n DIV {users})"),
            created: format!("{NOW} - {SPAN_MILLIS} + n * {SPAN_MILLIS} DIV {published}"),
            state: "1",
            due: "created_at + 3",
            cause: "NULL",
        })
        .await;
        // Those behind a failed one are due later, as if a relay had just deferred them.
        let waiting = |count: u64, user: String, resource: &str, state| Events {
            count,
            user,
            resource: resource.to_owned(),
            created: format!("{NOW} - 600000 + n DIV 100"),
            state,
            due: "IF(state = 2, created_at + 50, created_at + 7200000)",
            cause: "IF(state = 2, ELT(1 + n % 3, 'the message is too large', 'the stream refuses its subject', \
                    'twenty relays died while they published it'), NULL)",
        };
        let user = format!("(n DIV {PER_BLOCKED_KEY}) % {users}");
        let state = "IF(n % 10 = 0, 2, 0)";
        self.events(&waiting(blocked, user, "CONCAT('blocked-', n DIV 10)", state)).await;
        self.events(&waiting(hot, "0".to_owned(), "'hot'", "IF(n = 0, 2, 0)")).await;
        self.matches().await;
        self.say("outbox");
    }

    /// Adds published batches of matches, which are the largest rows. They are the newest, so that screens show them first.
    async fn matches(&mut self) {
        let payload: String = match_batch().bytes().map(|byte| format!("{byte:02x}")).collect();
        let (event, key) =
            (id(EVENT, &format!("({} + n)", self.events)), text(EVENT, &format!("({} + n)", self.events)));
        let count = (self.rows / 1_000).clamp(200, BATCH);
        self.run(&format!(
            "INSERT INTO outbox (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, holder, created_at, cause, payload) \
             SELECT {event}, X'{:032}', {key}, CAST(CONV(LEFT(SHA2({key}, 256), 16), 16, -10) AS SIGNED), 1, {NOW}, 1, 1, NULL, {NOW} - 50, \
             NULL, X'{payload}' FROM {}",
            0,
            numbers(0, count)
        ))
        .await;
        self.events += count;
    }

    async fn events(&mut self, events: &Events) {
        let Events { count, user, resource, created, state, due, cause } = events;
        let first_event = self.events;
        for (first, rows) in batches(*count) {
            let (event, user_id) = (id(EVENT, &format!("({first_event} + n)")), id(USER, "u"));
            let (user_text, account_text) = (text(USER, "u"), text(ACCOUNT, "u"));
            let numbers = numbers(first, rows);
            self.run(&format!(
                "INSERT INTO outbox (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, holder, created_at, cause, \
                 payload) SELECT item_id, user_id, item_key, CAST(CONV(LEFT(SHA2(item_key, 256), 16), 16, -10) AS SIGNED), state, \
                 {due}, IF(state = 0, 0, 1), IF(state = 0, 0, 1), NULL, created_at, {cause}, \
                 CONCAT('{{\"subject\":\"entitlement.granted.v1\",\"kind\":\"playhouse.entitlement.granted.v1\",\
                 \"source\":\"/playhouse/entitlement\",\"time\":', created_at, ',\"key\":\"', item_key, '\"}}\\n{{\"user_id\":\"', \
                 user_text, '\",\"account_id\":\"', account_text, '\",\"resource\":\"', resource, '\",\"version\":1,\
                 \"state\":\"ACTIVE\",\"occurred_at\":\"2026-03-01T12:00:00Z\"}}') \
                 FROM (SELECT n, {event} AS item_id, {user_id} AS user_id, {user_text} AS user_text, {account_text} AS account_text, \
                 resource, CONCAT('entitlement/', {user_text}, '/', {account_text}, '/', resource) AS item_key, state, created_at \
                 FROM (SELECT n, {user} AS u, {resource} AS resource, {state} AS state, {created} AS created_at FROM {numbers}) AS numbered \
                 ORDER BY n) AS event"
            ))
            .await;
        }
        self.events += count;
    }

    /// Adds the entitlements of the oldest events, and their history.
    async fn entitlements(&mut self) {
        let users = self.users;
        let (user, account, event) =
            (id(USER, &format!("n % {users}")), id(ACCOUNT, &format!("n % {users}")), id(EVENT, "n"));
        let resource = format!("CONCAT('item-', n DIV {users})");
        for (first, rows) in batches(self.rows / 10) {
            let numbers = numbers(first, rows);
            self.run(&format!(
                "INSERT INTO entitlements (user_id, account_id, resource, state, version, as_of, granted_as_of, entries) \
                 SELECT {user}, {account}, {resource}, 0, 1, {NOW}, {NOW}, 1 FROM {numbers}"
            ))
            .await;
            self.run(&format!(
                "INSERT INTO entitlement_history (user_id, account_id, resource, entry, action, effect, occurred_at, recorded_at, caller, \
                 reference, version, state, event_id) SELECT {user}, {account}, {resource}, 1, 0, 0, {NOW}, {NOW} - n, 'shop', \
                 CONCAT('receipt-', n), 1, 0, {event} FROM {numbers}"
            ))
            .await;
        }
        self.say("entitlements");
    }

    async fn dead_letters(&mut self) {
        let user = id(USER, &format!("n % {}", self.users));
        let notification = notification_of(&user, "1");
        for (first, rows) in batches(self.rows / 100) {
            let numbers = numbers(first, rows);
            self.run(&format!(
                "INSERT INTO notification_dlq (letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, \
                 payload, created_at, died_at) SELECT UNHEX(MD5(CONCAT('letter ', n))), 'webhook', 'webhook:crm', {notification}, {user}, \
                 NULL, 16, IF(n % 1000 = 0, '{RARE_CAUSE}', ELT(1 + n % 4, 'answered 503', 'no answer within 15 s', 'connection refused', \
                 'the certificate has expired')), '{{\"title\":\"You received the crystal sword\"}}', {NOW} - 7200000, {NOW} - 3600000 + n \
                 FROM {numbers}"
            ))
            .await;
        }
        self.say("dead letters");
    }

    /// Adds the deliveries of the newest notifications, which is as many as there are users.
    async fn webhook_deliveries(&mut self) {
        self.run(&format!(
            "INSERT INTO notification_webhook (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, holder, created_at, \
             cause, payload) SELECT UNHEX(MD5(CONCAT(HEX(notification_id), ' webhook'))), user_id, 'webhook:crm', \
             CAST(CONV(LEFT(SHA2('webhook:crm', 256), 16), 16, -10) AS SIGNED), 1, {NOW} - 60000, 1, 1, NULL, created_at, NULL, \
             CONCAT('{{\"notification_id\":\"', LOWER(HEX(notification_id)), '\",\"user_id\":\"', LOWER(HEX(user_id)), '\",\"position\":', \
             position, ',\"template\":\"\",\"texts\":', texts, ',\"data\":{{}},\"created_at\":', created_at, '}}') \
             FROM notification WHERE position = 1"
        ))
        .await;
        self.say("webhook deliveries");
    }

    async fn audit_log(&mut self) {
        for (first, rows) in batches(self.rows / 10) {
            let numbers = numbers(first, rows);
            self.run(&format!(
                "INSERT INTO audit_log (entry_id, at, listener, actor_kind, actor, proof, action, target, address, request_id, outcome, \
                 status, finished_at) SELECT UNHEX(MD5(CONCAT('entry ', n))), {NOW} - 86400000 + n, 'admin', 'operator', \
                 CONCAT('operator-', n % 20), 'configured-token', 'POST /outbox/{{event}}/retry', CONCAT('/outbox/', n, '/retry'), \
                 '127.0.0.1', CONCAT('request-', n), 'done', 200, {NOW} FROM {numbers} ORDER BY n"
            ))
            .await;
        }
        self.say("audit log");
    }

    /// Creates tickets: each player joins a queue, and Open Match clients create the rest.
    pub(crate) async fn tickets(&mut self, players: &[Player], count: usize) {
        let next = AtomicUsize::new(0);
        let create = async || {
            let mut gateway = self.fleet.connect("gateway").await;
            let mut frontend = self.fleet.connect("open_match").await;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let created = match players.get(at) {
                    _ if at >= count => break,
                    Some(player) => gateway.send(&join(&self.fleet.token(player))).await,
                    None => frontend.send(&create_ticket(at)).await,
                };
                created.json();
            }
        };
        join_all((0..CONNECTIONS).map(|_| create())).await;
        self.say("tickets");
    }

    /// Adds what operators leave behind: a drop with an order, a job, and a broadcast.
    pub(crate) async fn actions(&mut self, player: &Player) {
        let terms = json!({
            "price": { "amount": 1, "currency": "EUR" }, "per_player": 1, "reservation_ms": 60_000,
            "admission": { "batch": 10, "capacity": 10, "lifetime_ms": 60_000, "arrive_within_ms": 60_000 },
        });
        let drop = json!({ "name": "Bench", "resource": "hat", "stock": 1_000, "terms": terms });
        let drop = self.fleet.operate("/drops", &drop).await["drop_id"].as_str().unwrap().to_owned();
        self.fleet.operate(&format!("/drops/{drop}/open"), &json!({})).await;
        let binary = |id: &str| format!("X'{}'", id.replace('-', ""));
        self.run(&format!(
            "INSERT INTO drop_orders (order_id, drop_id, reservation_id, user_id, account_id, state, quantity, amount, currency, payment, \
             granted_at, created_at, changed_at, version) VALUES ({0}, {0}, {0}, {1}, {2}, 1, 1, 100, 'EUR', 'payment-1', {NOW}, {NOW}, \
             {NOW}, 1)",
            binary(&drop),
            binary(&player.user),
            binary(&player.account),
        ))
        .await;
        let cause = RARE_CAUSE.replace(' ', "%20");
        self.fleet.operate(&format!("/dlq/discard?cause={cause}"), &json!({})).await;
        self.fleet
            .operate("/broadcasts", &json!({ "title": "Maintenance tonight", "body": "From 22:00 to 23:00" }))
            .await;
        let unfinished = "SELECT (SELECT COUNT(*) FROM notification_broadcast WHERE state = 0) + (SELECT COUNT(*) FROM jobs WHERE state = 0)";
        while sqlx::query_scalar::<_, i64>(unfinished).fetch_one(&mut self.sql).await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.say("drop, job and broadcast");
    }

    /// Copies the latest sample of the product's figures over the last half hour, as if it had run for so long.
    pub(crate) async fn samples(&mut self) {
        while sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM fleet_samples")
            .fetch_one(&mut self.sql)
            .await
            .unwrap()
            == 0
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.run(
            "INSERT IGNORE INTO fleet_samples (at, process_id, figures) SELECT latest.at - n * 10000, process_id, figures \
             FROM (SELECT at, process_id, figures FROM fleet_samples ORDER BY at DESC LIMIT 1) AS latest, bench_numbers \
             WHERE n BETWEEN 1 AND 180",
        )
        .await;
        self.say("samples");
    }

    async fn run(&mut self, statement: &str) {
        let ran = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut self.sql).await;
        ran.unwrap_or_else(|error| panic!("{error}: {statement}"));
    }

    fn say(&self, what: &str) {
        eprintln!("filled after {:>4} s: {what}", self.began.elapsed().as_secs());
    }
}

/// Builds the request of a player who joins a queue.
fn join(token: &str) -> Vec<u8> {
    request("POST", "/v1/matchmaking/tickets", &bearer(token), "{\"queue\":\"duel\"}")
}

/// Builds the request of an Open Match client.
fn create_ticket(number: usize) -> Vec<u8> {
    let ticket = json!({ "ticket": { "searchFields": {
        "doubleArgs": { "mmr": (number * 7919 % 3000) as f64, "latency": (number % 200) as f64 },
        "stringArgs": { "queue": (if number.is_multiple_of(3) { "ranked" } else { "casual" }), "region": "eu" },
        "tags": ["crossplay", "voice"],
    } } });
    let headers = "content-type: application/json\r\n";
    request("POST", "/v1/frontendservice/tickets", headers, &ticket.to_string())
}

/// Encodes a batch of matches as the outbox stores it: a line with the attributes of each event, then their data.
fn match_batch() -> String {
    let data = json!({ "match_id": "01990000-0003-7000-8000-000000000000", "profile": "duel", "tickets": [
        { "ticket_id": "01990000-0004-7000-8000-000000000001", "user_id": format!("{USER}000000000001") },
        { "ticket_id": "01990000-0004-7000-8000-000000000002", "user_id": format!("{USER}000000000002") },
    ], "connection": "10.0.0.1:7777" })
    .to_string();
    let head = |number: usize| {
        let mut head = json!({ "id": format!("01990000-0003-7000-8000-{number:012x}"), "size": data.len() });
        if number == 0 {
            head["subject"] = json!("match.made.v1");
            head["kind"] = json!("playhouse.match.made.v1");
            head["source"] = json!("/playhouse/matchmaking");
            head["time"] = json!(1_772_366_400_000_i64);
            head["traceparent"] = json!("");
        }
        head
    };
    let heads: Vec<_> = (0..MATCHES_PER_BATCH).map(head).collect();
    format!("{}\n{}", json!(heads), data.repeat(MATCHES_PER_BATCH))
}

/// Splits a number of rows into the first number and the size of each batch.
fn batches(rows: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..rows).step_by(BATCH as usize).map(move |first| (first, BATCH.min(rows - first)))
}

/// Returns a table of the numbers `n` from `first` on.
fn numbers(first: u64, rows: u64) -> String {
    format!("(SELECT {first} + n AS n FROM bench_numbers WHERE n < {rows} ORDER BY n) AS numbers")
}

/// Returns an expression of an id as binary.
fn id(prefix: &str, number: &str) -> String {
    format!("UNHEX(CONCAT('{}', LPAD(HEX({number}), 12, '0')))", prefix.replace('-', ""))
}

/// Returns an expression of an id as text.
fn text(prefix: &str, number: &str) -> String {
    format!("CONCAT('{prefix}', LPAD(LOWER(HEX({number})), 12, '0'))")
}

/// Returns an expression of the id of a notification of the selected user.
fn notification(position: &str) -> String {
    notification_of("user_id", position)
}

fn notification_of(user: &str, position: &str) -> String {
    format!("UNHEX(MD5(CONCAT(HEX({user}), ' ', {position})))")
}
