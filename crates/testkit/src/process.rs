//! A process that cannot outlive the test process.
//!
//! The process is our own child, so its exit status is the real one and its number cannot be reused
//! before we have reaped it. It leads its own process group, so what it starts goes with it.
//!
//! Between being started and being announced to the [guard](crate::guard) it is a shell that waits
//! for our word and then becomes the program by `exec`. If we die before giving the word, the shell
//! reads the end of its stdin and exits; if we die after, the guard knows about it already.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::eventually::Pace;
use crate::guard;

const WAIT_FOR_THE_WORD: &str = r#"read -r word && exec "$@" </dev/null"#;

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    environment: Vec<(OsString, Option<OsString>)>,
    folder: Option<PathBuf>,
}

/// A started process; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Known once the child is reaped. From then on the number is not ours to name any more.
    status: Option<ExitStatus>,
}

impl Launch {
    pub(crate) fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), environment: Vec::new(), folder: None }
    }

    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// `--NAME=VALUE` with a value that need not be valid UTF-8.
    pub(crate) fn option(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(value);
        self.arg(arg)
    }

    /// Sets a variable, or with `None` removes it, in the environment inherited from this process.
    pub(crate) fn env(mut self, name: impl Into<OsString>, value: Option<OsString>) -> Self {
        self.environment.push((name.into(), value));
        self
    }

    pub(crate) fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// The program's name without its folder, for messages.
    pub(crate) fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn start(&self, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> io::Result<Process> {
        let mut command = Command::new("sh");
        command
            .args(["-c", WAIT_FOR_THE_WORD, "sh"])
            .arg(&self.program)
            .args(&self.args)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(stderr);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let mut child = command.spawn()?;
        guard::watch(child.id());
        let word = child.stdin.take().expect("stdin is piped").write_all(b"go\n");
        let process = Process { pid: child.id(), state: Mutex::new(State { child, status: None }) };
        word.map(|()| process)
    }
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn stdout(&self) -> Option<ChildStdout> {
        self.state().child.stdout.take()
    }

    pub(crate) fn stderr(&self) -> Option<ChildStderr> {
        self.state().child.stderr.take()
    }

    /// Signals the program alone. Nothing happens if it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        // Under the lock, so that nobody reaps it meanwhile: even if it ends now, it keeps its number.
        let mut state = self.state();
        if state.look().is_none() {
            let _ = kill(state.pid(), signal);
        }
    }

    /// Signals the program and everything it has started.
    pub(crate) fn signal_group(&self, signal: Signal) {
        let mut state = self.state();
        if state.look().is_none() {
            let _ = killpg(state.pid(), signal);
        }
    }

    /// How it ended, or `None` while it runs. What it has left in its process group is killed then.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.state().look()
    }

    /// Waits until it has ended. Blocks.
    pub(crate) fn wait(&self) -> ExitStatus {
        loop {
            match self.exit_status() {
                Some(status) => return status,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Waits until it has ended, at most `within`.
    pub(crate) async fn exited(&self, within: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        let mut pace = Pace::default();
        loop {
            let status = self.exit_status();
            if status.is_some() || started.elapsed() > within {
                return status;
            }
            pace.rest().await;
        }
    }

    /// Waits until every thread of it has stopped: not before that does the kernel tell the parent.
    pub(crate) async fn stopped(&self, within: Duration) -> bool {
        let started = Instant::now();
        let mut pace = Pace::default();
        loop {
            match self.state().stopped() {
                None if started.elapsed() < within => {}
                answer => return answer == Some(true),
            }
            pace.rest().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn look(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            if waitid(Id::Pid(self.pid()), ended) == Ok(WaitStatus::StillAlive) {
                return None;
            }
            // Not reaped yet, so the number still is the one we know, for us and for the guard.
            let _ = killpg(self.pid(), Signal::SIGKILL);
            guard::forget(self.child.id());
            self.status = Some(self.child.wait().expect("our child can be waited for"));
        }
        self.status
    }

    /// `None`: not yet; `Some(false)`: never, it has ended.
    fn stopped(&mut self) -> Option<bool> {
        if self.look().is_some() {
            return Some(false);
        }
        match waitid(Id::Pid(self.pid()), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Stopped(..)) => Some(true),
            _ => None,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal_group(Signal::SIGKILL);
        // SIGKILL cannot be refused, so this is short. It also makes the guard forget the number.
        self.wait();
    }
}
