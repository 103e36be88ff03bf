//! Trying again what met somebody else's transaction.

use crate::Error;

/// Runs the attempt until it does not meet another one, or attempts are used up; then its last error is returned.
pub(crate) async fn retrying<T, F>(attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    db::retrying(Error::is_conflict, attempt).await
}
