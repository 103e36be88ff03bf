//! Trying again what met somebody else's transaction.

use crate::Error;

/// Runs the attempt until it does not meet another one, or attempts are used up; then its last error is returned.
pub(crate) async fn retrying<T, F>(attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    db::retrying(Error::is_conflict, attempt).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn attempts(fail_with: impl Fn() -> Error) -> u32 {
        let mut attempts = 0;
        let done: Result<(), Error> = retrying(|| {
            attempts += 1;
            std::future::ready(Err(fail_with()))
        })
        .await;
        assert!(done.is_err());
        attempts
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_conflict_is_tried_again() {
        let closed = || sqlx::Error::PoolClosed;
        let most = attempts(|| Error::Raced).await;
        assert!(most > 1);
        assert_eq!(attempts(|| db::Error::Busy(closed()).into()).await, most);
        assert_eq!(attempts(|| db::Error::Duplicate(closed()).into()).await, most);
        assert_eq!(attempts(|| db::Error::from(hierlock::Error::Deadlock(closed())).into()).await, most);
        assert_eq!(attempts(|| db::Error::Unreachable(closed()).into()).await, 1);
        assert_eq!(attempts(|| Error::LastIdentity).await, 1);
    }
}
