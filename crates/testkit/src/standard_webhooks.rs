//! An independent receiver of webhooks: the reference library of Standard Webhooks, on Node.js.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::npm::{self, Npm};
use crate::{Error, OutputStream, Program};

const PACKAGE: &str = include_str!("standard_webhooks/package.json");
const LOCK: &str = include_str!("standard_webhooks/package-lock.json");
const VERIFY: &str = include_str!("standard_webhooks/verify.mjs");
const SCRIPT: &str = "verify.mjs";

const TIMEOUT: Duration = Duration::from_secs(30);

/// Verifies signatures of Standard Webhooks.
#[derive(Debug)]
pub struct StandardWebhooks {
    node: PathBuf,
    script: PathBuf,
}

/// A request as a receiver gets it.
#[derive(Clone, Debug, Serialize)]
pub struct SignedRequest {
    /// The receiver's key: `whsec_…`, or `whpk_…` for asymmetric signatures.
    pub key: String,
    /// The headers, with lower-case names.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

impl StandardWebhooks {
    /// Finds Node.js, and installs the library on first use. Blocks.
    pub fn find() -> Result<Self, Error> {
        let npm = Npm::find()?;
        let files = [("package.json", PACKAGE), (npm::LOCK, LOCK), (SCRIPT, VERIFY)];
        let script = npm.folder("standard-webhooks", &files)?.join(SCRIPT);
        Ok(Self { node: npm.node, script })
    }

    /// Verifies requests. Returns `None` for each valid one, or else the reason for the refusal.
    ///
    /// # Panics
    /// If the program fails.
    pub async fn verify(&self, requests: &[SignedRequest]) -> Vec<Option<String>> {
        let requests = serde_json::to_string(requests).expect("texts can be serialised");
        let running = Program::new(&self.node).arg(&self.script).arg(requests).start().expect("node starts");
        let status = running.wait(TIMEOUT).await;
        let answer = running.text(OutputStream::Stdout);
        let refusals = serde_json::from_str(&answer);
        refusals.unwrap_or_else(|_| panic!("{status}: {answer}{}", running.text(OutputStream::Stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_names_no_registry() {
        npm::assert_names_no_registry(LOCK);
    }
}
