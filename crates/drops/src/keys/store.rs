//! The secret that SQL keeps for deployments without configured ones.

use db::{Db, Error, Value};

/// Keeps `made` unless there is a secret already. Returns the one that is kept.
pub(super) async fn keep(db: &Db, made: &[u8]) -> Result<Vec<u8>, Error> {
    const INSERT: &str = "INSERT INTO drop_token_keys (key_id, secret, created_at)";
    if let Some(kept) = db.bounded(kept(db)).await? {
        return Ok(kept);
    }
    let inserting = async {
        let mut tx = db.begin().await?;
        tx.insert_at_commit(INSERT, [[Value::Integer(1), Value::Bytes(made), Value::Now]]);
        tx.commit().await
    };
    match db.bounded(inserting).await {
        // Another process was faster: its secret counts.
        Ok(()) | Err(Error::Duplicate(_)) => {}
        Err(error) => return Err(error),
    }
    let gone = || db.corrupt("drop_token_keys", 1, "the row is gone");
    db.bounded(kept(db)).await?.ok_or_else(gone)
}

async fn kept(db: &Db) -> Result<Option<Vec<u8>>, Error> {
    const KEPT: &str = "SELECT secret FROM drop_token_keys WHERE key_id = 1";
    let mut connection = db.connection().await?;
    Ok(db::on!(connection, raw => sqlx::query_scalar(KEPT).fetch_optional(raw).await?))
}
