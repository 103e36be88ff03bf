//! The common part of all servers: start, readiness and faults.

use std::fmt::Debug;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use url::Url;

use crate::Error;
use crate::eventually::PollBackoff;
use crate::folder::Folder;
use crate::port::free_port;
use crate::process::{Launch, Process};

/// Generous, because only a server that never gets ready uses it up.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A server that is probed too early may accept the connection and not answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const PORT_ATTEMPTS: u32 = 10;
const LOG_LINES_SHOWN: usize = 20;
pub(crate) const PORTS_TAKEN: &str = "every chosen port was taken by another process";

/// Starts one kind of server and checks its readiness.
pub trait ServerKind: Debug + Send + Sync + Sized + 'static {
    /// Returns the program's name, for messages.
    fn name(&self) -> &'static str;

    /// Returns whether the data must be on a real disk.
    fn on_disk(&self) -> bool;

    /// Returns how long a start may take.
    fn start_timeout(&self) -> Duration {
        TIMEOUT
    }

    /// Fills the folders before the first start. May block.
    fn prepare(&self, location: &ServerLocation) -> Result<(), Error>;

    /// Returns the command line.
    fn launch(&self, location: &ServerLocation) -> Launch;

    /// Checks that the server at the location's port is *the one that was launched* and is ready.
    fn check_ready(&self, location: &ServerLocation) -> impl Future<Output = Result<(), String>> + Send;
}

/// The folders and ports of a local server. They stay the same over a restart.
#[derive(Debug)]
pub struct ServerLocation {
    /// Has a short path, because paths of Unix sockets are limited.
    folder: Folder,
    disk: Option<Folder>,
    /// The port that clients use.
    pub(crate) port: u16,
    /// Another port, for servers that have a second one.
    pub(crate) second_port: u16,
}

/// A local or external server.
///
/// Faults take `&mut self`, so they cannot be applied to shared servers, which are `&'static` and used by other tests.
#[derive(Debug)]
pub struct Server<K: ServerKind> {
    pub(crate) kind: K,
    pub(crate) hosting: Hosting,
}

#[derive(Debug)]
pub(crate) enum Hosting {
    Local(Box<LocalServer>),
    External(Url),
}

#[derive(Debug)]
pub(crate) struct LocalServer {
    // Dropped in this order: the process uses the location.
    process: Option<Process>,
    location: ServerLocation,
}

impl<K: ServerKind> Server<K> {
    pub(crate) async fn start_new(kind: K) -> Result<Self, Error> {
        // `prepare` blocks: it copies files and may wait for another process that makes the same template.
        let preparing = tokio::task::spawn_blocking(move || {
            let location = ServerLocation::new(&kind)?;
            kind.prepare(&location)?;
            Ok::<_, Error>((kind, location))
        });
        let (kind, mut location) =
            preparing.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        for _ in 0..PORT_ATTEMPTS {
            location.choose_ports().map_err(|error| Error::failed("a free port", error))?;
            match run(&kind, &location).await {
                Ok(process) => {
                    let local = LocalServer { process: Some(process), location };
                    return Ok(Self { kind, hosting: Hosting::Local(Box::new(local)) });
                }
                // Another process was faster: try other ports.
                Err(StartError::PortTaken) => {}
                Err(StartError::Other(error)) => return Err(error),
            }
        }
        Err(Error::failed(kind.name(), PORTS_TAKEN))
    }

    /// Returns the address of the listener.
    ///
    /// # Panics
    /// If the server is external, because its host name may have several addresses.
    pub fn addr(&self) -> SocketAddr {
        self.local().expect("a local server").location.addr()
    }

