//! Schemathesis over our APIs: requests made up from the OpenAPI documents, good ones and bad ones, and
//! answers held against the same documents.
//!
//! It finds what the documents promise and the program does not keep: errors of the server, statuses, headers
//! and bodies that are not described, operations that need no token although they say so. The same seed makes
//! up the same requests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::install;
use crate::shell::{cargo, root, step};

const REQUIREMENTS: &str = include_str!("fuzz_api/requirements.txt");
const HOOKS: &str = include_str!("fuzz_api/hooks.py");
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,response_headers_conformance,ignored_auth";
/// Who the made-up requests of a player come from.
const USER: &str = "fuzz";

/// A single player asks more than many would; that is no finding, and waiting takes hours.
const LIMITS: [&str; 5] = ["address", "read", "write", "sign_in", "stream"];
const UNLIMITED: &str = "10000/s burst 10000";
/// A stream is read to its end, which is that of its ticket.
const TICKET_TTL: &str = "1s";
/// This one has no end while its player is signed in.
const ENDLESS: &str = "/v1/stream";

/// An API with an OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    /// That of the gateway, for players
    Gateway,
    /// The service API, on the internal listener
    Service,
}

/// What to make up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) examples: u32,
}

/// A `playhouse dev` that ends with this value.
struct Dev {
    child: Child,
    addresses: Value,
}

impl Plan {
    /// Starts the product and has its APIs tested, one after the other; findings of one do not hide the other.
    pub(crate) fn run(self, only: Option<Api>) -> Result<()> {
        let schemathesis = installed()?;
        step("build", &mut cargo(&["build", "--locked", "--package", "playhouse"]))?;
        let dev = Dev::start()?;
        let mut failed = false;
        for api in [Api::Service, Api::Gateway].into_iter().filter(|api| only.is_none_or(|only| only == *api))
        {
            let (document, token) = match api {
                Api::Service => (
                    format!("http://{}/internal/v1/openapi.json", dev.text("internal")?),
                    dev.text("service_token")?,
                ),
                Api::Gateway => {
                    (format!("http://{}/openapi.json", dev.text("gateway")?), dev.player_token()?)
                }
            };
            if let Err(error) = self.test(&schemathesis, &document, &token) {
                eprintln!("== {error:#}");
                failed = true;
            }
        }
        if failed { bail!("the APIs are not as their documents say") } else { Ok(()) }
    }

    /// Tests a gateway that runs already.
    pub(crate) fn run_at(self, base: &str, token: &str) -> Result<()> {
        self.test(&installed()?, &format!("{}/openapi.json", base.trim_end_matches('/')), token)
    }

    fn test(self, schemathesis: &Path, document: &str, token: &str) -> Result<()> {
        let Self { seed, examples } = self;
        let mut command = Command::new(schemathesis);
        command
            .args(["run", document, "--checks", CHECKS, "--continue-on-failure", "--exclude-path", ENDLESS])
            .args(["--seed", &seed.to_string(), "--max-examples", &examples.to_string()])
            // A gateway that runs already has limits; what it refuses for its number is no finding.
            .args(["--rate-limit", "auto"])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            // It keeps what it has found in the folder where it is started, and finds our hooks there.
            .env("SCHEMATHESIS_HOOKS", "hooks")
            .current_dir(home());
        eprintln!("== fuzz {document}, seed {seed}");
        // Not a step: that shows the command when it fails, and the command has the token in it.
        if !command.status().context("cannot run Schemathesis")?.success() {
            bail!("findings in {document}, see above");
        }
        Ok(())
    }
}

impl Dev {
    fn start() -> Result<Self> {
        let mut command = Command::new(playhouse());
        let ports = ["--gateway-port=0", "--internal-port=0", "--admin-port=0", "--open-match-port=0"];
        command.args(["dev", "--ephemeral", "--print-addresses"]).args(ports).stdout(Stdio::piped());
        for limit in LIMITS {
            command.args(["--set", &format!("gateway.limits.{limit}={UNLIMITED}")]);
        }
        command.args(["--set", &format!("matchmaking.ticket_ttl={TICKET_TTL}")]);
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let stdout = child.stdout.take().context("its output is piped")?;
        let mut dev = Self { child, addresses: Value::Null };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        dev.addresses = serde_json::from_str(&line).context("playhouse dev has not told its addresses")?;
        Ok(dev)
    }

    fn text(&self, field: &str) -> Result<String> {
        let text = self.addresses[field].as_str();
        text.map(str::to_owned).with_context(|| format!("playhouse dev tells no {field}"))
    }

    /// From the issuer for development that is part of it.
    fn player_token(&self) -> Result<String> {
        let admin = format!("http://{}", self.text("admin")?);
        let output = Command::new(playhouse()).args(["token", "--user", USER, "--admin", &admin]).output()?;
        if !output.status.success() {
            bail!("playhouse token: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Not a kill, after which its temporary folder would stay.
        let _ = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

fn home() -> PathBuf {
    target().join("fuzz-api")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |set| root().join(set))
}

fn playhouse() -> PathBuf {
    target().join("debug/playhouse")
}

/// Schemathesis in an environment of its own, made anew when the requirements change.
fn installed() -> Result<PathBuf> {
    install::for_python()?;
    let (home, environment) = (home(), home().join("venv"));
    let (program, done) = (environment.join("bin/schemathesis"), home.join("installed.txt"));
    fs::create_dir_all(&home)?;
    fs::write(home.join("hooks.py"), HOOKS)?;
    if fs::read_to_string(&done).is_ok_and(|text| text == REQUIREMENTS) && program.exists() {
        return Ok(program);
    }
    let wanted = home.join("requirements.txt");
    fs::write(&wanted, REQUIREMENTS)?;
    step("python3 -m venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&wanted);
    step("install Schemathesis", &mut pip)?;
    fs::write(&done, REQUIREMENTS)?;
    Ok(program)
}
