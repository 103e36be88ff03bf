//! What the simulator shows while it runs.

use super::*;

/// The columns of a terminal.
const COLUMNS: usize = 80;

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_plain_lines_without_a_terminal() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let running = simulator(&folder, &dev.own_args()).args(["--players", "30", "--with", "arrival.over=6s"]);
    let running = running.start().unwrap();
    let (code, text, _) = finished(&folder, &running).await;
    assert_eq!(code, Some(0), "{text}");
    let progress = running.text(OutputStream::Stderr);
    assert!(!progress.contains(['\r', '\x1b']), "{progress:?}");
    assert!(progress.lines().all(|line| line.len() < COLUMNS), "{progress}");
    let last: Vec<&str> = progress.lines().rev().take(2).collect();
    assert!(last[0].ends_with(" 30/30 read back"), "{progress}");
    assert!(progress.lines().any(|line| line.contains(" 30/30 done, 0 in line, ")), "{progress}");
    assert!(progress.lines().count() >= 3, "a line every five seconds: {progress}");
}

/// `script` runs the simulator on a pseudo-terminal.
#[tokio::test(flavor = "multi_thread")]
async fn progress_replaces_itself_on_a_terminal() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let command = format!(
        "'{}' simulate {} --players 30 --with arrival.over=2s 2>&1 >'{}'",
        env!("CARGO_BIN_EXE_playhouse"),
        dev.own_args().join(" "),
        folder.path().join("report.txt").display(),
    );
    let terminal =
        Program::new("/usr/bin/script").args(["--quiet", "--flush", "--return", "--command", &command]);
    let running = terminal.arg("/dev/null").start().unwrap();
    let status = running.wait(Duration::from_secs(120)).await;
    let shown = running.text(OutputStream::Stdout);
    assert_eq!(status.code(), Some(0), "{shown}");
    let frames: Vec<&str> = shown.split("\x1b[J").skip(1).collect();
    assert!(frames.len() > 4, "{shown:?}");
    for frame in &frames {
        let lines: Vec<&str> = frame.lines().filter(|line| !line.starts_with('\x1b')).collect();
        assert!(lines.len() == 3 || lines.len() == 4, "{frame:?}");
        assert!(lines.iter().all(|line| line.trim_end().len() < COLUMNS), "{frame:?}");
        assert!(lines[0].contains("/30 done") && lines[1].contains("/400 bought"), "{frame:?}");
    }
    let last = frames.last().unwrap();
    assert!(last.contains("[########################] 30/30 done"), "{last:?}");
    assert!(last.contains("[########################] 30/30 read back"), "{last:?}");
}
