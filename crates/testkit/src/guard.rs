//! The guard: a shell process that cleans up after the test process has ended.
//!
//! Invariant: every process and folder is *registered with the guard before it exists*. A written line is in the pipe, and the
//! guard reads the pipe to its end even if the writer was killed right after the write. So `kill -9` leaks nothing at any
//! moment, and no acknowledgement is needed.
//!
//! A death signal (`PR_SET_PDEATHSIG`) does not work here: it is sent when the *thread* that started the child ends, and test
//! threads end all the time.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

const SCRIPT: &str = include_str!("guard.sh");

static GUARD: LazyLock<Mutex<Guard>> = LazyLock::new(|| Mutex::new(Guard::start()));

#[derive(Debug)]
struct Guard {
    stdin: ChildStdin,
    child: Child,
}

/// Registers a folder that is about to be created. The guard removes it after this process has ended.
pub(crate) fn folder(path: &Path) {
    let path = path.to_str().expect("the temporary folder's path is valid UTF-8");
    assert!(!path.contains('\n'), "a line break in the path {path:?}");
    send(&format!("folder {path}"));
}

/// Registers a process group. The guard kills it after this process has ended.
pub(crate) fn watch(pid: u32) {
    send(&format!("watch {pid}"));
}

/// Withdraws [`watch`]. Must be called before `pid` is reaped, because the number may be reused afterwards.
pub(crate) fn forget(pid: u32) {
    send(&format!("forget {pid}"));
}

/// Returns the process id of the guard, so that tests can check that it ends.
pub fn pid() -> u32 {
    GUARD.lock().unwrap_or_else(PoisonError::into_inner).child.id()
}

fn send(line: &str) {
    // The lock is poisoned only if the guard died during another test. The write below reports that.
    let mut guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    // One write of less than PIPE_BUF bytes is atomic: the guard reads the whole line or nothing.
    guard
        .stdin
        .write_all(format!("{line}\n").as_bytes())
        .expect("the guard process, which cleans up after this test process, has ended");
}

impl Guard {
    fn start() -> Self {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "testkit-guard"])
            // Its own process group: Ctrl-C in a terminal stops the test process but not the guard.
            .process_group(0)
            .stdin(Stdio::piped())
            // Inherits no output: a reader of the test output must not wait for the guard to end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh can be started");
        let stdin = child.stdin.take().expect("stdin is piped");
        Self { stdin, child }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use nix::sys::signal::Signal;

    use super::*;
    use crate::process::{Launch, Process};

    fn sleeper() -> Process {
        Launch::new("sleep").arg("1000").start(Stdio::null(), Stdio::null()).unwrap()
    }

    fn end(mut guard: Guard) {
        drop(guard.stdin);
        assert!(guard.child.wait().unwrap().success());
    }

    #[test]
    fn guard_kills_watched_processes_and_spares_forgotten_ones() {
        let (watched, forgotten, unknown) = (sleeper(), sleeper(), sleeper());
        let mut guard = Guard::start();
        writeln!(guard.stdin, "watch {}", forgotten.pid()).unwrap();
        writeln!(guard.stdin, "watch {}", watched.pid()).unwrap();
        writeln!(guard.stdin, "forget {}", forgotten.pid()).unwrap();
        assert_eq!(watched.exit_status(), None);
        end(guard);
        assert_eq!(watched.wait().signal(), Some(9));
        for other in [forgotten, unknown] {
            // A pending SIGKILL would be delivered before this signal.
            other.signal(Signal::SIGTERM);
            assert_eq!(other.wait().signal(), Some(15));
        }
    }

    #[test]
    fn folders_may_have_spaces_in_their_names() {
        let parent = crate::Folder::fresh().unwrap();
        let (registered, other) = (parent.path().join("a  b 'c'"), parent.path().join("a"));
        for folder in [&registered, &other] {
            std::fs::create_dir_all(folder.join("deep")).unwrap();
        }
        let mut guard = Guard::start();
        writeln!(guard.stdin, "folder {}", registered.display()).unwrap();
        end(guard);
        assert!(!registered.exists() && other.exists());
    }
}
