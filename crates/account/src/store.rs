//! The SQL of users, identities and accounts.

mod audit;
mod notes;
mod search;

use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Error, Raw, Tx, on};
use sqlx::AssertSqlSafe;

use crate::model::{Claims, Identity};
use crate::{Account, AccountId, Role, UserId, UserState, UserView};

pub(crate) use self::audit::{audit, insert_audit};
pub(crate) use self::notes::{insert_note, notes};
pub(crate) use self::search::{find, find_by_account, find_by_prefix, linked_identities, newest};

db::row! {
    struct UserRow {
        user_id: Vec<u8>,
        state: String,
        display_name: Option<String>,
        roles: String,
        ban_reason: Option<String>,
        created_at: i64,
    }
}

db::row! {
    /// A user joined with one of its accounts. A user without accounts has one such row.
    struct UserAndAccountRow {
        user_id: Vec<u8>,
        state: String,
        display_name: Option<String>,
        roles: String,
        ban_reason: Option<String>,
        created_at: i64,
        account_id: Option<Vec<u8>>,
        name: Option<String>,
        account_created_at: Option<i64>,
    }
}

db::row! {
    struct AccountRow {
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        name: String,
        created_at: i64,
    }
}

/// A source of rows: a transaction or a plain connection.
pub(crate) trait Queryable: Send {
    fn raw(&mut self) -> Raw<'_>;
}

impl Queryable for Tx {
    fn raw(&mut self) -> Raw<'_> {
        Self::raw(self)
    }
}

impl Queryable for Conn {
    fn raw(&mut self) -> Raw<'_> {
        Self::raw(self)
    }
}

pub(crate) async fn user(from: &mut impl Queryable, user: UserId) -> Result<Option<UserView>, Error> {
    const READ: &str =
        "SELECT user_id, state, display_name, roles, ban_reason, created_at FROM users WHERE user_id = ?";
    let row: Option<UserRow> = on!(from, raw => {
        sqlx::query_as(READ).bind(key(user.as_uuid())).fetch_optional(raw).await?
    });
    row.map(user_of).transpose()
}

