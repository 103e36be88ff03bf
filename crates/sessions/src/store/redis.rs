//! Sessions in Redis: a hash per session, and per group a set of session ids, sorted by end.

use std::time::Duration;

use ::redis::FromRedisValue;
use ::redis::aio::ConnectionManager;
use futures::StreamExt;
use futures::stream::BoxStream;
use redis_store::{Call, Key, KeySpace, Script, Trial, script};

use super::{EndCause, Error, Group, Lease, PublishedEnd, RefreshClaim, Session, SessionId, StoredSession};

static INSERT: Script = script!("scripts/insert.lua");
static READ: Script = script!("scripts/read.lua");
static CLAIM: Script = script!("scripts/claim.lua");
static RENEW: Script = script!("scripts/renew.lua");
static REPLACE: Script = script!("scripts/replace.lua");
static REMOVE: Script = script!("scripts/remove.lua");
static REMOVE_GROUP: Script = script!("scripts/remove_group.lua");

/// Checks that a server runs the scripts: the life of a session, and the end of its group.
pub static TRIALS: [Trial; 7] = [
    Trial {
        script: &INSERT,
        name: "sessions/insert.lua",
        keys: &["session:s1", "session-g1"],
        args: &["s1", "record", "4102444800000", "60000", "60000"],
    },
    Trial { script: &READ, name: "sessions/read.lua", keys: &["session:s1"], args: &["60000"] },
    Trial {
        script: &CLAIM,
        name: "sessions/claim.lua",
        keys: &["session:s1"],
        args: &["0", "fence", "60000"],
    },
    Trial { script: &RENEW, name: "sessions/renew.lua", keys: &["session:s1"], args: &["fence", "60000"] },
    Trial {
        script: &REPLACE,
        name: "sessions/replace.lua",
        keys: &["session:s1"],
        args: &["fence", "record", "60000"],
    },
    Trial {
        script: &REMOVE_GROUP,
        name: "sessions/remove_group.lua",
        keys: &["session-g1", "session:"],
        args: &["playhouse-trial"],
    },
    Trial {
        script: &REMOVE,
        name: "sessions/remove.lua",
        keys: &["session:s1", "session-g1"],
        args: &["s1", "playhouse-trial", "s1"],
    },
];

/// How long a subscription may be silent before the connection is checked.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Redis {
    redis: redis_store::Redis,
    keys: Keys,
}

/// Builds every key of the sessions.
#[derive(Debug)]
struct Keys(KeySpace);

impl Keys {
    fn session(&self, id: &SessionId) -> Key {
        self.0.key_of("session:", id.as_str())
    }

    fn session_stem(&self) -> Key {
        self.0.stem("session:")
    }

    fn group(&self, group: &Group) -> Key {
        self.0.key_of("session-", &group.0)
    }

    /// Returns the key of the session, then those of its groups.
    fn session_and_groups(&self, id: &SessionId, groups: &[Group]) -> Vec<Key> {
        std::iter::once(self.session(id)).chain(groups.iter().map(|group| self.group(group))).collect()
    }

    fn ends_channel(&self) -> String {
        self.0.channel("session-ends")
    }
}

impl Redis {
    pub(super) fn new(redis: redis_store::Redis, prefix: &str) -> Self {
        Self { keys: Keys(redis.key_space("sessions", prefix)), redis }
    }

    fn connection(&self) -> ConnectionManager {
        self.redis.connection.clone()
    }

    async fn run<T: FromRedisValue>(&self, call: &Call) -> Result<T, Error> {
        Ok(call.run(self.connection()).await?)
    }

    pub(super) async fn insert(
        &self,
        id: &SessionId,
        session: &Session,
        life: Duration,
        longest: Duration,
    ) -> Result<(), Error> {
        let mut call = INSERT.call(&self.keys.session_and_groups(id, &session.groups()));
        call.arg(id.as_str()).arg(to_json(session)).arg(session.ends_at);
        call.arg(millis(life)).arg(millis(longest));
        self.run(&call).await
    }

    pub(super) async fn read(&self, id: &SessionId, idle: Duration) -> Result<Option<StoredSession>, Error> {
        let mut call = READ.call(&[self.keys.session(id)]);
        call.arg(millis(idle));
        let found: Option<(String, u64)> = self.run(&call).await?;
        // A record of an incompatible version counts as no session.
        Ok(found.and_then(|(text, version)| {
            serde_json::from_str(&text).ok().map(|session| StoredSession { session, version })
        }))
    }

    pub(super) async fn claim(
        &self,
        id: &SessionId,
        version: u64,
        fence: String,
        lease: Duration,
    ) -> Result<RefreshClaim, Error> {
        let mut call = CLAIM.call(&[self.keys.session(id)]);
        call.arg(version).arg(&fence).arg(millis(lease));
        let claimed: String = self.run(&call).await?;
        Ok(match claimed.as_str() {
            "yours" => RefreshClaim::Granted(Lease { id: id.clone(), fence }),
            "busy" => RefreshClaim::Busy,
            "moved" => RefreshClaim::Replaced,
            _ => RefreshClaim::Gone,
        })
    }

    pub(super) async fn renew(&self, lease: &Lease, length: Duration) -> Result<bool, Error> {
        let mut call = RENEW.call(&[self.keys.session(&lease.id)]);
        call.arg(&lease.fence).arg(millis(length));
        self.run(&call).await
    }

    pub(super) async fn replace(
        &self,
        lease: &Lease,
        session: &Session,
        life: Duration,
    ) -> Result<bool, Error> {
        let mut call = REPLACE.call(&[self.keys.session(&lease.id)]);
        call.arg(&lease.fence).arg(to_json(session)).arg(millis(life));
        self.run(&call).await
    }

    pub(super) async fn remove(&self, end: PublishedEnd, groups: &[Group]) -> Result<(), Error> {
        let mut call = REMOVE.call(&self.keys.session_and_groups(&end.id, groups));
        call.arg(end.id.as_str()).arg(self.keys.ends_channel()).arg(message(&end));
        self.run(&call).await
    }

    pub(super) async fn remove_group(&self, group: &Group) -> Result<usize, Error> {
        let mut call = REMOVE_GROUP.call(&[self.keys.group(group), self.keys.session_stem()]);
        call.arg(self.keys.ends_channel());
        self.run(&call).await
    }

    pub(super) async fn ends(&self) -> Result<BoxStream<'static, PublishedEnd>, Error> {
        let messages = self.redis.subscribe(&[self.keys.ends_channel()], QUIET).await?;
        let end =
            |message: ::redis::Msg| message.get_payload::<String>().ok().map(|text| published_end(&text));
        Ok(messages.filter_map(move |message| std::future::ready(end(message))).boxed())
    }
}

/// Follows the id of a session that was replaced. Ids have no spaces.
const REPLACED: &str = " replaced";

fn message(end: &PublishedEnd) -> String {
    let id = end.id.as_str();
    match end.cause {
        EndCause::Ended => id.to_owned(),
        EndCause::Replaced => format!("{id}{REPLACED}"),
    }
}

fn published_end(message: &str) -> PublishedEnd {
    let (id, cause) = match message.strip_suffix(REPLACED) {
        Some(id) => (id, EndCause::Replaced),
        None => (message, EndCause::Ended),
    };
    PublishedEnd { id: SessionId(id.into()), cause }
}

fn to_json(session: &Session) -> String {
    // Never fails: a session has only texts and numbers.
    serde_json::to_string(session).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
