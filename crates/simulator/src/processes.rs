//! Processes that the simulator starts itself, kills and restarts. It is their issuer and their payment provider.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use base::Clock;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use url::Url;
use uuid::Uuid;
use webhook::Secrets;

use crate::api::GaveUp;
use crate::target::{Payments, SignIn, Target};

/// How long a process may take to start.
const START: Duration = Duration::from_secs(60);
const ISSUER_PATH: &str = "/issuer";
/// The listeners whose ports stay the same when a process is restarted.
const LISTENERS: [&str; 4] = ["gateway", "service_api", "admin", "open_match"];

/// What is needed to start processes.
#[derive(Clone, Debug)]
pub struct ProcessPlan {
    /// The program `playhouse`.
    pub program: PathBuf,
    pub count: usize,
    /// The configuration of the processes, with the URLs of their stores.
    pub config: PathBuf,
    pub identity: oidc::Config,
    pub clock: Clock,
    /// The operator token of the simulator, and its hash as in the configuration.
    pub operator_token: String,
    pub operator_hash: String,
}

/// Running processes. Dropping it kills them.
#[derive(Debug)]
pub struct Processes {
    plan: ProcessPlan,
    issuer: Url,
    payment_secret: String,
    /// Holds the configuration file.
    folder: TempDir,
    running: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    /// The addresses by listener.
    addresses: Value,
}

impl Processes {
    /// Starts the processes, and an issuer that they trust.
    pub async fn start(plan: ProcessPlan) -> Result<(Self, Target), GaveUp> {
        let (issuer, issuer_url) = start_issuer(&plan.identity, &plan.clock).await?;
        let folder =
            tempfile::tempdir().map_err(|error| GaveUp(format!("cannot create a folder: {error}")))?;
        let text = std::fs::read_to_string(&plan.config)
            .map_err(|error| GaveUp(format!("cannot read {}: {error}", plan.config.display())))?;
        let text = format!("{text}\n[operators.simulator]\ntoken_hash = \"{}\"\n", plan.operator_hash);
        std::fs::write(folder.path().join("playhouse.toml"), text)
            .map_err(|error| GaveUp(format!("cannot write the configuration: {error}")))?;
        let payment_secret = secret();
        let secrets = Secrets::new([payment_secret.as_str()]).map_err(|error| GaveUp(error.to_string()))?;
        let mut processes = Self { plan, issuer: issuer_url, payment_secret, folder, running: Vec::new() };
        for _ in 0..processes.plan.count {
            let process = processes.spawn(None).await?;
            processes.running.push(process);
        }
        let urls = |listener: &str| {
            let found = processes.running.iter().filter_map(|process| process.addresses[listener].as_str());
            found.map(|address| format!("http://{address}")).collect::<Vec<String>>()
        };
        let target = Target {
            gateways: urls("gateway"),
            admins: urls("admin"),
            operator_token: processes.plan.operator_token.clone(),
            sign_in: SignIn::Own(issuer),
            payments: Payments::Webhooks(secrets),
        };
        Ok((processes, target))
    }

    /// Returns the number of processes.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Kills a process as `kill -9` does.
    pub(crate) async fn kill(&mut self, index: usize) {
        // It fails if the process is gone already.
        let _ = self.running[index].child.kill().await;
    }

    /// Starts a killed process again, on the same ports.
    pub(crate) async fn restart(&mut self, index: usize) -> Result<(), GaveUp> {
        let addresses = self.running[index].addresses.clone();
        self.running[index] = self.spawn(Some(&addresses)).await?;
        Ok(())
    }

    async fn spawn(&self, addresses: Option<&Value>) -> Result<Process, GaveUp> {
        let mut command = Command::new(&self.plan.program);
        command
            .arg("serve")
            .arg("--print-addresses")
            .arg("--config")
            .arg(self.folder.path().join("playhouse.toml"));
        for listener in LISTENERS {
            let address =
                addresses.and_then(|addresses| addresses[listener].as_str()).unwrap_or("127.0.0.1:0");
            command.env(format!("PLAYHOUSE_LISTEN_{}", listener.to_uppercase()), address);
        }
        command
            .env("PLAYHOUSE_LISTEN_TRUSTED_PROXIES", "127.0.0.0/8")
            .env("PLAYHOUSE_IDENTITY_ISSUER", self.issuer.as_str())
            .env("PLAYHOUSE_DROPS_PAYMENTS_SECRETS", &self.payment_secret)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal is for the simulator, which reads the truth before it ends them.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|error| GaveUp(format!("cannot start {}: {error}", self.plan.program.display())))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let log = tokio::spawn(last_lines(stderr));
        let mut lines =
            BufReader::new(stdout.ok_or_else(|| GaveUp("the process has no output".to_owned()))?).lines();
        let first = timeout(START, async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(addresses) = serde_json::from_str::<Value>(&line)
                    && addresses["admin"].is_string()
                {
                    return Some(addresses);
                }
            }
            None
        });
        let Ok(Some(addresses)) = first.await else {
            let _ = child.kill().await;
            let log = log.await.unwrap_or_default();
            return Err(GaveUp(format!("a process did not start. Its last lines:\n{log}")));
        };
        // The process must not block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Process { child, addresses })
    }
}

/// Reads a process's log and returns its end.
async fn last_lines(stderr: Option<tokio::process::ChildStderr>) -> String {
    const KEPT: usize = 12;
    let Some(stderr) = stderr else { return String::new() };
    let (mut lines, mut last) = (BufReader::new(stderr).lines(), std::collections::VecDeque::new());
    while let Ok(Some(line)) = lines.next_line().await {
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(line);
    }
    Vec::from(last).join("\n")
}

/// Serves an issuer on a free loopback port.
async fn start_issuer(config: &oidc::Config, clock: &Clock) -> Result<(oidc::builtin::Builtin, Url), GaveUp> {
    let failed = |error: &dyn std::fmt::Display| GaveUp(format!("cannot start an issuer: {error}"));
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| failed(&error))?;
    let address = listener.local_addr().map_err(|error| failed(&error))?;
    let url = Url::parse(&format!("http://{address}{ISSUER_PATH}")).map_err(|error| failed(&error))?;
    let issuer = oidc::builtin::Builtin::new(config, url.clone(), Vec::new(), clock.clone())
        .map_err(|error| failed(&error))?;
    let routes = Router::new().nest(ISSUER_PATH, issuer.routes());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok((issuer, url))
}

/// Creates a secret for payment webhooks.
fn secret() -> String {
    // 32 hexadecimal digits are valid base64 of 24 bytes.
    format!("whsec_{}", Uuid::new_v4().simple())
}

/// Allows this process as many open files as the system permits: each stream is one.
pub(crate) fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Returns the default program: this one.
pub fn this_program() -> Result<PathBuf, GaveUp> {
    std::env::current_exe().map_err(|error| GaveUp(format!("cannot find this program: {error}")))
}
