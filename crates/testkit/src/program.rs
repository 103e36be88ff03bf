//! A program under test, started as users start it: as a process with arguments and environment.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::sync::watch;

use crate::process::{Launch, Process};

/// The developer's own settings must not change the tests.
const NOT_INHERITED: &str = "PLAYHOUSE_";
const LINES_SHOWN: usize = 40;
/// Output is read at once, unless the program left a daemon that keeps the pipe open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// A program to start.
#[derive(Clone, Debug)]
pub struct Program {
    launch: Launch,
}

/// A started program. It is killed with its descendants when it is dropped or when the test process ends.
///
/// It is a direct child, so it receives signals itself and the exit status is its own.
#[derive(Debug)]
pub struct RunningProgram {
    name: String,
    process: Process,
    output: Arc<watch::Sender<Output>>,
}

/// A line of output, without its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// The stream that it was written to.
    pub stream: OutputStream,
    /// The text; bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// The two output streams of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Debug, Default)]
struct Output {
    lines: Vec<OutputLine>,
    /// How many streams have ended.
    ended: usize,
}

impl Program {
    /// Describes the program at `path`. It inherits the environment, except variables that begin with `PLAYHOUSE_`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let inherited = std::env::vars_os().map(|(name, _)| name);
        let unwanted = inherited.filter(|name| name.as_encoded_bytes().starts_with(NOT_INHERITED.as_bytes()));
        let launch = unwanted.fold(Launch::new(path), |launch, name| launch.env(name, None));
        Self { launch }
    }

    /// Adds an argument.
    pub fn arg(self, arg: impl Into<OsString>) -> Self {
        Self { launch: self.launch.arg(arg) }
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(self, args: impl IntoIterator<Item = A>) -> Self {
        Self { launch: self.launch.args(args) }
    }

    /// Sets a variable.
    pub fn env(self, name: impl Into<OsString>, value: impl AsRef<OsStr>) -> Self {
        Self { launch: self.launch.env(name, Some(value.as_ref().to_owned())) }
    }

    /// Sets the working folder.
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { launch: self.launch.folder(folder) }
    }

    /// Starts the program with an empty standard input.
    ///
    /// If there is no program at the path, the exit status is 127 or 126, as in a shell.
    pub fn start(&self) -> io::Result<RunningProgram> {
        let process = self.launch.start(Stdio::piped(), Stdio::piped())?;
        let output = Arc::new(watch::Sender::new(Output::default()));
        read_lines(process.stdout(), OutputStream::Stdout, &output);
        read_lines(process.stderr(), OutputStream::Stderr, &output);
        Ok(RunningProgram { name: self.launch.name(), process, output })
    }
}

impl RunningProgram {
    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns all lines so far, in the order in which they were read.
    pub fn lines(&self) -> Vec<OutputLine> {
        self.output.borrow().lines.clone()
    }

    /// Returns the output of one stream so far.
    pub fn text(&self, stream: OutputStream) -> String {
        let output = self.output.borrow();
        output
            .lines
            .iter()
            .filter(|line| line.stream == stream)
            .map(|line| format!("{}\n", line.text))
            .collect()
    }

    /// Waits for a line that contains `needle` and returns it. Earlier lines count too.
    ///
    /// # Panics
    /// If `deadline` passes or the program ends first. The message shows its output.
    pub async fn wait_for_line(&self, needle: &str, deadline: Duration) -> String {
        let mut output = self.output.subscribe();
        let found = output.wait_for(|output| output.ended == 2 || output.find(needle).is_some());
        let why = match tokio::time::timeout(deadline, found).await {
            Ok(Ok(output)) => match output.find(needle) {
                Some(line) => return line.text.clone(),
                None => "it has ended".to_owned(),
            },
            _ => format!("not within {deadline:?}"),
        };
        panic!("{}: no line with {needle:?}, {why}; it wrote:\n{}", self.name, self.tail());
    }

    /// Sends SIGTERM.
    pub fn sigterm(&self) {
        self.process.signal(Signal::SIGTERM);
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn sigint(&self) {
        self.process.signal(Signal::SIGINT);
    }

    /// Sends SIGKILL. Its descendants are killed as soon as its end is noticed.
    pub fn kill(&self) {
        self.process.signal(Signal::SIGKILL);
    }

    /// Sends SIGSTOP and waits until the program has stopped.
    pub async fn pause(&self) {
        self.process.signal(Signal::SIGSTOP);
        self.process.stopped(OUTPUT_TIMEOUT).await;
    }

    /// Sends SIGCONT, to continue after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Returns the exit status, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Waits until it has ended and its whole output has been read.
    ///
    /// # Panics
    /// If `deadline` passes first. The message shows its output.
    pub async fn wait(&self, deadline: Duration) -> ExitStatus {
        let started = Instant::now();
        let Some(status) = self.process.exited(deadline).await else {
            panic!("{}: still running after {:?}; it wrote:\n{}", self.name, started.elapsed(), self.tail());
        };
        let mut output = self.output.subscribe();
        let _ = tokio::time::timeout(OUTPUT_TIMEOUT, output.wait_for(|output| output.ended == 2)).await;
        status
    }

    fn tail(&self) -> String {
        let lines: Vec<String> = self.lines().into_iter().map(|line| line.text).collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }
}

impl Output {
    fn find(&self, needle: &str) -> Option<&OutputLine> {
        self.lines.iter().find(|line| line.text.contains(needle))
    }
}

/// Reads lines on a thread. A task would end with the runtime of the test that started the program.
fn read_lines(
    from: Option<impl Read + Send + 'static>,
    stream: OutputStream,
    to: &Arc<watch::Sender<Output>>,
) {
    let to = Arc::clone(to);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from.expect("the stream is piped"));
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            to.send_modify(|output| output.lines.push(OutputLine { stream, text }));
            bytes.clear();
        }
        to.send_modify(|output| output.ended += 1);
    });
}
