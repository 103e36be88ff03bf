//! What has to be known before changes are decided on.

use account::Accounts;
use base::Timestamp;
use db::{Earlier, Error, IdempotencyKey, Tx};
use outbox::Outbox;
use sqlx::AssertSqlSafe;

use super::{bytes, state_of};
use crate::event;
use crate::model::{Entitlement, Holding};

/// How many holdings are read with one query at most. Each part of that query costs a server 0.3 ms, more than a round trip. Many
/// holdings take three queries, of which a part costs a fifth of that.
const IN_ONE_QUERY: usize = 4;

const NO_KEY: [u8; 32] = [0; 32];

const ENTITLEMENT: &str = "e.state, e.version, e.quantity, e.valid_until, e.as_of, e.revoked_as_of, e.granted_as_of, e.entries \
    FROM (SELECT 1 AS one) AS always LEFT JOIN entitlements e ON e.user_id = ? AND e.account_id = ? AND e.resource = ?";

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

/// A holding, and the key of the request that changes it first.
pub(crate) type Question<'a> = (Option<&'a IdempotencyKey>, &'a Holding);

/// What has to be known before a change is decided on.
pub(crate) struct KnownHolding {
    /// Of the request, where its key was asked for.
    pub(crate) earlier: Earlier,
    /// Whether all events of the entitlement have been published.
    pub(crate) is_told: bool,
    pub(crate) has_account: bool,
    pub(crate) entitlement: Option<Entitlement>,
}

/// Reads all that has to be known: with one query about few holdings, with three about many. The caller has locked the holdings.
pub(crate) async fn know(
    tx: &mut Tx,
    outbox: &Outbox,
    questions: &[Question<'_>],
) -> Result<Vec<KnownHolding>, Error> {
    if questions.len() <= IN_ONE_QUERY { few(tx, questions).await } else { many(tx, outbox, questions).await }
}

async fn few(tx: &mut Tx, questions: &[Question<'_>]) -> Result<Vec<KnownHolding>, Error> {
    let part = format!(
        "SELECT {}, {} AS unfinished, {} AS owns, {ENTITLEMENT}",
        IdempotencyKey::COLUMNS,
        Outbox::UNFINISHED,
        Accounts::OWNS
    );
    let text = for_each(questions, &part);
    let rows: Vec<KnownRow> = db::on!(tx, connection => {
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for (key, holding) in padded(questions) {
            let key = key.map_or(&NO_KEY[..], IdempotencyKey::hash);
            let (user, account) = (bytes(holding.user.as_uuid()), bytes(holding.account.as_uuid()));
            query = query.bind(key).bind(key).bind(key_number(holding));
            query = query.bind(user).bind(account).bind(user).bind(account).bind(&holding.resource);
        }
        query.fetch_all(connection).await?
    });
    let known = |((key, _), mut row): (&Question<'_>, KnownRow)| {
        let answer = row.answer.take();
        let earlier = key.map_or(Earlier::Nothing, |key| key.judge(row.fingerprint.as_deref(), answer));
        row.known(earlier, row.unfinished == 0)
    };
    Ok(questions.iter().zip(rows).map(known).collect())
}

async fn many(tx: &mut Tx, outbox: &Outbox, questions: &[Question<'_>]) -> Result<Vec<KnownHolding>, Error> {
    let keys: Vec<IdempotencyKey> = questions.iter().filter_map(|(key, _)| key.copied()).collect();
    let mut earlier = IdempotencyKey::earlier_of(tx, &keys).await?.into_iter();
    let numbers: Vec<i64> = questions.iter().map(|(_, holding)| key_number(holding)).collect();
    let unfinished = outbox.unfinished_in(tx, &numbers).await?;
    let part = format!(
        "SELECT NULL AS fingerprint, NULL AS answer, 0 AS unfinished, {} AS owns, {ENTITLEMENT}",
        Accounts::OWNS
    );
    let text = for_each(questions, &part);
    let rows: Vec<KnownRow> = db::on!(tx, connection => {
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for (_, holding) in padded(questions) {
            let (user, account) = (bytes(holding.user.as_uuid()), bytes(holding.account.as_uuid()));
            query = query.bind(user).bind(account).bind(user).bind(account).bind(&holding.resource);
        }
        query.fetch_all(connection).await?
    });
    let known = |(((key, _), number), row): ((&Question<'_>, i64), KnownRow)| {
        let earlier = key.and_then(|_| earlier.next()).unwrap_or(Earlier::Nothing);
        row.known(earlier, !unfinished.contains(&number))
    };
    Ok(questions.iter().zip(numbers).zip(rows).map(known).collect())
}

/// Returns a text with a part for each question, filled up to a power of two, so that there are few texts and each is prepared once.
fn for_each(questions: &[Question<'_>], part: &str) -> String {
    vec![part; questions.len().next_power_of_two()].join(" UNION ALL ")
}

/// Returns the questions, and the last of them again for each part of the text that is left.
fn padded<'a, 'q>(questions: &'q [Question<'a>]) -> impl Iterator<Item = &'q Question<'a>> {
    let padding = questions.len().next_power_of_two() - questions.len();
    questions.iter().chain(questions.last().into_iter().cycle().take(padding))
}

fn key_number(holding: &Holding) -> i64 {
    Outbox::key_number(&event::key(holding))
}

impl KnownRow {
    fn known(&self, earlier: Earlier, is_told: bool) -> KnownHolding {
        KnownHolding { earlier, is_told, has_account: self.owns != 0, entitlement: self.entitlement() }
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
