//! News by Redis, between processes.

use std::collections::HashMap;
use std::time::Duration;

use base::id::Uuid;
use futures::StreamExt;
use redis_store::{Channels, Redis};
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};

use super::Told;
use super::ears::Ears;

/// How long nothing may be told before the connection is asked whether it still lives.
const QUIET: Duration = Duration::from_secs(5);
/// How many channels are subscribed to by one command.
const AT_ONCE: usize = 1_000;
/// How long a stream waits for its subscription before it goes on without: it looks into the inbox once it is there.
const SUBSCRIBED: Duration = Duration::from_secs(1);

/// The way through Redis.
#[derive(Debug)]
pub(super) struct Pump {
    redis: Redis,
    prefix: String,
    wishes: UnboundedSender<Wish>,
    asked: Mutex<UnboundedReceiver<Wish>>,
}

#[derive(Debug)]
enum Wish {
    Subscribe(Uuid, oneshot::Sender<()>),
    Unsubscribe(Uuid),
}

impl Pump {
    pub(super) fn new(redis: Redis, prefix: &str) -> Self {
        let (wishes, asked) = unbounded_channel();
        Self { redis, prefix: format!("{prefix}live:"), wishes, asked: Mutex::new(asked) }
    }

    fn channel(&self, user: Uuid) -> String {
        format!("{}{user}", self.prefix)
    }

    pub(super) async fn publish(&self, news: &[(Uuid, Told)]) -> Result<Vec<u64>, redis_store::Error> {
        if news.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for (user, told) in news {
            // It is made of plain values.
            let text = serde_json::to_string(told).unwrap_or_default();
            pipe.publish(self.channel(*user), text);
        }
        Ok(pipe.query_async(&mut self.redis.connection.clone()).await?)
    }

    /// Returns when what is told of the player gets here, or it takes too long.
    pub(super) async fn subscribe(&self, user: Uuid) {
        let (done, subscribed) = oneshot::channel();
        let _ = self.wishes.send(Wish::Subscribe(user, done));
        let _ = tokio::time::timeout(SUBSCRIBED, subscribed).await;
    }

    pub(super) fn unsubscribe(&self, user: Uuid) {
        let _ = self.wishes.send(Wish::Unsubscribe(user));
    }

    pub(super) async fn run(&self, ears: &Ears, drain: Drain) -> Result<(), LoopError> {
        let mut asked = self.asked.lock().await;
        let (mut channels, messages) = self.redis.listen(QUIET).await?;
        let mut messages = std::pin::pin!(messages);
        // Whoever began to listen before this connection was there.
        self.subscribe_all(&mut channels, ears, &ears.disconnected()).await?;
        loop {
            tokio::select! {
                () = drain.requested() => return Ok(()),
                message = messages.next() => {
                    let Some(message) = message else { return Err("the connection to Redis was lost".into()) };
                    self.pass_on(ears, &message);
                }
                Some(wish) = asked.recv() => {
                    let mut wishes = vec![wish];
                    while wishes.len() < AT_ONCE
                        && let Ok(wish) = asked.try_recv()
                    {
                        wishes.push(wish);
                    }
                    self.grant(&mut channels, ears, wishes).await?;
                }
            }
        }
    }

    fn pass_on(&self, ears: &Ears, message: &redis::Msg) {
        let user =
            message.get_channel_name().strip_prefix(&self.prefix).and_then(|user| Uuid::try_parse(user).ok());
        let Some(user) = user else { return };
        match serde_json::from_slice(message.get_payload_bytes()) {
            Ok(told) => drop(ears.tell(user, told)),
            // Of a newer process, perhaps: what it told is in the inbox.
            Err(_) => ears.missed(user),
        }
    }

    async fn grant(&self, channels: &mut Channels, ears: &Ears, wishes: Vec<Wish>) -> Result<(), LoopError> {
        // Of each player the last wish counts, and only if it is still true.
        let mut wanted: HashMap<Uuid, Vec<oneshot::Sender<()>>> = HashMap::new();
        for wish in wishes {
            match wish {
                Wish::Subscribe(user, done) => wanted.entry(user).or_default().push(done),
                Wish::Unsubscribe(user) => drop(wanted.entry(user).or_default()),
            }
        }
        let (open, closed): (Vec<Uuid>, Vec<Uuid>) = wanted.keys().partition(|user| ears.is_open(**user));
        self.subscribe_all(channels, ears, &open).await?;
        if !closed.is_empty() {
            let names: Vec<String> = closed.iter().map(|user| self.channel(*user)).collect();
            channels.remove(&names).await?;
        }
        for done in wanted.into_values().flatten() {
            let _ = done.send(());
        }
        Ok(())
    }

    async fn subscribe_all(
        &self,
        channels: &mut Channels,
        ears: &Ears,
        users: &[Uuid],
    ) -> Result<(), LoopError> {
        for users in users.chunks(AT_ONCE) {
            let names: Vec<String> = users.iter().map(|user| self.channel(*user)).collect();
            channels.add(&names).await?;
            ears.connected(users);
        }
        Ok(())
    }
}
