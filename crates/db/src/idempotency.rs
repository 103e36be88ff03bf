//! Idempotency keys: a request is applied once, however often it is sent.
//!
//! A caller gives each request its own key and retries with that key until it gets a response. The response is recorded in the
//! transaction that applies the request, so it is present if and only if the request was applied. Reusing a key for a different
//! request is a caller's bug, which the request fingerprint detects.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use sha2::{Digest, Sha256};
use sqlx::AssertSqlSafe;

use crate::{Db, Dialect, Error, RequestFingerprint, Tx, Value};

const MAX_LENGTH: usize = 255;

/// How many rows are deleted per transaction. Small batches keep lock waits of other requests short.
const DELETE_BATCH: i64 = 500;

const RECORD: &str = "INSERT INTO idempotency_keys (key_hash, fingerprint, user_id, answer, created_at)";

const LOOK_UP_ALL: &str =
    "SELECT key_hash, fingerprint, answer FROM idempotency_keys WHERE key_hash IN ({list})";

const RECORDED: &str = "SELECT user_id, answer, created_at FROM idempotency_keys WHERE key_hash = ?";

const REMOVE_SQLITE: &str = "DELETE FROM idempotency_keys WHERE key_hash IN (SELECT key_hash FROM idempotency_keys \
    WHERE created_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - ? ORDER BY created_at LIMIT ?)";
const REMOVE_MYSQL: &str = "DELETE FROM idempotency_keys \
    WHERE created_at < CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) - ? ORDER BY created_at LIMIT ?";

/// The idempotency key of a request, with the request's fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Hash of the caller and the key, so that the keys of different callers cannot collide.
    hash: [u8; 32],
    fingerprint: [u8; 32],
}

/// The text is not a valid idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an idempotency key has 1 to {MAX_LENGTH} visible ASCII characters, such as the id of a purchase")]
pub struct InvalidIdempotencyKey;

/// The result of looking up an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLookup {
    /// No request with this key was applied.
    New,
    /// The request was applied, with this response.
    RecordedResponse(String),
    /// The key was used for a different request, or for this one before fingerprints had formats: see
    /// [`or_legacy`](Self::or_legacy).
    OtherRequest(OtherRequest),
    /// The recorded row cannot be read, and why.
    Unreadable(String),
}

/// A recorded request whose fingerprint differs from that of the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherRequest {
    fingerprint: [u8; 32],
    response: Option<String>,
}

impl KeyLookup {
    /// Also recognises a request by its legacy fingerprint, the plain SHA-256 of `request`, so that a retry from before an upgrade gets
    /// its recorded response. New rows are written with the current format.
    ///
    /// `request` is called only if the key is recorded with a different fingerprint: no other request pays for the legacy format.
    #[must_use]
    pub fn or_legacy(self, request: impl FnOnce() -> Vec<u8>) -> Self {
        match self {
            Self::OtherRequest(OtherRequest { fingerprint, response })
                if fingerprint == <[u8; 32]>::from(Sha256::digest(request())) =>
            {
                Self::recorded(response)
            }
            other => other,
        }
    }

    fn recorded(response: Option<String>) -> Self {
        response.map_or_else(|| Self::Unreadable("it has no response".to_owned()), Self::RecordedResponse)
    }
}

impl IdempotencyKey {
    /// Validates a caller's key and binds it to the fingerprint of the request.
    pub fn new(caller: &str, key: &str, request: RequestFingerprint) -> Result<Self, InvalidIdempotencyKey> {
        let is_valid = (1..=MAX_LENGTH).contains(&key.len()) && key.bytes().all(|c| c.is_ascii_graphic());
        if !is_valid {
            return Err(InvalidIdempotencyKey);
        }
        Ok(Self { hash: hash(caller, key), fingerprint: request.finish() })
    }

    /// Returns the primary key of the row in hexadecimal, for logs and errors.
    pub fn row(&self) -> String {
        self.hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Two columns for a `SELECT` that reads further columns in the same query. Bind [`hash`](Self::hash) twice and pass the values to
    /// [`interpret`](Self::interpret). Run it under a lock that excludes other requests with the same key.
    pub const COLUMNS: &str = "(SELECT fingerprint FROM idempotency_keys WHERE key_hash = ?) AS fingerprint, \
        (SELECT answer FROM idempotency_keys WHERE key_hash = ?) AS answer";

    pub const fn hash(&self) -> &[u8] {
        &self.hash
    }

    /// Looks up the key. A concurrent request with the same key fails at its commit and has to start again.
    pub async fn look_up(&self, tx: &mut Tx) -> Result<KeyLookup, Error> {
        let text = AssertSqlSafe(format!("SELECT {}", Self::COLUMNS));
        let (fingerprint, answer): (Option<Vec<u8>>, Option<String>) = crate::on!(tx, connection => {
            sqlx::query_as(text).bind(self.hash()).bind(self.hash()).fetch_one(connection).await?
        });
        Ok(self.interpret(fingerprint.as_deref(), answer))
    }

    /// Looks up several keys in one query, and returns the results in the same order. See [`look_up`](Self::look_up).
    pub async fn look_up_all(tx: &mut Tx, keys: &[Self]) -> Result<Vec<KeyLookup>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<&[u8]> = keys.iter().map(Self::hash).collect();
        let (text, padding) = crate::list_text(LOOK_UP_ALL, hashes.len());
        let rows: Vec<(Vec<u8>, Vec<u8>, Option<String>)> = crate::on!(tx, connection => {
            crate::bind_list!(sqlx::query_as(text), hashes, padding).fetch_all(connection).await?
        });
        let by_hash = rows.into_iter().map(|(hash, fingerprint, answer)| (hash, (fingerprint, answer)));
        let by_hash: HashMap<_, _> = by_hash.collect();
        let interpret = |key: &Self| {
            // Cloned, because the same key may occur twice.
            let (fingerprint, answer) = by_hash.get(key.hash()).cloned().unzip();
            key.interpret(fingerprint.as_deref(), answer.flatten())
        };
        Ok(keys.iter().map(interpret).collect())
    }

