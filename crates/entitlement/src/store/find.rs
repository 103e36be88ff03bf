//! How operators find what happened: by user, by account, by what the shop calls it.

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Error};
use sqlx::AssertSqlSafe;

use super::{EntitlementRow, Entry, HistoryRow, bytes, read, read_entry, uuid};
use crate::model::{Entitlement, Holding};

const LIST_OF_USER: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND (account_id > ? OR account_id = ? AND resource > ?) ORDER BY account_id, resource LIMIT ?";

const COLUMNS: &str = "SELECT user_id, account_id, resource, entry, action, effect, change_quantity, change_valid_until, occurred_at, \
    recorded_at, caller, reference, version, state, quantity, event_id FROM entitlement_history";

/// Behind a place. Entries of the same time are in the order of their keys.
const BEHIND: &str = "(recorded_at < ? OR recorded_at = ? AND (user_id, account_id, resource, entry) > (?, ?, ?, ?)) \
    ORDER BY recorded_at DESC, user_id, account_id, resource, entry LIMIT ?";

db::row! {
    struct FoundRow {
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        resource: String,
        entry: i64,
        action: i32,
        effect: i32,
        change_quantity: Option<i64>,
        change_valid_until: Option<i64>,
        occurred_at: i64,
        recorded_at: i64,
        caller: String,
        reference: Option<String>,
        version: i64,
        state: i32,
        quantity: Option<i64>,
        event_id: Option<Vec<u8>>,
    }
}

/// Whose history, or of which purchase.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    User(UserId),
    Account(UserId, AccountId),
    Resource(Holding),
    Reference(String),
}

/// An entry of the history of any entitlement.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) holding: Holding,
    pub(crate) entry: Entry,
}

/// A place in a list of entries, the newest of which come first.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) recorded_at: Timestamp,
    pub(crate) holding: Holding,
    pub(crate) entry: i64,
}

impl Place {
    /// Before all entries.
    pub(crate) fn first() -> Self {
        let holding = Holding {
            user: UserId::from_uuid(Uuid::nil()),
            account: AccountId::from_uuid(Uuid::nil()),
            resource: String::new(),
        };
        Self { recorded_at: Timestamp::from_millis(i64::MAX), holding, entry: 0 }
    }
}

/// What all accounts of a user have or had, behind a resource of an account.
pub(crate) async fn list_of_user(
    connection: &mut Conn,
    user: UserId,
    (account, resource): (Uuid, &str),
    limit: u32,
) -> Result<Vec<(Holding, Entitlement)>, Error> {
    let rows: Vec<EntitlementRow> = db::on!(connection, raw => {
        let query = sqlx::query_as(LIST_OF_USER).bind(bytes(user.as_uuid())).bind(bytes(&account));
        query.bind(bytes(&account)).bind(resource).bind(i64::from(limit)).fetch_all(raw).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// What happened, the newest first, behind a place.
pub(crate) async fn search(
    connection: &mut Conn,
    which: &Which,
    behind: &Place,
    limit: u32,
) -> Result<Vec<Found>, Error> {
    let condition = match which {
        Which::User(_) => "user_id = ?",
        Which::Account(..) => "user_id = ? AND account_id = ?",
        Which::Resource(_) => "user_id = ? AND account_id = ? AND resource = ?",
        Which::Reference(_) => "reference = ?",
    };
    let text = AssertSqlSafe(format!("{COLUMNS} WHERE {condition} AND {BEHIND}"));
    let Place { recorded_at, holding, entry } = behind;
    let rows: Vec<FoundRow> = db::on!(connection, raw => {
        let query = sqlx::query_as(text);
        let query = match which {
            Which::User(user) => query.bind(bytes(user.as_uuid())),
            Which::Account(user, account) => query.bind(bytes(user.as_uuid())).bind(bytes(account.as_uuid())),
            Which::Resource(of) => {
                query.bind(bytes(of.user.as_uuid())).bind(bytes(of.account.as_uuid())).bind(&of.resource)
            }
            Which::Reference(reference) => query.bind(reference),
        };
        let query = query.bind(recorded_at.as_millis()).bind(recorded_at.as_millis());
        let query = query.bind(bytes(holding.user.as_uuid())).bind(bytes(holding.account.as_uuid()));
        query.bind(&holding.resource).bind(*entry).bind(i64::from(limit)).fetch_all(raw).await?
    });
    Ok(rows.into_iter().map(found).collect())
}

fn found(row: FoundRow) -> Found {
    let holding = Holding {
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: AccountId::from_uuid(uuid(&row.account_id)),
        resource: row.resource,
    };
    let entry = read_entry(HistoryRow {
        entry: row.entry,
        action: row.action,
        effect: row.effect,
        change_quantity: row.change_quantity,
        change_valid_until: row.change_valid_until,
        occurred_at: row.occurred_at,
        recorded_at: row.recorded_at,
        caller: row.caller,
        reference: row.reference,
        version: row.version,
        state: row.state,
        quantity: row.quantity,
        event_id: row.event_id,
    });
    Found { holding, entry }
}
