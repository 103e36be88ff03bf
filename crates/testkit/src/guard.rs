//! The guard: one small shell beside the test process that cleans up when the test process is gone.
//!
//! Invariant: whatever must not outlive the test process is *announced before it exists*. A line that
//! has been written is in the pipe, and the guard reads the pipe to its end even if the writer was
//! killed in the next instruction. So there is no moment at which `kill -9` leaks anything, and no
//! acknowledgement to wait for.
//!
//! A death signal (`PR_SET_PDEATHSIG`) would not do: it follows the *thread* that started the child,
//! and test threads end all the time.

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

/// Promises that `path`, which is about to be created, goes away with this process.
pub(crate) fn folder(path: &Path) {
    let path = path.to_str().expect("the temporary folder's path is valid UTF-8");
    assert!(!path.contains('\n'), "a line break in the path {path:?}");
    tell(&format!("folder {path}"));
}

/// Promises that the process group led by `pid` is killed when this process is gone.
pub(crate) fn watch(pid: u32) {
    tell(&format!("watch {pid}"));
}

/// Withdraws [`watch`]. To be said before `pid` is reaped: afterwards the number may be reused.
pub(crate) fn forget(pid: u32) {
    tell(&format!("forget {pid}"));
}

/// The guard's own process id, so that tests can see it end.
pub fn pid() -> u32 {
    GUARD.lock().unwrap_or_else(PoisonError::into_inner).child.id()
}

fn tell(line: &str) {
    // The lock is poisoned only if the guard died under another test, which the write below reports.
    let mut guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    // One write of less than PIPE_BUF bytes: the guard sees all of the line or nothing.
    guard
        .stdin
        .write_all(format!("{line}\n").as_bytes())
        .expect("the guard that cleans up after this test process is gone");
}

impl Guard {
    fn start() -> Self {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "testkit-guard"])
            // Its own group: Ctrl-C in a terminal ends the test process and leaves us the guard.
            .process_group(0)
            .stdin(Stdio::piped())
            // Nothing inherited: whoever reads the output of the tests must not wait for the guard.
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
    fn at_the_end_it_kills_what_it_watches_and_has_not_been_told_to_forget() {
        let (watched, forgotten, unknown) = (sleeper(), sleeper(), sleeper());
        let mut guard = Guard::start();
        writeln!(guard.stdin, "watch {}", forgotten.pid()).unwrap();
        writeln!(guard.stdin, "watch {}", watched.pid()).unwrap();
        writeln!(guard.stdin, "forget {}", forgotten.pid()).unwrap();
        assert_eq!(watched.exit_status(), None);
        end(guard);
        assert_eq!(watched.wait().signal(), Some(9));
        for other in [forgotten, unknown] {
            // A kill that is on its way comes first.
            other.signal(Signal::SIGTERM);
            assert_eq!(other.wait().signal(), Some(15));
        }
    }

    #[test]
    fn folders_may_have_spaces_in_their_names() {
        let parent = crate::Folder::fresh().unwrap();
        let (told, not_told) = (parent.path().join("a  b 'c'"), parent.path().join("a"));
        for folder in [&told, &not_told] {
            std::fs::create_dir_all(folder.join("deep")).unwrap();
        }
        let mut guard = Guard::start();
        writeln!(guard.stdin, "folder {}", told.display()).unwrap();
        end(guard);
        assert!(!told.exists() && not_told.exists());
    }
}
