//! A real browser, driven as a person would: Chromium without a window, over W3C WebDriver.
//!
//! Chromium and its driver are two processes of ours. The driver could start Chromium by itself, but then
//! in a process group of its own, out of the guard's reach. So we start it, and tell the driver where it is.
//!
//! What a page does not do as the test expects is a failed test: methods panic, and say what was asked,
//! where the browser was, and what the page said.

mod chromium;
mod cookie;
mod driver;

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::{Value, json};

use crate::Error;
use crate::eventually::Pace;
use crate::server::Server;

use chromium::Chromium;
pub use cookie::Cookie;
use driver::{Driver, Refusal, Session};

const EXCERPT: usize = 600;
const OWN_ERROR: &str = "chrome-error:";

/// A browser with one tab and no past. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    session: Session,
    // Dropped in this order: the driver would complain about a browser that is gone.
    driver: Server<Driver>,
    chromium: Server<Chromium>,
}

/// A browser about to be started.
#[derive(Clone, Debug, Default)]
pub struct BrowserBuilder {
    trusts_everybody: bool,
    args: Vec<String>,
}

impl Browser {
    /// A browser for the caller alone.
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// A browser with options.
    pub fn builder() -> BrowserBuilder {
        BrowserBuilder::default()
    }

    /// Opens a page and waits until it has loaded. A page with an error status is a page too.
    pub async fn goto(&self, url: impl AsRef<str>) {
        let url = url.as_ref();
        let what = format!("go to {url}");
        self.must(&what, self.session.post("url", json!({ "url": url })).await).await;
        // The driver takes the browser's own page about what went wrong for a page like any other.
        if string(self.script("return document.URL").await).starts_with(OWN_ERROR) {
            self.fail(&what, "there is no page").await;
        }
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        self.must("reload", self.session.post("refresh", json!({})).await).await;
    }

    /// Where the browser is.
    pub async fn url(&self) -> String {
        string(self.must("tell the address", self.session.get("url").await).await)
    }

    /// The title of the page.
    pub async fn title(&self) -> String {
        string(self.must("tell the title", self.session.get("title").await).await)
    }

    /// The HTML of the page as it is now.
    pub async fn source(&self) -> String {
        string(self.must("show the source", self.session.get("source").await).await)
    }

    /// What a person reads in the first element that fits the CSS selector.
    pub async fn text(&self, css: &str) -> String {
        let element = self.element(css).await;
        let read = self.session.get(&format!("element/{element}/text")).await;
        string(self.must(&format!("read {css}"), read).await)
    }

    /// Clicks on the first element that fits, and waits for the page that this may lead to.
    pub async fn click(&self, css: &str) {
        let element = self.element(css).await;
        let clicked = self.session.post(&format!("element/{element}/click"), json!({})).await;
        self.must(&format!("click on {css}"), clicked).await;
    }

    /// Types into the first element that fits, instead of what is there.
    pub async fn fill(&self, css: &str, text: &str) {
        let what = format!("fill in {css}");
        let element = self.element(css).await;
        self.must(&what, self.session.post(&format!("element/{element}/clear"), json!({})).await).await;
        let typed = self.session.post(&format!("element/{element}/value"), json!({ "text": text })).await;
        self.must(&what, typed).await;
    }

    /// Whether an element fits, now.
    pub async fn has(&self, css: &str) -> bool {
        self.find(css).await.is_ok()
    }

    /// Waits until an element fits.
    pub async fn wait_for(&self, css: &str, deadline: Duration) {
        self.until(&format!("an element {css}"), deadline, async || {
            self.find(css).await.map(drop).map_err(|refusal| refusal.to_string())
        })
        .await;
    }

    /// Waits until the first element that fits says something that contains `needle`, and returns it all.
    pub async fn wait_for_text(&self, css: &str, needle: &str, deadline: Duration) -> String {
        self.until(&format!("{needle:?} in {css}"), deadline, async || {
            let look = async {
                let element = self.find(css).await?;
                self.session.get(&format!("element/{element}/text")).await
            };
            let text = look.await.map(string).map_err(|refusal| refusal.to_string())?;
            if text.contains(needle) { Ok(text) } else { Err(text) }
        })
        .await
    }

    /// Waits until the browser is where `fits` says yes, and returns the address.
    pub async fn wait_for_url(&self, fits: impl Fn(&str) -> bool, deadline: Duration) -> String {
        self.until("another address", deadline, async || {
            let url = self.session.get("url").await.map(string).map_err(|refusal| refusal.to_string())?;
            if fits(&url) { Ok(url) } else { Err(url) }
        })
        .await
    }

    /// Runs the body of a function in the page, and returns what it returns. A promise is waited for.
    pub async fn script(&self, js: &str) -> Value {
        let run = self.session.post("execute/sync", json!({ "script": js, "args": [] })).await;
        self.must(&format!("run {js}"), run).await
    }

