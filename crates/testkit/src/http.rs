//! JSON requests to local servers.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::Value;

/// Generous: browsers wait for pages, and the first responses of Keycloak are slow.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the shared client. Building a client reads the system's certificates, which takes longer than most requests. It keeps
/// no idle connections, because those would depend on the runtime that used them last.
pub(crate) fn client() -> &'static Client {
    static CLIENT: LazyLock<Client> = LazyLock::new(|| {
        let builder = Client::builder().pool_max_idle_per_host(0).timeout(TIMEOUT).no_proxy();
        let builder = builder.redirect(reqwest::redirect::Policy::none());
        builder.build().expect("the HTTP client can be built")
    });
    &CLIENT
}

/// Sends a request and returns the status and the JSON body, or `null` if the body is no JSON.
pub(crate) async fn request_json(request: RequestBuilder) -> Result<(StatusCode, Value), String> {
    let answer = request.send().await.map_err(full_message)?;
    let status = answer.status();
    let bytes = answer.bytes().await.map_err(full_message)?;
    Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

/// Sends a request and returns the JSON body. A status other than success is an error that shows the response.
pub(crate) async fn request_ok(request: RequestBuilder) -> Result<Value, String> {
    match request_json(request).await? {
        (status, value) if status.is_success() => Ok(value),
        (status, value) => Err(format!("{status}: {value}")),
    }
}

/// Adds the causes to the message: reqwest's own message omits them.
fn full_message(error: reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
