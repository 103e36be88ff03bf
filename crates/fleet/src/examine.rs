//! What `doctor` finds without a running process to ask.

use base::Timestamp;
use base::finding::Finding;
use db::Db;
use service::Roles;

use crate::model::{ProcessState, ProcessView, judge};
use crate::store;

/// Reads who runs, straight from the database. None if that cannot be read: then other checks say why.
pub async fn examine(config: &db::Config, expected: &Roles) -> Option<(Vec<ProcessView>, Vec<Finding>)> {
    let db = Db::open_to_read(config).await.ok()?;
    let read = store::read(&db).await.ok();
    db.close().await;
    let (processes, now): (Vec<ProcessView>, Timestamp) = read?;
    let findings = judge(&processes, expected, now);
    let running = processes.into_iter().filter(|process| process.state(now) == ProcessState::Running);
    Some((running.collect(), findings))
}