    /// Runs the body of an `async` function in the page, and returns what it returns.
    ///
    /// ```no_run
    /// # async fn test(browser: testkit::Browser) {
    /// let status = browser.script_async("return (await fetch('/v1/me')).status").await;
    /// # }
    /// ```
    pub async fn script_async(&self, js: &str) -> Value {
        self.script(&format!("return (async () => {{ {js} }})()")).await
    }

    /// The cookies that would be sent to the page where the browser is, those that scripts cannot see included.
    pub async fn cookies(&self) -> Vec<Cookie> {
        let found = self.must("list cookies", self.session.get("cookie").await).await;
        found.as_array().into_iter().flatten().map(Cookie::parse).collect()
    }

    /// Deletes [those](Self::cookies) cookies.
    pub async fn delete_cookies(&self) {
        self.must("delete cookies", self.session.delete("cookie").await).await;
    }

    /// Deletes the cookies of all sites.
    pub async fn delete_all_cookies(&self) {
        let order = json!({ "cmd": "Network.clearBrowserCookies", "params": {} });
        self.must("delete all cookies", self.session.post("goog/cdp/execute", order).await).await;
    }

    /// What the browser has complained about since this was last asked: errors of scripts, answers with an
    /// error status, what a policy has blocked.
    pub async fn console_errors(&self) -> Vec<String> {
        let log = self.session.post("se/log", json!({ "type": "browser" })).await;
        let log = self.must("show its log", log).await;
        let errors = log.as_array().into_iter().flatten().filter(|entry| entry["level"] == "SEVERE");
        errors.map(|entry| string(entry["message"].clone())).collect()
    }

    /// Writes a picture of the page, in the format PNG.
    ///
    /// # Panics
    /// Also when the file cannot be written.
    pub async fn screenshot(&self, path: impl AsRef<Path>) {
        let picture = string(self.must("take a picture", self.session.get("screenshot").await).await);
        let bytes = BASE64.decode(picture).expect("the driver sends base64");
        std::fs::write(path.as_ref(), bytes).expect("the picture can be written");
    }

    /// The processes: Chromium and its driver.
    pub fn pids(&self) -> Vec<u32> {
        [self.chromium.pid(), self.driver.pid()].into_iter().flatten().collect()
    }

    /// Everything that they have written to the disk; gone when the browser is dropped.
    pub fn folders(&self) -> Vec<&Path> {
        [self.chromium.folders(), self.driver.folders()].concat()
    }

    async fn element(&self, css: &str) -> String {
        match self.find(css).await {
            Ok(element) => element,
            Err(refusal) => self.fail(&format!("find {css}"), &refusal.to_string()).await,
        }
    }

    async fn find(&self, css: &str) -> Result<String, Refusal> {
        let found = self.session.post("element", json!({ "using": "css selector", "value": css })).await?;
        // An object of one field, whose name is a constant of the standard.
        let id = found.as_object().and_then(|object| object.values().next()).cloned();
        Ok(string(id.unwrap_or_default()))
    }

    async fn until<T>(&self, what: &str, deadline: Duration, look: impl AsyncFn() -> Result<T, String>) -> T {
        let started = Instant::now();
        let mut pace = Pace::default();
        loop {
            let seen = match look().await {
                Ok(value) => return value,
                Err(seen) => seen,
            };
            if started.elapsed() >= deadline {
                self.fail(&format!("wait for {what} within {deadline:?}"), &seen).await;
            }
            pace.rest().await;
        }
    }

    async fn must(&self, what: &str, answer: Result<Value, Refusal>) -> Value {
        match answer {
            Ok(value) => value,
            Err(refusal) => self.fail(what, &refusal.to_string()).await,
        }
    }

    /// Panics with all there is to know about the page.
    async fn fail(&self, what: &str, why: &str) -> ! {
        let url = self.session.get("url").await.map(string).unwrap_or_default();
        let read = json!({ "script": "return document.body?.innerText ?? ''", "args": [] });
        let text = self.session.post("execute/sync", read).await.map(string).unwrap_or_default();
        let excerpt: String = text.chars().take(EXCERPT).collect();
        panic!("the browser cannot {what}: {why}\nat {url}, where it says:\n{excerpt}");
    }
}

impl BrowserBuilder {
    /// Accepts any certificate, as those of [`TlsProxy`](crate::TlsProxy).
    pub fn trust_everybody(mut self) -> Self {
        self.trusts_everybody = true;
        self
    }

    /// One more argument for Chromium.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts it and waits until it does what it is told.
    pub async fn start(self) -> Result<Browser, Error> {
        let (chromium, driver) = (Chromium::find(self.args)?, Driver::find()?);
        let (chromium, driver) = tokio::try_join!(Server::of(chromium), Server::of(driver))?;
        let session = driver::open(&driver, chromium.kind.port(), self.trusts_everybody).await?;
        Ok(Browser { session, driver, chromium })
    }
}

fn string(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
