//! What all servers have in common: being started, being found ready, and the faults.

use std::fmt::Debug;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use url::Url;

use crate::Error;
use crate::eventually::Pace;
use crate::folder::Folder;
use crate::port::free_port;
use crate::process::{Launch, Process};

/// Generous: it is only ever used up by a server that will not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that is asked too early may take the connection and not answer.
const ONE_LOOK: Duration = Duration::from_secs(5);
const PORT_ATTEMPTS: u32 = 10;
const LOG_LINES_SHOWN: usize = 20;
pub(crate) const PORTS_TAKEN: &str = "every port it was given was taken by somebody else";

/// How one kind of server is started and asked whether it is ready.
pub trait Kind: Debug + Send + Sync + Sized + 'static {
    /// The program's name, for messages.
    fn name(&self) -> &'static str;

    /// Whether the data must lie on a real disk.
    fn on_disk(&self) -> bool;

    /// How long to wait for it.
    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Fills the folders before the first start. May block.
    fn prepare(&self, place: &Place) -> Result<(), Error>;

    /// The command line.
    fn launch(&self, place: &Place) -> Launch;

    /// Asks the server at the place's port whether it is *the one that was launched there* and ready.
    fn answers(&self, place: &Place) -> impl Future<Output = Result<(), String>> + Send;
}

/// Where a server of ours lives. It keeps its place over a restart.
#[derive(Debug)]
pub struct Place {
    /// Has a short path, for sockets.
    folder: Folder,
    disk: Option<Folder>,
    /// The port that clients use.
    pub(crate) port: u16,
    /// Another port, for servers that have a second one.
    pub(crate) second_port: u16,
}

/// A server: one of ours, or an external one.
///
/// What breaks it takes `&mut self`, so it can only be called on a server of one's own: the shared
/// ones are handed out as `&'static`, and other tests are using them.
#[derive(Debug)]
pub struct Server<K: Kind> {
    pub(crate) kind: K,
    pub(crate) home: Home,
}

#[derive(Debug)]
pub(crate) enum Home {
    Own(Box<Own>),
    External(Url),
}

#[derive(Debug)]
pub(crate) struct Own {
    // Dropped in this order: first the process that uses the place, then the place.
    process: Option<Process>,
    place: Place,
}

impl<K: Kind> Server<K> {
    pub(crate) async fn of(kind: K) -> Result<Self, Error> {
        // Blocking: it copies files and may wait for another process that makes the same template.
        let preparing = tokio::task::spawn_blocking(move || {
            let place = Place::new(&kind)?;
            kind.prepare(&place)?;
            Ok::<_, Error>((kind, place))
        });
        let (kind, mut place) = preparing.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        for _ in 0..PORT_ATTEMPTS {
            place.choose_ports().map_err(|error| Error::failed("a free port", error))?;
            match run(&kind, &place).await {
                Ok(process) => {
                    let own = Own { process: Some(process), place };
                    return Ok(Self { kind, home: Home::Own(Box::new(own)) });
                }
                // Somebody was faster; there are more ports.
                Err(NoStart::PortTaken) => {}
                Err(NoStart::Other(error)) => return Err(error),
            }
        }
        Err(Error::failed(kind.name(), PORTS_TAKEN))
    }

    /// Where it listens.
    ///
    /// # Panics
    /// For an external server, whose name may stand for several addresses.
    pub fn addr(&self) -> SocketAddr {
        self.own().expect("a server of ours").place.addr()
    }

    /// Its process, while it has one.
    pub fn pid(&self) -> Option<u32> {
        self.own()?.process.as_ref().map(Process::pid)
    }

    /// Everything that it has written to the disk; gone when the server is dropped.
    pub fn folders(&self) -> Vec<&Path> {
        self.own().map(|own| own.place.folders()).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.own().map(|own| tail(&own.place.log(), 0)).unwrap_or_default()
    }

