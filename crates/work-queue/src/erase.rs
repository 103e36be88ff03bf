//! Removing a user's items.

use base::id::Uuid;
use db::{Error, Tx};
use sqlx::AssertSqlSafe;

use crate::WorkQueue;

impl WorkQueue {
    /// Removes all items of a user in the caller's transaction, whatever their state. Returns how many there were. The outcome of a
    /// worker that has claimed one counts as stale. The table needs an index on `user_id`.
    pub async fn remove_user_in(&self, tx: &mut Tx, user: Uuid) -> Result<u64, Error> {
        let text = AssertSqlSafe(format!("DELETE FROM {} WHERE user_id = ?", self.table));
        let removed = db::on!(tx, connection => {
            sqlx::query(text).bind(user.as_bytes().to_vec()).execute(connection).await?.rows_affected()
        });
        Ok(removed)
    }
}
