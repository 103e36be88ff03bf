//! Sessions in Redis: a hash per session, a set of names per group, sorted by when they end.

use std::sync::LazyLock;
use std::time::Duration;

use ::redis::aio::ConnectionManager;
use ::redis::{FromRedisValue, Script, ScriptInvocation};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::{Claim, Error, Found, Group, Lease, Session, SessionId};

static INSERT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/insert.lua")));
static READ: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/read.lua")));
static CLAIM: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/claim.lua")));
static KEEP: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/keep.lua")));
static REPLACE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/replace.lua")));
static REMOVE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/remove.lua")));
static REMOVE_GROUP: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/remove_group.lua")));

/// How long nothing may be told before the connection is asked whether it still lives.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Redis {
    redis: redis_store::Redis,
    keys: Keys,
}

/// The names of all keys.
#[derive(Debug)]
struct Keys {
    prefix: String,
}

impl Keys {
    fn session(&self, id: &SessionId) -> String {
        format!("{}{}", self.sessions(), id.as_str())
    }

    /// What the names of sessions begin with.
    fn sessions(&self) -> String {
        format!("{}session:", self.prefix)
    }

    fn group(&self, group: &Group) -> String {
        format!("{}session-{}", self.prefix, group.0)
    }

    fn used(&self, of: &str) -> String {
        format!("{}session-used:{of}", self.prefix)
    }

    fn ends(&self) -> String {
        format!("{}session-ends", self.prefix)
    }
}

impl Redis {
    pub(super) fn new(redis: redis_store::Redis, prefix: &str) -> Self {
        Self { redis, keys: Keys { prefix: prefix.to_owned() } }
    }

    fn connection(&self) -> ConnectionManager {
        self.redis.connection.clone()
    }

    async fn run<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, Error> {
        Ok(call.invoke_async(&mut self.connection()).await?)
    }

    pub(super) async fn insert(
        &self,
        id: &SessionId,
        session: &Session,
        life: Duration,
        longest: Duration,
    ) -> Result<(), Error> {
        let mut call = INSERT.key(self.keys.session(id));
        for group in session.groups() {
            call.key(self.keys.group(&group));
        }
        call.arg(id.as_str()).arg(written(session)).arg(session.ends_at);
        call.arg(millis(life)).arg(millis(longest));
        self.run(&call).await
    }

    pub(super) async fn read(&self, id: &SessionId, idle: Duration) -> Result<Option<Found>, Error> {
        let mut call = READ.key(self.keys.session(id));
        call.arg(millis(idle));
        let found: Option<(String, u64)> = self.run(&call).await?;
        // What a program of another version wrote is no session to this one.
        Ok(found.and_then(|(text, version)| {
            serde_json::from_str(&text).ok().map(|session| Found { session, version })
        }))
    }

    pub(super) async fn claim(
        &self,
        id: &SessionId,
        version: u64,
        fence: String,
        lease: Duration,
    ) -> Result<Claim, Error> {
        let mut call = CLAIM.key(self.keys.session(id));
        call.arg(version).arg(&fence).arg(millis(lease));
        let claimed: String = self.run(&call).await?;
        Ok(match claimed.as_str() {
            "yours" => Claim::Yours(Lease { id: id.clone(), fence }),
            "busy" => Claim::Busy,
            "moved" => Claim::Moved,
            _ => Claim::Gone,
        })
    }

    pub(super) async fn keep(&self, lease: &Lease, length: Duration) -> Result<bool, Error> {
        let mut call = KEEP.key(self.keys.session(&lease.id));
        call.arg(&lease.fence).arg(millis(length));
        self.run(&call).await
    }

    pub(super) async fn replace(
        &self,
        lease: &Lease,
        session: &Session,
        life: Duration,
    ) -> Result<bool, Error> {
        let mut call = REPLACE.key(self.keys.session(&lease.id));
        call.arg(&lease.fence).arg(written(session)).arg(millis(life));
        self.run(&call).await
    }

    pub(super) async fn remove(&self, id: &SessionId, groups: &[Group]) -> Result<(), Error> {
        let mut call = REMOVE.key(self.keys.session(id));
        for group in groups {
            call.key(self.keys.group(group));
        }
        call.arg(id.as_str()).arg(self.keys.ends());
        self.run(&call).await
    }

    pub(super) async fn remove_group(&self, group: &Group) -> Result<usize, Error> {
        let mut call = REMOVE_GROUP.key(self.keys.group(group));
        call.arg(self.keys.sessions()).arg(self.keys.ends());
        self.run(&call).await
    }

    pub(super) async fn use_up(&self, what: &str, remember: Duration) -> Result<(), Error> {
        let mut command = ::redis::cmd("SET");
        command.arg(self.keys.used(what)).arg(1).arg("PX").arg(millis(remember));
        Ok(command.query_async(&mut self.connection()).await?)
    }

    pub(super) async fn is_used_up(&self, what: &str) -> Result<bool, Error> {
        let mut command = ::redis::cmd("EXISTS");
        command.arg(self.keys.used(what));
        Ok(command.query_async(&mut self.connection()).await?)
    }

    pub(super) async fn ends(&self) -> Result<BoxStream<'static, SessionId>, Error> {
        let told = self.redis.subscribe(&[self.keys.ends()], QUIET).await?;
        let id = |message: ::redis::Msg| message.get_payload::<String>().ok();
        Ok(told
            .filter_map(move |message| std::future::ready(id(message).map(|id| SessionId(id.into()))))
            .boxed())
    }
}

fn written(session: &Session) -> String {
    // It is made of texts and numbers.
    serde_json::to_string(session).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