/// Returns users who are not erased and have an id greater than `after`, ordered by id.
pub(crate) async fn ids_after(
    from: &mut impl Queryable,
    after: Uuid,
    limit: u32,
) -> Result<Vec<UserId>, Error> {
    const READ: &str = "SELECT user_id FROM users WHERE user_id > ? AND state <> ? ORDER BY user_id LIMIT ?";
    let rows: Vec<(Vec<u8>,)> = on!(from, raw => {
        let query = sqlx::query_as(READ).bind(key(&after)).bind(UserState::Erased.word());
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.iter().map(|(id,)| Ok(UserId::from_uuid(uuid(id)?))).collect()
}

/// Returns the given users who exist and are not erased.
pub(crate) async fn filter_existing(
    from: &mut impl Queryable,
    users: &[UserId],
) -> Result<Vec<UserId>, Error> {
    const READ: &str = "SELECT user_id FROM users WHERE state <> ? AND user_id IN ({list})";
    if users.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&[u8]> = users.iter().map(|user| key(user.as_uuid())).collect();
    let (text, padding) = db::list_text(READ, ids.len());
    let rows: Vec<(Vec<u8>,)> = on!(from, raw => {
        let query = sqlx::query_as(text).bind(UserState::Erased.word());
        db::bind_list!(query, ids, padding).fetch_all(raw).await?
    });
    rows.iter().map(|(id,)| Ok(UserId::from_uuid(uuid(id)?))).collect()
}

pub(crate) async fn user_of_identity(
    from: &mut impl Queryable,
    identity: &Identity<'_>,
) -> Result<Option<UserView>, Error> {
    const READ: &str = "SELECT users.user_id, state, display_name, roles, ban_reason, created_at
        FROM identities JOIN users ON users.user_id = identities.user_id WHERE identity_hash = ?";
    let hash = identity.hash();
    let row: Option<UserRow> =
        on!(from, raw => sqlx::query_as(READ).bind(&hash[..]).fetch_optional(raw).await?);
    row.map(user_of).transpose()
}

/// Returns the user of an identity with its accounts, oldest first.
pub(crate) async fn user_and_accounts(
    from: &mut impl Queryable,
    identity: &Identity<'_>,
) -> Result<Option<(UserView, Vec<Account>)>, Error> {
    const READ: &str = "SELECT users.user_id, state, display_name, roles, ban_reason, users.created_at,
        account_id, name, accounts.created_at AS account_created_at
        FROM identities JOIN users ON users.user_id = identities.user_id
        LEFT JOIN accounts ON accounts.user_id = users.user_id
        WHERE identity_hash = ? ORDER BY accounts.created_at, account_id";
    let hash = identity.hash();
    let rows: Vec<UserAndAccountRow> =
        on!(from, raw => sqlx::query_as(READ).bind(&hash[..]).fetch_all(raw).await?);
    let mut user = None;
    let mut accounts = Vec::new();
    for row in rows {
        // A user without accounts has NULL here.
        if let (Some(account_id), Some(name), Some(created_at)) =
            (row.account_id, row.name, row.account_created_at)
        {
            accounts.push(account_of(AccountRow {
                user_id: row.user_id.clone(),
                account_id,
                name,
                created_at,
            })?);
        }
        user = Some(user_of(UserRow {
            user_id: row.user_id,
            state: row.state,
            display_name: row.display_name,
            roles: row.roles,
            ban_reason: row.ban_reason,
            created_at: row.created_at,
        })?);
    }
    Ok(user.map(|user| (user, accounts)))
}

pub(crate) async fn insert_user(tx: &mut Tx, user: UserId, claims: &Claims<'_>) -> Result<(), Error> {
    let now = tx.dialect().now();
    let text = format!(
        "INSERT INTO users (user_id, state, display_name, roles, created_at) VALUES (?, ?, ?, ?, {now})"
    );
    on!(tx, raw => {
        sqlx::query(AssertSqlSafe(text))
            .bind(key(user.as_uuid()))
            .bind(UserState::Active.word())
            .bind(claims.display_name)
            .bind(Role::join(&claims.roles))
            .execute(raw)
            .await?;
    });
    Ok(())
}

/// Updates the name and roles of an active user. Returns false if the user is not active: a name must not return after an erasure.
pub(crate) async fn update_user(tx: &mut Tx, user: UserId, claims: &Claims<'_>) -> Result<bool, Error> {
    const UPDATE: &str = "UPDATE users SET display_name = COALESCE(?, display_name), roles = ?
        WHERE user_id = ? AND state = ?";
    let changed = on!(tx, raw => {
        sqlx::query(UPDATE)
            .bind(claims.display_name)
            .bind(Role::join(&claims.roles))
            .bind(key(user.as_uuid()))
            .bind(UserState::Active.word())
            .execute(raw)
            .await?
            .rows_affected()
    });
    Ok(changed == 1)
}

pub(crate) async fn set_state(
    tx: &mut Tx,
    user: UserId,
    state: UserState,
    reason: Option<&str>,
) -> Result<(), Error> {
    const UPDATE: &str = "UPDATE users SET state = ?, ban_reason = ? WHERE user_id = ?";
    let changed = on!(tx, raw => {
        sqlx::query(UPDATE)
            .bind(state.word())
            .bind(reason)
            .bind(key(user.as_uuid()))
            .execute(raw)
            .await?
            .rows_affected()
    });
    require_one(changed)
}

/// Inserts an identity. Fails with [`Error::Duplicate`] if it belongs to any user.
pub(crate) async fn insert_identity(tx: &mut Tx, user: UserId, identity: &Identity<'_>) -> Result<(), Error> {
    let now = tx.dialect().now();
    let text = format!(
        "INSERT INTO identities (identity_hash, user_id, issuer, subject, linked_at) VALUES (?, ?, ?, ?, {now})"
    );
    let hash = identity.hash();
    on!(tx, raw => {
        sqlx::query(AssertSqlSafe(text))
            .bind(&hash[..])
            .bind(key(user.as_uuid()))
            .bind(identity.issuer)
            .bind(identity.subject)
            .execute(raw)
            .await?;
    });
    Ok(())
}

/// Returns the hashes of all identities of a user.
pub(crate) async fn identities(from: &mut impl Queryable, user: UserId) -> Result<Vec<Vec<u8>>, Error> {
    const READ: &str = "SELECT identity_hash FROM identities WHERE user_id = ?";
    Ok(on!(from, raw => sqlx::query_scalar(READ).bind(key(user.as_uuid())).fetch_all(raw).await?))
}

pub(crate) async fn delete_identity(tx: &mut Tx, user: UserId, identity: &Identity<'_>) -> Result<(), Error> {
    const DELETE: &str = "DELETE FROM identities WHERE identity_hash = ? AND user_id = ?";
    let hash = identity.hash();
    let deleted = on!(tx, raw => {
        sqlx::query(DELETE).bind(&hash[..]).bind(key(user.as_uuid())).execute(raw).await?.rows_affected()
    });
    require_one(deleted)
}

/// Inserts an account. Fails with [`Error::Duplicate`] if the user has one with this name.
pub(crate) async fn insert_account(
    tx: &mut Tx,
    user: UserId,
    account: AccountId,
    name: &str,
) -> Result<(), Error> {
    let now = tx.dialect().now();
    let text =
        format!("INSERT INTO accounts (user_id, account_id, name, created_at) VALUES (?, ?, ?, {now})");
    on!(tx, raw => {
        sqlx::query(AssertSqlSafe(text))
            .bind(key(user.as_uuid()))
            .bind(key(account.as_uuid()))
            .bind(name)
            .execute(raw)
            .await?;
    });
    Ok(())
}

/// Returns the accounts of a user, oldest first.
pub(crate) async fn accounts(from: &mut impl Queryable, user: UserId) -> Result<Vec<Account>, Error> {
    const READ: &str = "SELECT user_id, account_id, name, created_at FROM accounts
        WHERE user_id = ? ORDER BY created_at, account_id";
    let rows: Vec<AccountRow> =
        on!(from, raw => sqlx::query_as(READ).bind(key(user.as_uuid())).fetch_all(raw).await?);
    rows.into_iter().map(account_of).collect()
}

pub(crate) async fn account_of_name(
    from: &mut impl Queryable,
    user: UserId,
    name: &str,
) -> Result<Option<Account>, Error> {
    const READ: &str =
        "SELECT user_id, account_id, name, created_at FROM accounts WHERE user_id = ? AND name = ?";
    let row: Option<AccountRow> = on!(from, raw => {
        sqlx::query_as(READ).bind(key(user.as_uuid())).bind(name).fetch_optional(raw).await?
    });
    row.map(account_of).transpose()
}

/// The condition that an account belongs to a user. Parameters: user id, account id. An erased user has no accounts.
pub(crate) const HAS_ACCOUNT: &str = "EXISTS (SELECT 1 FROM accounts WHERE user_id = ? AND account_id = ?)";

pub(crate) async fn has_account(
    from: &mut impl Queryable,
    user: UserId,
    account: AccountId,
) -> Result<bool, Error> {
    let text = format!("SELECT {HAS_ACCOUNT}");
    let found: i64 = on!(from, raw => {
        sqlx::query_scalar(AssertSqlSafe(text))
            .bind(key(user.as_uuid()))
            .bind(key(account.as_uuid()))
            .fetch_one(raw)
            .await?
    });
    Ok(found != 0)
}

/// Removes all personal data. The row of the user remains as a tombstone.
pub(crate) async fn erase(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    const DELETE: [&str; 3] = [
        "DELETE FROM identities WHERE user_id = ?",
        "DELETE FROM accounts WHERE user_id = ?",
        "DELETE FROM user_notes WHERE user_id = ?",
    ];
    const CLEAR: &str =
        "UPDATE users SET state = ?, display_name = NULL, ban_reason = NULL, roles = '' WHERE user_id = ?";
    for text in DELETE {
        on!(tx, raw => { sqlx::query(text).bind(key(user.as_uuid())).execute(raw).await?; });
    }
    let changed = on!(tx, raw => {
        sqlx::query(CLEAR)
            .bind(UserState::Erased.word())
            .bind(key(user.as_uuid()))
            .execute(raw)
            .await?
            .rows_affected()
    });
    require_one(changed)
}

fn user_of(row: UserRow) -> Result<UserView, Error> {
    let known = UserState::from_word(&row.state);
    Ok(UserView {
        id: UserId::from_uuid(uuid(&row.user_id)?),
        state: known.ok_or_else(|| unreadable(format!("{:?} is not a user state", row.state)))?,
        display_name: row.display_name,
        roles: Role::split(&row.roles),
        ban_reason: row.ban_reason,
        created_at: Timestamp::from_millis(row.created_at),
    })
}

fn account_of(row: AccountRow) -> Result<Account, Error> {
    Ok(Account {
        id: AccountId::from_uuid(uuid(&row.account_id)?),
        user: UserId::from_uuid(uuid(&row.user_id)?),
        name: row.name,
        created_at: Timestamp::from_millis(row.created_at),
    })
}

fn key(id: &Uuid) -> &[u8] {
    id.as_bytes()
}

fn uuid(bytes: &[u8]) -> Result<Uuid, Error> {
    Uuid::from_slice(bytes).map_err(|error| unreadable(error.to_string()))
}

fn unreadable(what: String) -> Error {
    sqlx::Error::Decode(what.into()).into()
}

/// Fails unless one row was changed: it was read under the user's lock, so it must still exist.
fn require_one(rows: u64) -> Result<(), Error> {
    if rows == 1 { Ok(()) } else { Err(Error::Statement(sqlx::Error::RowNotFound)) }
}
