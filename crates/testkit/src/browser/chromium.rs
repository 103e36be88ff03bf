//! Chromium, without a window, and with a door for its driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::process::Launch;
use crate::server::{Kind, Place};
use crate::{Error, installed};

/// What it writes into its folder: the port of the door, which it chooses by itself.
const DOOR: &str = "DevToolsActivePort";

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

    /// Where the driver finds it.
    pub(super) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }
}

impl Kind for Chromium {
    fn name(&self) -> &'static str {
        "chromium"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn prepare(&self, _place: &Place) -> Result<(), Error> {
        Ok(())
    }

    fn launch(&self, place: &Place) -> Launch {
        Launch::new(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            // A test browser does not phone home, nor ask anything.
            .args(["--no-first-run", "--no-default-browser-check", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--disable-default-apps"])
            .args(["--disable-breakpad", "--password-store=basic", "--lang=en"])
            .arg("--remote-debugging-port=0")
            .option("user-data-dir", place.data())
            .args(&self.args)
            .arg("about:blank")
            .folder(place.folder())
            // It leaves sockets and settings in all these.
            .env("HOME", Some(place.folder().into()))
            .env("TMPDIR", Some(place.folder().into()))
            .env("XDG_CONFIG_HOME", Some(place.folder().join("config").into()))
            .env("XDG_CACHE_HOME", Some(place.folder().join("cache").into()))
    }

    async fn answers(&self, place: &Place) -> Result<(), String> {
        let said = std::fs::read_to_string(place.data().join(DOOR)).map_err(|e| e.to_string())?;
        let port = said.lines().next().and_then(|line| line.parse().ok()).ok_or("the door is not open")?;
        self.port.store(port, Ordering::Relaxed);
        Ok(())
    }
}
