//! A process with a console, on embedded stores or on database servers, and the programs around it.

use http_server::TokenHash;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::json;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions};
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Folder, Nats, Redis, SqlServer};

use super::operator::Operator;
use super::receiver::Receiver;
use super::*;

pub(super) const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
const SERVICE_TOKEN: &str = "ph_for-tests-only";
/// The secret that signs payments.
pub(super) const PAYMENT_SECRET: &str = "whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z";
const WEBHOOK_SECRET: &str = "whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCBvZiB3ZWJob29r";

/// Where a site keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// SQLite and memory.
    Embedded,
    /// MariaDB, Redis and NATS.
    Servers,
}

/// A process with all roles, the receiver of its webhooks, and clients of its APIs.
pub(super) struct Site {
    pub(super) at: HashMap<String, String>,
    pub(super) receiver: Receiver,
    pub(super) stores: Stores,
    _running: RunningProgram,
    client: Client,
    folder: Folder,
    servers: Option<Servers>,
}

/// The servers of a site, private to one test, and the issuer of its players: the builtin one is only for embedded stores.
struct Servers {
    // Dropped first: it is a namespace on the server.
    database: Database,
    _sql: SqlServer,
    _redis: Redis,
    _nats: Nats,
    redis_url: String,
    nats_url: String,
    issuer: Issuer,
    signer: Signer,
}

impl Servers {
    async fn start() -> Result<Self, testkit::Error> {
        let (sql, redis, nats) = tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private())?;
        let (redis_url, nats_url) = (redis.url().to_string(), nats.url().to_string());
        let signer = Signer::ec("key");
        let (database, issuer) = (sql.database().await, Issuer::start(&[&signer]).await);
        Ok(Self { database, _sql: sql, _redis: redis, _nats: nats, redis_url, nats_url, issuer, signer })
    }
}

/// A player with an access token.
#[derive(Clone, Debug)]
pub(super) struct Player {
    pub(super) user: String,
    pub(super) account: String,
    token: String,
}

impl Site {
    pub(super) async fn start(stores: Stores) -> Result<Self, testkit::Error> {
        let servers = match stores {
            Stores::Embedded => None,
            Stores::Servers => Some(Servers::start().await?),
        };
        let (folder, receiver) = (Folder::fresh().unwrap(), Receiver::start().await);
        let file = folder.path().join("play.toml");
        std::fs::write(&file, settings(&receiver)).unwrap();
        let ports = ["gateway", "service_api", "admin", "open_match"];
        let ports = ports.iter().flat_map(|name| ["--set".to_owned(), format!("listen.{name}=127.0.0.1:0")]);
        let program = playhouse(&["serve", "--print-addresses"]).args(ports).env("PLAYHOUSE_CONFIG", &file);
        let program = match &servers {
            None => program.env("PLAYHOUSE_DB_URL", format!("sqlite:{}", sqlite_file(&folder).display())),
            Some(servers) => program
                .env("PLAYHOUSE_DB_URL", servers.database.url())
                .env("PLAYHOUSE_REDIS_URL", &servers.redis_url)
                .env("PLAYHOUSE_BUS_URL", &servers.nats_url)
                .env("PLAYHOUSE_IDENTITY_ISSUER", &servers.issuer.url)
                .env("PLAYHOUSE_CONSOLE_TRY_IT", "false"),
        };
        let (running, at) = started(program).await;
        Ok(Self { at, receiver, stores, _running: running, client: Client::new(), folder, servers })
    }

    /// Returns the URL of a page of the console.
    pub(super) fn console(&self, path: &str) -> String {
        format!("http://{}{path}", self.at["admin"])
    }

    /// Returns the settings of a connection to the database server.
    pub(super) fn server(&self) -> MySqlConnectOptions {
        self.servers.as_ref().unwrap().database.url().parse().unwrap()
    }

    /// Changes the database behind the back of the process.
    pub(super) async fn sql(&self, statement: &str) {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        match &self.servers {
            None => {
                let options = SqliteConnectOptions::new().filename(sqlite_file(&self.folder));
                statement.execute(&mut options.connect().await.unwrap()).await.unwrap();
            }
            Some(_) => {
                statement.execute(&mut self.server().connect().await.unwrap()).await.unwrap();
            }
        }
    }

