//! The audit log: who changed what, when, from where, why, and what came of it.

use std::net::IpAddr;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, marking};
use http_server::Caller;
use runtime::lifecycle::{Drain, LoopError};
use service::{Operator, Proof};

use crate::store;

/// How often old entries are removed.
const REMOVE_EVERY: Duration = Duration::from_secs(600);

/// How long texts of callers may be. The columns are as wide.
const MAX_NAME: usize = 255;
const MAX_TARGET: usize = 1_000;
const MAX_NOTE: usize = 500;

/// The audit log. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct AuditLog {
    db: Db,
    retention: Duration,
}

/// Who tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    /// `operator`, `service`, or `user` for another user of the issuer.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) proof: &'static str,
    pub(crate) subject: Option<String>,
}

/// What somebody tries to change.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) listener: &'static str,
    pub(crate) actor: Actor,
    /// The method and the path of the route.
    pub(crate) action: String,
    /// The path and the query of the request.
    pub(crate) target: String,
    pub(crate) address: Option<IpAddr>,
    pub(crate) request_id: Option<String>,
    pub(crate) note: Option<String>,
}

/// An entry whose change is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenEntry(pub(crate) Uuid);

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done.
    Done,
    /// It was refused, and nothing was changed.
    Refused,
    /// It failed. Whether something was changed is not certain.
    Failed,
    /// Its transaction was committed, and the process died before the answer.
    Committed,
    /// The process died, and nothing more is known.
    Unknown,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Done, Self::Refused, Self::Failed, Self::Committed, Self::Unknown];

    fn of(status: u16) -> Self {
        match status {
            ..400 => Self::Done,
            400..500 => Self::Refused,
            500.. => Self::Failed,
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Committed => "committed",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }

    pub(crate) fn words() -> String {
        Self::ALL.map(Self::word).join(", ")
    }
}

/// An entry, as it is read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Counts up: where a list goes on.
    pub(crate) number: i64,
    pub(crate) id: Uuid,
    pub(crate) at: Timestamp,
    pub(crate) listener: String,
    pub(crate) actor_kind: String,
    pub(crate) actor: String,
    pub(crate) proof: String,
    pub(crate) subject: Option<String>,
    pub(crate) action: String,
    pub(crate) target: String,
    pub(crate) address: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) outcome: Outcome,
    pub(crate) status: Option<i32>,
    pub(crate) finished: Option<Timestamp>,
}

/// Which entries: those that fit everything that is given.
#[derive(Clone, Debug, Default)]
pub struct EntryFilter {
    pub actor: Option<String>,
    /// A part of the action.
    pub action: Option<String>,
    /// A part of the target.
    pub target: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub(crate) outcome: Option<Outcome>,
}

/// From where, and in which order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page {
    /// The newest first, from before this number.
    Before(Option<i64>),
    /// The oldest first, from behind this number.
    After(i64),
}

impl Actor {
    pub(crate) fn operator(operator: &Operator) -> Self {
        Self { kind: "operator", ..Self::somebody(operator) }
    }

    pub(crate) fn somebody(somebody: &Operator) -> Self {
        let (proof, subject) = match &somebody.proof {
            Proof::ConfiguredToken => ("configured-token", None),
            Proof::IssuedToken { subject } => ("issued-token", Some(subject.clone())),
        };
        Self { kind: "user", name: somebody.name.clone(), proof, subject }
    }

    pub(crate) fn service(caller: &Caller) -> Self {
        Self { kind: "service", name: caller.name().to_owned(), proof: "service-token", subject: None }
    }
}

impl Attempt {
    /// The same with texts that fit their columns.
    pub(crate) fn fitted(&self) -> Self {
        Self {
            actor: Actor {
                name: start(&self.actor.name, MAX_NAME),
                subject: self.actor.subject.as_deref().map(|subject| start(subject, MAX_NAME)),
                ..self.actor.clone()
            },
            action: start(&self.action, MAX_NAME),
            target: start(&self.target, MAX_TARGET),
            note: self.note.as_deref().map(|note| start(note, MAX_NOTE)),
            ..self.clone()
        }
    }
}

/// The beginning of a text, of at most so many characters.
fn start(text: &str, characters: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(characters).collect()
}

impl OpenEntry {
    /// Runs the change. Each transaction that it commits marks the entry as committed.
    pub(crate) async fn marking<T>(self, change: impl Future<Output = T>) -> T {
        marking(store::COMMITS, self.0, change).await
    }
}

impl AuditLog {
    pub fn new(db: Db, retention: Duration) -> Self {
        Self { db, retention }
    }

    /// Enters a change that is about to be tried.
    pub(crate) async fn begin(&self, attempt: &Attempt) -> Result<OpenEntry, Error> {
        let id = Uuid::now_v7();
        store::insert(&self.db, id, &attempt.fitted(), None).await?;
        Ok(OpenEntry(id))
    }

    /// Enters what came of a change, by the status of its answer.
    pub(crate) async fn finish(&self, entry: &OpenEntry, status: u16) -> Result<(), Error> {
        store::finish(&self.db, entry.0, Outcome::of(status), status).await
    }

    /// Enters an attempt that was refused before anything was tried.
    pub(crate) async fn refused(&self, attempt: &Attempt, status: u16) -> Result<(), Error> {
        store::insert(&self.db, Uuid::now_v7(), &attempt.fitted(), Some((Outcome::Refused, status))).await
    }

    pub(crate) async fn list(
        &self,
        filter: &EntryFilter,
        page: Page,
        limit: u32,
    ) -> Result<Vec<Entry>, Error> {
        store::list(&self.db, filter, page, limit).await
    }

    /// Removes some of the entries that are older than `admin.audit_retention`. Returns how many.
    pub async fn tick(&self) -> Result<u64, Error> {
        store::remove_old(&self.db, self.retention).await
    }

    /// Removes old entries, until the process stops.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.tick().await? > 0 && !drain.is_requested() {}
            if !drain.sleep(REMOVE_EVERY).await {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
