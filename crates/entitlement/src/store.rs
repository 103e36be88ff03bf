//! The tables: the entitlements as they are, and the history of each.

mod find;

use account::{AccountId, Accounts, UserId};
use base::Timestamp;
use base::id::Uuid;
use bus::EventId;
use db::{Conn, Earlier, Error, IdempotencyKey, Tx, Value};
use outbox::Outbox;
use sqlx::AssertSqlSafe;

use crate::event;
use crate::model::{Action, Change, Effect, Entitlement, Holding, State};

pub(crate) use self::find::{Found, Place, Which, list_of_user, search};

const GET: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND account_id = ? AND resource = ?";
const SAVE: &str = "REPLACE INTO entitlements \
    (user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries)";
const ADD_HISTORY: &str = "INSERT INTO entitlement_history (user_id, account_id, resource, entry, action, effect, change_quantity, \
    change_valid_until, occurred_at, recorded_at, caller, reference, version, state, quantity, event_id)";
const LIST: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND account_id = ? AND resource > ? ORDER BY resource LIMIT ?";
/// Those in force only, at a time.
const LIST_IN_FORCE: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries \
    FROM entitlements WHERE user_id = ? AND account_id = ? AND resource > ? AND state = 0 \
    AND (valid_until IS NULL OR valid_until > ?) ORDER BY resource LIMIT ?";
const ACTIVE_OF_USER: &str = "SELECT user_id, account_id, resource, state, version, quantity, valid_until, as_of, revoked_as_of, granted_as_of, entries \
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

db::row! {
    /// What is known of a change before it is decided on. There is an entitlement if there is a state.
    struct KnownRow {
        fingerprint: Option<Vec<u8>>,
        answer: Option<String>,
        owns: i64,
        unfinished: i64,
        state: Option<i32>,
        version: Option<i64>,
        quantity: Option<i64>,
        valid_until: Option<i64>,
        as_of: Option<i64>,
        revoked_as_of: Option<i64>,
        granted_as_of: Option<i64>,
        entries: Option<i64>,
    }
}

/// An entry of the history: a change and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) entry: i64,
    pub(crate) action: Action,
    pub(crate) effect: Effect,
    pub(crate) occurred_at: Timestamp,
    pub(crate) recorded_at: Timestamp,
    pub(crate) caller: String,
    pub(crate) reference: Option<String>,
    /// Of the entitlement after it.
    pub(crate) version: i64,
    pub(crate) state: State,
    pub(crate) quantity: Option<i64>,
    pub(crate) event: Option<EventId>,
}

/// A change that was decided on.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) change: Change,
    pub(crate) after: Entitlement,
    pub(crate) effect: Effect,
    pub(crate) event: Option<EventId>,
    /// Whether all events of the entitlement were published before this transaction.
    pub(crate) is_told: bool,
}

/// What has to be known before a change is decided on.
pub(crate) struct KnownHolding {
    /// Of the request, where its key was asked for.
    pub(crate) earlier: Earlier,
    /// Whether all events of the entitlement have been published.
    pub(crate) is_told: bool,
    pub(crate) has_account: bool,
    pub(crate) entitlement: Option<Entitlement>,
}

/// Reads all that has to be known, in one question. The caller has locked the holdings.
pub(crate) async fn know(
    tx: &mut Tx,
    questions: &[(Option<&IdempotencyKey>, &Holding)],
) -> Result<Vec<KnownHolding>, Error> {
    const ENTITLEMENT: &str = "e.state, e.version, e.quantity, e.valid_until, e.as_of, e.revoked_as_of, e.granted_as_of, e.entries \
        FROM (SELECT 1 AS one) AS always LEFT JOIN entitlements e ON e.user_id = ? AND e.account_id = ? AND e.resource = ?";
    const NO_KEY: [u8; 32] = [0; 32];
    // Filled up to a power of two with the last, so that there are few texts and each is prepared once.
    let filled = questions.len().next_power_of_two();
    let padding = questions.last().into_iter().cycle().take(filled - questions.len());
    let one = format!(
        "SELECT {}, {} AS owns, {} AS unfinished, {ENTITLEMENT}",
        IdempotencyKey::COLUMNS,
        Accounts::OWNS,
        Outbox::UNFINISHED
    );
    let text = vec![one; filled].join(" UNION ALL ");
    let rows: Vec<KnownRow> = db::on!(tx, connection => {
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for (key, holding) in questions.iter().chain(padding) {
            let key = key.map_or(&NO_KEY[..], IdempotencyKey::hash);
            let (user, account) = (bytes(holding.user.as_uuid()), bytes(holding.account.as_uuid()));
            query = query.bind(key).bind(key).bind(user).bind(account);
            query = query.bind(Outbox::key_number(&event::key(holding)));
            query = query.bind(user).bind(account).bind(&holding.resource);
        }
        query.fetch_all(connection).await?
    });
    let known = |((key, _), row): (&(Option<&IdempotencyKey>, &Holding), KnownRow)| {
        let entitlement = row.entitlement();
        let earlier = key.map_or(Earlier::Nothing, |key| key.judge(row.fingerprint.as_deref(), row.answer));
        KnownHolding { earlier, is_told: row.unfinished == 0, has_account: row.owns != 0, entitlement }
    };
    Ok(questions.iter().zip(rows).map(known).collect())
}

/// Writes entitlements as they are now, when the transaction is committed. The caller has locked them.
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

/// Adds to the histories, when the transaction is committed.
pub(crate) fn add_history(tx: &mut Tx, decided: &[Decided], caller: &str, now: Timestamp) {
    tx.insert_at_commit(ADD_HISTORY, decided.iter().map(|decided| history_row(decided, caller, now)));
}

fn history_row<'a>(decided: &'a Decided, caller: &'a str, now: Timestamp) -> [Value<'a>; 16] {
    let Decided { change, after, effect, event, .. } = decided;
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

/// One entitlement.
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

/// One entitlement as a transaction sees it.
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

/// Those of an account, in the order of their resources.
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

/// All that a user has.
pub(crate) async fn active_of_user(tx: &mut Tx, user: UserId) -> Result<Vec<(Holding, Entitlement)>, Error> {
    let rows: Vec<EntitlementRow> = db::on!(tx, connection => {
        sqlx::query_as(ACTIVE_OF_USER).bind(bytes(user.as_uuid())).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// The history of one, the newest first, from before an entry.
pub(crate) async fn history(
    connection: &mut Conn,
    holding: &Holding,
    before: i64,
    limit: u32,
) -> Result<Vec<Entry>, Error> {
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
    Ok(rows.into_iter().map(read_entry).collect())
}

impl KnownRow {
    fn entitlement(&self) -> Option<Entitlement> {
        Some(Entitlement {
            state: state_of(self.state?),
            version: self.version?,
            quantity: self.quantity,
            valid_until: self.valid_until.map(Timestamp::from_millis),
            as_of: Timestamp::from_millis(self.as_of?),
            revoked_as_of: self.revoked_as_of.map(Timestamp::from_millis),
            granted_as_of: self.granted_as_of.map(Timestamp::from_millis),
            entries: self.entries?,
        })
    }
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

fn read_entry(row: HistoryRow) -> Entry {
    let valid_until = row.change_valid_until.map(Timestamp::from_millis);
    Entry {
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

/// The numbers that stand for words in the tables.
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
