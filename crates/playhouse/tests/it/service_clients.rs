//! The guide for clients of the service API: its commands work as pasted. `cargo xtask test-clients` runs its programs.

use testkit::Folder;

use super::*;

const GUIDE: &str = include_str!("../../../../docs/guides/service-clients.md");

/// Returns whether a line fits a pattern, in which `…` stands for any text.
fn fits(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        is_open = part.is_empty();
    }
    is_open || rest.is_empty()
}

#[tokio::test]
async fn commands_of_the_service_clients_guide_print_what_it_says() {
    let (_, block) = GUIDE.split_once("<!-- commands -->\n```\n").unwrap();
    let (commands, rest) = block.split_once("\n```\n").unwrap();
    let expected = rest.split("```").nth(1).unwrap().trim();
    let folder = Folder::fresh().unwrap();
    // With the data folder of the guide.
    let running = dev(&[]).folder(folder.path()).start().unwrap();
    let at = addresses(&running).await;
    let commands = commands.replace("127.0.0.1:8081", &at["service_api"]);
    let shell = Program::new("/bin/sh").args(["-ec", &commands]).folder(folder.path());
    let (code, output, errors) = run(shell).await;
    assert_eq!(code, 0, "{output}\n{errors}");
    let (printed, expected): (Vec<&str>, Vec<&str>) = (output.lines().collect(), expected.lines().collect());
    let is_same = printed.len() == expected.len()
        && printed.iter().zip(&expected).all(|(line, pattern)| fits(line, pattern));
    assert!(is_same, "printed\n{output}\ninstead of\n{}", expected.join("\n"));
}

#[test]
fn elided_text_fits_and_other_text_does_not() {
    assert!(fits("abc", "abc") && fits("abc", "a…c") && fits("abc", "…") && fits("abc", "a…"));
    assert!(!fits("abcd", "a…c") && !fits("abc", "b…") && !fits("abc", "ab") && !fits("abc", "a…d"));
}
