//! Section 4 of the tutorial: the lobby of `playhouse serve`, with a game server that is a program of its own.

use std::path::Path;

use testkit::{Folder, free_port, need};

use super::*;

const TUTORIAL: &str = include_str!("../../../../../docs/tutorials/lobby.md");
/// How the tutorial starts the game server.
const GAME_SERVER: &str = "cargo run -p example-game-server";

/// Returns the commands of section 4: what prepares, what starts Playhouse, what starts the game server.
fn commands() -> [&'static str; 3] {
    let section = TUTORIAL.split("\n## ").find(|section| section.starts_with("4. ")).unwrap();
    let blocks: Vec<&str> = section.split("```").skip(1).step_by(2).map(str::trim).collect();
    blocks.try_into().expect("the section has three blocks of commands")
}

/// Runs a command in the folder of the tutorial, with `playhouse` on the PATH. `exec` makes it the process itself.
fn shell(command: &str, folder: &Folder) -> Program {
    let programs = Path::new(env!("CARGO_BIN_EXE_playhouse")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    Program::new("/bin/sh").args(["-ec", command]).folder(folder.path()).env("PATH", path)
}

/// Builds the game server, whose package is not that of this test.
fn build_game_server() {
    let mut build = std::process::Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--package", "example-game-server"]);
    let status = build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).status().unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_tutorial_run_a_game_server_of_its_own() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    tokio::task::spawn_blocking(build_game_server).await.unwrap();
    let folder = Folder::fresh().unwrap();
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let [prepare, serve, play] = commands().map(|text| text.replace("127.0.0.1:7777", &address));
    assert!(prepare.contains(&address) && play.contains(GAME_SERVER), "{prepare}\n{play}");
    let prepared = shell(&prepare, &folder).start().unwrap();
    assert!(prepared.wait(PATIENCE).await.success(), "{}", prepared.text(testkit::OutputStream::Stderr));

    let ports = ["gateway", "service_api", "admin", "open_match"];
    let any_port = ports.map(|name| format!(" --set listen.{name}=127.0.0.1:0")).concat();
    let (_running, at) = started(shell(&format!("exec {serve} --print-addresses{any_port}"), &folder)).await;
    let gateway = format!("http://{}", at["gateway"]);
    let run = format!("example-game-server --listen {address} --service-api http://{}", at["service_api"]);
    let game_server = shell(&format!("exec env {}", play.replace(GAME_SERVER, &run)), &folder);
    let running = game_server.start().unwrap();
    running.wait_for_line("/allocate", PATIENCE).await;

    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let grace = Player::sign_in(other, &gateway, "grace", "Grace Hopper").await;
    for player in [&ada, &grace] {
        player.browser.click("#find").await;
    }
    for player in [&ada, &grace] {
        player.phase("gathering").await;
        player.browser.click("#pad").await;
    }
    ada.browser.wait_for("#stage[data-phase=steady], #stage[data-phase=green]", LONG).await;

    // Ctrl-C in the middle of a game.
    running.sigint();
    assert_eq!(running.wait(LONG).await.code(), Some(0));
    ada.sees("#arena-note", "Connecting again").await;
    let running = game_server.start().unwrap();
    running.wait_for_line("/allocate", PATIENCE).await;
    for player in [&ada, &grace] {
        player.sees("#match-note", "This match no longer exists. Find a new one.").await;
        player.browser.click("#find").await;
    }
    for player in [&ada, &grace] {
        player.phase("gathering").await;
        player.browser.click("#pad").await;
    }
    // Grace goes to another page, so Ada wins. The game server reports the result with the token of the tutorial.
    ada.browser.wait_for("#stage[data-phase=steady], #stage[data-phase=green]", LONG).await;
    grace.browser.goto("about:blank").await;
    ada.sees("#pad", "You won!").await;
    ada.sees("#items [data-resource=trophy]", "Trophy").await;
}
