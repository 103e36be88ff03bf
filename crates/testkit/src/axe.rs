//! axe-core, which finds accessibility faults of a page in the browser.

use std::fs;

use serde_json::Value;

use crate::npm::{self, Npm};
use crate::{Browser, Error};

const PACKAGE: &str = include_str!("axe/package.json");
const LOCK: &str = include_str!("axe/package-lock.json");
const SCRIPT: &str = "node_modules/axe-core/axe.min.js";

/// Returns faults as lines: the rule, the element, and what is wrong with it. Three elements of each rule are enough to find the cause.
const RUN: &str = "
    const { violations } = await axe.run(document, { resultTypes: ['violations'], ...OPTIONS });
    const why = (node) => [...node.any, ...node.all, ...node.none].map((check) => check.message).join('; ');
    return violations.flatMap(({ id, nodes }) => nodes.slice(0, 3).map((node) => `${id}: ${node.html.slice(0, 200)}: ${why(node)}`));
";

/// The checks of axe-core.
#[derive(Debug)]
pub struct Axe {
    script: String,
}

impl Axe {
    /// Finds npm, and installs axe-core on first use. Blocks.
    pub fn find() -> Result<Self, Error> {
        let folder = Npm::find()?.folder("axe-core", &[("package.json", PACKAGE), (npm::LOCK, LOCK)])?;
        let script = fs::read_to_string(folder.join(SCRIPT));
        Ok(Self { script: script.map_err(|error| Error::failed("axe-core", error))? })
    }

    /// Returns the faults of the page. Scripts of the driver are not subject to the page's content security policy.
    pub async fn faults(&self, browser: &Browser) -> Vec<String> {
        self.run(browser, "{}").await
    }

    /// Returns the texts of the page that have too little contrast. Use it after a change of colours.
    pub async fn low_contrasts(&self, browser: &Browser) -> Vec<String> {
        self.run(browser, "{ runOnly: ['color-contrast'] }").await
    }

    async fn run(&self, browser: &Browser, options: &str) -> Vec<String> {
        if browser.script("return typeof axe").await == "undefined" {
            browser.script(&self.script).await;
        }
        let found = browser.script_async(&RUN.replace("OPTIONS", options)).await;
        let text = |fault: &Value| fault.as_str().unwrap_or_default().to_owned();
        found.as_array().into_iter().flatten().map(text).collect()
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