    /// Returns its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.local()?.process.as_ref().map(Process::pid)
    }

    /// Returns its folders. They are removed when the server is dropped.
    pub fn folders(&self) -> Vec<&Path> {
        self.local().map(|local| local.location.folders()).unwrap_or_default()
    }

    /// Returns the end of its log.
    pub fn log(&self) -> String {
        self.local().map(|local| tail(&local.location.log(), 0)).unwrap_or_default()
    }

    /// Sends SIGTERM and waits until the server has ended.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let name = self.kind.name();
        let local = self.local_mut()?;
        let Some(process) = &local.process else { return Ok(()) };
        process.signal_group(Signal::SIGTERM);
        // A paused process does not handle SIGTERM.
        process.signal_group(Signal::SIGCONT);
        if process.exited(TIMEOUT).await.is_none() {
            let log = tail(&local.location.log(), 0);
            return Err(Error::failed(
                name,
                format!("still running {TIMEOUT:?} after SIGTERM; its log:\n{log}"),
            ));
        }
        local.process = None;
        Ok(())
    }

    /// Sends SIGKILL and waits until the server has ended. The kernel closes its connections.
    pub async fn kill(&mut self) -> Result<(), Error> {
        let local = self.local_mut()?;
        if let Some(process) = local.process.take() {
            process.signal_group(Signal::SIGKILL);
            process.exited(TIMEOUT).await;
        }
        Ok(())
    }

    /// Sends SIGSTOP: connections stay open, but requests get no response.
    pub async fn pause(&mut self) -> Result<(), Error> {
        let process = self.process_mut("pause")?;
        process.signal_group(Signal::SIGSTOP);
        if process.stopped(TIMEOUT).await {
            return Ok(());
        }
        Err(Error::failed(self.kind.name(), "ended instead of being paused"))
    }

    /// Sends SIGCONT, to continue after [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<(), Error> {
        self.process_mut("resume")?.signal_group(Signal::SIGCONT);
        Ok(())
    }

    /// Starts the server after [`stop`](Self::stop) or [`kill`](Self::kill), with the same port and data, and waits until it is
    /// ready.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        let Hosting::Local(local) = &mut self.hosting else { return Err(external_error(self.kind.name())) };
        if local.process.is_some() {
            return Err(Error::failed(self.kind.name(), "is running already"));
        }
        let mut backoff = PollBackoff::default();
        for _ in 0..PORT_ATTEMPTS {
            match run(&self.kind, &local.location).await {
                Ok(process) => {
                    local.process = Some(process);
                    return Ok(());
                }
                // The port must stay the same. Another process that probes for a free port holds it only for a moment.
                Err(StartError::PortTaken) => backoff.wait().await,
                Err(StartError::Other(error)) => return Err(error),
            }
        }
        let port = local.location.port;
        Err(Error::failed(self.kind.name(), format!("another process has taken its port {port}")))
    }

    /// Calls [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        self.start_again().await
    }

    pub(crate) fn local(&self) -> Option<&LocalServer> {
        match &self.hosting {
            Hosting::Local(local) => Some(local),
            Hosting::External(_) => None,
        }
    }

    fn local_mut(&mut self) -> Result<&mut LocalServer, Error> {
        match &mut self.hosting {
            Hosting::Local(local) => Ok(local),
            Hosting::External(_) => Err(external_error(self.kind.name())),
        }
    }

    pub(crate) fn process_mut(&mut self, what: &str) -> Result<&mut Process, Error> {
        let name = self.kind.name();
        let process = self.local_mut()?.process.as_mut();
        process.ok_or_else(|| Error::failed(name, format!("is not running, so there is nothing to {what}")))
    }
}

impl LocalServer {
    pub(crate) fn location(&self) -> &ServerLocation {
        &self.location
    }
}

impl ServerLocation {
    fn new<K: ServerKind>(kind: &K) -> Result<Self, Error> {
        let folder = Folder::fresh().map_err(|error| Error::failed("a temporary folder", error))?;
        let disk = kind.on_disk().then(Folder::on_disk).transpose();
        let disk = disk.map_err(|error| Error::failed("a folder on disk", error))?;
        Ok(Self { folder, disk, port: 0, second_port: 0 })
    }

