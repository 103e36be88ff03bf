//! Live messages in process and through a real Redis.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod both;
mod in_process;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use live::{Key, Live, Message, Player, Subscription, SubscriptionEvent, Topic, Topics};
use redis_store::RedisStore;
use runtime::Drain;

const PATIENCE: Duration = Duration::from_secs(30);

/// A player's amount of gold.
enum Gold {}

impl Topic for Gold {
    type Key = Player;
    type Message = i64;
    const NAME: &'static str = "gold";
}

/// Like [`Gold`], with another name.
enum Silver {}

impl Topic for Silver {
    type Key = Player;
    type Message = i64;
    const NAME: &'static str = "silver";
}

/// Like [`Gold`], with another key.
enum GuildGold {}

impl Topic for GuildGold {
    type Key = Guild;
    type Message = i64;
    const NAME: &'static str = "gold";
}

/// A message without content.
enum Moved {}

impl Topic for Moved {
    type Key = Player;
    type Message = ();
    const NAME: &'static str = "moved";
}

/// A message that subscribers may receive twice.
enum Level {}

impl Topic for Level {
    type Key = Player;
    type Message = i64;
    const NAME: &'static str = "level";
    const REPEATABLE: bool = true;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Guild(Uuid);

impl Key for Guild {
    const CHANNEL: &'static str = "guild:";
}

impl std::fmt::Display for Guild {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Guild {
    type Err = <Uuid as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

/// All topics of a player.
#[derive(Clone, Debug, PartialEq)]
enum PlayerMessage {
    Gold(i64),
    Silver(i64),
    Level(i64),
    Moved,
}

impl Topics for PlayerMessage {
    type Key = Player;

    fn read(message: &Message<Player>) -> Option<Self> {
        let gold = || Some(Self::Gold(*message.read::<Gold>()?));
        let silver = || Some(Self::Silver(*message.read::<Silver>()?));
        let level = || Some(Self::Level(*message.read::<Level>()?));
        gold().or_else(silver).or_else(level).or_else(|| message.read::<Moved>().map(|_| Self::Moved))
    }
}

#[derive(Clone, Debug, PartialEq)]
struct OnlyGold(i64);

impl Topics for OnlyGold {
    type Key = Player;

    fn read(message: &Message<Player>) -> Option<Self> {
        message.read::<Gold>().map(|gold| Self(*gold))
    }
}

#[derive(Clone, Debug, PartialEq)]
struct GuildMessage(i64);

impl Topics for GuildMessage {
    type Key = Guild;

    fn read(message: &Message<Guild>) -> Option<Self> {
        message.read::<GuildGold>().map(|gold| Self(*gold))
    }
}

/// Subscribes to all topics of a player.
async fn subscribe(live: &Live, player: Player) -> Subscription<PlayerMessage> {
    live.subscribe(player).await
}

async fn next<S: Topics>(subscription: &mut Subscription<S>) -> SubscriptionEvent<S> {
    tokio::time::timeout(PATIENCE, subscription.next()).await.expect("an event")
}

/// Returns the next message. Skips gaps.
async fn message<S: Topics>(subscription: &mut Subscription<S>) -> S {
    loop {
        if let SubscriptionEvent::Message(message) = next(subscription).await {
            return message;
        }
    }
}

/// Receives all pending events.
async fn drain<S: Topics>(subscription: &mut Subscription<S>) {
    while tokio::time::timeout(Duration::from_millis(50), subscription.next()).await.is_ok() {}
}

/// Opens the live messages of a process on a Redis server.
async fn open(url: &str, prefix: &str) -> Live {
    let redis = redis_store::Redis::open(url, Duration::from_secs(2)).await.unwrap();
    Live::new(&RedisStore::Redis(redis), prefix)
}

/// A running loop.
struct Running {
    drain: Drain,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.drain.request();
        self.task.await.unwrap();
    }
}

/// Runs the loop of a process. Restarts it when it fails, as supervision does.
fn run(live: &Live) -> Running {
    let (live, drain) = (live.clone(), Drain::new());
    let until = drain.clone();
    let task = tokio::spawn(async move {
        while !until.is_requested() {
            if live.run(until.clone()).await.is_err() {
                until.sleep(Duration::from_millis(20)).await;
            }
        }
    });
    Running { drain, task }
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn player(number: u128) -> Player {
    Player(uuid(number))
}

/// Fails to compile unless both can cross threads.
#[test]
fn handles_can_be_shared_between_tasks() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<Live>();
    is_shared::<Subscription<PlayerMessage>>();
    is_shared::<Arc<SubscriptionEvent<PlayerMessage>>>();
}
