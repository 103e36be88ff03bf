//! SQL of the current entitlements and their histories.

mod lookup;
mod search;

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use bus::EventId;
use db::{Conn, Error, Tx, Value};

pub(crate) use self::lookup::{HoldingLookup, look_up};
pub(crate) use self::search::{FoundRecord, HistoryCursor, HistoryFilter, list_of_user, search};
use crate::model::{Action, Change, Effect, Entitlement, Holding, State};

const GET: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, \
    granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND account_id = ? AND resource = ?";
const SAVE: &str = "REPLACE INTO entitlements \
    (user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries)";
const ADD_HISTORY: &str = "INSERT INTO entitlement_history (user_id, account_id, resource, entry, action, effect, change_quantity, \
    change_valid_until, occurred_at, recorded_at, caller, reference, version, state, quantity, event_id)";
const LIST: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, \
    granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND account_id = ? AND resource > ? ORDER BY resource LIMIT ?";
const LIST_IN_FORCE: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, \
    granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND account_id = ? AND resource > ? AND state = 0 \
    AND (valid_until IS NULL OR valid_until > ?) ORDER BY resource LIMIT ?";
const ACTIVE_OF_USER: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, \
    granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND state = 0";
const HISTORY: &str = "SELECT entry, action, effect, change_quantity, change_valid_until, occurred_at, recorded_at, caller, reference, \
    version, state, quantity, event_id FROM entitlement_history \
    WHERE user_id = ? AND account_id = ? AND resource = ? AND entry < ? ORDER BY entry DESC LIMIT ?";

db::row! {
    struct EntitlementRow {
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        resource: String,
        state: i32,
        version: i64,
        quantity: Option<i64>,
        valid_until: Option<i64>,
        as_of: i64,
        revoked_as_of: Option<i64>,
        granted_as_of: Option<i64>,
        entries: i64,
    }
}

db::row! {
    struct HistoryRow {
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

/// A record of the history: a change and its effect.
#[derive(Clone, Debug)]
pub(crate) struct HistoryRecord {
    /// Counts the records of the entitlement, from 1.
    pub(crate) entry: i64,
    pub(crate) action: Action,
    pub(crate) effect: Effect,
    pub(crate) occurred_at: Timestamp,
    pub(crate) recorded_at: Timestamp,
    pub(crate) caller: String,
    pub(crate) reference: Option<String>,
    /// The version of the entitlement after the change. The state and the quantity are of that version, too.
    pub(crate) version: i64,
    pub(crate) state: State,
    pub(crate) quantity: Option<i64>,
    pub(crate) event: Option<EventId>,
}

/// A change with its effect and the entitlement after it.
#[derive(Clone, Debug)]
pub(crate) struct DecidedChange {
    pub(crate) change: Change,
    pub(crate) after: Entitlement,
    pub(crate) effect: Effect,
    /// The event, if the change is applied.
    pub(crate) event: Option<EventId>,
    /// Whether all earlier events of the entitlement are known to be published.
    pub(crate) all_published: bool,
}

/// Writes entitlements at the commit of the transaction, which must hold their locks.
pub(crate) fn save<'a>(tx: &mut Tx, rows: impl IntoIterator<Item = (&'a Holding, &'a Entitlement)>) {
    let row = |(holding, entitlement): (&'a Holding, &'a Entitlement)| {
        [
            holding.user.as_uuid().into(),
            holding.account.as_uuid().into(),
            holding.resource.as_str().into(),
            state_number(entitlement.state).into(),
            entitlement.version.into(),
            entitlement.quantity.into(),
            entitlement.valid_until.into(),
            entitlement.as_of.into(),
            entitlement.revoked_as_of.into(),
            entitlement.granted_as_of.into(),
            entitlement.entries.into(),
        ]
    };
    tx.insert_at_commit(SAVE, rows.into_iter().map(row));
}

/// Adds changes and their callers to the histories, at the commit of the transaction.
pub(crate) fn add_history<'a>(
    tx: &mut Tx,
    decided: impl IntoIterator<Item = (&'a DecidedChange, &'a str)>,
    now: Timestamp,
) {
    let rows = decided.into_iter().map(|(decided, caller)| history_row(decided, caller, now));
    tx.insert_at_commit(ADD_HISTORY, rows);
}

fn history_row<'a>(decided: &'a DecidedChange, caller: &'a str, now: Timestamp) -> [Value<'a>; 16] {
    let DecidedChange { change, after, effect, event, .. } = decided;
    let (action, valid_until) = match change.action {
        Action::Grant { valid_until, .. } => (GRANT, valid_until),
        Action::Revoke { .. } => (REVOKE, None),
    };
    [
        change.holding.user.as_uuid().into(),
        change.holding.account.as_uuid().into(),
        change.holding.resource.as_str().into(),
        after.entries.into(),
        action.into(),
        effect_number(*effect).into(),
        change.action.quantity().into(),
        valid_until.into(),
        change.occurred_at.into(),
        now.into(),
        caller.into(),
        change.reference.as_deref().into(),
        after.version.into(),
        state_number(after.state).into(),
        after.quantity.into(),
        event.as_ref().map(EventId::as_uuid).into(),
    ]
}

