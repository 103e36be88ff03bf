//! The rows of entries and reservations that lose their user.

use account::UserId;
use base::id::Uuid;
use db::{Error, Tx};

use crate::stock::store::bytes;

const REMOVE_ENTRIES: &str = "DELETE FROM drop_entries WHERE user_id = ?";
const FORGET: &str = "UPDATE drop_reservations SET user_id = ?, account_id = ? WHERE user_id = ?";

/// Removes the user's entries, and the user from their reservations.
pub(super) async fn forget_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    let nobody = Uuid::nil();
    db::on!(tx, connection => {
        sqlx::query(REMOVE_ENTRIES).bind(bytes(user.as_uuid())).execute(&mut *connection).await?;
        sqlx::query(FORGET)
            .bind(bytes(&nobody))
            .bind(bytes(&nobody))
            .bind(bytes(user.as_uuid()))
            .execute(&mut *connection)
            .await?;
    });
    Ok(())
}
