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
        let previous = self.tab().await;
        let opened = self.open_tab().await;
        self.switch_to_tab(&previous).await;
        self.expect_ok("close the tab", self.session.delete("window").await).await;
        self.switch_to_tab(&opened).await;
    }

    /// Returns the tab that commands go to.
    pub async fn tab(&self) -> String {
        string(self.expect_ok("return the tab", self.session.get("window").await).await)
    }

    /// Opens an empty tab, which commands go to from now on, and returns it.
    pub async fn open_tab(&self) -> String {
        let opened = self.session.post("window/new", json!({ "type": "tab" })).await;
        let tab = string(self.expect_ok("open a tab", opened).await["handle"].take());
        self.switch_to_tab(&tab).await;
        tab
    }

    /// Sends commands to another tab from now on.
    pub async fn switch_to_tab(&self, tab: &str) {
        let switched = self.session.post("window", json!({ "handle": tab })).await;
        self.expect_ok("switch to a tab", switched).await;
    }

    /// Disconnects the tab from all networks, or connects it again. Its page gets the events `offline` and `online`.
    pub async fn set_offline(&self, is_offline: bool) {
        self.devtools("Network.enable", json!({})).await;
        let network =
            json!({ "offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.devtools("Network.emulateNetworkConditions", network).await;
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