/// Reads an entitlement.
pub(crate) async fn get(connection: &mut Conn, holding: &Holding) -> Result<Option<Entitlement>, Error> {
    let row: Option<EntitlementRow> = db::on!(connection, raw => {
        sqlx::query_as(GET)
            .bind(bytes(holding.user.as_uuid()))
            .bind(bytes(holding.account.as_uuid()))
            .bind(&holding.resource)
            .fetch_optional(raw)
            .await?
    });
    Ok(row.map(|row| read(row).1))
}

/// Reads an entitlement in a transaction.
pub(crate) async fn get_in(tx: &mut Tx, holding: &Holding) -> Result<Option<Entitlement>, Error> {
    let row: Option<EntitlementRow> = db::on!(tx, connection => {
        sqlx::query_as(GET)
            .bind(bytes(holding.user.as_uuid()))
            .bind(bytes(holding.account.as_uuid()))
            .bind(&holding.resource)
            .fetch_optional(connection)
            .await?
    });
    Ok(row.map(|row| read(row).1))
}

/// Lists the entitlements of an account whose resource sorts after `after`, by resource. With `in_force_at`, only those in force then.
pub(crate) async fn list(
    connection: &mut Conn,
    user: UserId,
    account: AccountId,
    after: &str,
    in_force_at: Option<Timestamp>,
    limit: u32,
) -> Result<Vec<(Holding, Entitlement)>, Error> {
    let text = if in_force_at.is_some() { LIST_IN_FORCE } else { LIST };
    let rows: Vec<EntitlementRow> = db::on!(connection, raw => {
        let mut query =
            sqlx::query_as(text).bind(bytes(user.as_uuid())).bind(bytes(account.as_uuid())).bind(after);
        if let Some(now) = in_force_at {
            query = query.bind(now.as_millis());
        }
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads all active entitlements of a user.
pub(crate) async fn active_of_user(tx: &mut Tx, user: UserId) -> Result<Vec<(Holding, Entitlement)>, Error> {
    let rows: Vec<EntitlementRow> = db::on!(tx, connection => {
        sqlx::query_as(ACTIVE_OF_USER).bind(bytes(user.as_uuid())).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads the records of an entitlement with a smaller number than `before`, newest first.
pub(crate) async fn history(
    connection: &mut Conn,
    holding: &Holding,
    before: i64,
    limit: u32,
) -> Result<Vec<HistoryRecord>, Error> {
    let rows: Vec<HistoryRow> = db::on!(connection, raw => {
        sqlx::query_as(HISTORY)
            .bind(bytes(holding.user.as_uuid()))
            .bind(bytes(holding.account.as_uuid()))
            .bind(&holding.resource)
            .bind(before)
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    Ok(rows.into_iter().map(read_record).collect())
}

fn read(row: EntitlementRow) -> (Holding, Entitlement) {
    let holding = Holding {
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: AccountId::from_uuid(uuid(&row.account_id)),
        resource: row.resource,
    };
    let entitlement = Entitlement {
        state: state_of(row.state),
        version: row.version,
        quantity: row.quantity,
        valid_until: row.valid_until.map(Timestamp::from_millis),
        as_of: Timestamp::from_millis(row.as_of),
        revoked_as_of: row.revoked_as_of.map(Timestamp::from_millis),
        granted_as_of: row.granted_as_of.map(Timestamp::from_millis),
        entries: row.entries,
    };
    (holding, entitlement)
}

fn read_record(row: HistoryRow) -> HistoryRecord {
    let valid_until = row.change_valid_until.map(Timestamp::from_millis);
    HistoryRecord {
        entry: row.entry,
        action: match row.action {
            GRANT => Action::Grant { quantity: row.change_quantity, valid_until },
            _ => Action::Revoke { quantity: row.change_quantity },
        },
        effect: if row.effect == APPLIED { Effect::Applied } else { Effect::Superseded },
        occurred_at: Timestamp::from_millis(row.occurred_at),
        recorded_at: Timestamp::from_millis(row.recorded_at),
        caller: row.caller,
        reference: row.reference,
        version: row.version,
        state: state_of(row.state),
        quantity: row.quantity,
        event: row.event_id.map(|id| EventId::from_uuid(uuid(&id))),
    }
}

// Numbers in the tables.
const ACTIVE: i32 = 0;
const REVOKED: i32 = 1;
const GRANT: i32 = 0;
const REVOKE: i32 = 1;
const APPLIED: i32 = 0;
const SUPERSEDED: i32 = 1;

const fn state_number(state: State) -> i32 {
    match state {
        State::Active => ACTIVE,
        State::Revoked => REVOKED,
    }
}

const fn state_of(number: i32) -> State {
    if number == ACTIVE { State::Active } else { State::Revoked }
}

const fn effect_number(effect: Effect) -> i32 {
    match effect {
        Effect::Applied => APPLIED,
        Effect::Superseded => SUPERSEDED,
    }
}

fn bytes(id: &Uuid) -> &[u8] {
    &id.as_bytes()[..]
}

fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}
