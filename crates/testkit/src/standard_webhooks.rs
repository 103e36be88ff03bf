//! A receiver of webhooks that is not ours: the library of Standard Webhooks, run by Node.js.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::npm::{self, Npm};
use crate::{Error, Program, Stream};

const PACKAGE: &str = include_str!("standard_webhooks/package.json");
const LOCK: &str = include_str!("standard_webhooks/package-lock.json");
const VERIFY: &str = include_str!("standard_webhooks/verify.mjs");
const SCRIPT: &str = "verify.mjs";

const PATIENCE: Duration = Duration::from_secs(30);

/// Verifies what was signed as Standard Webhooks describes it.
#[derive(Debug)]
pub struct StandardWebhooks {
    node: PathBuf,
    script: PathBuf,
}

/// A request as a receiver has it.
#[derive(Clone, Debug, Serialize)]
pub struct SignedRequest {
    /// What the receiver knows: `whsec_…`, or `whpk_…` for signatures with a private key.
    pub key: String,
    /// The headers, by their names in small letters.
    pub headers: BTreeMap<String, String>,
    /// What was sent.
    pub body: String,
}

impl StandardWebhooks {
    /// Finds Node.js, and installs the library if this is the first time. Blocks.
    pub fn find() -> Result<Self, Error> {
        let npm = Npm::find()?;
        let files = [("package.json", PACKAGE), (npm::LOCK, LOCK), (SCRIPT, VERIFY)];
        let script = npm.folder("standard-webhooks", &files)?.join(SCRIPT);
        Ok(Self { node: npm.node, script })
    }

    /// Whether the receivers accept these requests: for each of them nothing, or why not.
    ///
    /// # Panics
    /// When the program does not do its work.
    pub async fn refusals(&self, requests: &[SignedRequest]) -> Vec<Option<String>> {
        let requests = serde_json::to_string(requests).expect("texts");
        let running = Program::new(&self.node).arg(&self.script).arg(requests).start().expect("node starts");
        let status = running.wait(PATIENCE).await;
        let answer = running.text(Stream::Stdout);
        let refusals = serde_json::from_str(&answer);
        refusals.unwrap_or_else(|_| panic!("{status}: {answer}{}", running.text(Stream::Stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_names_no_registry() {
        npm::assert_names_no_registry(LOCK);
    }
}
