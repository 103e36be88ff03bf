//! Servers requested from an allocator, until their match is recorded or they are given back (docs/adr/0011).
//!
//! A row is written before the request is sent. It is deleted in the same transaction that records the outcome: that
//! the match was made, that it has no server, or the give-back call and the event `playhouse.match.abandoned.v1`.
//!
//! Failure modes: without SQL no allocator is called. The [`Sweeper`] finds rows that an engine left behind.

mod admin;
mod bulk;
mod give_back;
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
use work_queue::{NewItem, WorkQueue};

use crate::metrics::Metrics;
use crate::model::{Match, MatchId};

pub(crate) use admin::{database_problem, operator_routes};
pub(crate) use bulk::jobs;
pub use give_back::GiveBackWorker;
pub(crate) use store::delete_rows;
pub use sweep::Sweeper;

/// The work queue of give-back calls, and its table.
pub const ABANDONED: &str = "matchmaking_abandoned";

/// The type of the event.
pub(crate) const MATCH_ABANDONED: &str = "playhouse.match.abandoned.v1";

/// How long an engine waits for the rows to be written before the request. Its tickets are held meanwhile.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

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
        Migration {
            version: 3,
            name: "matchmaking_definition",
            sqlite: include_str!("../migrations/sqlite/0003_matchmaking_definition.sql"),
            mysql: include_str!("../migrations/mysql/0003_matchmaking_definition.sql"),
        },
    ],
};

/// The open allocations. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Allocations(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    outbox: Outbox,
    queue: WorkQueue,
    clock: Clock,
    metrics: Metrics,
}

/// A server that was requested for a match and is neither recorded nor given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenAllocation {
    pub match_id: MatchId,
    pub assigner: String,
    pub profile: String,
    /// How many tickets the match has.
    pub tickets: usize,
    /// When the assigner was called, by the database's clock.
    pub asked_at: Timestamp,
}

/// Why a match was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AbandonReason {
    /// The store refused it: a ticket was cancelled, has expired or was assigned elsewhere.
    Refused,
    /// The allocator's response for it was unreadable.
    Unreadable,
    /// The allocator did not answer, or failed.
    Unanswered,
    /// The engine died, or could not write the match.
    Unsettled,
}

impl AbandonReason {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
            Self::Unanswered => "unanswered",
            Self::Unsettled => "unsettled",
        }
    }
}

