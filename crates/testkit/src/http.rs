//! Asking servers of ours over HTTP, with JSON.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::Value;

/// Ample: browsers are asked to wait for pages, and Keycloak is slow at first.
const PATIENCE: Duration = Duration::from_secs(60);

/// One client for all: to build one reads the certificates of the system, which takes longer than most answers. It keeps no connection,
/// so that it does not depend on the runtime that used it last.
pub(crate) fn client() -> &'static Client {
    static CLIENT: LazyLock<Client> = LazyLock::new(|| {
        let builder = Client::builder().pool_max_idle_per_host(0).timeout(PATIENCE).no_proxy();
        let builder = builder.redirect(reqwest::redirect::Policy::none());
        builder.build().expect("an HTTP client without options that may fail")
    });
    &CLIENT
}

/// The status and the JSON of an answer; `null` if there is none.
pub(crate) async fn ask(request: RequestBuilder) -> Result<(StatusCode, Value), String> {
    let answer = request.send().await.map_err(said)?;
    let status = answer.status();
    let bytes = answer.bytes().await.map_err(said)?;
    Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

/// The same, where anything but success is an error that shows the answer.
pub(crate) async fn ask_well(request: RequestBuilder) -> Result<Value, String> {
    match ask(request).await? {
        (status, value) if status.is_success() => Ok(value),
        (status, value) => Err(format!("{status}: {value}")),
    }
}

/// reqwest keeps the reason for itself unless asked.
fn said(error: reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
