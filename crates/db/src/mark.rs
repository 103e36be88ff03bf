//! Commit marks: rows that show which work has committed something.
//!
//! Work that must be audited correctly, even if the process dies right after a commit, runs under a mark. The mark is a row that each
//! transaction inserts as it commits, so it exists if and only if a transaction was committed.

use base::id::Uuid;

use crate::Dialect;
use crate::script::Script;

/// A table for commit marks, as the statement that inserts one, up to `VALUES`. The statement must ignore duplicates, because the same work may
/// commit more than once.
#[derive(Clone, Copy, Debug)]
pub struct MarkTable {
    pub sqlite: &'static str,
    pub mysql: &'static str,
}

/// The row to insert: the id of a piece of work.
#[derive(Clone, Copy, Debug)]
struct Mark {
    table: MarkTable,
    id: Uuid,
}

tokio::task_local! {
    static MARK: Mark;
}

/// Runs `work`. Each transaction that it commits in this task also inserts `id` into `table`. Transactions in spawned tasks are not marked.
pub async fn with_commit_mark<T>(table: MarkTable, id: Uuid, work: impl Future<Output = T>) -> T {
    MARK.scope(Mark { table, id }, work).await
}

/// Adds the mark of the current task to the script, if there is one.
pub(crate) fn add_to(script: &mut Script, dialect: Dialect) {
    let _ = MARK.try_with(|Mark { table, id }| {
        script.insert(dialect, dialect.pick(table.sqlite, table.mysql), [[id.into()]], "");
    });
}
