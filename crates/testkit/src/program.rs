//! A real program under test, as its users start it: another process, with arguments and environment.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::sync::watch;

use crate::process::{Launch, Process};

/// Settings of the person who runs the tests must not change what is tested.
const NOT_INHERITED: &str = "PLAYHOUSE_";
const LINES_SHOWN: usize = 40;
/// What has been written is read at once, unless the program has left a daemon that keeps the pipe.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// A program about to be started.
#[derive(Clone, Debug)]
pub struct Program {
    launch: Launch,
}

/// A program that has been started. Dropping it kills it and what it has started, and so does the end of
/// the test process.
///
/// It is a direct child: signals reach it and the exit status is its own.
#[derive(Debug)]
pub struct Running {
    name: String,
    process: Process,
    output: Arc<watch::Sender<Output>>,
}

/// A line that the program has written, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it was written to.
    pub stream: Stream,
    /// What it says; bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// The two streams that a program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Debug, Default)]
struct Output {
    lines: Vec<Line>,
    /// Streams that have come to their end.
    ended: usize,
}

impl Program {
    /// The program at `path`, with the environment of this process except what begins with `PLAYHOUSE_`.
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

    /// Starts it in another folder than this process.
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { launch: self.launch.folder(folder) }
    }

    /// Starts it, with an empty standard input.
    ///
    /// A path that leads to no program is noticed by the exit status 127 or 126, as in a shell.
    pub fn start(&self) -> io::Result<Running> {
        let process = self.launch.start(Stdio::piped(), Stdio::piped())?;
        let output = Arc::new(watch::Sender::new(Output::default()));
        read_lines(process.stdout(), Stream::Stdout, &output);
        read_lines(process.stderr(), Stream::Stderr, &output);
        Ok(Running { name: self.launch.name(), process, output })
    }
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All lines so far, in the order in which they were read.
    pub fn lines(&self) -> Vec<Line> {
        self.output.borrow().lines.clone()
    }

    /// All that was written to one of the streams so far.
    pub fn text(&self, stream: Stream) -> String {
        let output = self.output.borrow();
        output
            .lines
            .iter()
            .filter(|line| line.stream == stream)
            .map(|line| format!("{}\n", line.text))
            .collect()
    }

    /// Waits for a line that contains `needle`, one that is there already included, and returns it.
    ///
    /// # Panics
    /// When `deadline` passes or the program ends first, showing what it has written.
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

    /// Asks it to end (SIGTERM).
    pub fn sigterm(&self) {
        self.process.signal(Signal::SIGTERM);
    }

    /// Interrupts it (SIGINT), as Ctrl-C does.
    pub fn sigint(&self) {
        self.process.signal(Signal::SIGINT);
    }

    /// Kills it (SIGKILL). What it has started goes too, as soon as its end is noticed.
    pub fn kill(&self) {
        self.process.signal(Signal::SIGKILL);
    }

    /// Stops the world for it (SIGSTOP), and waits until it stands still.
    pub async fn pause(&self) {
        self.process.signal(Signal::SIGSTOP);
        self.process.stopped(OUTPUT_PATIENCE).await;
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Waits until it has ended and all it wrote has been read.
    ///
    /// # Panics
    /// When `deadline` passes first, showing what it has written.
    pub async fn wait(&self, deadline: Duration) -> ExitStatus {
        let started = Instant::now();
        let Some(status) = self.process.exited(deadline).await else {
            panic!("{}: still running after {:?}; it wrote:\n{}", self.name, started.elapsed(), self.tail());
        };
        let mut output = self.output.subscribe();
        let _ = tokio::time::timeout(OUTPUT_PATIENCE, output.wait_for(|output| output.ended == 2)).await;
        status
    }

    fn tail(&self) -> String {
        let lines: Vec<String> = self.lines().into_iter().map(|line| line.text).collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }
}

impl Output {
    fn find(&self, needle: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.text.contains(needle))
    }
}

/// On a thread, not a task: it must not end with the runtime of the test that has started the program.
fn read_lines(from: Option<impl Read + Send + 'static>, stream: Stream, to: &Arc<watch::Sender<Output>>) {
    let to = Arc::clone(to);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from.expect("the stream is piped"));
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            to.send_modify(|output| output.lines.push(Line { stream, text }));
            bytes.clear();
        }
        to.send_modify(|output| output.ended += 1);
    });
}
