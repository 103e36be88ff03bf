//! Servers that already run and are named by an environment variable. Tests clean up after themselves there.

use std::time::Duration;

use url::Url;

use crate::Error;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the URL in `variable`, if the variable is set and not empty.
pub(crate) fn from_variable(
    variable: &str,
    parse: impl FnOnce(&str) -> Result<Url, String>,
) -> Result<Option<Url>, Error> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => parse(&text).map(Some).map_err(|why| Error::failed(variable, why)),
        _ => Ok(None),
    }
}

/// Parses a URL with a host. A text without a scheme gets the default scheme.
pub(crate) fn parse_url(text: &str, scheme: &str) -> Result<Url, String> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    // The text may contain a password, so the error does not repeat it.
    let url = Url::parse(&whole).map_err(|error| format!("not a URL ({error})"))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the URL has no host".to_owned());
    }
    Ok(url)
}

/// Runs a probe of an external server. The error names the variable, the host and the port.
pub(crate) async fn check(
    variable: &str,
    url: &Url,
    probe: impl Future<Output = Result<(), String>>,
) -> Result<(), Error> {
    let result = tokio::time::timeout(TIMEOUT, probe).await;
    result.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}"))).map_err(|why| {
        let host = url.host_str().unwrap_or("?");
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Error::failed(variable, format!("the server at {host}{port}: {why}"))
    })
}

/// Cleans up a namespace on an external server from `drop`, best effort. Blocks until done, because the process may be about to end.
///
/// Runs on a separate thread and runtime, because `drop` cannot block on the test's runtime, which may be shutting down.
pub(crate) fn clean_up<E>(work: impl Future<Output = Result<(), E>> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            let _ = runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await });
        }
    });
    let _ = thread.join();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_up_is_complete_when_it_returns() {
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
    fn url_needs_a_host_but_no_scheme() {
        assert_eq!(parse_url("cache:6379", "redis").unwrap().as_str(), "redis://cache:6379");
        assert_eq!(parse_url("tls://bus", "nats").unwrap().as_str(), "tls://bus");
        assert!(parse_url("redis:///0", "redis").is_err());
    }
}
