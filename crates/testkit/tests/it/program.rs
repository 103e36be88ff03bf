//! Programs under test: output, signals, exit status.

use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use testkit::{OutputLine, OutputStream, Program, RunningProgram, eventually};

use crate::DEADLINE;
use crate::roles::{again, role};

fn shell(script: &str) -> RunningProgram {
    Program::new("/bin/sh").args(["-c", script]).start().unwrap()
}

fn is_alive(pid: &str) -> bool {
    !matches!(state_of(pid), None | Some('Z'))
}

/// Returns the kernel's letter for the state of a process.
fn state_of(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    // The program name in parentheses before it may contain anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    // SIGINT is the second signal.
    u64::from_str_radix(mask.trim(), 16).unwrap() & 0b10 != 0
}

#[tokio::test]
async fn output_is_read_while_the_program_runs() {
    let program = shell("echo one; echo two >&2; while :; do sleep 1; done");
    assert_eq!(program.wait_for_line("on", DEADLINE).await, "one");
    assert_eq!(program.wait_for_line("two", DEADLINE).await, "two");
    assert_eq!(program.text(OutputStream::Stdout), "one\n");
    assert!(program.lines().contains(&OutputLine { stream: OutputStream::Stderr, text: "two".to_owned() }));
    assert_eq!(program.exit_status(), None);
}

#[tokio::test]
async fn exit_status_is_the_programs_own() {
    assert_eq!(shell("exit 0").wait(DEADLINE).await.code(), Some(0));
    // The status that a shell in between would report for a SIGTERM.
    assert_eq!(shell("exit 143").wait(DEADLINE).await.code(), Some(143));
    let program = shell("kill -TERM $$");
    let status = program.wait(DEADLINE).await;
    assert_eq!((status.code(), status.signal()), (None, Some(15)));
    assert_eq!(program.exit_status(), Some(status));
    let nowhere = Program::new("/no/such/program").start().unwrap();
    assert_eq!(nowhere.wait(DEADLINE).await.code(), Some(127));
}

#[tokio::test]
async fn program_receives_signals() {
    let script = "trap 'echo term' TERM; trap 'echo int' INT; echo ready; while :; do sleep 0.01; done";
    let program = shell(script);
    program.wait_for_line("ready", DEADLINE).await;
    program.sigterm();
    program.wait_for_line("term", DEADLINE).await;
    // A shell cannot trap signals that were ignored when it started, as SIGINT is in a background job.
    if !ignores_interrupts() {
        program.sigint();
        program.wait_for_line("int", DEADLINE).await;
    }
    program.kill();
    assert_eq!(program.wait(DEADLINE).await.signal(), Some(9));
    // A signal after the end does nothing.
    program.sigterm();
}

#[tokio::test]
async fn program_can_be_paused() {
    let program = shell("while :; do echo tick; sleep 0.01; done");
    program.wait_for_line("tick", DEADLINE).await;
    program.pause().await;
    assert_eq!(state_of(&program.pid().to_string()), Some('T'));
    program.resume();
    let before = program.lines().len();
    // More lines than the pipe may have buffered.
    eventually("more ticks", DEADLINE, || async { program.lines().len() > before + 20 }).await;
}

#[tokio::test]
async fn descendants_end_with_the_program() {
    let program = shell("sleep 1000 & echo child $!; wait");
    let line = program.wait_for_line("child", DEADLINE).await;
    let child = line.split(' ').nth(1).unwrap();
    assert!(is_alive(child));
    drop(program);
    eventually("the end of the child", DEADLINE, || async { !is_alive(child) }).await;

    let program = shell("sleep 1000 & echo child $!");
    program.wait(DEADLINE).await;
    let line = program.wait_for_line("child", DEADLINE).await;
    let child = line.split(' ').nth(1).unwrap();
    eventually("the end of the orphan", DEADLINE, || async { !is_alive(child) }).await;
}

#[tokio::test]
async fn program_inherits_the_environment_without_playhouse_settings() {
    let script =
        "echo path=${PATH:+set} setting=$PLAYHOUSE_SETTING own=$OWN; read line || echo no input; pwd";
    let inner = Program::new("/bin/sh").args(["-c", script]).env("OWN", "1").folder("/");
    let status = inner.start().unwrap();
    assert!(status.wait(DEADLINE).await.success());
    assert_eq!(status.text(OutputStream::Stdout), "path=set setting= own=1\nno input\n/\n");

    // Runs this test with a setting, which the inner program must not inherit.
    if role().is_some() {
        return;
    }
    let outer = again!("with a setting").env("PLAYHOUSE_SETTING", "leaked").start().unwrap();
    let passed = outer.wait(DEADLINE).await.success();
    assert!(passed, "{}", outer.text(OutputStream::Stderr));
}

#[tokio::test]
async fn missing_line_is_reported_with_the_output() {
    let program = shell("echo listening on 8080; while :; do sleep 1; done");
    program.wait_for_line("listening", DEADLINE).await;
    let waiting = program.wait_for_line("ready", Duration::from_millis(50));
    let text = panic_text(waiting).await;
    assert_eq!(text, "sh: no line with \"ready\", not within 50ms; it wrote:\nlistening on 8080");
    let text = panic_text(program.wait(Duration::from_millis(50))).await;
    assert!(text.starts_with("sh: still running after "), "{text}");
    assert!(text.ends_with("it wrote:\nlistening on 8080"), "{text}");

    let text = panic_text(shell("echo bye").wait_for_line("ready", DEADLINE)).await;
    assert_eq!(text, "sh: no line with \"ready\", it has ended; it wrote:\nbye");
}

async fn panic_text<T>(future: impl Future<Output = T>) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.err().expect("a panic");
    *panic.downcast::<String>().expect("a panic with a text")
}
