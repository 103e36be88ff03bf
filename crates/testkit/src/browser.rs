//! A real browser: headless Chromium, controlled over W3C WebDriver.
//!
//! Chromium and its driver are two processes that the test kit starts. The driver could start Chromium itself, but in a
//! separate process group, which the guard could not kill. So the test kit starts Chromium and passes its port to the driver.
//!
//! Methods panic if a page does not do what the test expects. The panic shows the command, the URL and the text of the page.

mod chromium;
mod cookie;
mod driver;
mod screen;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Error;
use crate::eventually::PollBackoff;
use crate::server::Server;

use chromium::Chromium;
pub use cookie::Cookie;
use driver::{Driver, DriverError, Session};

const EXCERPT: usize = 600;
const OWN_ERROR: &str = "chrome-error:";
/// How often an element may be replaced before a click on it fails.
const MAX_STALE: usize = 3;

/// A browser with one tab and an empty profile. Dropping it stops it.
#[derive(Debug)]
pub struct Browser {
    session: Session,
    // Dropped in this order: the driver logs errors if its browser is gone.
    driver: Server<Driver>,
    chromium: Server<Chromium>,
}

/// The options of a browser.
#[derive(Clone, Debug, Default)]
pub struct BrowserBuilder {
    accepts_any_certificate: bool,
    args: Vec<String>,
}

impl Browser {
    /// Starts a browser that only the caller uses.
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// Returns a builder for a browser with options.
    pub fn builder() -> BrowserBuilder {
        BrowserBuilder::default()
    }

    /// Opens a page and waits until it has loaded. Pages with an error status are accepted.
    pub async fn goto(&self, url: impl AsRef<str>) {
        let url = url.as_ref();
        let what = format!("go to {url}");
        self.expect_ok(&what, self.session.post("url", json!({ "url": url })).await).await;
        // The driver reports success when the browser shows its own error page.
        if string(self.script("return document.URL").await).starts_with(OWN_ERROR) {
            self.fail(&what, "the browser shows an error page").await;
        }
    }

    /// Reloads the page.
    pub async fn reload(&self) {
        self.expect_ok("reload", self.session.post("refresh", json!({})).await).await;
    }

    /// Returns the URL of the page.
    pub async fn url(&self) -> String {
        string(self.expect_ok("return the URL", self.session.get("url").await).await)
    }

    /// Returns the title of the page.
    pub async fn title(&self) -> String {
        string(self.expect_ok("return the title", self.session.get("title").await).await)
    }

    /// Returns the current HTML of the page.
    pub async fn source(&self) -> String {
        string(self.expect_ok("return the source", self.session.get("source").await).await)
    }

    /// Returns the visible text of the first element that matches the CSS selector.
    pub async fn text(&self, css: &str) -> String {
        let element = self.element(css).await;
        let read = self.session.get(&format!("element/{element}/text")).await;
        string(self.expect_ok(&format!("read {css}"), read).await)
    }

    /// Clicks the first element that matches, and waits if that loads another page.
    pub async fn click(&self, css: &str) {
        let mut clicked = self.try_click(css).await;
        // A page that updates itself may have replaced the element in between.
        for _ in 0..MAX_STALE {
            if !matches!(&clicked, Err(error) if error.is_stale_element()) {
                break;
            }
            clicked = self.try_click(css).await;
        }
        self.expect_ok(&format!("click on {css}"), clicked).await;
    }

    async fn try_click(&self, css: &str) -> Result<Value, DriverError> {
        let element = self.find(css).await?;
        self.session.post(&format!("element/{element}/click"), json!({})).await
    }

    /// Replaces the content of the first input that matches.
    pub async fn fill(&self, css: &str, text: &str) {
        let what = format!("fill in {css}");
        let element = self.element(css).await;
        self.expect_ok(&what, self.session.post(&format!("element/{element}/clear"), json!({})).await).await;
        let typed = self.session.post(&format!("element/{element}/value"), json!({ "text": text })).await;
        self.expect_ok(&what, typed).await;
    }

    /// Returns the texts of all elements that match now, also of hidden ones.
    pub async fn texts(&self, css: &str) -> Vec<String> {
        self.collect(css, "element.textContent").await
    }

    /// Returns an attribute of all elements that match now and have it.
    pub async fn attributes(&self, css: &str, name: &str) -> Vec<String> {
        self.collect(css, &format!("element.getAttribute({})", json!(name))).await
    }

    async fn collect(&self, css: &str, value: &str) -> Vec<String> {
        let js = format!(
            "return [...document.querySelectorAll({})].map((element) => {value}).filter((value) => value !== null)",
            json!(css)
        );
        let found = self.script(&js).await;
        found.as_array().into_iter().flatten().cloned().map(string).collect()
    }

    /// Returns whether an element matches now.
    pub async fn has(&self, css: &str) -> bool {
        self.find(css).await.is_ok()
    }

