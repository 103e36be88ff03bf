//! The audit log: who changed what, when, from where and why, and the outcome.

use std::net::IpAddr;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, with_commit_mark};
use http_server::Caller;
use runtime::lifecycle::{Drain, LoopError};
use service::{Operator, Proof};

use crate::store;

/// How often old entries are removed.
const CLEAN_INTERVAL: Duration = Duration::from_secs(600);

/// The limits of texts from callers, in characters: the widths of their columns.
const MAX_NAME: usize = 255;
const MAX_TARGET: usize = 1_000;
const MAX_NOTE: usize = 500;

/// The audit log. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct AuditLog {
    db: Db,
    retention: Duration,
}

/// The caller who attempts a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    /// `operator`, `service`, or `user` for a user of the issuer who is not an operator.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) proof: &'static str,
    pub(crate) subject: Option<String>,
}

/// A change that a caller attempts.
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

/// An entry whose change is in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingEntry(pub(crate) Uuid);

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuditOutcome {
    /// The change was applied.
    Done,
    /// The operator only asked what the change would do.
    DryRun,
    /// The change was refused and nothing was changed.
    Refused,
    /// The change failed. It may have been applied in part.
    Failed,
    /// The transaction was committed, and the process died before the response.
    Committed,
    /// The process died before the outcome was known.
    Unknown,
}

impl AuditOutcome {
    const ALL: [Self; 6] =
        [Self::Done, Self::DryRun, Self::Refused, Self::Failed, Self::Committed, Self::Unknown];

    fn from_response(status: u16, is_dry_run: bool) -> Self {
        match status {
            ..400 if is_dry_run => Self::DryRun,
            ..400 => Self::Done,
            400..500 => Self::Refused,
            500.. => Self::Failed,
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::DryRun => "dry-run",
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

/// An entry of the audit log.
#[derive(Clone, Debug)]
pub(crate) struct AuditEntry {
    /// A sequence number, from which a list continues.
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
    pub(crate) outcome: AuditOutcome,
    pub(crate) status: Option<i32>,
    pub(crate) finished: Option<Timestamp>,
}

/// Selects entries that match all given criteria.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub actor: Option<String>,
    /// A substring of the action.
    pub action: Option<String>,
    /// A substring of the target.
    pub target: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub(crate) outcome: Option<AuditOutcome>,
}

/// Where a page of entries starts, and its order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page {
    /// Entries before this number, the newest first.
    Before(Option<i64>),
    /// Entries after this number, the oldest first.
    After(i64),
}

impl Actor {
    pub(crate) fn operator(operator: &Operator) -> Self {
        Self { kind: "operator", ..Self::user(operator) }
    }

    pub(crate) fn user(user: &Operator) -> Self {
        let (proof, subject) = match &user.proof {
            Proof::ConfiguredToken => ("configured-token", None),
            Proof::IssuedToken { subject } => ("issued-token", Some(subject.clone())),
        };
        Self { kind: "user", name: user.name.clone(), proof, subject }
    }

    pub(crate) fn service(caller: &Caller) -> Self {
        Self { kind: "service", name: caller.name().to_owned(), proof: "service-token", subject: None }
    }
}

impl Attempt {
    /// Truncates the texts to the width of their columns.
    pub(crate) fn truncated(&self) -> Self {
        Self {
            actor: Actor {
                name: truncate(&self.actor.name, MAX_NAME),
                subject: self.actor.subject.as_deref().map(|subject| truncate(subject, MAX_NAME)),
                ..self.actor.clone()
            },
            action: truncate(&self.action, MAX_NAME),
            target: truncate(&self.target, MAX_TARGET),
            note: self.note.as_deref().map(|note| truncate(note, MAX_NOTE)),
            ..self.clone()
        }
    }
}

/// Truncates a text to a number of characters. Replaces control characters by spaces.
fn truncate(text: &str, characters: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(characters).collect()
}

impl PendingEntry {
    /// Runs the change. Each transaction that the change commits also marks the entry as committed.
    pub(crate) async fn marking<T>(self, change: impl Future<Output = T>) -> T {
        with_commit_mark(store::COMMITS, self.0, change).await
    }
}

impl AuditLog {
    pub fn new(db: Db, retention: Duration) -> Self {
        Self { db, retention }
    }

    /// Inserts the entry of a change that is about to be attempted.
    pub(crate) async fn begin(&self, attempt: &Attempt) -> Result<PendingEntry, Error> {
        let id = Uuid::now_v7();
        store::insert(&self.db, id, &attempt.truncated(), None).await?;
        Ok(PendingEntry(id))
    }

    /// Records the outcome of a change, according to its response.
    pub(crate) async fn finish(
        &self,
        entry: &PendingEntry,
        status: u16,
        is_dry_run: bool,
    ) -> Result<(), Error> {
        store::finish(&self.db, entry.0, AuditOutcome::from_response(status, is_dry_run), status).await
    }

    /// Inserts the entry of an attempt that was refused before it started.
    pub(crate) async fn record_refusal(&self, attempt: &Attempt, status: u16) -> Result<(), Error> {
        store::insert(&self.db, Uuid::now_v7(), &attempt.truncated(), Some((AuditOutcome::Refused, status)))
            .await
    }

    pub(crate) async fn list(
        &self,
        filter: &AuditFilter,
        page: Page,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, Error> {
        store::list(&self.db, filter, page, limit).await
    }

    /// Lists the entries of a request. A caller may use an id for several requests.
    pub(crate) async fn of_request(&self, request: &str, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        store::of_request(&self.db, request, limit).await
    }

    /// Removes a batch of entries that are older than `admin.audit_retention`. Returns how many.
    pub async fn tick(&self) -> Result<u64, Error> {
        store::remove_old(&self.db, self.retention).await
    }

    /// Removes old entries until the process stops.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.tick().await? > 0 && !drain.is_requested() {}
            if !drain.sleep(CLEAN_INTERVAL).await {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
