//! Removing what is a user's.

use base::id::Uuid;
use db::{Error, Tx};
use sqlx::AssertSqlSafe;

use crate::Queue;

impl Queue {
    /// Removes the items of a user in the caller's transaction, whatever their state is, and says how many there were. A worker that
    /// has one comes too late. The table needs an index on `user_id`.
    pub async fn remove_user_in(&self, tx: &mut Tx, user: Uuid) -> Result<u64, Error> {
        let text = AssertSqlSafe(format!("DELETE FROM {} WHERE user_id = ?", self.table));
        let removed = db::on!(tx, connection => {
            sqlx::query(text).bind(user.as_bytes().to_vec()).execute(connection).await?.rows_affected()
        });
        Ok(removed)
    }
}
