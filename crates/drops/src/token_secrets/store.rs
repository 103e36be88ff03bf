//! The shared secret in SQL, for deployments without configured ones.

use db::{Db, Error, Value};

/// Stores `generated` unless there is a secret already. Returns the stored one.
pub(super) async fn insert_or_load(db: &Db, generated: &[u8]) -> Result<Vec<u8>, Error> {
    const INSERT: &str = "INSERT INTO drop_token_keys (key_id, secret, created_at)";
    if let Some(stored) = db.bounded(load(db)).await? {
        return Ok(stored);
    }
    let inserting = async {
        let mut tx = db.begin().await?;
        tx.insert_at_commit(INSERT, [[Value::Integer(1), Value::Bytes(generated), Value::Now]]);
        tx.commit().await
    };
    match db.bounded(inserting).await {
        // Another process was faster: use its secret.
        Ok(()) | Err(Error::Duplicate(_)) => {}
        Err(error) => return Err(error),
    }
    let gone = || db.corrupt("drop_token_keys", 1, "the row is gone");
    db.bounded(load(db)).await?.ok_or_else(gone)
}

async fn load(db: &Db) -> Result<Option<Vec<u8>>, Error> {
    const LOAD: &str = "SELECT secret FROM drop_token_keys WHERE key_id = 1";
    let mut connection = db.connection().await?;
    Ok(db::on!(connection, raw => sqlx::query_scalar(LOAD).fetch_optional(raw).await?))
}
