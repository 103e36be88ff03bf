//! How operators find users.

use base::Timestamp;
use base::id::Uuid;
use db::{Error, on};

use super::{Ask, UserRow, key, user_of};
use crate::{LinkedIdentity, UserId, UserView};

/// Users by any of their names: their id, the id of an account, a subject, a display name. Each part of the question has an index.
const FIND: &str = "SELECT users.user_id, state, display_name, roles, ban_reason, created_at FROM users
    JOIN (SELECT user_id FROM users WHERE user_id = ?
        UNION SELECT user_id FROM accounts WHERE account_id = ?
        UNION SELECT user_id FROM identities WHERE subject = ?
        UNION SELECT user_id FROM users WHERE display_name = ?) AS named ON named.user_id = users.user_id
    WHERE users.user_id > ? ORDER BY users.user_id LIMIT ?";

const IDENTITIES: &str =
    "SELECT issuer, subject, linked_at FROM identities WHERE user_id = ? ORDER BY linked_at, identity_hash";

db::row! {
    struct IdentityRow {
        issuer: String,
        subject: String,
        linked_at: i64,
    }
}

/// Users who go by this text, behind an id, in the order of their ids.
pub(crate) async fn find(
    from: &mut impl Ask,
    text: &str,
    after: Uuid,
    limit: u32,
) -> Result<Vec<UserView>, Error> {
    // No user and no account has the nil id.
    let id = Uuid::try_parse(text).unwrap_or_default();
    let rows: Vec<UserRow> = on!(from, raw => {
        let query = sqlx::query_as(FIND).bind(key(&id)).bind(key(&id)).bind(text).bind(text);
        query.bind(key(&after)).bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(user_of).collect()
}

/// All identities of a user, the first linked first.
pub(crate) async fn linked_identities(
    from: &mut impl Ask,
    user: UserId,
) -> Result<Vec<LinkedIdentity>, Error> {
    let rows: Vec<IdentityRow> =
        on!(from, raw => sqlx::query_as(IDENTITIES).bind(key(user.as_uuid())).fetch_all(raw).await?);
    let identity = |row: IdentityRow| LinkedIdentity {
        issuer: row.issuer,
        subject: row.subject,
        linked_at: Timestamp::from_millis(row.linked_at),
    };
    Ok(rows.into_iter().map(identity).collect())
}