    /// Signs the operator of the browser in: at the issuer, or with a token if the issuer has no page.
    pub(super) async fn sign_in<'a>(&self, browser: &'a Browser) -> Operator<'a> {
        match self.stores {
            Stores::Embedded => Operator::sign_in(browser, &self.at["admin"]).await,
            Stores::Servers => Operator::sign_in_with_token(browser, &self.at["admin"], OPERATOR_TOKEN).await,
        }
    }

    /// Calls the admin API as another operator than the one in the browser.
    pub(super) async fn admin(&self, method: Method, path: &str, body: Value) -> Value {
        let request = self.client.request(method, self.console(path)).bearer_auth(OPERATOR_TOKEN);
        send(request.header("idempotency-key", unique()), body).await
    }

    /// Calls Open Match, as a game server does.
    pub(super) async fn open_match(&self, path: &str, body: Value) -> Value {
        let url = format!("http://{}/v1/frontendservice/{path}", self.at["open_match"]);
        send(self.client.post(url), body).await
    }

    /// Calls the service API.
    pub(super) async fn service(&self, path: &str, body: Value) -> Value {
        let url = format!("http://{}/internal/v1{path}", self.at["service_api"]);
        let request = self.client.post(url).bearer_auth(SERVICE_TOKEN);
        send(request.header("idempotency-key", unique()), body).await
    }

    /// Signs a player in, which creates the player.
    pub(super) async fn player(&self, name: &str) -> Player {
        let token = match &self.servers {
            Some(servers) => servers.signer.sign(&servers.issuer.claims(name)),
            None => {
                let path = format!("/issuer/tokens?user={name}");
                text(&self.admin(Method::POST, &path, Value::Null).await["token"])
            }
        };
        let me = self.client.get(format!("http://{}/v1/me", self.at["gateway"])).bearer_auth(&token);
        let me = send(me, Value::Null).await;
        Player { user: text(&me["user_id"]), account: text(&me["accounts"][0]["account_id"]), token }
    }

    /// Calls the gateway as a player.
    pub(super) async fn as_player(&self, player: &Player, method: Method, path: &str, body: Value) -> Value {
        let url = format!("http://{}{path}", self.at["gateway"]);
        let request = self.client.request(method, url).bearer_auth(&player.token);
        send(request.header("idempotency-key", unique()), body).await
    }

    /// Cancels a ticket as a player, whatever the answer is.
    pub(super) async fn try_delete_ticket(&self, player: &Player, ticket: &str) {
        let url = format!("http://{}/v1/matchmaking/tickets/{ticket}", self.at["gateway"]);
        self.client.delete(url).bearer_auth(&player.token).send().await.unwrap();
    }

    /// Grants a resource to a player. Waits for locks as long as the process does.
    pub(super) async fn grant(&self, player: &Player, resource: &str) {
        let body = json!({
            "user_id": player.user, "account_id": player.account, "resource": resource,
            "occurred_at": "2026-03-01T12:00:00Z",
        });
        self.service("/entitlements/grant", body).await;
    }

    /// Sends a signed report of the payment provider.
    pub(super) async fn pay(&self, order: &Value, payment: &str) {
        let body = json!({
            "type": "payment.succeeded",
            "data": {
                "order_id": order["order_id"], "payment_id": payment, "amount": order["amount"],
                "currency": order["currency"],
            },
        });
        let webhook = testkit::PaymentWebhook {
            id: format!("msg_{payment}"),
            body: body.to_string(),
            sent_at: testkit::issuer::now(),
            secret: PAYMENT_SECRET.to_owned(),
        };
        let url = format!("http://{}/v1/payments/webhook", self.at["gateway"]);
        let request = webhook.headers().into_iter();
        let request =
            request.fold(self.client.post(url), |request, (name, value)| request.header(name, value));
        let response = request.body(webhook.body.clone()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    }
}

/// Sends a request that must succeed. Returns the body of the response, or null.
async fn send(request: RequestBuilder, body: Value) -> Value {
    let request = if body.is_null() { request } else { request.json(&body) };
    let response = request.send().await.unwrap();
    let (url, status) = (response.url().clone(), response.status());
    let text = response.text().await.unwrap();
    assert!(status.is_success(), "{url}: {status} {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Returns a key that no other request has.
fn unique() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn sqlite_file(folder: &Folder) -> std::path::PathBuf {
    folder.path().join("playhouse.db")
}

/// Returns the settings of a site: a queue that makes matches, one whose servers cannot be had, two webhooks, payments.
fn settings(receiver: &Receiver) -> String {
    let webhook = |name: &str| {
        let url = receiver.url(name);
        format!(
            "[notification.webhooks.{name}]\nurl = \"{url}\"\nsecrets = [\"{WEBHOOK_SECRET}\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\n"
        )
    };
    let queue = |name: &str, assigner: &str| {
        format!(
            "[matchmaking.queues.{name}]\n\
             [matchmaking.profiles.{name}]\nplayers = 2\nassigner = \"{assigner}\"\n\
             [matchmaking.profiles.{name}.pools.all]\nfilters = [\"queue = {name}\"]\n"
        )
    };
    // Its players are asked whether they are ready.
    let squad = "[matchmaking.queues.squad]\n[matchmaking.profiles.squad.pools.all]\nfilters = [\"queue = squad\"]\n\
                 [matchmaking.profiles.squad]\nplayers = 2\nassigner = \"demo\"\n";
    format!(
        "[services.shop]\ntoken_hash = \"{service}\"\n\
         may = [\"read\", \"accounts\", \"entitlements\", \"notifications\", \"drops\", \"operator\"]\n\
         [operators.elsewhere]\ntoken_hash = \"{operator}\"\n\
         [console]\ntry_it = true\n\
         [db]\nmigrate = true\nacquire_timeout = \"20s\"\n\
         [locks]\nbuckets = 1000\n\
         [gateway.session]\nkeys = [\"a-key-for-tests-that-nobody-guesses\"]\n\
         [drops.payments]\nsecrets = [\"{PAYMENT_SECRET}\"]\ncheckout_url = \"https://pay.example.com/\"\n\
         [matchmaking]\nabandon_after = \"11s\"\n\
         [matchmaking.abandoned]\nmax_attempts = 1\n\
         [matchmaking.assigners.demo]\naddresses = [\"{{match_id}}.game.invalid:7777\"]\n\
         [matchmaking.assigners.game]\nkind = \"webhook\"\nurl = \"{game}\"\n\
         {duel}{raid}{squad}ready_check = \"50s\"\n{analytics}{partner}",
        service = TokenHash::of(SERVICE_TOKEN),
        operator = TokenHash::of(OPERATOR_TOKEN),
        game = receiver.url("game"),
        duel = queue("duel", "demo"),
        raid = queue("raid", "game"),
        squad = squad,
        analytics = webhook("analytics"),
        partner = webhook("partner"),
    )
}
