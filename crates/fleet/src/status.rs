//! What an operator has to know: who runs, and what waits for somebody to act.

use std::collections::BTreeMap;

use base::Timestamp;
use base::error::chain;
use base::finding::{Finding, Verdict};
use base::id::Uuid;
use db::{Db, Error};
use futures::future::join_all;
use service::{Lease, Provided, Role, Roles, Services, Standing};

use crate::model::{ProcessState, ProcessView, judge, missing_roles};
use crate::store;

/// The fleet as this process sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fleet {
    db: Db,
    expected: Roles,
    services: Services,
    provided: Provided,
}

/// Who runs, and what every service says of itself.
#[derive(Clone, Debug)]
pub struct Status {
    pub now: Timestamp,
    pub processes: Vec<ProcessView>,
    /// The leases that each process holds: queues with the number of items.
    pub leases: BTreeMap<Uuid, BTreeMap<&'static str, u64>>,
    pub missing: Vec<Role>,
    /// By service. The first are about the processes.
    pub findings: Vec<(&'static str, Finding)>,
}

impl Fleet {
    pub(crate) const fn new(db: Db, expected: Roles, services: Services, provided: Provided) -> Self {
        Self { db, expected, services, provided }
    }

    /// All processes that have a row, and the database's clock.
    pub async fn processes(&self) -> Result<(Vec<ProcessView>, Timestamp), Error> {
        store::read(&self.db).await
    }

    /// Whether a process with this role runs.
    pub async fn has(&self, role: Role) -> Result<bool, Error> {
        use ::config::Choice;

        let (processes, now) = self.processes().await?;
        let runs = |process: &ProcessView| process.state(now) == ProcessState::Running;
        Ok(processes
            .iter()
            .any(|process| runs(process) && process.roles.iter().any(|word| word == role.word())))
    }

    /// Asks every service, all at once. One that cannot say fails, and the others are shown.
    pub async fn status(&self) -> Result<Status, Error> {
        let (processes, now) = self.processes().await?;
        let missing = missing_roles(&processes, &self.expected, now);
        let mut status = Status { now, processes, leases: BTreeMap::new(), missing, findings: Vec::new() };
        let own = judge(&status.processes, &self.expected, now);
        status.findings.extend(own.into_iter().map(|finding| ("fleet", finding)));
        let standings = self
            .services
            .iter()
            .map(|service| async move { (service.name(), service.standing(&self.provided).await) });
        for (name, standing) in join_all(standings).await {
            let Standing { findings, leases } = standing.unwrap_or_else(|error| Standing {
                findings: vec![Finding::failure(
                    format!("cannot be looked at: {}", chain(&*error)),
                    "`playhouse doctor` looks at the stores",
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
}

impl Status {
    /// Whether nothing fails.
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|(_, finding)| finding.verdict != Verdict::Failure)
    }
}
