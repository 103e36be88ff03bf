//! The screen of a browser: its size, its colours, whether it is in sight, and pictures of it.

use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::{Value, json};

use super::{Browser, string};

/// The size of the window, which the driver must name to restore it. Pages see the viewport of [`Browser::set_viewport`].
const WINDOW: (u32, u32) = (1280, 900);

impl Browser {
    /// Sets the size of the page's viewport in CSS pixels. Scroll bars take no room, as on a phone.
    pub async fn set_viewport(&self, width: u32, height: u32) {
        self.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Makes the browser prefer dark or light pages, and none that move: a picture shows the end of each transition.
    pub async fn set_dark(&self, is_dark: bool) {
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Runs a script in every page that is opened from now on, before the page's own scripts.
    pub async fn run_before_pages(&self, js: &str) {
        self.devtools("Page.addScriptToEvaluateOnNewDocument", json!({ "source": js })).await;
    }

    /// Turns the scripts of pages off. Those of the test still work.
    pub async fn disable_scripts(&self) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
    }

    /// Closes the tab, without giving its page time for anything, and opens an empty one.
    pub async fn replace_tab(&self) {
        let opened = self
            .expect_ok("open a tab", self.session.post("window/new", json!({ "type": "tab" })).await)
            .await;
        self.expect_ok("close the tab", self.session.delete("window").await).await;
        let switch = self.session.post("window", json!({ "handle": opened["handle"] })).await;
        self.expect_ok("switch to the new tab", switch).await;
    }

    /// Takes the page out of sight, as when the user looks at another tab.
    pub async fn hide(&self) {
        self.expect_ok("hide", self.session.post("window/minimize", json!({})).await).await;
    }

    /// Brings a hidden page back.
    pub async fn unhide(&self) {
        let (width, height) = WINDOW;
        let size = json!({ "width": width, "height": height });
        self.expect_ok("show the page again", self.session.post("window/rect", size).await).await;
    }

    /// Writes a screenshot of the whole page, also of what is beyond the viewport, as a PNG file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub async fn screenshot_of_all(&self, path: impl AsRef<Path>) {
        let taken = self.devtools("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        write_picture(path.as_ref(), taken["data"].clone());
    }

    /// Sends a command of the DevTools protocol.
    pub(super) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.expect_ok(command, self.session.post("goog/cdp/execute", body).await).await
    }
}

pub(super) fn write_picture(path: &Path, picture: Value) {
    let bytes = BASE64.decode(string(picture)).expect("the driver sends base64");
    std::fs::write(path, bytes).expect("the screenshot can be written");
}
