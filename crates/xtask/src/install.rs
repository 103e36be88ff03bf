//! Installation of the servers and tools that the tests need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::nats;
use crate::shell::{find_program, step};

/// The programs that the tests start, with their Debian packages.
const PROGRAMS: [(&str, &str); 11] = [
    ("mariadbd", "mariadb-server"),
    ("redis-server", "redis-server"),
    ("nats-server", "nats-server"),
    ("protoc", "protobuf-compiler"),
    ("grpc_python_plugin", "protobuf-compiler-grpc"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("openssl", "openssl"),
    ("curl", "curl"),
];

/// The program that builds the current NATS server and clients in Go.
const GO: &[(&str, &str)] = &[("go", "golang-go")];

/// The programs that Keycloak needs.
const FOR_KEYCLOAK: [(&str, &str); 2] = [("java", "openjdk-17-jre-headless"), ("mvn", "maven")];

/// The programs that generate and compile clients of the service API.
const FOR_CLIENTS: [(&str, &str); 2] = [("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")];

/// The folders that the tests need, with their Debian packages.
const FOLDERS: [(&str, &str); 2] = [
    ("/usr/include/google/protobuf", "libprotobuf-dev"),
    ("/usr/lib/python3/dist-packages/grpc", "python3-grpcio"),
];

/// The script that Debian packages run to learn whether they may start their service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs missing packages as root on Debian. Elsewhere prints what to install.
pub(crate) fn run() -> Result<()> {
    let folders = FOLDERS.iter().filter(|(folder, _)| !Path::new(folder).exists());
    let folders = folders.map(|(_, package)| *package);
    let for_nats = if nats::is_built() { &[] } else { GO };
    install(&missing(&PROGRAMS).chain(missing(for_nats)).chain(folders).collect::<Vec<_>>())?;
    if let Err(error) = nats::build() {
        eprintln!(
            "== the current NATS server cannot be built: {error:#}\n   Tests on NATS clusters are skipped and say so; in CI they fail."
        );
    }
    Ok(())
}

/// Like [`run`], for the tests on Keycloak, which need a browser too.
pub(crate) fn for_keycloak() -> Result<()> {
    install(&missing(&PROGRAMS).chain(missing(&FOR_KEYCLOAK)).collect::<Vec<_>>())
}

/// Installs what generated clients of the service API need. See [`run`].
pub(crate) fn for_clients() -> Result<()> {
    install(&missing(&FOR_CLIENTS).chain(missing(GO)).collect::<Vec<_>>())?;
    for_python()
}

/// Like [`run`], for tools written in Python. Debian splits its standard library into several packages.
pub(crate) fn for_python() -> Result<()> {
    let import = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    let has_all = import.is_ok_and(|output| output.status.success());
    install(if has_all { &[] } else { &["python3", "python3-venv"] })
}

fn missing(programs: &'static [(&str, &str)]) -> impl Iterator<Item = &'static str> {
    let missing = programs.iter().filter(|(program, _)| find_program(program).is_none());
    missing.map(|(_, package)| *package)
}

fn install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" ");
    if find_program("apt-get").is_none() || !is_root() {
        eprintln!(
            "== missing: {missing}\n   Tests that need them are skipped and say so; in CI they fail.\n   On Debian, run as root: \
             apt-get install --no-install-recommends {missing}"
        );
        return Ok(());
    }
    let _no_services = NoServicesGuard::begin()?;
    step("apt-get update", &mut apt(&["update"]))?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(missing.split(' '));
    step("install", &mut apt(&install))
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Prevents packages from starting their services until it is dropped.
struct NoServicesGuard {
    created: bool,
}

/// The content of the policy file. An interrupted run leaves the file behind, and the next run recognises it by its text.
const NO_SERVICES: &str = "#!/bin/sh\n# Written by `cargo xtask` while it installs packages.\nexit 101\n";

impl NoServicesGuard {
    fn begin() -> Result<Self> {
        let policy = Path::new(POLICY);
        if policy.exists() && fs::read_to_string(policy).ok().as_deref() != Some(NO_SERVICES) {
            // Keeps an existing policy, which most containers have.
            return Ok(Self { created: false });
        }
        fs::write(policy, NO_SERVICES).context(POLICY)?;
        let guard = Self { created: true };
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755)).context(POLICY)?;
        Ok(guard)
    }
}

impl Drop for NoServicesGuard {
    fn drop(&mut self) {
        if self.created {
            let _ = fs::remove_file(POLICY);
        }
    }
}
