//! A running `playhouse dev` for tools that call the product.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::{cargo, step, target};

/// A running `playhouse dev` on free ports, with its data in memory. Dropping it stops the program.
pub(crate) struct Dev {
    child: Child,
    addresses: Value,
}

impl Dev {
    /// Builds the program that [`start`](Self::start) runs.
    pub(crate) fn build() -> Result<()> {
        step("build", &mut cargo(&["build", "--locked", "--package", "playhouse"]))
    }

    /// Starts the program with these settings and waits until it is ready.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(playhouse());
        let ports = ["--gateway-port=0", "--service-api-port=0", "--admin-port=0", "--open-match-port=0"];
        command.args(["dev", "--ephemeral", "--print-addresses"]).args(ports).stdout(Stdio::piped());
        for (key, value) in settings {
            command.args(["--set", &format!("{key}={value}")]);
        }
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let stdout = child.stdout.take().context("stdout is not piped")?;
        let mut dev = Self { child, addresses: Value::Null };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        dev.addresses = serde_json::from_str(&line).context("playhouse dev did not print its addresses")?;
        Ok(dev)
    }

    /// Returns a field that the program printed: an address or a token.
    pub(crate) fn text(&self, field: &str) -> Result<String> {
        let text = self.addresses[field].as_str();
        text.map(str::to_owned).with_context(|| format!("playhouse dev did not print {field}"))
    }

    /// Requests a token for a player from the builtin issuer.
    pub(crate) fn player_token(&self, user: &str) -> Result<String> {
        let admin = format!("http://{}", self.text("admin")?);
        let output = Command::new(playhouse()).args(["token", "--user", user, "--admin", &admin]).output()?;
        if !output.status.success() {
            bail!("playhouse token: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // SIGTERM, because a kill would leave its temporary folder.
        let _ = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

fn playhouse() -> PathBuf {
    target().join("debug/playhouse")
}
