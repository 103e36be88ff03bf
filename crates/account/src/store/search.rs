//! The SQL of searches by operators.

use base::Timestamp;
use base::id::Uuid;
use db::{Error, on};

use super::{AccountRow, Queryable, UserRow, account_of, key, user_of};
use crate::{Account, AccountId, LinkedIdentity, UserId, UserView};

/// Finds users by user id, account id, subject or display name. Each part of the union uses an index.
const FIND: &str = "SELECT users.user_id, state, display_name, roles, ban_reason, created_at FROM users
    JOIN (SELECT user_id FROM users WHERE user_id = ?
        UNION SELECT user_id FROM accounts WHERE account_id = ?
        UNION SELECT user_id FROM identities WHERE subject = ?
        UNION SELECT user_id FROM users WHERE display_name = ?) AS named ON named.user_id = users.user_id
    WHERE users.user_id > ? ORDER BY users.user_id LIMIT ?";

/// Finds users whose display name is in a range. The index is in this order, so a page costs as much as its rows.
const FIND_BY_PREFIX: &str = "SELECT user_id, state, display_name, roles, ban_reason, created_at FROM users
    WHERE display_name >= ? AND display_name < ? AND (display_name > ? OR user_id > ?)
    ORDER BY display_name, user_id LIMIT ?";

/// Ids are in the order of registration.
const NEWEST: &str = "SELECT user_id, state, display_name, roles, ban_reason, created_at FROM users
    WHERE user_id < ? ORDER BY user_id DESC LIMIT ?";

const ACCOUNT: &str = "SELECT user_id, account_id, name, created_at FROM accounts WHERE account_id = ?";

const IDENTITIES: &str =
    "SELECT issuer, subject, linked_at FROM identities WHERE user_id = ? ORDER BY linked_at, identity_hash";

db::row! {
    struct IdentityRow {
        issuer: String,
        subject: String,
        linked_at: i64,
    }
}

/// Returns the users that match `text` and have an id greater than `after`, ordered by id.
pub(crate) async fn find(
    from: &mut impl Queryable,
    text: &str,
    after: Uuid,
    limit: u32,
) -> Result<Vec<UserView>, Error> {
    // The nil id matches no user and no account.
    let id = Uuid::try_parse(text).unwrap_or_default();
    let rows: Vec<UserRow> = on!(from, raw => {
        let query = sqlx::query_as(FIND).bind(key(&id)).bind(key(&id)).bind(text).bind(text);
        query.bind(key(&after)).bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(user_of).collect()
}

/// Returns users whose display name begins with `prefix`, ordered by name and id, after the name and id `after`.
pub(crate) async fn find_by_prefix(
    from: &mut impl Queryable,
    prefix: &str,
    after: Option<(&str, Uuid)>,
    limit: u32,
) -> Result<Vec<UserView>, Error> {
    // The largest character is not used in names, so it ends the range.
    let end = format!("{prefix}{}", char::MAX);
    let (name, id) = after.unwrap_or(("", Uuid::nil()));
    let first = if name > prefix { name } else { prefix };
    let rows: Vec<UserRow> = on!(from, raw => {
        let query = sqlx::query_as(FIND_BY_PREFIX).bind(first).bind(&end).bind(name).bind(key(&id));
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(user_of).collect()
}

/// Returns the users who registered before `before`, newest first.
pub(crate) async fn newest(
    from: &mut impl Queryable,
    before: Uuid,
    limit: u32,
) -> Result<Vec<UserView>, Error> {
    let rows: Vec<UserRow> = on!(from, raw => {
        sqlx::query_as(NEWEST).bind(key(&before)).bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(user_of).collect()
}

/// Returns the account with this id, of any user.
pub(crate) async fn find_by_account(
    from: &mut impl Queryable,
    account: AccountId,
) -> Result<Option<Account>, Error> {
    let row: Option<AccountRow> = on!(from, raw => {
        sqlx::query_as(ACCOUNT).bind(key(account.as_uuid())).fetch_optional(raw).await?
    });
    row.map(account_of).transpose()
}

/// Returns all identities of a user, oldest link first.
pub(crate) async fn linked_identities(
    from: &mut impl Queryable,
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