/// A match whose server is given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedMatch {
    pub match_id: String,
    /// The name of its allocator.
    pub assigner: String,
    pub match_profile: String,
    pub ticket_ids: Vec<String>,
    pub reason: AbandonReason,
    /// When the allocator was called, in milliseconds since the Unix epoch by the database's clock.
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
        let queues = outbox.queue().metrics().for_queue(ABANDONED);
        let queue = WorkQueue::new(ABANDONED, db.clone(), config, queues, clock.clone()).unordered().into();
        Self(Arc::new(Inner { db, outbox, queue, clock, metrics }))
    }

    /// Returns the time by the database's clock.
    pub(crate) async fn now(&self) -> Result<Timestamp, db::Error> {
        self.0.db.now().await
    }

    /// Returns the work queue of give-back calls.
    pub fn queue(&self) -> &WorkQueue {
        &self.0.queue
    }

    /// Returns the oldest open allocations.
    pub async fn oldest_open(&self, limit: u32) -> Result<Vec<OpenAllocation>, db::Error> {
        store::oldest(&self.0.db, limit).await
    }

    /// Returns the open allocation of a match.
    pub async fn find_open(&self, id: MatchId) -> Result<Option<OpenAllocation>, db::Error> {
        store::find(&self.0.db, id).await
    }

    /// Writes a row for each match before the allocator is called. If the reply to the commit is lost, the rows may
    /// exist; the sweeper then gives them back.
    pub(crate) async fn open(&self, assigner: &str, matches: &[Match]) -> Result<(), db::Error> {
        let opening = async {
            let mut tx = self.0.db.begin().await?;
            store::open(&mut tx, assigner, matches).await?;
            tx.commit().await
        };
        match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(opened) => opened,
            Err(_) => {
                let timeout = format!("no answer within {OPEN_TIMEOUT:?}");
                Err(db::Error::Unreachable(io::Error::new(io::ErrorKind::TimedOut, timeout).into()))
            }
        }
    }

    /// Deletes the rows of matches without a server, and abandons the others. Returns how many were abandoned: those
    /// whose row still existed. If the write fails, the sweeper does the rest.
    pub(crate) async fn settle(
        &self,
        without_server: &[MatchId],
        abandoned: &[(MatchId, AbandonReason)],
    ) -> Result<usize, db::Error> {
        let (mut without_server_now, mut left, mut count) = (without_server, abandoned, 0);
        while !without_server_now.is_empty() || !left.is_empty() {
            let (next, later) = left.split_at(left.len().min(store::BATCH));
            let settling = || self.0.db.bounded(self.settle_batch(without_server_now, next));
            let abandoned_now = db::retry_conflicts(db::Error::is_conflict, settling).await?;
            for abandoned_match in &abandoned_now {
                self.0.metrics.match_abandoned(abandoned_match.reason.word());
                tracing::info!(
                    match_id = abandoned_match.match_id,
                    assigner = abandoned_match.assigner,
                    reason = abandoned_match.reason.word(),
                    "Abandoned a match; its server is given back"
                );
            }
            count += abandoned_now.len();
            (without_server_now, left) = (&[], later);
        }
        Ok(count)
    }

    async fn settle_batch(
        &self,
        without_server_now: &[MatchId],
        abandoned: &[(MatchId, AbandonReason)],
    ) -> Result<Vec<AbandonedMatch>, db::Error> {
        let mut tx = self.0.db.begin().await?;
        delete_rows(&mut tx, without_server_now);
        let abandoned_now = store::lock(&mut tx, abandoned).await?;
        let ids: Vec<MatchId> = abandoned_now.iter().map(|(id, _)| *id).collect();
        delete_rows(&mut tx, &ids);
        self.push(&mut tx, &abandoned_now);
        self.append(&mut tx, &abandoned_now);
        tx.commit().await?;
        Ok(abandoned_now.into_iter().map(|(_, abandoned_match)| abandoned_match).collect())
    }

    /// Adds the give-back calls to the transaction.
    fn push(&self, tx: &mut Tx, abandoned_now: &[(MatchId, AbandonedMatch)]) {
        let payloads: Vec<Vec<u8>> = abandoned_now
            .iter()
            .map(|(_, abandoned_match)| serde_json::to_vec(abandoned_match).unwrap_or_default())
            .collect();
        let items = abandoned_now.iter().zip(&payloads).map(|((id, abandoned_match), payload)| NewItem {
            id: *id.as_uuid(),
            user: Uuid::nil(),
            key: &abandoned_match.assigner,
            payload,
        });
        self.0.queue.push(tx, &items.collect::<Vec<_>>());
    }

    /// Adds the events to the transaction.
    fn append(&self, tx: &mut Tx, abandoned_now: &[(MatchId, AbandonedMatch)]) {
        let now = self.0.clock.now();
        let events = abandoned_now
            .iter()
            .filter_map(|(_, abandoned_match)| Some((Uuid::nil(), event(abandoned_match, now)?)));
        // A match is made or abandoned, once, so no other event has its key.
        self.0.outbox.append_local(tx, &events.collect::<Vec<_>>());
    }
}

fn event(abandoned_match: &AbandonedMatch, now: Timestamp) -> Option<Event> {
    let data = Data {
        match_id: &abandoned_match.match_id,
        match_profile: &abandoned_match.match_profile,
        assigner: &abandoned_match.assigner,
        ticket_ids: &abandoned_match.ticket_ids,
        reason: abandoned_match.reason.word(),
    };
    Some(Event {
        id: EventId::generate(),
        subject: MATCH_ABANDONED.trim_start_matches("playhouse.").to_owned(),
        kind: MATCH_ABANDONED.to_owned(),
        source: "/playhouse/matchmaking".to_owned(),
        time: now,
        key: Some(abandoned_match.match_id.clone()),
        traceparent: None,
        data: Json::from_value(&data).ok()?,
    })
}

/// Describes the event for its consumers.
pub(crate) fn event_kind() -> EventKind {
    let text = json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "required": ["match_id", "match_profile", "assigner", "ticket_ids", "reason"],
        "properties": {
            "match_id": text, "match_profile": text,
            "assigner": { "type": "string", "description": "The assigner whose server is given back." },
            "ticket_ids": { "type": "array", "items": text, "description": "The tickets of the match. They were released, or had left matchmaking." },
            "reason": {
                "type": "string", "enum": ["refused", "unreadable", "unanswered", "unsettled"],
                "description": "Why it was not match_: a ticket had left matchmaking, the assigner's response was unreadable, there was none, or the \
                    engine died.",
            },
        },
    });
    let summary = "A match that may have had a server was not match_, and the server is given back.";
    EventKind { kind: MATCH_ABANDONED, summary, key: "{match_id}", schema }
}
