//! Changes of the tables, run once each, by any number of processes at once.
//!
//! See ADR 0002 for why this is our own and how it survives a kill at any point.

mod mysql;
mod sqlite;

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::connect::Pools;
use crate::error::bounded;
use crate::{Db, Error};

/// The migrations of one component, in order.
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    pub component: &'static str,
    pub list: &'static [Migration],
}

/// One change. Its text is never edited once it is released.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Counts up from 1 within the component.
    pub version: u32,
    pub name: &'static str,
    pub sqlite: &'static str,
    /// A single statement: MySQL commits each by itself.
    pub mysql: &'static str,
}

/// What is there and what is to be done. Entries are `component/0001_name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub applied: Vec<String>,
    pub pending: Vec<String>,
    /// Recorded by a newer program. It is for that program to keep the old one working.
    pub newer: Vec<String>,
}

impl Status {
    /// That of a store that does not exist yet.
    pub fn of_nothing(sets: &[Migrations]) -> Self {
        let all = sets
            .iter()
            .flat_map(|set| set.list.iter().map(|step| title(set.component, step.version, step.name)));
        Self { pending: all.collect(), ..Self::default() }
    }
}

/// A migration as it is recorded.
pub(crate) struct Record {
    name: String,
    checksum: Vec<u8>,
    finished: bool,
}

/// What is recorded, by component and version.
pub(crate) type Records = BTreeMap<(String, u32), Record>;

/// A migration that is to be run, with its text in the store's dialect.
#[derive(Clone)]
pub(crate) struct Step {
    component: &'static str,
    version: u32,
    name: &'static str,
    sql: &'static str,
    /// It was begun before, and may have been done.
    begun: bool,
}

impl Db {
    /// What is applied and what is pending.
    pub async fn migration_status(&self, sets: &[Migrations]) -> Result<Status, Error> {
        let records = match &self.pools {
            Pools::Sqlite { readers, .. } => bounded(self.limit, sqlite::records(readers)).await?,
            Pools::MySql(server) => bounded(self.limit, mysql::records(&server.pool)).await?,
        };
        let steps = self.pending(sets, &records)?;
        let newest = |component: &str| {
            sets.iter()
                .find(|set| set.component == component)
                .and_then(|set| set.list.last())
                .map(|last| last.version)
        };
        let mut status = Status { pending: steps.iter().map(Step::title).collect(), ..Status::default() };
        for ((component, version), record) in &records {
            let title = title(component, *version, &record.name);
            if newest(component) < Some(*version) {
                status.newer.push(title);
            } else if record.finished {
                status.applied.push(title);
            }
        }
        Ok(status)
    }

    /// Refuses to go on while anything is pending.
    pub async fn require_migrated(&self, sets: &[Migrations]) -> Result<(), Error> {
        let status = self.migration_status(sets).await?;
        if !status.newer.is_empty() {
            tracing::warn!(newer = status.newer.join(", "), "the database was migrated by a newer version");
        }
        if status.pending.is_empty() { Ok(()) } else { Err(Error::PendingMigrations(status.pending)) }
    }

    /// Runs what is pending and returns it. Safe in any number of processes at once: one works, the others wait for it.
    pub async fn migrate(&self, sets: &[Migrations]) -> Result<Vec<String>, Error> {
        match &self.pools {
            Pools::Sqlite { writer, .. } => sqlite::migrate(self, writer, sets).await,
            Pools::MySql(server) => mysql::migrate(self, &server.pool, sets).await,
        }
    }

    /// The steps that are not recorded as finished, after checking those that are.
    fn pending(&self, sets: &[Migrations], records: &Records) -> Result<Vec<Step>, Error> {
        let mut steps = Vec::new();
        for set in sets {
            for migration in set.list {
                let sql = match &self.pools {
                    Pools::Sqlite { .. } => migration.sqlite,
                    Pools::MySql(_) => migration.mysql,
                };
                let record = records.get(&(set.component.to_owned(), migration.version));
                let step = Step {
                    component: set.component,
                    version: migration.version,
                    name: migration.name,
                    sql,
                    begun: record.is_some(),
                };
                if let Some(record) = record {
                    step.check(record)?;
                }
                if record.is_none_or(|record| !record.finished) {
                    steps.push(step);
                }
            }
        }
        Ok(steps)
    }
}

impl Step {
    fn title(&self) -> String {
        title(self.component, self.version, self.name)
    }

    fn checksum(&self) -> Vec<u8> {
        Sha256::digest(self.sql.as_bytes()).to_vec()
    }

    fn check(&self, record: &Record) -> Result<(), Error> {
        if record.checksum == self.checksum() {
            return Ok(());
        }
        Err(self.failed(
            "it was applied or begun with another text than this program has; use the program that did so",
            None,
        ))
    }

    fn failed(&self, what: &str, source: Option<Error>) -> Error {
        Error::Migration { name: self.title(), what: what.to_owned(), source: source.map(Box::new) }
    }
}

fn title(component: &str, version: u32, name: &str) -> String {
    format!("{component}/{version:04}_{name}")
}
