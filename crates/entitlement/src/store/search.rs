//! SQL of the operators' searches: by user, account, resource or reference.

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Error};
use sqlx::AssertSqlSafe;

use super::{EntitlementRow, HistoryRecord, HistoryRow, bytes, read, read_record, uuid};
use crate::model::{Entitlement, Holding};

const LIST_OF_USER: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, \
    granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND (account_id > ? OR account_id = ? AND resource > ?) ORDER BY account_id, resource LIMIT ?";

const COLUMNS: &str = "SELECT user_id, account_id, resource, entry, action, effect, change_quantity, change_valid_until, occurred_at, \
    recorded_at, caller, reference, version, state, quantity, event_id FROM entitlement_history";

/// Selects the records after a cursor. Records with the same time are ordered by their keys.
const AFTER: &str = "(recorded_at < ? OR recorded_at = ? AND (user_id, account_id, resource, entry) > (?, ?, ?, ?)) \
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

/// Selects records of the history.
#[derive(Clone, Debug)]
pub(crate) enum HistoryFilter {
    User(UserId),
    Account(UserId, AccountId),
    Resource(Holding),
    Reference(String),
}

/// A record of the history and its entitlement.
#[derive(Clone, Debug)]
pub(crate) struct FoundRecord {
    pub(crate) holding: Holding,
    pub(crate) record: HistoryRecord,
}

/// A position in a list of records, newest first.
#[derive(Clone, Debug)]
pub(crate) struct HistoryCursor {
    pub(crate) recorded_at: Timestamp,
    pub(crate) holding: Holding,
    pub(crate) entry: i64,
}

impl HistoryCursor {
    /// Returns the position after a record.
    pub(crate) fn after(FoundRecord { holding, record }: &FoundRecord) -> Self {
        Self { recorded_at: record.recorded_at, holding: holding.clone(), entry: record.entry }
    }

    /// Returns the position with these values: the time in milliseconds, user, account, resource, and the number of the entry.
    pub(crate) fn from_parts(
        (recorded_at, user, account, resource, entry): (i64, Uuid, Uuid, String, i64),
    ) -> Self {
        let (user, account) = (UserId::from_uuid(user), AccountId::from_uuid(account));
        let holding = Holding { user, account, resource };
        Self { recorded_at: Timestamp::from_millis(recorded_at), holding, entry }
    }

    /// Returns the position before all records.
    pub(crate) fn first() -> Self {
        let holding = Holding {
            user: UserId::from_uuid(Uuid::nil()),
            account: AccountId::from_uuid(Uuid::nil()),
            resource: String::new(),
        };
        Self { recorded_at: Timestamp::from_millis(i64::MAX), holding, entry: 0 }
    }
}

/// Lists the entitlements of all accounts of a user after an account and resource, by account and resource.
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

/// Lists the records after a cursor, newest first.
pub(crate) async fn search(
    connection: &mut Conn,
    filter: &HistoryFilter,
    after: &HistoryCursor,
    limit: u32,
) -> Result<Vec<FoundRecord>, Error> {
    let condition = match filter {
        HistoryFilter::User(_) => "user_id = ?",
        HistoryFilter::Account(..) => "user_id = ? AND account_id = ?",
        HistoryFilter::Resource(_) => "user_id = ? AND account_id = ? AND resource = ?",
        HistoryFilter::Reference(_) => "reference = ?",
    };
    let text = AssertSqlSafe(format!("{COLUMNS} WHERE {condition} AND {AFTER}"));
    let HistoryCursor { recorded_at, holding, entry } = after;
    let rows: Vec<FoundRow> = db::on!(connection, raw => {
        let query = sqlx::query_as(text);
        let query = match filter {
            HistoryFilter::User(user) => query.bind(bytes(user.as_uuid())),
            HistoryFilter::Account(user, account) => query.bind(bytes(user.as_uuid())).bind(bytes(account.as_uuid())),
            HistoryFilter::Resource(of) => {
                query.bind(bytes(of.user.as_uuid())).bind(bytes(of.account.as_uuid())).bind(&of.resource)
            }
            HistoryFilter::Reference(reference) => query.bind(reference),
        };
        let query = query.bind(recorded_at.as_millis()).bind(recorded_at.as_millis());
        let query = query.bind(bytes(holding.user.as_uuid())).bind(bytes(holding.account.as_uuid()));
        query.bind(&holding.resource).bind(*entry).bind(i64::from(limit)).fetch_all(raw).await?
    });
    Ok(rows.into_iter().map(read_found).collect())
}

fn read_found(row: FoundRow) -> FoundRecord {
    let holding = Holding {
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: AccountId::from_uuid(uuid(&row.account_id)),
        resource: row.resource,
    };
    let record = read_record(HistoryRow {
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
    FoundRecord { holding, record }
}
