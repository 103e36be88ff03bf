//! Schemathesis: generates valid and invalid requests from the OpenAPI documents and checks the responses against the documents.
//!
//! It finds server errors, statuses, headers and bodies that are not documented, and operations that do not enforce their token. The
//! same seed generates the same requests.

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
/// The player who sends the generated requests.
const USER: &str = "fuzz";

/// The rate limits that are raised. One player sends more requests than the limits allow, and waiting would take hours.
const LIMITS: [&str; 5] = ["address", "read", "write", "sign_in", "stream"];
const UNLIMITED: &str = "10000/s burst 10000";
/// A ticket's stream is read to its end, so tickets must expire soon.
const TICKET_TTL: &str = "1s";
/// This stream does not end while its player is signed in.
const ENDLESS: &str = "/v1/stream";

/// An API with an OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    /// The players' API of the gateway
    Gateway,
    /// The service API
    Service,
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) examples: u32,
}

/// A running `playhouse dev`. Dropping it stops the program.
struct Dev {
    child: Child,
    addresses: Value,
}

impl Plan {
    /// Starts the product and tests its APIs one after the other. A failure of one does not skip the other.
    pub(crate) fn run(self, only: Option<Api>) -> Result<()> {
        let schemathesis = installed()?;
        step("build", &mut cargo(&["build", "--locked", "--package", "playhouse"]))?;
        let dev = Dev::start()?;
        let mut failed = false;
        for api in [Api::Service, Api::Gateway].into_iter().filter(|api| only.is_none_or(|only| only == *api))
        {
            let (document, token) = match api {
                Api::Service => (
                    format!("http://{}/internal/v1/openapi.json", dev.text("service_api")?),
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
        if failed { bail!("the APIs differ from their documents; see the findings above") } else { Ok(()) }
    }

    /// Tests a running gateway.
    pub(crate) fn run_at(self, base: &str, token: &str) -> Result<()> {
        self.test(&installed()?, &format!("{}/openapi.json", base.trim_end_matches('/')), token)
    }

    fn test(self, schemathesis: &Path, document: &str, token: &str) -> Result<()> {
        let Self { seed, examples } = self;
        let mut command = Command::new(schemathesis);
        command
            .args(["run", document, "--checks", CHECKS, "--continue-on-failure", "--exclude-path", ENDLESS])
            .args(["--seed", &seed.to_string(), "--max-examples", &examples.to_string()])
            // A running gateway has rate limits. Refusals by them are not findings.
            .args(["--rate-limit", "auto"])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            // Schemathesis stores its findings in the current folder, and loads the hooks from there.
            .env("SCHEMATHESIS_HOOKS", "hooks")
            .current_dir(home());
        eprintln!("== fuzz {document}, seed {seed}");
        // Not a `step`, because that prints the command if it fails, and the command contains the token.
        if !command.status().context("cannot run Schemathesis")?.success() {
            bail!("Schemathesis reports findings in {document}; see above");
        }
        Ok(())
    }
}

impl Dev {
    fn start() -> Result<Self> {
        let mut command = Command::new(playhouse());
        let ports = ["--gateway-port=0", "--service-api-port=0", "--admin-port=0", "--open-match-port=0"];
        command.args(["dev", "--ephemeral", "--print-addresses"]).args(ports).stdout(Stdio::piped());
        for limit in LIMITS {
            command.args(["--set", &format!("gateway.limits.{limit}={UNLIMITED}")]);
        }
        command.args(["--set", &format!("matchmaking.ticket_ttl={TICKET_TTL}")]);
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let stdout = child.stdout.take().context("stdout is not piped")?;
        let mut dev = Self { child, addresses: Value::Null };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        dev.addresses = serde_json::from_str(&line).context("playhouse dev did not print its addresses")?;
        Ok(dev)
    }

    fn text(&self, field: &str) -> Result<String> {
        let text = self.addresses[field].as_str();
        text.map(str::to_owned).with_context(|| format!("playhouse dev did not print {field}"))
    }

    /// Requests a token from the builtin issuer.
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
        // SIGTERM, because a kill would leave its temporary folder.
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

/// Returns the path of Schemathesis in a virtual environment, which is recreated when the requirements change.
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
