//! One process: the room, the stock and the orders of a drop.

use base::id::Uuid;
use drops::token::AdmissionTokens;
use drops::{Create, Drops, Line, Room, RoomMetrics};
use redis_store::{Redis as RedisConnection, RedisStore};
use serde::{Deserialize, Serialize};

use super::super::*;
use super::facts::Notes;

pub(super) const UNITS: i64 = 15;
pub(super) const LIMIT: i64 = 3;
pub(super) const BATCH: u32 = 3;
pub(super) const CAPACITY: i64 = 6;
const PLAYERS: usize = 16;
/// So short that admissions and reservations end under the players who use them.
const PERIOD_MS: u64 = 10;
const ARRIVE_WITHIN_MS: u64 = 100;
const LIFETIME_MS: u64 = 300;
const HOLD_MS: u64 = 100;
/// How long a process that is to be killed may live.
const LATEST: Duration = Duration::from_secs(40);

/// What processes share.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Scene {
    url: String,
    /// Without one, the line is in process.
    redis: Option<String>,
    drop: Uuid,
    /// The user and the account of each.
    players: Vec<(Uuid, Uuid)>,
    pub(super) seed: u64,
}

impl Scene {
    /// The same scene, with other random choices.
    pub(super) fn with_seed(&self, seed: u64) -> Self {
        Self { seed, ..self.clone() }
    }
}

pub(super) struct World {
    pub(super) shop: Shop,
    pub(super) drops: Drops,
    pub(super) room: Room,
    pub(super) line: Line,
    pub(super) tokens: AdmissionTokens,
    pub(super) drop: DropId,
    pub(super) players: Vec<(UserId, AccountId)>,
    pub(super) redis: Option<String>,
    pub(super) notes: Notes,
}

/// Makes the tables, the players and an open drop.
pub(super) async fn prepare(place: &SqlPlace, redis: Option<String>) -> Scene {
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
    let drop = drops.create(&Create { name, resource, terms, stock: UNITS, actor }).await.unwrap();
    // Shorter times than an operator may choose.
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
    Scene { url: place.url(), redis, drop: *drop.id.as_uuid(), players, seed: 0 }
}

fn drops_of(shop: &Shop) -> Drops {
    Drops::new(shop.db.clone(), shop.outbox.clone(), Clock::manual(Timestamp::from_millis(NOW)))
}

impl World {
    pub(super) async fn open(scene: Scene, notes: Notes) -> Self {
        let Scene { url, redis, drop, players, .. } = scene;
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
        Self { shop, drops, room, line, tokens, drop: DropId::from_uuid(drop), players, redis, notes }
    }

    /// Takes everything out of Redis, or out of the line in process.
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

/// Ends this process if it lives too long. A thread, so that no task can hold it up.
pub(super) fn abort_when_late() {
    std::thread::spawn(|| {
        std::thread::sleep(LATEST);
        eprintln!("not killed within {LATEST:?}");
        std::process::abort();
    });
}
