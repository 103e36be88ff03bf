//! The guide: its snippets are one program, which prints what the guide says it prints.

use testkit::{Browser, Folder, JavaScript, need};

use super::world::World;
use super::*;

const GUIDE: &str = include_str!("../../../../docs/guides/javascript-client.md");

/// Returns the fenced blocks of the guide with this info string.
pub(super) fn blocks(kind: &str) -> Vec<&'static str> {
    let mut parts = GUIDE.split("\n```");
    // The text before the first fence.
    parts.next();
    let fenced = parts.step_by(2);
    fenced
        .filter_map(|block| block.split_once('\n'))
        .filter(|(info, _)| *info == kind)
        .map(|(_, text)| text)
        .collect()
}

/// Installs the packed package into a folder.
async fn install(tools: &JavaScript, folder: &std::path::Path) {
    let pack =
        tools.npm().args(["pack", "--json", "--pack-destination"]).arg(folder).folder(package_folder());
    let report: serde_json::Value = serde_json::from_str(&run(pack).await).unwrap();
    let installed = folder.join("node_modules/@playhouse/client");
    std::fs::create_dir_all(&installed).unwrap();
    let archive = folder.join(report[0]["filename"].as_str().unwrap());
    let unpack = Program::new("/usr/bin/env").args(["tar", "--strip-components=1", "-xzf"]).arg(archive);
    run(unpack.arg("-C").arg(installed)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snippets_print_what_the_guide_says() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    world.ask_players().await;
    let folder = Folder::fresh().unwrap();
    install(&tools, folder.path()).await;
    let tokens = sign_in::tokens(&world.url(), "ada").await;
    std::fs::write(folder.path().join("guide.mjs"), blocks("js").join("\n")).unwrap();
    let program = tools
        .node()
        .arg("guide.mjs")
        .folder(folder.path())
        .env("GATEWAY", world.url())
        .env("ACCESS_TOKEN", &tokens.access_token)
        .env("REFRESH_TOKEN", &tokens.refresh_token)
        .env("FRIEND_TOKEN", sign_in::tokens(&world.url(), "grace").await.access_token)
        .env("SERVICE_API", format!("http://{}", world.address("service_api")))
        .env("SERVICE_TOKEN", world.address("service_token"));
    assert_eq!(run(program).await, blocks("text").iter().map(|text| format!("{text}\n")).collect::<String>());
}

#[tokio::test(flavor = "multi_thread")]
async fn snippet_of_a_web_page_signs_in_and_shows_the_player() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    browser.goto(format!("{}/docs", world.url())).await;
    let [snippet] = blocks("js browser")[..] else {
        panic!("the guide has another number of snippets for browsers")
    };
    // Scripts of the driver are no modules.
    let script =
        snippet.replace("import {", "const {").replace(" from \"/assets", " = await import(\"/assets");
    let script = script.replace("index.js\";", "index.js\");");
    browser.script(&format!("(async () => {{ {script} }})()")).await;
    browser.wait_for("button[value=ada]", PATIENCE).await;
    browser.click("button[value=ada]").await;
    browser.wait_for_url(|url| url.ends_with("/docs"), PATIENCE).await;
    browser.script_async(&script).await;
    assert_eq!(browser.title().await, "Hello Ada Lovelace");
    let logout = browser.attributes("body", "data-logout").await;
    assert!(logout[0].starts_with("/logout?session="), "{logout:?}");
}

/// Returns the names of the events that the declarations have in an interface.
fn events(declarations: &str, interface: &str) -> Vec<String> {
    let (_, rest) = declarations.split_once(&format!("export interface {interface} {{\n")).unwrap();
    let body = rest.split_once("\n}\n").unwrap().0;
    let names = body.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": "));
    names
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase()))
        .collect()
}

/// A call or an event that the guide does not run is one that nobody has tried.
#[tokio::test(flavor = "multi_thread")]
async fn snippets_use_every_call_and_every_event() {
    let tools = need!(JavaScript::find());
    let script = "const { changes, reads } = await import('./src/calls.js');
        console.log(JSON.stringify(Object.keys({ ...reads, ...changes })));";
    let out =
        run(tools.node().args(["--input-type=module", "--eval", script]).folder(package_folder())).await;
    let calls: Vec<String> = serde_json::from_str(&out).unwrap();
    let program = blocks("js").join("\n");
    let missing: Vec<&String> = calls
        .iter()
        .filter(|call| !program.contains(&format!(".{call}(")) && !program.contains(&format!("\"{call}\"")))
        .collect();
    assert!(calls.len() > 30 && missing.is_empty(), "{missing:?} of {calls:?}");

    let declarations = std::fs::read_to_string(package_folder().join("src/index.d.ts")).unwrap();
    for (interface, count) in [("LiveEvents", 7), ("DropEvents", 4), ("QueueEvents", 4)] {
        let names = events(&declarations, interface);
        assert_eq!(names.len(), count, "{interface}: {names:?}");
        let missing: Vec<&String> =
            names.iter().filter(|name| !program.contains(&format!("\"{name}\""))).collect();
        assert!(missing.is_empty(), "{missing:?} of {interface}");
    }
}
