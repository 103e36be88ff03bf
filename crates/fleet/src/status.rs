//! The status for operators: the running processes, and the findings of all services.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::error::chain;
use base::finding::{Finding, Verdict};
use base::id::Uuid;
use db::{Db, Error};
use futures::future::join_all;
use screens::{Figure, Series};
use service::{Lease, Provided, Role, Roles, ServiceStatus, Services};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::figures::combine;
use crate::model::{ProcessState, ProcessView, check_processes, missing_roles};
use crate::store;
use crate::watch::FindingTimes;

/// How long the console's screens share what was read. Every open screen is read about once a second.
const SHARED_FOR: Duration = Duration::from_secs(2);

/// How far back the charts of the overview reach.
const CHARTED_MILLIS: i64 = 30 * 60 * 1000;

/// All processes of the deployment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fleet {
    db: Db,
    expected: Roles,
    services: Services,
    provided: Provided,
    shared: Arc<Mutex<Option<SharedSnapshot>>>,
}

/// A snapshot and when it was read.
type SharedSnapshot = (Instant, Arc<Snapshot>);

/// What the console's screens show, read at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) status: Status,
    /// Since when the findings exist.
    pub(crate) times: FindingTimes,
    /// The figures of the last half hour.
    pub(crate) figures: Vec<(Figure, Series)>,
}

/// The processes and the status of every service.
#[derive(Clone, Debug)]
pub struct Status {
    pub now: Timestamp,
    pub processes: Vec<ProcessView>,
    /// The leases that each process holds: the number of items per queue.
    pub leases: BTreeMap<Uuid, BTreeMap<&'static str, u64>>,
    pub missing: Vec<Role>,
    /// The findings with the name of their service. Those about processes come first.
    pub findings: Vec<(&'static str, Finding)>,
}

impl Fleet {
    pub(crate) fn new(db: Db, expected: Roles, services: Services, provided: Provided) -> Self {
        Self { db, expected, services, provided, shared: Arc::default() }
    }

    pub(crate) const fn db(&self) -> &Db {
        &self.db
    }

    pub(crate) const fn services(&self) -> Services {
        self.services
    }

    /// Reads all processes that have a row, and the time of the database.
    pub async fn processes(&self) -> Result<(Vec<ProcessView>, Timestamp), Error> {
        store::read(&self.db).await
    }

    /// Returns whether a running process has this role.
    pub async fn has(&self, role: Role) -> Result<bool, Error> {
        use ::config::Choice;

        let (processes, now) = self.processes().await?;
        let is_running = |process: &ProcessView| process.state(now) == ProcessState::Running;
        Ok(processes
            .iter()
            .any(|process| is_running(process) && process.roles.iter().any(|word| word == role.word())))
    }

    /// Collects the status of all services concurrently. A service that fails becomes a finding.
    pub async fn status(&self) -> Result<Status, Error> {
        let (processes, now) = self.processes().await?;
        let missing = missing_roles(&processes, &self.expected, now);
        let mut status = Status { now, processes, leases: BTreeMap::new(), missing, findings: Vec::new() };
        let own = check_processes(&status.processes, &self.expected, now);
        status.findings.extend(own.into_iter().map(|finding| ("fleet", finding)));
        let statuses = self
            .services
            .iter()
            .map(|service| async move { (service.name(), service.status(&self.provided).await) });
        for (name, service_status) in join_all(statuses).await {
            let ServiceStatus { findings, leases } = service_status.unwrap_or_else(|error| ServiceStatus {
                findings: vec![Finding::failure(
                    format!("the status cannot be read: {}", chain(&*error)),
                    "run `playhouse doctor` to check the stores",
                )],
                leases: Vec::new(),
            });
            status.findings.extend(findings.into_iter().map(|finding| (name, finding)));
            for Lease { holder, queue, items } in leases {
                *status.leases.entry(holder).or_default().entry(queue).or_default() += items;
            }
        }
        Ok(status)
    }

    /// Returns the figures of all services from `since` on, by name: the values of all processes combined, a point per 10 seconds. The
    /// last hour is kept.
    pub async fn figures(&self, since: Timestamp) -> Result<BTreeMap<&'static str, Series>, Error> {
        self.figures_until(since, self.db.now().await?).await
    }

    async fn figures_until(
        &self,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<BTreeMap<&'static str, Series>, Error> {
        let samples = store::samples::read(&self.db, since).await?;
        Ok(combine(&self.services.figures(), &samples, since, now))
    }

    /// Reads everything that the console shows. Concurrent and closely following readers share one read.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Error> {
        let mut shared = self.shared.lock().await;
        if let Some((at, snapshot)) = &*shared
            && at.elapsed() < SHARED_FOR
        {
            return Ok(Arc::clone(snapshot));
        }
        let status = self.status().await?;
        let times = FindingTimes(store::findings::read(&self.db).await?);
        let since = Timestamp::from_millis(status.now.as_millis() - CHARTED_MILLIS);
        let mut series = self.figures_until(since, status.now).await?;
        let figures = self.services.figures().into_iter();
        let figures = figures.filter_map(|figure| Some((figure, series.remove(figure.name)?))).collect();
        let snapshot = Arc::new(Snapshot { status, times, figures });
        *shared = Some((Instant::now(), Arc::clone(&snapshot)));
        Ok(snapshot)
    }
}

impl Status {
    /// Returns whether no finding is a failure.
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|(_, finding)| finding.verdict != Verdict::Failure)
    }
}
