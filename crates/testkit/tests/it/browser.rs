//! The real browser, on pages of the test.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use testkit::{Browser, Folder, need};

use crate::DEADLINE;
use crate::pages::Pages;

const FORM: &str = "200 OK\r\ncontent-type: text/html\r\n\r\n<title>Form</title><link rel=icon href='data:,'>\
    <h1>Who is it?</h1><form action=/hello><input name=who value=nobody><button>Go</button></form>\
    <p hidden>unseen</p>";
const LATER: &str =
    "setTimeout(() => document.body.insertAdjacentHTML('beforeend', '<p id=late>at last</p>'), 200)";
const HELLO: &str = "200 OK\r\ncontent-type: text/html\r\n\
    set-cookie: seen=1; Path=/; SameSite=Strict\r\n\
    set-cookie: hidden=2; Path=/; HttpOnly; Max-Age=1000\r\n\r\n\
    <link rel=icon href='data:,'><h1>Hello</h1><script>console.log('fine'); nonsense()</script>";

async fn site() -> Pages {
    Pages::serve(&[("/", FORM), ("/hello", HELLO)]).await
}

#[tokio::test]
async fn browser_reads_clicks_and_types() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    browser.goto(site.url("/")).await;
    assert_eq!(browser.title().await, "Form");
    assert_eq!(browser.text("h1").await, "Who is it?");
    assert!(!browser.has("#late").await);
    browser.script(LATER).await;
    browser.wait_for("#late", DEADLINE).await;
    assert_eq!(browser.wait_for_text("#late", "last", DEADLINE).await, "at last");
    assert!(browser.source().await.contains("<p hidden=\"\">unseen</p>"));

    browser.fill("[name=who]", "Ada & Bob").await;
    browser.click("button").await;
    let url = browser.wait_for_url(|url| url.contains("/hello"), DEADLINE).await;
    assert_eq!(url, site.url("/hello?who=Ada+%26+Bob"));
    assert_eq!(browser.url().await, url);
    browser.reload().await;
    assert_eq!(site.requests("/hello").len(), 2);
}

#[tokio::test]
async fn browser_runs_scripts() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    browser.goto(site.url("/")).await;
    assert_eq!(browser.script("return [1, 'two', null]").await, json!([1, "two", null]));
    let fetched =
        browser.script_async("const it = await fetch('/nowhere'); return [it.status, await it.text()]");
    assert_eq!(fetched.await, json!([404, "nothing here"]));
}

#[tokio::test]
async fn cookies_hidden_from_scripts_are_listed() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    browser.goto(site.url("/hello")).await;
    assert_eq!(browser.script("return document.cookie").await, "seen=1");
    let mut cookies = browser.cookies().await;
    cookies.sort_by_key(|cookie| cookie.name.clone());
    let [hidden, seen] = &cookies[..] else { panic!("{cookies:?}") };
    assert_eq!((hidden.name.as_str(), hidden.value.as_str(), hidden.path.as_str()), ("hidden", "2", "/"));
    assert!(hidden.http_only && !hidden.secure && hidden.expires.is_some(), "{hidden:?}");
    assert!(!seen.http_only && seen.expires.is_none() && seen.same_site == "Strict", "{seen:?}");

    browser.delete_cookies().await;
    assert_eq!(browser.cookies().await, []);
    browser.reload().await;
    assert_eq!(browser.cookies().await.len(), 2);
    browser.goto("about:blank").await;
    browser.delete_all_cookies().await;
    browser.goto(site.url("/")).await;
    assert_eq!(browser.cookies().await, []);
}

#[tokio::test]
async fn errors_of_a_page_are_reported() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    browser.goto(site.url("/")).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    browser.goto(site.url("/hello")).await;
    let errors = browser.console_errors().await;
    assert!(errors.len() == 1 && errors[0].contains("nonsense is not defined"), "{errors:?}");
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
}

#[tokio::test]
async fn browser_takes_screenshots() {
    let (browser, folder) = (need!(Browser::start().await), Folder::fresh().unwrap());
    let path = folder.path().join("page.png");
    browser.screenshot(&path).await;
    assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG\r\n"));
}

#[tokio::test]
async fn failed_command_panics_with_the_page() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    let unreachable = format!("http://127.0.0.1:{}/", testkit::free_port().unwrap());
    let text = panic_text(browser.goto(&unreachable)).await;
    assert!(text.starts_with(&format!("the browser cannot go to {unreachable}: ")), "{text}");
    assert!(text.contains("ERR_CONNECTION_REFUSED"), "{text}");
    browser.goto(site.url("/")).await;
    let page = format!("\nat {}, text of the page:\nWho is it?", site.url("/"));
    let missing = [
        panic_text(browser.click("#nowhere")).await,
        panic_text(browser.wait_for("#nowhere", Duration::from_millis(50))).await,
        panic_text(browser.wait_for_url(|_| false, Duration::from_millis(50))).await,
        panic_text(browser.script("nonsense()")).await,
    ];
    for text in missing {
        assert!(text.starts_with("the browser cannot ") && text.contains(&page), "{text}");
    }
}

#[tokio::test]
async fn dropped_browser_leaves_nothing_behind() {
    let browser = need!(Browser::start().await);
    let folders: Vec<PathBuf> = browser.folders().into_iter().map(Path::to_path_buf).collect();
    let processes = processes_using(&folders);
    assert!(folders.len() == 2 && processes.len() > 3, "{folders:?} {processes:?}");
    // By default Chromium leaves its socket in the system's temporary folder.
    let socket = folders[0].join("data/SingletonSocket").read_link().unwrap();
    assert!(socket.starts_with(&folders[0]), "{socket:?}");
    assert!(browser.pids().iter().all(|pid| processes.contains(&pid.to_string())), "{processes:?}");
    drop(browser);
    // Processes that are killed with their parent take a moment to end.
    testkit::eventually("the end of all processes", DEADLINE, || async {
        let left = processes_using(&folders);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
}

/// Finds processes that have one of the folders in their command line or environment.
fn processes_using(folders: &[PathBuf]) -> Vec<String> {
    let names = |path: PathBuf| {
        let text = std::fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        folders.iter().any(|folder| text.contains(folder.to_str().unwrap()))
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let own = processes.filter(|one| names(one.path().join("cmdline")) || names(one.path().join("environ")));
    own.map(|one| one.file_name().into_string().unwrap()).collect()
}

async fn panic_text(future: impl Future) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.err().expect("a panic");
    *panic.downcast::<String>().expect("a panic with a text")
}
