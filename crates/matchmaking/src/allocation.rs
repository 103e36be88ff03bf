//! Servers that an allocator was asked for, until their match is recorded or they are given back (docs/adr/0011).
//!
//! A row is written before the request leaves. It goes in one transaction with what became of the match: the record that the match was
//! made, the word that there is no server for it, or the give-back call and the event `playhouse.match.abandoned.v1`.
//!
//! Failure modes: without SQL no allocator is asked. A row that an engine leaves behind is found by the [`Sweeper`].

mod give_back;
mod operator;
mod store;
mod sweep;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use base::{Clock, Timestamp};
use bus::{Event, EventId, EventKind, Json};
use db::{Db, Migration, Migrations, Tx};
use outbox::Outbox;
use serde::{Deserialize, Serialize};
use serde_json::json;
use work_queue::{New, Queue};

use crate::metrics::Metrics;
use crate::model::{Match, MatchId};

pub use give_back::GiveBack;
pub(crate) use operator::operator_routes;
pub(crate) use store::forget_in;
pub use sweep::Sweeper;

/// The queue of give-back calls, and its table.
pub const ABANDONED: &str = "matchmaking_abandoned";

/// The kind of the event.
pub(crate) const MATCH_ABANDONED: &str = "playhouse.match.abandoned.v1";

/// How long an engine waits for the rows before it asks: its tickets are held meanwhile.
const OPENED_WITHIN: Duration = Duration::from_secs(2);

pub const MIGRATIONS: Migrations = Migrations {
    component: "matchmaking",
    list: &[
        Migration {
            version: 1,
            name: "matchmaking_allocation",
            sqlite: include_str!("../migrations/sqlite/0001_matchmaking_allocation.sql"),
            mysql: include_str!("../migrations/mysql/0001_matchmaking_allocation.sql"),
        },
        Migration {
            version: 2,
            name: ABANDONED,
            sqlite: work_queue::sqlite_table!("matchmaking_abandoned"),
            mysql: work_queue::mysql_table!("matchmaking_abandoned"),
        },
    ],
};

/// The allocations that are open. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Allocations(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    outbox: Outbox,
    queue: Queue,
    clock: Clock,
    metrics: Metrics,
}

/// Why a match was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The store refused it: a ticket was cancelled, has expired or was assigned elsewhere.
    Refused,
    /// The allocator's answer for it could not be read.
    Unreadable,
    /// The allocator did not answer, or failed.
    Unanswered,
    /// The engine died, or could not write the match.
    Unsettled,
}

impl Reason {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
            Self::Unanswered => "unanswered",
            Self::Unsettled => "unsettled",
        }
    }
}

/// A match that is given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedMatch {
    pub match_id: String,
    /// The name of its allocator.
    pub assigner: String,
    pub match_profile: String,
    pub ticket_ids: Vec<String>,
    pub reason: Reason,
    /// When the allocator was asked, in milliseconds since the Unix epoch by the database's clock.
    pub asked_at: i64,
}

/// The data of the event.
#[derive(Serialize)]
struct Data<'a> {
    match_id: &'a str,
    match_profile: &'a str,
    assigner: &'a str,
    ticket_ids: &'a [String],
    reason: &'static str,
}

impl Allocations {
    pub fn new(db: Db, outbox: Outbox, config: work_queue::Config, clock: Clock, metrics: Metrics) -> Self {
        let queues = outbox.queue().metrics().of(ABANDONED);
        let queue = Queue::new(ABANDONED, db.clone(), config, queues, clock.clone()).unordered().into();
        Self(Arc::new(Inner { db, outbox, queue, clock, metrics }))
    }

    /// The queue of give-back calls.
    pub fn queue(&self) -> &Queue {
        &self.0.queue
    }

    /// Writes down that an allocator is about to be asked for these matches. When the commit's answer is lost the rows may be there;
    /// then the sweeper gives them back.
    pub(crate) async fn open(&self, assigner: &str, matches: &[Match]) -> Result<(), db::Error> {
        let opening = async {
            let mut tx = self.0.db.begin().await?;
            store::open(&mut tx, assigner, matches).await?;
            tx.commit().await
        };
        match tokio::time::timeout(OPENED_WITHIN, opening).await {
            Ok(opened) => opened,
            Err(_) => {
                let silent = format!("no answer within {OPENED_WITHIN:?}");
                Err(db::Error::Unreachable(io::Error::new(io::ErrorKind::TimedOut, silent).into()))
            }
        }
    }

