//! Lines in Redis: a sorted set per drop, whose members are the 16 bytes of user ids and whose scores are places.

mod keys;

use std::time::Duration;

use ::redis::aio::ConnectionManager;
use account::UserId;
use base::id::Uuid;
use redis_store::{Error, Script, Trial, script};

use self::keys::Keys;
use super::{CHUNK, Epoch, FillToken, Position, PositionLookup};
use crate::DropId;
use crate::model::{LineMember, Place};

/// How many extra members a page reads to skip those that share the score of the last member of the page before. Equal places are as rare
/// as collisions of 48-bit random numbers.
const MAX_EQUAL_PLACES: usize = 16;

static REMOVE: Script = script!("redis/scripts/remove.lua");
static POSITION: Script = script!("redis/scripts/position.lua");
static BEGIN: Script = script!("redis/scripts/begin_filling.lua");
static FILL: Script = script!("redis/scripts/fill.lua");
static FINISH: Script = script!("redis/scripts/finish_filling.lua");

/// Sample calls that show whether a server can run the scripts: they fill, read and empty a line.
pub(crate) static TRIALS: [Trial; 5] = [
    Trial {
        script: &BEGIN,
        name: "drops/begin_filling.lua",
        keys: &["line", "epoch", "filling"],
        args: &["f1", "60000"],
    },
    Trial {
        script: &FILL,
        name: "drops/fill.lua",
        keys: &["line", "filling"],
        args: &["f1", "60000", "1", "user"],
    },
    Trial { script: &FINISH, name: "drops/finish_filling.lua", keys: &["epoch", "filling"], args: &["f1"] },
    Trial { script: &POSITION, name: "drops/position.lua", keys: &["line", "epoch"], args: &["user"] },
    Trial { script: &REMOVE, name: "drops/remove.lua", keys: &["line"], args: &["1", "user"] },
];

/// The Redis adapter. Cheap to clone; clones share their connection.
#[derive(Clone, Debug)]
pub(super) struct Redis {
    redis: redis_store::Redis,
    keys: Keys,
}

impl Redis {
    pub(super) fn new(redis: redis_store::Redis, prefix: &str) -> Self {
        let keys = Keys::new(&redis, prefix);
        Self { redis, keys }
    }

    fn connection(&self) -> ConnectionManager {
        self.redis.connection.clone()
    }

    pub(super) async fn add(&self, drop: DropId, members: &[LineMember]) -> Result<(), Error> {
        let key = self.keys.line(drop);
        for members in members.chunks(CHUNK) {
            let mut command = ::redis::cmd("ZADD");
            command.arg(&key);
            for member in members {
                command.arg(member.place.stored()).arg(member_bytes(member));
            }
            let () = command.query_async(&mut self.connection()).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(&self, drop: DropId, members: &[LineMember]) -> Result<u64, Error> {
        let mut removed = 0;
        for members in members.chunks(CHUNK) {
            let mut call = REMOVE.call(&[self.keys.line(drop)]);
            for member in members {
                call.arg(member.place.stored()).arg(member_bytes(member)).end();
            }
            removed += call.run::<u64>(self.connection()).await?;
        }
        Ok(removed)
    }

    pub(super) async fn position(&self, drop: DropId, user: UserId) -> Result<PositionLookup, Error> {
        let mut call = POSITION.call(&[self.keys.line(drop), self.keys.epoch(drop)]);
        call.arg(&user.as_uuid().as_bytes()[..]).end();
        Ok(match call.run::<Vec<i64>>(self.connection()).await?[..] {
            [ahead, waiting] if ahead >= 0 => PositionLookup::Found(Position {
                ahead: ahead.unsigned_abs(),
                waiting: waiting.unsigned_abs(),
            }),
            [_, _] => PositionLookup::NotInLine,
            _ => PositionLookup::LineNotFilled,
        })
    }

    pub(super) async fn len(&self, drop: DropId) -> Result<u64, Error> {
        let key = self.keys.line(drop);
        Ok(::redis::cmd("ZCARD").arg(key).query_async(&mut self.connection()).await?)
    }

    pub(super) async fn after(
        &self,
        drop: DropId,
        after: Option<LineMember>,
        limit: usize,
    ) -> Result<Vec<LineMember>, Error> {
        let mut command = ::redis::cmd("ZRANGE");
        let from = after.map_or(0, |member| member.place.stored());
        // Members with the same place as `after` are read again and filtered out below.
        let count = limit + if after.is_some() { MAX_EQUAL_PLACES } else { 0 };
        command.arg(self.keys.line(drop)).arg(from).arg("+inf").arg("BYSCORE");
        command.arg("LIMIT").arg(0).arg(count).arg("WITHSCORES");
        let found: Vec<(Vec<u8>, f64)> = command.query_async(&mut self.connection()).await?;
        let members = found.into_iter().filter_map(|(user, score)| {
            let user = UserId::from_uuid(Uuid::from_slice(&user).ok()?);
            // Exact: a place has 53 bits.
            Some(LineMember { place: Place::from_stored(score as i64)?, user })
        });
        Ok(members.filter(|member| after.is_none_or(|after| *member > after)).take(limit).collect())
    }

    pub(super) async fn epoch(&self, drop: DropId) -> Result<Option<Epoch>, Error> {
        let key = self.keys.epoch(drop);
        let found: Option<String> = ::redis::cmd("GET").arg(key).query_async(&mut self.connection()).await?;
        Ok(found.and_then(|text| Uuid::try_parse(&text).ok()).map(Epoch))
    }

    pub(super) async fn begin_filling(
        &self,
        drop: DropId,
        token: FillToken,
        lease: Duration,
    ) -> Result<bool, Error> {
        let mut call = BEGIN.call(&self.keys.all(drop));
        Ok(call.arg(token.0.to_string()).arg(millis(lease)).run(self.connection()).await?)
    }

    pub(super) async fn fill(
        &self,
        drop: DropId,
        token: FillToken,
        members: &[LineMember],
        lease: Duration,
    ) -> Result<bool, Error> {
        for members in members.chunks(CHUNK) {
            let mut call = FILL.call(&[self.keys.line(drop), self.keys.filling(drop)]);
            call.arg(token.0.to_string()).arg(millis(lease));
            for member in members {
                call.arg(member.place.stored()).arg(member_bytes(member)).end();
            }
            if !call.run::<bool>(self.connection()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) async fn finish_filling(&self, drop: DropId, token: FillToken) -> Result<bool, Error> {
        let mut call = FINISH.call(&[self.keys.epoch(drop), self.keys.filling(drop)]);
        Ok(call.arg(token.0.to_string()).run(self.connection()).await?)
    }

    pub(super) async fn clear(&self, drop: DropId) -> Result<(), Error> {
        let keys = self.keys.all(drop);
        Ok(::redis::cmd("DEL").arg(&keys[..]).query_async(&mut self.connection()).await?)
    }
}

fn member_bytes(member: &LineMember) -> &[u8] {
    &member.user.as_uuid().as_bytes()[..]
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