    /// Asks it to stop (SIGTERM) and waits until it has.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let name = self.kind.name();
        let own = self.own_mut()?;
        let Some(process) = &own.process else { return Ok(()) };
        process.signal_group(Signal::SIGTERM);
        // A paused one would not notice.
        process.signal_group(Signal::SIGCONT);
        if process.exited(PATIENCE).await.is_none() {
            let log = tail(&own.place.log(), 0);
            return Err(Error::failed(
                name,
                format!("still running {PATIENCE:?} after SIGTERM; its log:\n{log}"),
            ));
        }
        own.process = None;
        Ok(())
    }

    /// Kills it (SIGKILL) and waits until it is gone. The kernel closes its connections.
    pub async fn kill(&mut self) -> Result<(), Error> {
        let own = self.own_mut()?;
        if let Some(process) = own.process.take() {
            process.signal_group(Signal::SIGKILL);
            process.exited(PATIENCE).await;
        }
        Ok(())
    }

    /// Stops the world for it (SIGSTOP): connections stay open, and nobody answers.
    pub async fn pause(&mut self) -> Result<(), Error> {
        let process = self.process_mut("pause")?;
        process.signal_group(Signal::SIGSTOP);
        if process.stopped(PATIENCE).await {
            return Ok(());
        }
        Err(Error::failed(self.kind.name(), "ended instead of being paused"))
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<(), Error> {
        self.process_mut("resume")?.signal_group(Signal::SIGCONT);
        Ok(())
    }

    /// Starts it after [`stop`](Self::stop) or [`kill`](Self::kill), at the same port and with the same
    /// data, and waits until it answers.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        let Home::Own(own) = &mut self.home else { return Err(not_ours(self.kind.name())) };
        if own.process.is_some() {
            return Err(Error::failed(self.kind.name(), "is running already"));
        }
        let mut pace = Pace::default();
        for _ in 0..PORT_ATTEMPTS {
            match run(&self.kind, &own.place).await {
                Ok(process) => {
                    own.process = Some(process);
                    return Ok(());
                }
                // This time no other port will do. Whoever looks for a free one takes it for a moment only.
                Err(NoStart::PortTaken) => pace.rest().await,
                Err(NoStart::Other(error)) => return Err(error),
            }
        }
        let port = own.place.port;
        Err(Error::failed(self.kind.name(), format!("somebody else has taken its port {port}")))
    }

    /// [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await?;
        self.start_again().await
    }

    pub(crate) fn own(&self) -> Option<&Own> {
        match &self.home {
            Home::Own(own) => Some(own),
            Home::External(_) => None,
        }
    }

    fn own_mut(&mut self) -> Result<&mut Own, Error> {
        match &mut self.home {
            Home::Own(own) => Ok(own),
            Home::External(_) => Err(not_ours(self.kind.name())),
        }
    }

    pub(crate) fn process_mut(&mut self, what: &str) -> Result<&mut Process, Error> {
        let name = self.kind.name();
        let process = self.own_mut()?.process.as_mut();
        process.ok_or_else(|| Error::failed(name, format!("is not running, so there is nothing to {what}")))
    }
}

impl Own {
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}

impl Place {
    fn new<K: Kind>(kind: &K) -> Result<Self, Error> {
        let folder = Folder::fresh().map_err(|error| Error::failed("a temporary folder", error))?;
        let disk = kind.on_disk().then(Folder::on_disk).transpose();
        let disk = disk.map_err(|error| Error::failed("a folder on disk", error))?;
        Ok(Self { folder, disk, port: 0, second_port: 0 })
    }

    /// The folder for sockets, logs and configuration.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder for the data, which the server or [`Kind::prepare`] creates.
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
enum NoStart {
    PortTaken,
    Other(Error),
}

/// Starts the server in its place and waits until it answers.
async fn run<K: Kind>(kind: &K, place: &Place) -> Result<Process, NoStart> {
    let failed = |why: String| NoStart::Other(Error::failed(kind.name(), why));
    let log_path = place.log();
    let log = File::options().create(true).append(true).open(&log_path).map_err(|e| failed(e.to_string()))?;
    // What an earlier start has said is not about this one.
    let said_before = log.metadata().map_or(0, |file| file.len());
    let both = log.try_clone().map_err(|e| failed(e.to_string()))?;
    // The system's messages in English, for the one that is looked for below.
    let launch = kind.launch(place).env("LC_ALL", Some("C".into()));
    let process = launch.start(log, both).map_err(|e| failed(e.to_string()))?;

    let started = Instant::now();
    let mut pace = Pace::default();
    loop {
        if let Some(status) = process.exit_status() {
            let log = tail(&log_path, said_before);
            if log.to_lowercase().contains("address already in use") {
                return Err(NoStart::PortTaken);
            }
            return Err(failed(format!("did not start ({status}); the end of its log:\n{log}")));
        }
        let seen = tokio::select! {
            answer = kind.answers(place) => match answer {
                Ok(()) => return Ok(process),
                Err(seen) => seen,
            },
            // Ended, or silent for too long: a stranger at its port may be what keeps us waiting.
            _ = process.exited(ONE_LOOK) => "no answer".to_owned(),
        };
        if started.elapsed() > kind.patience() {
            let (log, patience) = (tail(&log_path, said_before), kind.patience());
            return Err(failed(format!("not ready within {patience:?}: {seen}; the end of its log:\n{log}")));
        }
        pace.rest().await;
    }
}

fn tail(log: &Path, from: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes.get(usize::try_from(from).unwrap_or(0)..).unwrap_or_default());
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

fn not_ours(name: &str) -> Error {
    Error::failed(name, "is an external server, which is not ours to stop")
}

/// Asserts that a server that finds its port taken is recognised, so that it gets another one: taken by
/// somebody who does not answer, and by one of its own kind, who does.
#[cfg(test)]
pub(crate) async fn assert_notices_taken_port<K: Kind>(kind: K, another: K) {
    let mut place = Place::new(&kind).unwrap();
    kind.prepare(&place).unwrap();
    place.choose_ports().unwrap();
    let silent = std::net::TcpListener::bind(place.addr()).unwrap();
    assert!(matches!(run(&kind, &place).await, Err(NoStart::PortTaken)));
    drop(silent);

    let another = Server::of(another).await.unwrap();
    place.port = another.addr().port();
    assert!(matches!(run(&kind, &place).await, Err(NoStart::PortTaken)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_starts_where_it_is_told_to() {
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