    /// Waits until an element matches.
    pub async fn wait_for(&self, css: &str, deadline: Duration) {
        self.until(&format!("an element {css}"), deadline, async || {
            self.find(css).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Waits until the text of the first element that matches contains `needle`, and returns the whole text.
    pub async fn wait_for_text(&self, css: &str, needle: &str, deadline: Duration) -> String {
        self.until(&format!("{needle:?} in {css}"), deadline, async || {
            let look = async {
                let element = self.find(css).await?;
                self.session.get(&format!("element/{element}/text")).await
            };
            let text = look.await.map(string).map_err(|error| error.to_string())?;
            if text.contains(needle) { Ok(text) } else { Err(text) }
        })
        .await
    }

    /// Waits until the URL of the page satisfies `fits`, and returns it.
    pub async fn wait_for_url(&self, fits: impl Fn(&str) -> bool, deadline: Duration) -> String {
        self.until("another URL", deadline, async || {
            let url = self.session.get("url").await.map(string).map_err(|error| error.to_string())?;
            if fits(&url) { Ok(url) } else { Err(url) }
        })
        .await
    }

    /// Runs the body of a function in the page and returns its result. If the result is a promise, waits for it.
    pub async fn script(&self, js: &str) -> Value {
        let run = self.session.post("execute/sync", json!({ "script": js, "args": [] })).await;
        self.expect_ok(&format!("run {js}"), run).await
    }

    /// Runs the body of an `async` function in the page and returns its result.
    ///
    /// ```no_run
    /// # async fn test(browser: testkit::Browser) {
    /// let status = browser.script_async("return (await fetch('/v1/me')).status").await;
    /// # }
    /// ```
    pub async fn script_async(&self, js: &str) -> Value {
        self.script(&format!("return (async () => {{ {js} }})()")).await
    }

    /// Returns the cookies that the browser would send to the current page, including those hidden from scripts.
    pub async fn cookies(&self) -> Vec<Cookie> {
        let found = self.expect_ok("list cookies", self.session.get("cookie").await).await;
        found.as_array().into_iter().flatten().map(Cookie::parse).collect()
    }

    /// Deletes the [cookies](Self::cookies) of the current page.
    pub async fn delete_cookies(&self) {
        self.expect_ok("delete cookies", self.session.delete("cookie").await).await;
    }

    /// Deletes the cookies of all sites.
    pub async fn delete_all_cookies(&self) {
        self.devtools("Network.clearBrowserCookies", json!({})).await;
    }

    /// Returns the errors logged since the last call: script errors, responses with an error status, requests blocked by a
    /// policy.
    pub async fn console_errors(&self) -> Vec<String> {
        let log = self.session.post("se/log", json!({ "type": "browser" })).await;
        let log = self.expect_ok("return its log", log).await;
        let errors = log.as_array().into_iter().flatten().filter(|entry| entry["level"] == "SEVERE");
        errors.map(|entry| string(entry["message"].clone())).collect()
    }

    /// Writes a screenshot of the page as a PNG file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub async fn screenshot(&self, path: impl AsRef<Path>) {
        let picture = self.expect_ok("take a screenshot", self.session.get("screenshot").await).await;
        screen::write_picture(path.as_ref(), picture);
    }

    /// Returns the process ids of Chromium and its driver.
    pub fn pids(&self) -> Vec<u32> {
        [self.chromium.pid(), self.driver.pid()].into_iter().flatten().collect()
    }

    /// Returns the folders of both processes. They are removed when the browser is dropped.
    pub fn folders(&self) -> Vec<&Path> {
        [self.chromium.folders(), self.driver.folders()].concat()
    }

    async fn element(&self, css: &str) -> String {
        match self.find(css).await {
            Ok(element) => element,
            Err(error) => self.fail(&format!("find {css}"), &error.to_string()).await,
        }
    }

    async fn find(&self, css: &str) -> Result<String, DriverError> {
        let found = self.session.post("element", json!({ "using": "css selector", "value": css })).await?;
        // An object of one field, whose name is a constant of the standard.
        let id = found.as_object().and_then(|object| object.values().next()).cloned();
        Ok(string(id.unwrap_or_default()))
    }

    async fn until<T>(&self, what: &str, deadline: Duration, look: impl AsyncFn() -> Result<T, String>) -> T {
        let started = Instant::now();
        let mut backoff = PollBackoff::default();
        loop {
            let seen = match look().await {
                Ok(value) => return value,
                Err(seen) => seen,
            };
            if started.elapsed() >= deadline {
                self.fail(&format!("wait for {what} within {deadline:?}"), &seen).await;
            }
            backoff.wait().await;
        }
    }

    async fn expect_ok(&self, what: &str, answer: Result<Value, DriverError>) -> Value {
        match answer {
            Ok(value) => value,
            Err(error) => self.fail(what, &error.to_string()).await,
        }
    }

    /// Panics with the URL and an excerpt of the page.
    async fn fail(&self, what: &str, why: &str) -> ! {
        let url = self.session.get("url").await.map(string).unwrap_or_default();
        let read = json!({ "script": "return document.body?.innerText ?? ''", "args": [] });
        let text = self.session.post("execute/sync", read).await.map(string).unwrap_or_default();
        let excerpt: String = text.chars().take(EXCERPT).collect();
        panic!("the browser cannot {what}: {why}\nat {url}, text of the page:\n{excerpt}");
    }
}

impl BrowserBuilder {
    /// Accepts any certificate, for example that of a [`TlsProxy`](crate::TlsProxy).
    pub fn accept_any_certificate(mut self) -> Self {
        self.accepts_any_certificate = true;
        self
    }

    /// Adds an argument for Chromium.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts the browser and waits until it accepts commands.
    pub async fn start(self) -> Result<Browser, Error> {
        let (chromium, driver) = (Chromium::find(self.args)?, Driver::find()?);
        let (chromium, driver) = tokio::try_join!(Server::start_new(chromium), Server::start_new(driver))?;
        let session = driver::open(&driver, chromium.kind.port(), self.accepts_any_certificate).await?;
        Ok(Browser { session, driver, chromium })
    }
}

fn string(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
