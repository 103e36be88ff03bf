//! Reads the state that decides requests.

use account::Accounts;
use base::Timestamp;
use db::{Error, IdempotencyKey, KeyLookup, Tx};
use outbox::Outbox;
use sqlx::AssertSqlSafe;

use super::{bytes, state_of};
use crate::event;
use crate::model::{Entitlement, Holding};

/// How many holdings are read with one query at most. Each part of that query costs the server 0.3 ms, more than a round trip. More
/// holdings take three queries, whose parts cost a fifth of that.
const MAX_SINGLE_QUERY: usize = 4;

const NO_KEY: [u8; 32] = [0; 32];

const ENTITLEMENT: &str = "e.state, e.version, e.quantity, e.valid_until, e.as_of, e.revoked_as_of, e.granted_as_of, e.entries \
    FROM (SELECT 1 AS one) AS always LEFT JOIN entitlements e ON e.user_id = ? AND e.account_id = ? AND e.resource = ?";

db::row! {
    /// The entitlement exists if `state` is not null.
    struct LookupRow {
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

/// A holding to look up. The first holding of a request comes with the key of the request.
pub(crate) type HoldingQuery<'a> = (Option<&'a IdempotencyKey>, &'a Holding);

/// The state that decides a change.
pub(crate) struct HoldingLookup {
    /// The result for the key of the query. [`KeyLookup::New`] if the query has none.
    pub(crate) key: KeyLookup,
    /// Whether all events of the entitlement are published.
    pub(crate) all_published: bool,
    pub(crate) has_account: bool,
    pub(crate) entitlement: Option<Entitlement>,
}

/// Looks up holdings: few with one query, many with three. The transaction must hold their locks.
pub(crate) async fn look_up(
    tx: &mut Tx,
    outbox: &Outbox,
    queries: &[HoldingQuery<'_>],
) -> Result<Vec<HoldingLookup>, Error> {
    if queries.len() <= MAX_SINGLE_QUERY {
        look_up_few(tx, queries).await
    } else {
        look_up_many(tx, outbox, queries).await
    }
}

async fn look_up_few(tx: &mut Tx, queries: &[HoldingQuery<'_>]) -> Result<Vec<HoldingLookup>, Error> {
    let part = format!(
        "SELECT {}, {} AS unfinished, {} AS owns, {ENTITLEMENT}",
        IdempotencyKey::COLUMNS,
        Outbox::UNFINISHED,
        Accounts::OWNS
    );
    let text = union_of(queries, &part);
    let rows: Vec<LookupRow> = db::on!(tx, connection => {
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for (key, holding) in padded(queries) {
            let key = key.map_or(&NO_KEY[..], IdempotencyKey::hash);
            let (user, account) = (bytes(holding.user.as_uuid()), bytes(holding.account.as_uuid()));
            query = query.bind(key).bind(key).bind(event_key_hash(holding));
            query = query.bind(user).bind(account).bind(user).bind(account).bind(&holding.resource);
        }
        query.fetch_all(connection).await?
    });
    let read = |((key, _), mut row): (&HoldingQuery<'_>, LookupRow)| {
        let response = row.answer.take();
        let key = key.map_or(KeyLookup::New, |key| key.interpret(row.fingerprint.as_deref(), response));
        row.lookup(key, row.unfinished == 0)
    };
    Ok(queries.iter().zip(rows).map(read).collect())
}

async fn look_up_many(
    tx: &mut Tx,
    outbox: &Outbox,
    queries: &[HoldingQuery<'_>],
) -> Result<Vec<HoldingLookup>, Error> {
    let keys: Vec<IdempotencyKey> = queries.iter().filter_map(|(key, _)| key.copied()).collect();
    let mut key_lookups = IdempotencyKey::look_up_all(tx, &keys).await?.into_iter();
    let key_hashes: Vec<i64> = queries.iter().map(|(_, holding)| event_key_hash(holding)).collect();
    let unfinished = outbox.unfinished_in(tx, &key_hashes).await?;
    let part = format!(
        "SELECT NULL AS fingerprint, NULL AS answer, 0 AS unfinished, {} AS owns, {ENTITLEMENT}",
        Accounts::OWNS
    );
    let text = union_of(queries, &part);
    let rows: Vec<LookupRow> = db::on!(tx, connection => {
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for (_, holding) in padded(queries) {
            let (user, account) = (bytes(holding.user.as_uuid()), bytes(holding.account.as_uuid()));
            query = query.bind(user).bind(account).bind(user).bind(account).bind(&holding.resource);
        }
        query.fetch_all(connection).await?
    });
    let read = |(((key, _), key_hash), row): ((&HoldingQuery<'_>, i64), LookupRow)| {
        let key = key.and_then(|_| key_lookups.next()).unwrap_or(KeyLookup::New);
        row.lookup(key, !unfinished.contains(&key_hash))
    };
    Ok(queries.iter().zip(key_hashes).zip(rows).map(read).collect())
}

/// Builds a statement with one part per query, padded to a power of two: the server prepares few different statements.
fn union_of(queries: &[HoldingQuery<'_>], part: &str) -> String {
    vec![part; queries.len().next_power_of_two()].join(" UNION ALL ")
}

/// Returns the queries, with the last one repeated for each part of the padding.
fn padded<'a, 'q>(queries: &'q [HoldingQuery<'a>]) -> impl Iterator<Item = &'q HoldingQuery<'a>> {
    let padding = queries.len().next_power_of_two() - queries.len();
    queries.iter().chain(queries.last().into_iter().cycle().take(padding))
}

fn event_key_hash(holding: &Holding) -> i64 {
    Outbox::key_hash(&event::key(holding))
}

impl LookupRow {
    fn lookup(&self, key: KeyLookup, all_published: bool) -> HoldingLookup {
        HoldingLookup { key, all_published, has_account: self.owns != 0, entitlement: self.entitlement() }
    }

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
