//! Where the client runs: a Node process, or a page in Chromium. Both run the same code.

use serde_json::Value;
use testkit::{Browser, Folder, JavaScript, Program, RunningProgram};

use super::{PATIENCE, package_folder};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/host.mjs");

/// Runs JavaScript. The code is the body of an `async` function. It has the module `playhouse`, `connect(options)`, which creates a
/// client of the signed-in player, the URL `gateway`, and `state`, an object that lasts as long as the page.
pub(super) trait Host {
    async fn run(&self, code: &str) -> Value;

    /// Ends the page, without giving it time for anything.
    async fn close(&mut self);

    /// Opens the page again, with the storage of the previous one.
    async fn open(&mut self);
}

/// A Node process. Its storage is a file.
pub(super) struct NodeHost {
    program: Program,
    running: Option<(RunningProgram, String)>,
    _folder: Folder,
}

impl NodeHost {
    pub(super) async fn start(tools: &JavaScript, gateway: &str, token: &str) -> Self {
        let folder = Folder::fresh().unwrap();
        let program = tools
            .node()
            .arg(SCRIPT)
            .env("CLIENT", package_folder())
            .env("GATEWAY", gateway)
            .env("ACCESS_TOKEN", token)
            .env("STORAGE", folder.path().join("storage.json"));
        let mut host = Self { program, running: None, _folder: folder };
        host.open().await;
        host
    }
}

impl Host for NodeHost {
    async fn run(&self, code: &str) -> Value {
        let (_, url) = self.running.as_ref().unwrap();
        let answer = reqwest::Client::new().post(url).body(code.to_owned()).timeout(PATIENCE).send().await;
        let answer: Value = answer.unwrap().json().await.unwrap();
        assert_eq!(answer["error"], Value::Null, "{code}");
        answer["value"].clone()
    }

    async fn close(&mut self) {
        let (running, _) = self.running.take().unwrap();
        running.kill();
        running.wait(PATIENCE).await;
    }

    async fn open(&mut self) {
        let running = self.program.start().unwrap();
        let url = running.wait_for_line("http://", PATIENCE).await;
        self.running = Some((running, url));
    }
}

/// A page of the gateway in Chromium.
pub(super) struct PageHost {
    pub(super) browser: Browser,
    url: String,
}

impl PageHost {
    /// Opens a page without scripts of its own. The browser is signed in already, or needs no session.
    pub(super) async fn start(browser: Browser, gateway: &str) -> Self {
        let mut host = Self { browser, url: format!("{gateway}/docs") };
        host.open().await;
        host
    }
}

impl Host for PageHost {
    async fn run(&self, code: &str) -> Value {
        let prelude = "const playhouse = await import('/assets/client/index.js'); const state = (window.state ??= {}); \
            const connect = (options) => new playhouse.Playhouse(options); const gateway = location.origin;";
        self.browser.script_async(&format!("{prelude}\n{code}")).await
    }

    async fn close(&mut self) {
        self.browser.replace_tab().await;
    }

    async fn open(&mut self) {
        self.browser.goto(&self.url).await;
    }
}
