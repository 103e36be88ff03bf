//! Schema migrations. Each runs once, even if several processes migrate at the same time.
//!
//! ADR 0002 says why we have our own runner and how it survives a kill at any point.

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

/// One schema change. Its text never changes once it is released.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Consecutive within the component, starting at 1.
    pub version: u32,
    pub name: &'static str,
    pub sqlite: &'static str,
    /// A single statement, because MySQL commits each DDL statement implicitly.
    pub mysql: &'static str,
}

/// The applied and pending migrations, each as `component/0001_name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationStatus {
    pub applied: Vec<String>,
    pub pending: Vec<String>,
    /// Applied by a newer version of the program, whose job it is to keep older versions working.
    pub newer: Vec<String>,
}

impl MigrationStatus {
    /// Returns the status of a store that does not exist yet.
    pub fn all_pending(sets: &[Migrations]) -> Self {
        let all = sets
            .iter()
            .flat_map(|set| set.list.iter().map(|step| title(set.component, step.version, step.name)));
        Self { pending: all.collect(), ..Self::default() }
    }
}

/// The row of a migration in `schema_migrations`.
pub(crate) struct Record {
    name: String,
    checksum: Vec<u8>,
    finished: bool,
}

/// The recorded migrations, by component and version.
pub(crate) type Records = BTreeMap<(String, u32), Record>;

/// A pending migration, with its text in the store's dialect.
#[derive(Clone)]
pub(crate) struct Step {
    component: &'static str,
    version: u32,
    name: &'static str,
    sql: &'static str,
    /// An earlier attempt began it and may have completed it.
    was_begun: bool,
}

impl Db {
    /// Returns which migrations are applied and which are pending.
    pub async fn migration_status(&self, sets: &[Migrations]) -> Result<MigrationStatus, Error> {
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
        let pending = steps.iter().map(Step::title).collect();
        let mut status = MigrationStatus { pending, ..MigrationStatus::default() };
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

    /// Fails with [`Error::PendingMigrations`] unless all migrations are applied.
    pub async fn require_migrated(&self, sets: &[Migrations]) -> Result<(), Error> {
        let status = self.migration_status(sets).await?;
        if !status.newer.is_empty() {
            tracing::warn!(newer = status.newer.join(", "), "the database was migrated by a newer version");
        }
        if status.pending.is_empty() { Ok(()) } else { Err(Error::PendingMigrations(status.pending)) }
    }

    /// Runs the pending migrations and returns their titles. If several processes call it, one migrates and the others wait.
    pub async fn migrate(&self, sets: &[Migrations]) -> Result<Vec<String>, Error> {
        match &self.pools {
            Pools::Sqlite { writer, .. } => sqlite::migrate(self, writer, sets).await,
            Pools::MySql(server) => mysql::migrate(self, &server.pool, sets).await,
        }
    }

    /// Returns the migrations that are not recorded as finished. Fails if the text of a recorded one has changed.
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
                    was_begun: record.is_some(),
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
            "it was begun or applied with a different text; use the version of the program that did so",
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
