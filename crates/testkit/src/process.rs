//! A child process that cannot outlive the test process.
//!
//! It is a direct child, so its exit status is the program's own and its process id cannot be reused before it is reaped. It leads
//! its own process group, so its descendants are killed with it.
//!
//! It starts as a shell that reads one line from stdin and then becomes the program by `exec`. The line is sent after the process
//! was registered with the [guard](crate::guard). If the test process dies before that, the shell reads the end of its stdin and
//! exits; if it dies later, the guard kills the process.

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

use crate::eventually::PollBackoff;
use crate::guard;

const WAIT_THEN_EXEC: &str = r#"read -r go && exec "$@" </dev/null"#;

/// A program to start: arguments, environment, folder.
#[derive(Clone, Debug)]
pub struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    environment: Vec<(OsString, Option<OsString>)>,
    folder: Option<PathBuf>,
}

/// A started process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Set when the child is reaped. After that the process id may belong to another process and must not be used.
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

    /// Adds `--NAME=VALUE`. The value need not be valid UTF-8.
    pub(crate) fn option(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(value);
        self.arg(arg)
    }

    /// Sets a variable, or removes it if `None`. The rest of the environment is inherited.
    pub(crate) fn env(mut self, name: impl Into<OsString>, value: Option<OsString>) -> Self {
        self.environment.push((name.into(), value));
        self
    }

    pub(crate) fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Returns the program's name without its folder, for messages.
    pub(crate) fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn start(&self, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> io::Result<Process> {
        let mut command = Command::new("sh");
        command
            .args(["-c", WAIT_THEN_EXEC, "sh"])
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
        let released = child.stdin.take().expect("stdin is piped").write_all(b"go\n");
        let process = Process { pid: child.id(), state: Mutex::new(State { child, status: None }) };
        released.map(|()| process)
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

    /// Signals the program, not its descendants. Does nothing if it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        // The lock prevents that another thread reaps it, so the process id stays valid even if it ends now.
        let mut state = self.state();
        if state.poll().is_none() {
            let _ = kill(state.pid(), signal);
        }
    }

    /// Signals the program and its descendants.
    pub(crate) fn signal_group(&self, signal: Signal) {
        let mut state = self.state();
        if state.poll().is_none() {
            let _ = killpg(state.pid(), signal);
        }
    }

    /// Returns the exit status, or `None` while it runs. Kills what is left of its process group once it has ended.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.state().poll()
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

    /// Waits until it has ended, at most `within`. Returns `None` if it still runs.
    pub(crate) async fn exited(&self, within: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        let mut backoff = PollBackoff::default();
        loop {
            let status = self.exit_status();
            if status.is_some() || started.elapsed() > within {
                return status;
            }
            backoff.wait().await;
        }
    }

    /// Waits until all of its threads have stopped, which is when the kernel notifies the parent.
    pub(crate) async fn stopped(&self, within: Duration) -> bool {
        let started = Instant::now();
        let mut backoff = PollBackoff::default();
        loop {
            match self.state().stopped() {
                None if started.elapsed() < within => {}
                answer => return answer == Some(true),
            }
            backoff.wait().await;
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

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            if waitid(Id::Pid(self.pid()), ended) == Ok(WaitStatus::StillAlive) {
                return None;
            }
            // Not reaped yet, so the process id is still valid, here and in the guard.
            let _ = killpg(self.pid(), Signal::SIGKILL);
            guard::forget(self.child.id());
            self.status = Some(self.child.wait().expect("a child can be waited for"));
        }
        self.status
    }

    /// Returns `None` while it runs, `Some(true)` if it has stopped, `Some(false)` if it has ended.
    fn stopped(&mut self) -> Option<bool> {
        if self.poll().is_some() {
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
        // Short, because SIGKILL cannot be ignored. It also withdraws the process id from the guard.
        self.wait();
    }
}
