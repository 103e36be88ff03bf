//! Schemathesis: generates valid and invalid requests from the OpenAPI documents and checks the responses against the documents.
//!
//! It finds server errors, statuses, headers and bodies that are not documented, and operations that do not enforce their token. The
//! same seed generates the same requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::dev::Dev;
use crate::shell::target;
use crate::{install, python};

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

impl Plan {
    /// Starts the product and tests its APIs one after the other. A failure of one does not skip the other.
    pub(crate) fn run(self, only: Option<Api>) -> Result<()> {
        let schemathesis = installed()?;
        Dev::build()?;
        let limits = LIMITS.map(|limit| format!("gateway.limits.{limit}"));
        let mut settings: Vec<_> = limits.iter().map(|key| (key.as_str(), UNLIMITED)).collect();
        settings.push(("matchmaking.ticket_ttl", TICKET_TTL));
        let dev = Dev::start(&settings)?;
        let mut failed = false;
        for api in [Api::Service, Api::Gateway].into_iter().filter(|api| only.is_none_or(|only| only == *api))
        {
            let (address, path, token) = match api {
                Api::Service => ("service_api", "/internal/v1/openapi.json", dev.text("service_token")?),
                Api::Gateway => ("gateway", "/openapi.json", dev.player_token(USER)?),
            };
            let base = format!("http://{}", dev.text(address)?);
            if let Err(error) = self.test(&schemathesis, &base, path, &token) {
                eprintln!("== {error:#}");
                failed = true;
            }
        }
        if failed { bail!("the APIs differ from their documents; see the findings above") } else { Ok(()) }
    }

    /// Tests a running gateway.
    pub(crate) fn run_at(self, base: &str, token: &str) -> Result<()> {
        self.test(&installed()?, base.trim_end_matches('/'), "/openapi.json", token)
    }

    fn test(self, schemathesis: &Path, base: &str, path: &str, token: &str) -> Result<()> {
        let Self { seed, examples } = self;
        let document = &format!("{base}{path}");
        let mut command = Command::new(schemathesis);
        command
            .args(["run", document, "--checks", CHECKS, "--continue-on-failure", "--exclude-path", ENDLESS])
            // Not the server that the document names.
            .args(["--url", base])
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

fn home() -> PathBuf {
    target().join("fuzz-api")
}

/// Returns the path of Schemathesis, after installing it if necessary.
fn installed() -> Result<PathBuf> {
    install::for_python()?;
    let home = home();
    let programs = python::environment(&home, REQUIREMENTS)?;
    fs::write(home.join("hooks.py"), HOOKS)?;
    Ok(programs.join("schemathesis"))
}
