//! Finds the drops of a user, and removes the user from reservations.

use account::UserId;
use base::id::Uuid;
use db::{Error, Tx};
use sqlx::AssertSqlSafe;

use crate::DropId;
use crate::model::EntryState;
use crate::store::{bytes, entry_state_number, uuid};

const FORGET: &str = "UPDATE drop_reservations SET user_id = ?, account_id = ? WHERE user_id = ?";

/// Returns the drops in which a user is inside or holds a reservation, in the order of their ids.
pub(super) async fn drops_of(tx: &mut Tx, user: UserId) -> Result<Vec<DropId>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT drop_id FROM drop_entries WHERE user_id = ? AND state = {} \
         UNION SELECT drop_id FROM drop_reservations WHERE user_id = ? AND state = 0 ORDER BY drop_id",
        entry_state_number(EntryState::Entered)
    ));
    let user = bytes(user.as_uuid());
    let rows: Vec<Vec<u8>> = db::on!(tx, connection => {
        sqlx::query_scalar(text).bind(user).bind(user).fetch_all(connection).await?
    });
    Ok(rows.iter().map(|id| DropId::from_uuid(uuid(id))).collect())
}

/// Removes the user from their reservations.
pub(super) async fn forget_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    let erased = Uuid::nil();
    db::on!(tx, connection => {
        sqlx::query(FORGET)
            .bind(bytes(&erased))
            .bind(bytes(&erased))
            .bind(bytes(user.as_uuid()))
            .execute(connection)
            .await?;
    });
    Ok(())
}
