//! Retries of conflicting transactions.

use crate::Error;

/// Runs `attempt` again while it fails with a conflict. Returns the last error when the attempts are used up.
pub(crate) async fn retry_conflicts<T, F>(attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    db::retry_conflicts(Error::is_conflict, attempt).await
}
