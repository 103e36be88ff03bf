//! A real browser on pages of ours.

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
async fn it_reads_clicks_and_types() {
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
    assert_eq!(site.asked("/hello").len(), 2);
}

#[tokio::test]
async fn it_runs_scripts() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    browser.goto(site.url("/")).await;
    assert_eq!(browser.script("return [1, 'two', null]").await, json!([1, "two", null]));
    let fetched =
        browser.script_async("const it = await fetch('/nowhere'); return [it.status, await it.text()]");
    assert_eq!(fetched.await, json!([404, "nothing here"]));
}

#[tokio::test]
async fn it_shows_cookies_that_scripts_cannot_see() {
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
async fn it_tells_what_went_wrong_in_a_page() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    browser.goto(site.url("/")).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    browser.goto(site.url("/hello")).await;
    let errors = browser.console_errors().await;
    assert!(errors.len() == 1 && errors[0].contains("nonsense is not defined"), "{errors:?}");
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
}

#[tokio::test]
async fn it_takes_pictures() {
    let (browser, folder) = (need!(Browser::start().await), Folder::fresh().unwrap());
    let path = folder.path().join("page.png");
    browser.screenshot(&path).await;
    assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG\r\n"));
}

#[tokio::test]
async fn what_it_cannot_do_fails_the_test_with_the_page() {
    let (browser, site) = (need!(Browser::start().await), site().await);
    let nobody = format!("http://127.0.0.1:{}/", testkit::free_port().unwrap());
    let text = panic_text(browser.goto(&nobody)).await;
    assert!(text.starts_with(&format!("the browser cannot go to {nobody}: ")), "{text}");
    assert!(text.contains("ERR_CONNECTION_REFUSED"), "{text}");
    browser.goto(site.url("/")).await;
    let page = format!("\nat {}, where it says:\nWho is it?", site.url("/"));
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
async fn nothing_is_left_of_it() {
    let browser = need!(Browser::start().await);
    let folders: Vec<PathBuf> = browser.folders().into_iter().map(Path::to_path_buf).collect();
    let processes = of_folders(&folders);
    assert!(folders.len() == 2 && processes.len() > 3, "{folders:?} {processes:?}");
    // Chromium likes to leave its socket in the temporary folder of the system.
    let socket = folders[0].join("data/SingletonSocket").read_link().unwrap();
    assert!(socket.starts_with(&folders[0]), "{socket:?}");
    assert!(browser.pids().iter().all(|pid| processes.contains(&pid.to_string())), "{processes:?}");
    drop(browser);
    // What has been killed with its parent takes a moment.
    testkit::eventually("the end of all processes", DEADLINE, || async {
        let left = of_folders(&folders);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
}

/// Processes that name one of the folders in their command line or environment.
fn of_folders(folders: &[PathBuf]) -> Vec<String> {
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
