//! Rule sets, profiles and queues that change at run time (docs/adr/0034).
//!
//! The configuration file has the first definitions. A stored one replaces the one of the same kind and name. Every
//! process follows the newest stored revision: a live message announces it, and a poll finds it if that is lost.
//!
//! Invariants:
//! - a set of definitions is checked as a whole before it is stored
//! - revisions have no gaps, and each is one change of one definition. Rows are never changed
//! - a process follows a revision as a whole, or keeps the one before
//!
//! Failure modes: while SQL is unreachable, processes keep what they follow and nothing can be changed. A process whose
//! configuration lacks what a stored definition needs, such as an assigner, keeps the previous set and reports it. At its
//! start it leaves out the definitions that it cannot use.

pub(crate) mod admin;
mod change;
mod diff;
mod metrics;
mod model;
mod store;
mod topic;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base::error::chain;
use db::Db;
use live::Live;
use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::config::{ConfiguredDefinitions, DefinitionMistake};
use crate::engine::{Assigner, Profile};
use crate::metrics::Metrics;
use crate::players::Queue;

use self::topic::{AllDefinitions, ReloadDefinitions};

pub(crate) use self::diff::diff;
pub use self::metrics::DefinitionMetrics;
pub use self::model::{Content, Definition, DefinitionKey, DefinitionKind};

/// How often a process looks for a revision whose live message was lost.
const POLL: Duration = Duration::from_millis(700);

/// The definitions of this process. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Definitions(Arc<Inner>);

struct Inner {
    db: Db,
    live: Live,
    configured: ConfiguredDefinitions,
    assigners: BTreeMap<String, Arc<dyn Assigner>>,
    metrics: Metrics,
    own_metrics: DefinitionMetrics,
    active: RwLock<Arc<ActiveDefinitions>>,
    /// The newest revision that this process cannot follow, with the mistakes.
    rejected: Mutex<Option<Rejected>>,
    /// Called with every new set.
    followers: Mutex<Vec<Follower>>,
    /// Held while a revision is loaded and published, so that an older one never replaces a newer one.
    loading: tokio::sync::Mutex<()>,
}

type Follower = Box<dyn Fn(&ActiveDefinitions) + Send + Sync>;

/// A revision that this process cannot follow.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    pub(crate) revision: i64,
    pub(crate) mistakes: Vec<String>,
}

/// The definitions that a process follows.
#[derive(Clone, Debug, Default)]
pub struct ActiveDefinitions {
    /// The revision of the stored definitions. It is 0 if nothing was ever stored.
    pub revision: i64,
    pub profiles: Vec<Profile>,
    pub queues: Arc<BTreeMap<String, Queue>>,
}

impl std::fmt::Debug for Definitions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Definitions").field("active", &self.active().revision).finish_non_exhaustive()
    }
}

impl Definitions {
    /// Loads the stored definitions. Leaves out those that this process cannot use.
    pub(crate) async fn open(
        db: Db,
        live: Live,
        configured: ConfiguredDefinitions,
        assigners: BTreeMap<String, Arc<dyn Assigner>>,
        metrics: Metrics,
        own_metrics: DefinitionMetrics,
    ) -> Result<Self, db::Error> {
        let this = Self(Arc::new(Inner {
            db,
            live,
            configured,
            assigners,
            metrics,
            own_metrics,
            active: RwLock::default(),
            rejected: Mutex::default(),
            followers: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
        }));
        let revision = store::newest_revision(&this.0.db).await?;
        let stored = store::as_of(&this.0.db, revision).await?;
        this.0.own_metrics.stored.set(revision);
        let (resolved, mistakes) = this.0.configured.resolve(&stored);
        this.0.publish(ActiveDefinitions {
            revision,
            profiles: resolved.profiles(&this.0.assigners, &this.0.metrics),
            queues: Arc::new(resolved.queues),
        });
        if !mistakes.is_empty() {
            this.0.reject(revision, &mistakes, "Left out stored definitions that this process cannot use");
        }
        Ok(this)
    }

    /// Returns what this process follows now.
    pub fn active(&self) -> Arc<ActiveDefinitions> {
        self.0.active.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the newest revision that this process cannot follow, or can only in part.
    pub(crate) fn rejected(&self) -> Option<Rejected> {
        self.0.rejected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `follower` with the current definitions, and with every later set.
    pub fn follow(&self, follower: impl Fn(&ActiveDefinitions) + Send + Sync + 'static) {
        let mut followers = self.0.followers.lock().unwrap_or_else(PoisonError::into_inner);
        follower(&self.active());
        followers.push(Box::new(follower));
    }

    /// Follows the newest revision. Returns whether it is another one.
    pub async fn tick(&self) -> Result<bool, db::Error> {
        let inner = &self.0;
        let _loading = inner.loading.lock().await;
        let revision = store::newest_revision(&inner.db).await?;
        inner.own_metrics.stored.set(revision);
        let is_known = |rejected: &Rejected| rejected.revision == revision;
        if revision == self.active().revision || self.rejected().as_ref().is_some_and(is_known) {
            return Ok(false);
        }
        let stored = store::as_of(&inner.db, revision).await?;
        let (resolved, mistakes) = inner.configured.resolve(&stored);
        if !mistakes.is_empty() {
            inner.reject(
                revision,
                &mistakes,
                "Cannot use the stored definitions; this process keeps the previous ones",
            );
            return Ok(false);
        }
        *inner.rejected.lock().unwrap_or_else(PoisonError::into_inner) = None;
        inner.own_metrics.rejected.set(0);
        inner.publish(ActiveDefinitions {
            revision,
            profiles: resolved.profiles(&inner.assigners, &inner.metrics),
            queues: Arc::new(resolved.queues),
        });
        tracing::info!(revision, "Following new rule sets, profiles and queues");
        Ok(true)
    }

    /// Follows new revisions until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let mut changes = tokio::select! {
            changes = self.0.live.subscribe::<ReloadDefinitions>(AllDefinitions) => changes,
            () = drain.requested() => return Ok(()),
        };
        while !drain.is_requested() {
            if let Err(error) = self.tick().await {
                tracing::warn!(
                    outage = "sql",
                    cause = chain(&error),
                    "Cannot look for changed rule sets, profiles and queues; the current ones stay"
                );
            }
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep(POLL) => {}
                () = drain.requested() => {}
            }
        }
        Ok(())
    }
}

impl Inner {
    fn publish(&self, active: ActiveDefinitions) {
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        self.own_metrics.active.set(active.revision);
        followers.iter().for_each(|follower| follower(&active));
        *self.active.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(active);
    }

    fn reject(&self, revision: i64, mistakes: &[DefinitionMistake], what: &str) {
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        tracing::error!(
            revision,
            mistakes = mistakes.join("; "),
            "{what}. Correct them with `playhouse rules set`, or give this process the configuration that they need"
        );
        self.own_metrics.rejected.set(1);
        *self.rejected.lock().unwrap_or_else(PoisonError::into_inner) = Some(Rejected { revision, mistakes });
    }
}

#[cfg(test)]
mod tests;
