//! From whoever has news of a player to the streams of that player, in whichever process they are.
//!
//! In process where the hot store is embedded; else by Redis, with a channel per player that the processes subscribe to which have a
//! stream of that player. What is told may be lost (Redis forgets at once, a slow reader is not waited for): whoever listens is told
//! that something may have been, and looks into the inbox. So nothing that is told here is the only place where it is.

mod ears;
mod redis;

use std::sync::Arc;

use base::id::Uuid;
use redis_store::RedisStore;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use serde::{Deserialize, Serialize};

use self::ears::Ears;
use self::redis::Pump;
use crate::model::{Counts, Notification};

pub use self::ears::{Ear, Heard};

/// News of a player.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// There is one more in the inbox.
    Notification(Box<Notification>),
    /// The player has marked some.
    Counts(Counts),
    /// The player has another ticket than before.
    Tickets,
}

/// The way to the streams of all players. Clones are the same.
#[derive(Clone, Debug)]
pub struct Live(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ears: Ears,
    pump: Option<Pump>,
}

impl Live {
    /// `prefix` is what the names of channels in Redis begin with.
    pub fn new(redis_store: &RedisStore, prefix: &str) -> Self {
        let pump = match redis_store {
            RedisStore::Memory => None,
            RedisStore::Redis(redis) => Some(Pump::new(redis.clone(), prefix)),
        };
        Self(Arc::new(Inner { ears: Ears::default(), pump }))
    }

    /// Tells news, each to one player's streams. Says for each how many processes have one.
    pub async fn tell(&self, news: &[(Uuid, Told)]) -> Result<Vec<u64>, redis_store::Error> {
        match &self.0.pump {
            Some(pump) => {
                // Those of this process need not wait for Redis; by it they hear the same again, and know the position.
                for (user, told) in news.iter().filter(|(_, told)| matches!(told, Told::Notification(_))) {
                    self.0.ears.tell(*user, told.clone());
                }
                pump.publish(news).await
            }
            None => {
                Ok(news.iter().map(|(user, told)| u64::from(self.0.ears.tell(*user, told.clone()))).collect())
            }
        }
    }

    /// Listens for news of a player: what is told from now on is heard, or that something may have been missed.
    pub async fn listen(&self, user: Uuid) -> Ear {
        let (ear, is_first) = self.0.ears.open(self, user);
        if let Some(pump) = self.0.pump.as_ref().filter(|_| is_first || !ear.is_connected()) {
            pump.subscribe(user).await;
        }
        ear
    }

    /// The players who are listened for in this process, each with how far the least advanced of their streams is.
    pub fn listeners(&self) -> Vec<(Uuid, i64)> {
        self.0.ears.positions()
    }

    /// Says to the streams of a player that they may have missed something.
    pub fn missed(&self, user: Uuid) {
        self.0.ears.missed(user);
    }

    /// Passes on what Redis tells, until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        match &self.0.pump {
            Some(pump) => pump.run(&self.0.ears, drain).await,
            None => {
                drain.requested().await;
                Ok(())
            }
        }
    }

    /// The last stream of a player has closed.
    fn closed(&self, user: Uuid) {
        if let Some(pump) = &self.0.pump {
            pump.unsubscribe(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn news_reach_the_streams_of_their_player_and_no_others() {
        let live = Live::new(&RedisStore::Memory, "");
        let [ann, ben] = [1, 2].map(Uuid::from_u128);
        let (mut one, mut two, mut other) =
            (live.listen(ann).await, live.listen(ann).await, live.listen(ben).await);
        assert_eq!(
            live.tell(&[(ann, Told::Tickets), (Uuid::from_u128(3), Told::Tickets)]).await.unwrap(),
            [1, 0]
        );
        for ear in [&mut one, &mut two] {
            assert_eq!(ear.next().await, Heard::News(Arc::new(Told::Tickets)));
        }
        live.missed(ben);
        assert_eq!(other.next().await, Heard::Missed);
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_that_it_missed_something_and_costs_no_more_memory() {
        let live = Live::new(&RedisStore::Memory, "");
        let ann = Uuid::from_u128(1);
        let mut ear = live.listen(ann).await;
        for _ in 0..10_000 {
            live.tell(&[(ann, Told::Tickets)]).await.unwrap();
        }
        assert_eq!(ear.next().await, Heard::Missed);
        live.tell(&[(ann, Told::Counts(Counts::default()))]).await.unwrap();
        assert_eq!(ear.next().await, Heard::News(Arc::new(Told::Counts(Counts::default()))));
    }

    #[tokio::test]
    async fn who_has_left_is_not_told() {
        let live = Live::new(&RedisStore::Memory, "");
        let ann = Uuid::from_u128(1);
        let (one, two) = (live.listen(ann).await, live.listen(ann).await);
        one.at(5);
        two.at(3);
        assert_eq!(live.listeners(), [(ann, 3)]);
        drop(two);
        assert_eq!(live.listeners(), [(ann, 5)]);
        drop(one);
        assert_eq!(live.listeners(), []);
        assert_eq!(live.tell(&[(ann, Told::Tickets)]).await.unwrap(), [0]);
    }
}
