//! chromedriver, and the part of W3C WebDriver that the browser needs (ADR 14).

use std::path::PathBuf;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use crate::process::Launch;
use crate::server::{Kind, Place, Server};
use crate::unique::unique;
use crate::{Error, http, installed};

/// Milliseconds. Less than we wait for the driver, so that it is the driver that says what did not happen.
const PAGE_PATIENCE: u64 = 30_000;

/// How the driver is started.
#[derive(Debug)]
pub(crate) struct Driver {
    program: PathBuf,
    /// The path below which it answers, by which it is told from a stranger.
    mark: String,
}

/// The session with the one browser.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    base: String,
}

/// Why the driver has not done what it was told.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(String);

impl Driver {
    pub(super) fn find() -> Result<Self, Error> {
        let program = installed::find(&["chromedriver"])
            .ok_or(Error::Missing { program: "chromedriver", remedy: "`cargo xtask test` installs it" })?;
        Ok(Self { program, mark: unique() })
    }

    fn base(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/{}", self.mark)
    }
}

impl Kind for Driver {
    fn name(&self) -> &'static str {
        "chromedriver"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn prepare(&self, _place: &Place) -> Result<(), Error> {
        Ok(())
    }

    fn launch(&self, place: &Place) -> Launch {
        Launch::new(&self.program)
            .arg(format!("--port={}", place.port))
            .arg(format!("--url-base=/{}", self.mark))
            .folder(place.folder())
            .env("HOME", Some(place.folder().into()))
            .env("TMPDIR", Some(place.folder().into()))
    }

    async fn answers(&self, place: &Place) -> Result<(), String> {
        let status = http::ask_well(http::client().get(format!("{}/status", self.base(place.port)))).await?;
        match &status["value"]["ready"] {
            Value::Bool(true) => Ok(()),
            _ => Err(status.to_string()),
        }
    }
}

/// Has the driver take charge of the Chromium behind the port.
pub(super) async fn open(driver: &Server<Driver>, chromium: u16, trusting: bool) -> Result<Session, Error> {
    let failed = |why: String| Error::failed("chromedriver", why);
    let client = http::client().clone();
    let base = driver.kind.base(driver.addr().port());
    let wanted = json!({
        "browserName": "chrome",
        "acceptInsecureCerts": trusting,
        "timeouts": { "script": PAGE_PATIENCE, "pageLoad": PAGE_PATIENCE, "implicit": 0 },
        "goog:loggingPrefs": { "browser": "ALL" },
        "goog:chromeOptions": { "debuggerAddress": format!("127.0.0.1:{chromium}") },
    });
    let order = json!({ "capabilities": { "alwaysMatch": wanted } });
    let opened = http::ask_well(client.post(format!("{base}/session")).json(&order)).await.map_err(failed)?;
    let id = opened["value"]["sessionId"].as_str().ok_or_else(|| failed(opened.to_string()))?;
    Ok(Session { client, base: format!("{base}/session/{id}") })
}

impl Session {
    pub(super) async fn get(&self, path: &str) -> Result<Value, Refusal> {
        self.order(self.client.get(self.url(path))).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Result<Value, Refusal> {
        self.order(self.client.post(self.url(path)).json(&body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, Refusal> {
        self.order(self.client.delete(self.url(path))).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    async fn order(&self, request: RequestBuilder) -> Result<Value, Refusal> {
        let (status, mut answer) = http::ask(request).await.map_err(Refusal)?;
        let value = answer["value"].take();
        if status.is_success() {
            return Ok(value);
        }
        // The rest is a trace of the driver's own stack.
        let message = value["message"].as_str().unwrap_or_default();
        Err(Refusal(message.lines().next().unwrap_or("no reason was given").to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_notices_taken_port;

    #[tokio::test]
    async fn a_taken_port_is_noticed() {
        assert_notices_taken_port(crate::need!(Driver::find()), crate::need!(Driver::find())).await;
    }
}