    /// Forgets the matches without a server, and abandons the others. Returns how many were abandoned: those whose row was still
    /// there. What cannot be written is left to the sweeper.
    pub(crate) async fn settle(
        &self,
        without_server: &[MatchId],
        abandoned: &[(MatchId, Reason)],
    ) -> Result<usize, db::Error> {
        let (mut forgotten, mut left, mut count) = (without_server, abandoned, 0);
        while !forgotten.is_empty() || !left.is_empty() {
            let (next, later) = left.split_at(left.len().min(store::AT_ONCE));
            let settling = || self.0.db.bounded(self.settle_some(forgotten, next));
            let given_up = db::retrying(db::Error::is_conflict, settling).await?;
            for lost in &given_up {
                self.0.metrics.match_abandoned(lost.reason.word());
                tracing::info!(
                    match_id = lost.match_id,
                    assigner = lost.assigner,
                    reason = lost.reason.word(),
                    "a match is abandoned and its server is given back"
                );
            }
            count += given_up.len();
            (forgotten, left) = (&[], later);
        }
        Ok(count)
    }

    async fn settle_some(
        &self,
        forgotten: &[MatchId],
        abandoned: &[(MatchId, Reason)],
    ) -> Result<Vec<AbandonedMatch>, db::Error> {
        let mut tx = self.0.db.begin().await?;
        forget_in(&mut tx, forgotten);
        let given_up = store::lock(&mut tx, abandoned).await?;
        let ids: Vec<MatchId> = given_up.iter().map(|(id, _)| *id).collect();
        forget_in(&mut tx, &ids);
        self.push(&mut tx, &given_up);
        self.append(&mut tx, &given_up);
        tx.commit().await?;
        Ok(given_up.into_iter().map(|(_, lost)| lost).collect())
    }

    /// Adds the give-back calls to the transaction.
    fn push(&self, tx: &mut Tx, given_up: &[(MatchId, AbandonedMatch)]) {
        let payloads: Vec<Vec<u8>> =
            given_up.iter().map(|(_, lost)| serde_json::to_vec(lost).unwrap_or_default()).collect();
        let items = given_up.iter().zip(&payloads).map(|((id, lost), payload)| New {
            id: *id.as_uuid(),
            user: Uuid::nil(),
            key: &lost.assigner,
            payload,
        });
        self.0.queue.push(tx, &items.collect::<Vec<_>>());
    }

    /// Adds the events to the transaction.
    fn append(&self, tx: &mut Tx, given_up: &[(MatchId, AbandonedMatch)]) {
        let now = self.0.clock.now();
        let events = given_up.iter().filter_map(|(_, lost)| Some((Uuid::nil(), event(lost, now)?)));
        // A match is made or abandoned, once: nothing else has its key.
        self.0.outbox.append_next(tx, &events.collect::<Vec<_>>());
    }
}

fn event(lost: &AbandonedMatch, now: Timestamp) -> Option<Event> {
    let data = Data {
        match_id: &lost.match_id,
        match_profile: &lost.match_profile,
        assigner: &lost.assigner,
        ticket_ids: &lost.ticket_ids,
        reason: lost.reason.word(),
    };
    Some(Event {
        id: EventId::generate(),
        subject: MATCH_ABANDONED.trim_start_matches("playhouse.").to_owned(),
        kind: MATCH_ABANDONED.to_owned(),
        source: "/playhouse/matchmaking".to_owned(),
        time: now,
        key: Some(lost.match_id.clone()),
        traceparent: None,
        data: Json::of(&data).ok()?,
    })
}

/// What readers know of the event.
pub(crate) fn event_kind() -> EventKind {
    let text = json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "required": ["match_id", "match_profile", "assigner", "ticket_ids", "reason"],
        "properties": {
            "match_id": text, "match_profile": text,
            "assigner": { "type": "string", "description": "The assigner whose server is given back." },
            "ticket_ids": { "type": "array", "items": text, "description": "The tickets of the match. They were released, or had left." },
            "reason": {
                "type": "string", "enum": ["refused", "unreadable", "unanswered", "unsettled"],
                "description": "Why it was not made: a ticket had left, the assigner's answer could not be read, there was none, or the \
                    engine died.",
            },
        },
    });
    let summary =
        "A match for which a server may have been allocated was not made, and the server is given back.";
    EventKind { kind: MATCH_ABANDONED, summary, key: "{match_id}", schema }
}
