//! The check of `doctor` when no process answers.

use base::Timestamp;
use base::finding::Finding;
use db::Db;
use service::Roles;

use crate::model::{ProcessState, ProcessView, check_processes};
use crate::store;

/// Reads the running processes directly from the database. Returns none if the database cannot be read: other checks report why.
pub async fn examine(config: &db::Config, expected: &Roles) -> Option<(Vec<ProcessView>, Vec<Finding>)> {
    let db = Db::open_read_only(config).await.ok()?;
    let read = store::read(&db).await.ok();
    db.close().await;
    let (processes, now): (Vec<ProcessView>, Timestamp) = read?;
    let findings = check_processes(&processes, expected, now);
    let running = processes.into_iter().filter(|process| process.state(now) == ProcessState::Running);
    Some((running.collect(), findings))
}
