//! Doing a request once, however often it is sent.
//!
//! A caller gives each request a key of its own and sends it again under that key until it gets an answer. The answer is recorded
//! in the transaction that does what was asked for, so there is one just if it was done. A key that comes again with another
//! request is a mistake of the caller's, which the fingerprint of the request shows.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use sha2::{Digest, Sha256};
use sqlx::AssertSqlSafe;

use crate::{Db, Dialect, Error, Fingerprint, Tx, Value};

const MAX_LENGTH: usize = 255;

/// How many are removed at once: few, so that nobody waits for it.
const REMOVED_AT_ONCE: i64 = 500;

const RECORD: &str = "INSERT INTO idempotency_keys (key_hash, fingerprint, user_id, answer, created_at)";

const EARLIER_OF: &str =
    "SELECT key_hash, fingerprint, answer FROM idempotency_keys WHERE key_hash IN ({list})";

const RECORDED: &str = "SELECT user_id, answer, created_at FROM idempotency_keys WHERE key_hash = ?";

const REMOVE_SQLITE: &str = "DELETE FROM idempotency_keys WHERE key_hash IN (SELECT key_hash FROM idempotency_keys \
    WHERE created_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - ? ORDER BY created_at LIMIT ?)";
const REMOVE_MYSQL: &str = "DELETE FROM idempotency_keys \
    WHERE created_at < CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) - ? ORDER BY created_at LIMIT ?";

/// The key of a request, with what the request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Of the caller and their key: callers do not get into each other's way.
    hash: [u8; 32],
    fingerprint: [u8; 32],
}

/// The key cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an idempotency key has 1 to {MAX_LENGTH} visible ASCII characters, such as the id of a purchase")]
pub struct BadKey;

/// What is known of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// It is new.
    Nothing,
    /// It was done, with this answer.
    Answer(String),
    /// The key was used for another request, or for this one before there were forms of fingerprints: see
    /// [`or_before`](Self::or_before).
    OtherRequest(Recorded),
    /// What is recorded cannot be read, and why.
    Unreadable(String),
}

/// What is recorded under a key whose fingerprint is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    fingerprint: [u8; 32],
    answer: Option<String>,
}

impl Earlier {
    /// Also recognises the request by what its fingerprint was made of before there were forms of fingerprints, so that a retry from
    /// before an upgrade is answered as before. New rows are written in the new form.
    ///
    /// `request` is called only if the key is recorded with another fingerprint: no other request pays for the old form.
    #[must_use]
    pub fn or_before(self, request: impl FnOnce() -> Vec<u8>) -> Self {
        match self {
            Self::OtherRequest(Recorded { fingerprint, answer })
                if fingerprint == <[u8; 32]>::from(Sha256::digest(request())) =>
            {
                Self::answered(answer)
            }
            same => same,
        }
    }

    fn answered(answer: Option<String>) -> Self {
        answer.map_or_else(|| Self::Unreadable("it has no answer".to_owned()), Self::Answer)
    }
}

impl IdempotencyKey {
    /// `request` is the fingerprint of what makes two requests the same.
    pub fn new(caller: &str, key: &str, request: Fingerprint) -> Result<Self, BadKey> {
        let is_sound = (1..=MAX_LENGTH).contains(&key.len()) && key.bytes().all(|c| c.is_ascii_graphic());
        if !is_sound {
            return Err(BadKey);
        }
        Ok(Self { hash: hash(caller, key), fingerprint: request.finish() })
    }

    /// The row of the key, for people.
    pub fn row(&self) -> String {
        self.hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Two columns for a `SELECT` that reads what else is needed, too: they take [`hash`](Self::hash) twice, and
    /// [`judge`](Self::judge) tells what their values mean. To be asked under a lock that excludes others with the same request.
    pub const COLUMNS: &str = "(SELECT fingerprint FROM idempotency_keys WHERE key_hash = ?) AS fingerprint, \
        (SELECT answer FROM idempotency_keys WHERE key_hash = ?) AS answer";

    pub const fn hash(&self) -> &[u8] {
        &self.hash
    }

    /// Reads what is known of the request. Another request that has the same key at this moment fails at its commit, and begins again.
    pub async fn earlier(&self, tx: &mut Tx) -> Result<Earlier, Error> {
        let text = AssertSqlSafe(format!("SELECT {}", Self::COLUMNS));
        let (fingerprint, answer): (Option<Vec<u8>>, Option<String>) = crate::on!(tx, connection => {
            sqlx::query_as(text).bind(self.hash()).bind(self.hash()).fetch_one(connection).await?
        });
        Ok(self.judge(fingerprint.as_deref(), answer))
    }

    /// Reads what is known of several requests in one query, in their order. As [`earlier`](Self::earlier), for many.
    pub async fn earlier_of(tx: &mut Tx, keys: &[Self]) -> Result<Vec<Earlier>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<&[u8]> = keys.iter().map(Self::hash).collect();
        let (text, padding) = crate::list_text(EARLIER_OF, hashes.len());
        let rows: Vec<(Vec<u8>, Vec<u8>, Option<String>)> = crate::on!(tx, connection => {
            crate::bind_list!(sqlx::query_as(text), hashes, padding).fetch_all(connection).await?
        });
        let by_hash = rows.into_iter().map(|(hash, fingerprint, answer)| (hash, (fingerprint, answer)));
        let by_hash: HashMap<_, _> = by_hash.collect();
        let judge = |key: &Self| {
            // The same key may be asked for twice.
            let (fingerprint, answer) = by_hash.get(key.hash()).cloned().unzip();
            key.judge(fingerprint.as_deref(), answer.flatten())
        };
        Ok(keys.iter().map(judge).collect())
    }