    /// Interprets the values of [`COLUMNS`](Self::COLUMNS): the recorded fingerprint and response.
    pub fn interpret(&self, fingerprint: Option<&[u8]>, response: Option<String>) -> KeyLookup {
        let Some(fingerprint) = fingerprint else { return KeyLookup::New };
        let Ok(fingerprint) = <[u8; 32]>::try_from(fingerprint) else {
            return KeyLookup::Unreadable(format!("its fingerprint has {} bytes, not 32", fingerprint.len()));
        };
        if fingerprint != self.fingerprint {
            return KeyLookup::OtherRequest(OtherRequest { fingerprint, response });
        }
        KeyLookup::recorded(response)
    }

    /// Records the response when the transaction commits. If the commit fails with [`Error::Duplicate`], a concurrent request with the
    /// same key was faster, under a different lock: start again.
    pub fn record(&self, tx: &mut Tx, user: &Uuid, response: &str) {
        Self::record_all(tx, [(self, user, response)]);
    }

    /// Records several responses in one statement, each with its key and user. See [`record`](Self::record).
    pub fn record_all<'a>(tx: &mut Tx, responses: impl IntoIterator<Item = (&'a Self, &'a Uuid, &'a str)>) {
        let row = |(key, user, response): (&'a Self, &'a Uuid, &'a str)| {
            [key.hash[..].into(), key.fingerprint[..].into(), user.into(), response.into(), Value::Now]
        };
        tx.insert_at_commit(RECORD, responses.into_iter().map(row));
    }
}

/// The record of an applied request, as shown to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    pub user: Uuid,
    pub response: String,
    pub recorded_at: Timestamp,
}

fn hash(caller: &str, key: &str) -> [u8; 32] {
    Sha256::new().chain_update(caller).chain_update([0]).chain_update(key).finalize().into()
}

impl Db {
    /// Returns the record of a caller's key, whatever the request was. None if no such request was applied or its record has expired.
    pub async fn recorded_request(&self, caller: &str, key: &str) -> Result<Option<RecordedRequest>, Error> {
        let hash = hash(caller, key);
        let reading = async {
            let mut connection = self.connection().await?;
            let row: Option<(Vec<u8>, String, i64)> = crate::on!(connection, raw => {
                sqlx::query_as(RECORDED).bind(&hash[..]).fetch_optional(raw).await?
            });
            Ok(row.map(|(user, response, at)| RecordedRequest {
                user: Uuid::from_slice(&user).unwrap_or_default(),
                response,
                recorded_at: Timestamp::from_millis(at),
            }))
        };
        self.bounded(reading).await
    }

    /// Deletes a batch of keys older than `age`. Returns how many were deleted.
    pub async fn delete_old_idempotency_keys(&self, age: Duration) -> Result<u64, Error> {
        let text = match self.dialect() {
            Dialect::Sqlite => REMOVE_SQLITE,
            Dialect::MySql => REMOVE_MYSQL,
        };
        let age: i64 = age.as_millis().try_into().unwrap_or(i64::MAX);
        self.bounded(async {
            let mut tx = self.begin().await?;
            let removed = crate::on!(tx, connection => {
                sqlx::query(text).bind(age).bind(DELETE_BATCH).execute(connection).await?.rows_affected()
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

    const LEGACY: &[u8] = b"the legacy format";

    fn interpret(fingerprint: Option<&[u8]>, response: Option<&str>) -> KeyLookup {
        let key = IdempotencyKey::new("shop", "1", RequestFingerprint::new("test").text("new")).unwrap();
        key.interpret(fingerprint, response.map(str::to_owned))
    }

    #[test]
    fn legacy_format_is_built_only_if_the_fingerprint_differs() {
        let never = || -> Vec<u8> { panic!("the legacy format is not needed") };
        assert_eq!(interpret(None, None).or_legacy(never), KeyLookup::New);
        let same = RequestFingerprint::new("test").text("new").finish();
        assert_eq!(
            interpret(Some(&same), Some("a")).or_legacy(never),
            KeyLookup::RecordedResponse("a".to_owned())
        );
        assert!(matches!(interpret(Some(&[1, 2]), Some("a")).or_legacy(never), KeyLookup::Unreadable(_)));
    }

    #[test]
    fn request_with_a_legacy_fingerprint_gets_its_recorded_response() {
        let legacy: [u8; 32] = Sha256::digest(LEGACY).into();
        let request = || LEGACY.to_vec();
        assert_eq!(
            interpret(Some(&legacy), Some("a")).or_legacy(request),
            KeyLookup::RecordedResponse("a".to_owned())
        );
        assert!(matches!(interpret(Some(&legacy), None).or_legacy(request), KeyLookup::Unreadable(_)));
        assert!(matches!(
            interpret(Some(&[7; 32]), Some("a")).or_legacy(request),
            KeyLookup::OtherRequest(_)
        ));
    }
}
