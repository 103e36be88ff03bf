//! One process: the room, the stock and the orders of a drop.

use base::id::Uuid;
use drops::token::AdmissionTokens;
use drops::{Drops, Line, NewDrop, Room, RoomMetrics};
use redis_store::{Redis as RedisConnection, RedisStore};
use serde::{Deserialize, Serialize};

use super::super::*;
use super::facts::FactLog;

pub(super) const UNITS: i64 = 15;
pub(super) const LIMIT: i64 = 3;
pub(super) const BATCH: u32 = 3;
pub(super) const CAPACITY: i64 = 6;
const PLAYERS: usize = 16;
/// Short times, so that admissions and reservations end while players use them.
const PERIOD_MS: u64 = 10;
const ARRIVE_WITHIN_MS: u64 = 100;
const LIFETIME_MS: u64 = 300;
const HOLD_MS: u64 = 100;
/// How long a child process may run before it aborts itself.
const MAX_RUN_TIME: Duration = Duration::from_secs(40);

/// The stores, the drop and the players that all processes share.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct JourneySetup {
    url: String,
    /// None: the line is in memory.
    redis: Option<String>,
    drop: Uuid,
    /// The user id and account id of each player.
    players: Vec<(Uuid, Uuid)>,
    pub(super) seed: u64,
}

impl JourneySetup {
    /// Returns a copy with another seed for random choices.
    pub(super) fn with_seed(&self, seed: u64) -> Self {
        Self { seed, ..self.clone() }
    }
}

pub(super) struct Process {
    pub(super) shop: Shop,
    pub(super) drops: Drops,
    pub(super) room: Room,
    pub(super) line: Line,
    pub(super) tokens: AdmissionTokens,
    pub(super) drop: DropId,
    pub(super) players: Vec<(UserId, AccountId)>,
    pub(super) redis: Option<String>,
    pub(super) fact_log: FactLog,
}

/// Creates the tables, the players and an open drop.
pub(super) async fn prepare(place: &TestDatabase, redis: Option<String>) -> JourneySetup {
    let shop = Shop::open(place).await;
    let mut players = Vec::new();
    for n in 0..PLAYERS {
        let (user, account) = shop.customer(&format!("player-{n}")).await;
        players.push((*user.as_uuid(), *account.as_uuid()));
    }
    let terms = json!({
        "price": { "amount": PRICE, "currency": "EUR" },
        "per_player": LIMIT,
        "admission": { "batch": BATCH, "capacity": CAPACITY, "period_ms": 1_000, "lifetime_ms": 1_000, "arrive_within_ms": 1_000 },
        "reservation_ms": 1_000,
        "when_sold_out": "stay_open",
    });
    let terms = serde_json::from_value(terms).unwrap();
    let (name, resource, actor) = ("journey".to_owned(), "sword".to_owned(), "olga".to_owned());
    let drops = drops_of(&shop);
    let drop = drops.create(&NewDrop { name, resource, terms, stock: UNITS, actor }).await.unwrap();
    // Set directly: these times are shorter than the API allows.
    let mut terms = serde_json::to_value(&drop.terms).unwrap();
    terms["version"] = json!("1");
    terms["reservation_ms"] = json!(HOLD_MS);
    let times =
        [("period_ms", PERIOD_MS), ("arrive_within_ms", ARRIVE_WITHIN_MS), ("lifetime_ms", LIFETIME_MS)];
    for (name, millis) in times {
        terms["admission"][name] = json!(millis);
    }
    let mut tx = shop.db.begin().await.unwrap();
    db::on!(tx, connection => {
        sqlx::query("UPDATE drops SET terms = ? WHERE drop_id = ?")
            .bind(terms.to_string())
            .bind(drop.id.as_uuid().as_bytes().to_vec())
            .execute(connection)
            .await
            .unwrap();
    });
    tx.commit().await.unwrap();
    drops.open(drop.id).await.unwrap();
    shop.db.close().await;
    JourneySetup { url: place.url(), redis, drop: *drop.id.as_uuid(), players, seed: 0 }
}

fn drops_of(shop: &Shop) -> Drops {
    Drops::new(shop.db.clone(), shop.outbox.clone(), Clock::manual(Timestamp::from_millis(NOW)))
}

impl Process {
    pub(super) async fn open(setup: JourneySetup, fact_log: FactLog) -> Self {
        let JourneySetup { url, redis, drop, players, .. } = setup;
        let shop = Shop::reopen(&url).await;
        let store = match &redis {
            Some(url) => RedisStore::Redis(RedisConnection::open(url, Duration::from_secs(5)).await.unwrap()),
            None => RedisStore::Memory,
        };
        let (drops, line) = (drops_of(&shop), Line::new(&store, "journey:"));
        let room = Room::new(drops.clone(), line.clone(), RoomMetrics::new(&mut Registry::default()));
        let tokens = AdmissionTokens::new([&b"a secret of enough length for a test"[..]]).unwrap();
        let player = |(user, account)| (UserId::from_uuid(user), AccountId::from_uuid(account));
        let players = players.into_iter().map(player).collect();
        Self { shop, drops, room, line, tokens, drop: DropId::from_uuid(drop), players, redis, fact_log }
    }

    /// Empties Redis, or the line in memory.
    pub(super) async fn empty_redis(&self) {
        match &self.redis {
            Some(url) => {
                let client = redis::Client::open(url.as_str()).unwrap();
                let mut connection = client.get_multiplexed_async_connection().await.unwrap();
                redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
            }
            None => self.line.clear(self.drop).await.unwrap(),
        }
    }
}

/// Aborts this process if it runs too long. Uses a thread, so that a blocked task cannot prevent it.
pub(super) fn abort_after_max_run_time() {
    std::thread::spawn(|| {
        std::thread::sleep(MAX_RUN_TIME);
        eprintln!("not killed within {MAX_RUN_TIME:?}");
        std::process::abort();
    });
}
