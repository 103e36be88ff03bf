//! chromedriver, and the part of W3C WebDriver that the browser needs (ADR 14).

use std::path::PathBuf;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use crate::process::Launch;
use crate::server::{Server, ServerKind, ServerLocation};
use crate::unique::unique;
use crate::{Error, http, installed};

/// In milliseconds. Shorter than the timeout of our HTTP client, so that the driver reports the cause.
const PAGE_TIMEOUT: u64 = 30_000;

/// How the driver is started.
#[derive(Debug)]
pub(crate) struct Driver {
    program: PathBuf,
    /// The random prefix of its URLs, which distinguishes this driver from another process on the port.
    path_prefix: String,
}

/// The WebDriver session of the browser.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    base: String,
}

/// The reason why the driver did not execute a command.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DriverError(String);

impl DriverError {
    /// Returns whether the element of the command is no longer part of the page.
    pub(super) fn is_stale_element(&self) -> bool {
        self.0.starts_with("stale element")
    }
}

impl Driver {
    pub(super) fn find() -> Result<Self, Error> {
        let program = installed::find(&["chromedriver"])
            .ok_or(Error::Missing { program: "chromedriver", remedy: "`cargo xtask test` installs it" })?;
        Ok(Self { program, path_prefix: unique() })
    }

    fn base(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/{}", self.path_prefix)
    }
}

impl ServerKind for Driver {
    fn name(&self) -> &'static str {
        "chromedriver"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn prepare(&self, _location: &ServerLocation) -> Result<(), Error> {
        Ok(())
    }

    fn launch(&self, location: &ServerLocation) -> Launch {
        Launch::new(&self.program)
            .arg(format!("--port={}", location.port))
            .arg(format!("--url-base=/{}", self.path_prefix))
            .folder(location.folder())
            .env("HOME", Some(location.folder().into()))
            .env("TMPDIR", Some(location.folder().into()))
    }

    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        let status =
            http::request_ok(http::client().get(format!("{}/status", self.base(location.port)))).await?;
        match &status["value"]["ready"] {
            Value::Bool(true) => Ok(()),
            _ => Err(status.to_string()),
        }
    }
}

/// Opens a session of the driver with the Chromium at the debugging port `chromium`.
pub(super) async fn open(
    driver: &Server<Driver>,
    chromium: u16,
    accepts_any_certificate: bool,
) -> Result<Session, Error> {
    let failed = |why: String| Error::failed("chromedriver", why);
    let client = http::client().clone();
    let base = driver.kind.base(driver.addr().port());
    let wanted = json!({
        "browserName": "chrome",
        "acceptInsecureCerts": accepts_any_certificate,
        "timeouts": { "script": PAGE_TIMEOUT, "pageLoad": PAGE_TIMEOUT, "implicit": 0 },
        "goog:loggingPrefs": { "browser": "ALL" },
        "goog:chromeOptions": { "debuggerAddress": format!("127.0.0.1:{chromium}") },
    });
    let body = json!({ "capabilities": { "alwaysMatch": wanted } });
    let opened =
        http::request_ok(client.post(format!("{base}/session")).json(&body)).await.map_err(failed)?;
    let id = opened["value"]["sessionId"].as_str().ok_or_else(|| failed(opened.to_string()))?;
    Ok(Session { client, base: format!("{base}/session/{id}") })
}

impl Session {
    pub(super) async fn get(&self, path: &str) -> Result<Value, DriverError> {
        self.execute(self.client.get(self.url(path))).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Result<Value, DriverError> {
        self.execute(self.client.post(self.url(path)).json(&body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, DriverError> {
        self.execute(self.client.delete(self.url(path))).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    async fn execute(&self, request: RequestBuilder) -> Result<Value, DriverError> {
        let (status, mut answer) = http::request_json(request).await.map_err(DriverError)?;
        let value = answer["value"].take();
        if status.is_success() {
            return Ok(value);
        }
        // The other lines are a stack trace of the driver.
        let message = value["message"].as_str().unwrap_or_default();
        Err(DriverError(message.lines().next().unwrap_or("no reason was given").to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_detects_taken_port;

    #[tokio::test]
    async fn taken_port_is_detected() {
        assert_detects_taken_port(crate::need!(Driver::find()), crate::need!(Driver::find())).await;
    }
}