    /// What is known of the request.
    pub fn judge(&self, fingerprint: Option<&[u8]>, answer: Option<String>) -> Earlier {
        let Some(fingerprint) = fingerprint else { return Earlier::Nothing };
        let Ok(fingerprint) = <[u8; 32]>::try_from(fingerprint) else {
            return Earlier::Unreadable(format!("its fingerprint has {} bytes, not 32", fingerprint.len()));
        };
        if fingerprint != self.fingerprint {
            return Earlier::OtherRequest(Recorded { fingerprint, answer });
        }
        Earlier::answered(answer)
    }

    /// Records the answer when the transaction is committed. If that fails with [`Error::Duplicate`], somebody else was faster
    /// with the same key, under another lock: begin again.
    pub fn record(&self, tx: &mut Tx, user: &Uuid, answer: &str) {
        Self::record_all(tx, [(self, user, answer)]);
    }

    /// Records several answers with one statement, each with its key and its user. As [`record`](Self::record), for many.
    pub fn record_all<'a>(tx: &mut Tx, answers: impl IntoIterator<Item = (&'a Self, &'a Uuid, &'a str)>) {
        let row = |(key, user, answer): (&'a Self, &'a Uuid, &'a str)| {
            [key.hash[..].into(), key.fingerprint[..].into(), user.into(), answer.into(), Value::Now]
        };
        tx.insert_at_commit(RECORD, answers.into_iter().map(row));
    }
}

/// What is recorded under a key, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    pub user: Uuid,
    pub answer: String,
    pub recorded_at: Timestamp,
}

fn hash(caller: &str, key: &str) -> [u8; 32] {
    Sha256::new().chain_update(caller).chain_update([0]).chain_update(key).finalize().into()
}

impl Db {
    /// Reads what is recorded under a caller's key, whatever the request was. None if no request with it was done, or it is forgotten.
    pub async fn recorded_request(&self, caller: &str, key: &str) -> Result<Option<RecordedRequest>, Error> {
        let hash = hash(caller, key);
        let reading = async {
            let mut connection = self.connection().await?;
            let row: Option<(Vec<u8>, String, i64)> = crate::on!(connection, raw => {
                sqlx::query_as(RECORDED).bind(&hash[..]).fetch_optional(raw).await?
            });
            Ok(row.map(|(user, answer, at)| RecordedRequest {
                user: Uuid::from_slice(&user).unwrap_or_default(),
                answer,
                recorded_at: Timestamp::from_millis(at),
            }))
        };
        self.bounded(reading).await
    }

    /// Forgets some of the keys that are older than this, and says how many.
    pub async fn forget_idempotency_keys(&self, age: Duration) -> Result<u64, Error> {
        let text = match self.dialect() {
            Dialect::Sqlite => REMOVE_SQLITE,
            Dialect::MySql => REMOVE_MYSQL,
        };
        let age: i64 = age.as_millis().try_into().unwrap_or(i64::MAX);
        self.bounded(async {
            let mut tx = self.begin().await?;
            let removed = crate::on!(tx, connection => {
                sqlx::query(text).bind(age).bind(REMOVED_AT_ONCE).execute(connection).await?.rows_affected()
            });
            tx.commit().await?;
            Ok(removed)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &[u8] = b"the old form";

    fn judge(fingerprint: Option<&[u8]>, answer: Option<&str>) -> Earlier {
        let key = IdempotencyKey::new("shop", "1", Fingerprint::of("test").text("new")).unwrap();
        key.judge(fingerprint, answer.map(str::to_owned))
    }

    #[test]
    fn the_old_form_is_built_only_for_a_key_with_another_fingerprint() {
        let never = || -> Vec<u8> { panic!("nobody needs it") };
        assert_eq!(judge(None, None).or_before(never), Earlier::Nothing);
        let same = Fingerprint::of("test").text("new").finish();
        assert_eq!(judge(Some(&same), Some("a")).or_before(never), Earlier::Answer("a".to_owned()));
        assert!(matches!(judge(Some(&[1, 2]), Some("a")).or_before(never), Earlier::Unreadable(_)));
    }

    #[test]
    fn a_request_from_before_the_forms_is_answered_as_before() {
        let old: [u8; 32] = Sha256::digest(BEFORE).into();
        let before = || BEFORE.to_vec();
        assert_eq!(judge(Some(&old), Some("a")).or_before(before), Earlier::Answer("a".to_owned()));
        assert!(matches!(judge(Some(&old), None).or_before(before), Earlier::Unreadable(_)));
        assert!(matches!(judge(Some(&[7; 32]), Some("a")).or_before(before), Earlier::OtherRequest(_)));
    }
}