    /// Returns the folder for sockets, logs and configuration.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the data folder, which the server or [`ServerKind::prepare`] creates.
    pub(crate) fn data(&self) -> PathBuf {
        self.disk.as_ref().unwrap_or(&self.folder).path().join("data")
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn folders(&self) -> Vec<&Path> {
        [Some(&self.folder), self.disk.as_ref()].into_iter().flatten().map(Folder::path).collect()
    }

    fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    fn choose_ports(&mut self) -> std::io::Result<()> {
        self.port = free_port()?;
        self.second_port = free_port()?;
        Ok(())
    }
}

#[derive(Debug)]
enum StartError {
    PortTaken,
    Other(Error),
}

/// Starts the server at its location and waits until it is ready.
async fn run<K: ServerKind>(kind: &K, location: &ServerLocation) -> Result<Process, StartError> {
    let failed = |why: String| StartError::Other(Error::failed(kind.name(), why));
    let log_path = location.log();
    let log = File::options().create(true).append(true).open(&log_path).map_err(|e| failed(e.to_string()))?;
    // Skips the log of earlier starts.
    let old_log_length = log.metadata().map_or(0, |file| file.len());
    let both = log.try_clone().map_err(|e| failed(e.to_string()))?;
    // System messages in English, because the log is searched for one below.
    let launch = kind.launch(location).env("LC_ALL", Some("C".into()));
    let process = launch.start(log, both).map_err(|e| failed(e.to_string()))?;

    let started = Instant::now();
    let mut backoff = PollBackoff::default();
    loop {
        if let Some(status) = process.exit_status() {
            let log = tail(&log_path, old_log_length);
            if log.to_lowercase().contains("address already in use") {
                return Err(StartError::PortTaken);
            }
            return Err(failed(format!("did not start ({status}); the end of its log:\n{log}")));
        }
        let seen = tokio::select! {
            answer = kind.check_ready(location) => match answer {
                Ok(()) => return Ok(process),
                Err(seen) => seen,
            },
            // Ended, or the probe got no answer, possibly because another server holds the port.
            _ = process.exited(PROBE_TIMEOUT) => "no answer".to_owned(),
        };
        if started.elapsed() > kind.start_timeout() {
            let (log, timeout) = (tail(&log_path, old_log_length), kind.start_timeout());
            return Err(failed(format!("not ready within {timeout:?}: {seen}; the end of its log:\n{log}")));
        }
        backoff.wait().await;
    }
}

fn tail(log: &Path, from: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes.get(usize::try_from(from).unwrap_or(0)..).unwrap_or_default());
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

fn external_error(name: &str) -> Error {
    Error::failed(name, "is an external server, which the test kit cannot stop or start")
}

/// Asserts that the start reports a taken port, whether it is held by a silent listener or by another server of the same kind.
#[cfg(test)]
pub(crate) async fn assert_detects_taken_port<K: ServerKind>(kind: K, another: K) {
    let mut location = ServerLocation::new(&kind).unwrap();
    kind.prepare(&location).unwrap();
    location.choose_ports().unwrap();
    let silent = std::net::TcpListener::bind(location.addr()).unwrap();
    assert!(matches!(run(&kind, &location).await, Err(StartError::PortTaken)));
    drop(silent);

    let another = Server::start_new(another).await.unwrap();
    location.port = another.addr().port();
    assert!(matches!(run(&kind, &location).await, Err(StartError::PortTaken)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_starts_at_the_given_offset() {
        let folder = Folder::fresh().unwrap();
        let log = folder.path().join("log");
        assert_eq!(tail(&log, 0), "");
        fs::write(&log, "old\nnew\n").unwrap();
        assert_eq!(tail(&log, 4), "new");
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        fs::write(&log, many.join("\n")).unwrap();
        assert_eq!(tail(&log, 0), many[80..].join("\n"));
    }
}
