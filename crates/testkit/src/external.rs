//! Servers that already run and are named by a variable: they are not ours, so we leave them clean.

use std::time::Duration;

use url::Url;

use crate::Error;

const PATIENCE: Duration = Duration::from_secs(10);

/// The address in `variable`, if it is set and not empty.
pub(crate) fn named_by(
    variable: &str,
    parse: impl FnOnce(&str) -> Result<Url, String>,
) -> Result<Option<Url>, Error> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => parse(&text).map(Some).map_err(|why| Error::failed(variable, why)),
        _ => Ok(None),
    }
}

/// A URL that names a host. Without a scheme, as people write it, it gets the default one.
pub(crate) fn parse_url(text: &str, scheme: &str) -> Result<Url, String> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    // The text may hold a password: it is not repeated.
    let url = Url::parse(&whole).map_err(|error| format!("not a URL ({error})"))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the URL names no host".to_owned());
    }
    Ok(url)
}

/// Asks an external server once whether it is there, and says which one is not.
pub(crate) async fn check(
    variable: &str,
    url: &Url,
    question: impl Future<Output = Result<(), String>>,
) -> Result<(), Error> {
    let answer = tokio::time::timeout(PATIENCE, question).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))).map_err(|why| {
        let host = url.host_str().unwrap_or("?");
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Error::failed(variable, format!("the server at {host}{port}: {why}"))
    })
}

/// Runs the clean-up of a room on an external server, best effort, from `drop`.
///
/// On a thread and a runtime of its own, because the test's runtime may be ending at this moment and
/// cannot be waited for from within; and waited for, because the process may be about to end.
pub(crate) fn clean_up<E>(work: impl Future<Output = Result<(), E>> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await });
        }
    });
    let _ = thread.join();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_up_has_been_done_when_it_returns() {
        let (done, seen) = std::sync::mpsc::channel();
        clean_up(async move {
            tokio::task::yield_now().await;
            done.send(()).map_err(|_| ())
        });
        assert_eq!(seen.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn passwords_are_not_repeated() {
        let url = parse_url("redis://user:secret@cache:6379/0", "redis").unwrap();
        let error = check("REDIS_URL", &url, async { Err("refused".to_owned()) }).await.unwrap_err();
        assert_eq!(error.to_string(), "REDIS_URL: the server at cache:6379: refused");
        assert!(!parse_url("user:secret@cache:x", "redis").unwrap_err().contains("secret"));
    }

    #[test]
    fn the_scheme_may_be_left_out_but_not_the_host() {
        assert_eq!(parse_url("cache:6379", "redis").unwrap().as_str(), "redis://cache:6379");
        assert_eq!(parse_url("tls://bus", "nats").unwrap().as_str(), "tls://bus");
        assert!(parse_url("redis:///0", "redis").is_err());
    }
}
