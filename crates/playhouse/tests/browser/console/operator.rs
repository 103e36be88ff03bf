//! An operator at the browser: signs in, follows links, fills in forms.

use std::collections::BTreeSet;
use std::sync::Mutex;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded;

use super::*;
use crate::looks::WIDE;

/// As the console escapes the values in its links.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// The links of the menu.
pub(super) const MENU: &str = "nav[aria-label=Screens] a";

/// A script for all pages that collects what the content security policy blocks.
const VIOLATIONS: &str = "window.violations = []; addEventListener('securitypolicyviolation', (event) => \
    window.violations.push(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));";

/// An operator who is signed in at the console of a process.
pub(super) struct Operator<'a> {
    pub(super) browser: &'a Browser,
    /// The URL of the admin listener.
    console: String,
    /// The actions that pages offered, as `METHOD PATH`.
    offered: Mutex<BTreeSet<String>>,
    /// The actions that were taken, each with its note.
    taken: Mutex<Vec<(String, String)>>,
}

impl<'a> Operator<'a> {
    /// Signs an operator in at the issuer, by clicking.
    pub(super) async fn sign_in(browser: &'a Browser, admin: &str) -> Self {
        let this = Self::at_sign_in(browser, admin).await;
        browser.click("a.button.primary").await;
        browser.wait_for_url(|url| url.contains("/issuer/authorize"), PATIENCE).await;
        browser.click("button[name=pick][value=ada]").await;
        this.signed_in().await
    }

    /// Signs an operator in by typing a token.
    pub(super) async fn sign_in_with_token(browser: &'a Browser, admin: &str, token: &str) -> Self {
        let this = Self::at_sign_in(browser, admin).await;
        browser.fill("#token", token).await;
        browser.click("form[action*=token] button").await;
        this.signed_in().await
    }

    async fn at_sign_in(browser: &'a Browser, admin: &str) -> Self {
        browser.run_before_pages(VIOLATIONS).await;
        browser.set_viewport(WIDE.0, WIDE.1).await;
        let console = format!("http://{admin}");
        browser.goto(format!("{console}/console")).await;
        browser.wait_for_text("h1", "Sign in to the console", PATIENCE).await;
        Self { browser, console, offered: Mutex::default(), taken: Mutex::default() }
    }

    async fn signed_in(self) -> Self {
        self.browser.wait_for_url(|url| url == format!("{}/console", self.console), PATIENCE).await;
        self
    }

    /// Opens a page of the console.
    pub(super) async fn open(&self, path: &str) {
        self.browser.goto(format!("{}{path}", self.console)).await;
        self.look().await;
    }

    /// Opens a screen of the menu.
    pub(super) async fn open_menu(&self, title: &str) {
        let (titles, links) = (self.browser.texts(MENU).await, self.browser.attributes(MENU, "href").await);
        let (_, href) = titles.iter().zip(&links).find(|(found, _)| *found == title).unwrap();
        self.browser.click(&format!("{MENU}[href='{href}']")).await;
        self.browser.wait_for_text("h1", title, PATIENCE).await;
        self.look().await;
    }

    /// Remembers the actions that the page offers.
    async fn look(&self) {
        let links = self.browser.attributes("a[data-dialog]", "href").await;
        self.offered.lock().unwrap().extend(links.iter().filter_map(|href| parameter(href, "route")));
    }

    /// Takes an action by clicking: opens its dialog, checks that it names the command and the call, fills it in and sends it.
    pub(super) async fn act(&self, route: &str, fields: &[(&str, &str)]) {
        self.act_on(route, "", fields).await;
    }

    /// Takes the action whose link contains `part`, such as `p.event=ID`.
    pub(super) async fn act_on(&self, route: &str, part: &str, fields: &[(&str, &str)]) {
        let browser = self.browser;
        self.open_dialog(route, part).await;
        for (name, value) in fields {
            browser.fill(&format!("dialog [name='f.{name}']"), value).await;
        }
        let note = {
            let mut taken = self.taken.lock().unwrap();
            let note = format!("reason {}", taken.len() + 1);
            taken.push((route.to_owned(), note.clone()));
            note
        };
        browser.fill("dialog [name=note]", &note).await;
        let label = browser.text("dialog h2").await;
        browser.click("dialog .buttons button").await;
        if browser.has(".action [role=alert]").await {
            panic!("{route} is refused: {}", browser.text(".action [role=alert]").await);
        }
        browser.wait_for_text("main > .notice[role=status]", &format!("{label}: done."), PATIENCE).await;
        self.look().await;
    }

    /// Opens the dialog of an action, and checks that it shows how to do the same without the console.
    pub(super) async fn open_dialog(&self, route: &str, part: &str) {
        let link = link(route, part);
        self.browser.wait_for(&link, PATIENCE).await;
        self.look().await;
        self.browser.click(&link).await;
        self.browser.wait_for("dialog[open] form", PATIENCE).await;
        let same = self.browser.texts("dialog .same pre").await;
        let [command, call] = &same[..] else { panic!("{route}: {same:?}") };
        let (method, _) = route.split_once(' ').unwrap();
        assert!(command.starts_with("playhouse ") && !command.contains('{'), "{route}: {command}");
        let start = format!("curl -X {method} '{}/", self.console);
        assert!(call.starts_with(&start) && !call.contains("/{"), "{route}: {call}");
    }

    /// Waits until a section of the page contains a text.
    pub(super) async fn wait_for(&self, section: &str, text: &str) -> String {
        self.browser.wait_for_text(&format!("section[data-fragment={section}]"), text, PATIENCE).await
    }

    /// Returns the actions that pages offered.
    pub(super) fn offered(&self) -> BTreeSet<String> {
        self.offered.lock().unwrap().clone()
    }

    /// Returns the actions that were taken, each with its note.
    pub(super) fn taken(&self) -> Vec<(String, String)> {
        self.taken.lock().unwrap().clone()
    }

    /// Asserts that the browser blocked nothing and logged no error since the last call.
    pub(super) async fn assert_no_errors(&self, page: &str) {
        let violations = self.browser.script("return window.violations").await;
        assert_eq!(violations, serde_json::json!([]), "{page}: blocked by the content security policy");
        let errors = self.browser.console_errors().await;
        assert!(errors.is_empty(), "{page}: {errors:?}");
    }
}

/// Returns the CSS selector of an action's link.
pub(super) fn link(route: &str, part: &str) -> String {
    let route = utf8_percent_encode(route, ESCAPED);
    let part = if part.is_empty() { String::new() } else { format!("[href*='{part}']") };
    format!("a[data-dialog][href^='/console/action?route={route}&']{part}")
}

/// Returns a parameter of a link.
pub(super) fn parameter(href: &str, name: &str) -> Option<String> {
    let (_, query) = href.split_once('?')?;
    form_urlencoded::parse(query.as_bytes())
        .find(|(found, _)| found == name)
        .map(|(_, value)| value.into_owned())
}
