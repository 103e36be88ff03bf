//! Marks of a piece of work in every transaction that it commits.
//!
//! For an account of what was done that must be true even if the process dies right after a commit: the mark is a row that is
//! inserted with the commit, by the transaction itself, so it is there if and only if the transaction is.

use base::id::Uuid;

use crate::Dialect;
use crate::script::Script;

/// A table for marks, as the statement that inserts one, up to `VALUES`. A second mark of the same work must be ignored.
#[derive(Clone, Copy, Debug)]
pub struct MarkTable {
    pub sqlite: &'static str,
    pub mysql: &'static str,
}

/// What is inserted: the id of a piece of work.
#[derive(Clone, Copy, Debug)]
struct Mark {
    table: MarkTable,
    id: Uuid,
}

tokio::task_local! {
    static MARK: Mark;
}

/// Runs `work`, and has each transaction that it commits in this task insert `id` into `table`. What it hands to other tasks is not
/// marked.
pub async fn marking<T>(table: MarkTable, id: Uuid, work: impl Future<Output = T>) -> T {
    MARK.scope(Mark { table, id }, work).await
}

/// Adds the mark of the work that is running, if there is one.
pub(crate) fn add_to(script: &mut Script, dialect: Dialect) {
    let _ = MARK.try_with(|Mark { table, id }| {
        script.insert(dialect, dialect.pick(table.sqlite, table.mysql), [[id.into()]], "");
    });
}
