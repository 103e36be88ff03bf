//! Headless Chromium with a debugging port for its driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::process::Launch;
use crate::server::{ServerKind, ServerLocation};
use crate::{Error, installed};

/// The file into which Chromium writes the debugging port that it has chosen.
const PORT_FILE: &str = "DevToolsActivePort";

/// How Chromium is started.
#[derive(Debug)]
pub(crate) struct Chromium {
    program: PathBuf,
    args: Vec<String>,
    port: AtomicU16,
}

impl Chromium {
    pub(super) fn find(args: Vec<String>) -> Result<Self, Error> {
        let program = installed::find(&["chromium", "chromium-browser"])
            .ok_or(Error::Missing { program: "chromium", remedy: "`cargo xtask test` installs it" })?;
        Ok(Self { program, args, port: AtomicU16::new(0) })
    }

    /// Returns the debugging port, to which the driver connects.
    pub(super) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }
}

impl ServerKind for Chromium {
    fn name(&self) -> &'static str {
        "chromium"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn prepare(&self, _location: &ServerLocation) -> Result<(), Error> {
        Ok(())
    }

    fn launch(&self, location: &ServerLocation) -> Launch {
        Launch::new(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            // No background requests and no dialogs.
            .args(["--no-first-run", "--no-default-browser-check", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--disable-default-apps"])
            .args(["--disable-breakpad", "--password-store=basic", "--lang=en"])
            .arg("--remote-debugging-port=0")
            .option("user-data-dir", location.data())
            .args(&self.args)
            .arg("about:blank")
            .folder(location.folder())
            // Chromium writes sockets and settings to all of these.
            .env("HOME", Some(location.folder().into()))
            .env("TMPDIR", Some(location.folder().into()))
            .env("XDG_CONFIG_HOME", Some(location.folder().join("config").into()))
            .env("XDG_CACHE_HOME", Some(location.folder().join("cache").into()))
    }

    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        let text = std::fs::read_to_string(location.data().join(PORT_FILE)).map_err(|e| e.to_string())?;
        let port = text.lines().next().and_then(|line| line.parse().ok()).ok_or("no debugging port yet")?;
        self.port.store(port, Ordering::Relaxed);
        Ok(())
    }
}
