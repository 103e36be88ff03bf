//! Programs under test: output, signals, exit status.

use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use testkit::{Line, Program, Running, Stream, eventually};

use crate::DEADLINE;
use crate::roles::{again, role};

fn shell(script: &str) -> Running {
    Program::new("/bin/sh").args(["-c", script]).start().unwrap()
}

fn is_alive(pid: &str) -> bool {
    !matches!(state_of(pid), None | Some('Z'))
}

/// The letter that the kernel gives for what a process is doing.
fn state_of(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    // The name in parentheses before it may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    // SIGINT is the second signal.
    u64::from_str_radix(mask.trim(), 16).unwrap() & 0b10 != 0
}

#[tokio::test]
async fn its_output_is_read_while_it_runs() {
    let program = shell("echo one; echo two >&2; while :; do sleep 1; done");
    assert_eq!(program.wait_for_line("on", DEADLINE).await, "one");
    assert_eq!(program.wait_for_line("two", DEADLINE).await, "two");
    assert_eq!(program.text(Stream::Stdout), "one\n");
    assert!(program.lines().contains(&Line { stream: Stream::Stderr, text: "two".to_owned() }));
    assert_eq!(program.exit_status(), None);
}

#[tokio::test]
async fn its_exit_status_is_its_own() {
    assert_eq!(shell("exit 0").wait(DEADLINE).await.code(), Some(0));
    // What a shell in between would make of a SIGTERM.
    assert_eq!(shell("exit 143").wait(DEADLINE).await.code(), Some(143));
    let program = shell("kill -TERM $$");
    let status = program.wait(DEADLINE).await;
    assert_eq!((status.code(), status.signal()), (None, Some(15)));
    assert_eq!(program.exit_status(), Some(status));
    let nowhere = Program::new("/no/such/program").start().unwrap();
    assert_eq!(nowhere.wait(DEADLINE).await.code(), Some(127));
}

#[tokio::test]
async fn signals_reach_it() {
    let script = "trap 'echo term' TERM; trap 'echo int' INT; echo ready; while :; do sleep 0.01; done";
    let program = shell(script);
    program.wait_for_line("ready", DEADLINE).await;
    program.sigterm();
    program.wait_for_line("term", DEADLINE).await;
    // A shell cannot catch what was ignored when it started, as it is in a job in the background.
    if !ignores_interrupts() {
        program.sigint();
        program.wait_for_line("int", DEADLINE).await;
    }
    program.kill();
    assert_eq!(program.wait(DEADLINE).await.signal(), Some(9));
    // To somebody who is gone: nothing happens.
    program.sigterm();
}

#[tokio::test]
async fn it_can_be_paused() {
    let program = shell("while :; do echo tick; sleep 0.01; done");
    program.wait_for_line("tick", DEADLINE).await;
    program.pause().await;
    assert_eq!(state_of(&program.pid().to_string()), Some('T'));
    program.resume();
    let before = program.lines().len();
    // More than the pipe may have held back.
    eventually("more ticks", DEADLINE, || async { program.lines().len() > before + 20 }).await;
}

#[tokio::test]
async fn what_it_has_started_ends_with_it() {
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
async fn its_environment_is_ours_without_our_settings() {
    let script =
        "echo path=${PATH:+set} setting=$PLAYHOUSE_SETTING own=$OWN; read line || echo no input; pwd";
    let inner = Program::new("/bin/sh").args(["-c", script]).env("OWN", "1").folder("/");
    let status = inner.start().unwrap();
    assert!(status.wait(DEADLINE).await.success());
    assert_eq!(status.text(Stream::Stdout), "path=set setting= own=1\nno input\n/\n");

    // A process with a setting of ours, to see that it is not handed on.
    if role().is_some() {
        return;
    }
    let outer = again!("with a setting").env("PLAYHOUSE_SETTING", "leaked").start().unwrap();
    let passed = outer.wait(DEADLINE).await.success();
    assert!(passed, "{}", outer.text(Stream::Stderr));
}

#[tokio::test]
async fn what_does_not_come_is_reported_with_what_came() {
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
