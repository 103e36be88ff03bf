//! Every screen: nothing is blocked, axe-core finds nothing, nothing is wider than the page. Writes pictures of all screens.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use testkit::Axe;

use super::operator::{MENU, Operator};
use super::*;

/// The size of the browser in all tests, and that of a phone.
pub(super) const WIDE: (u32, u32) = (1280, 900);
pub(super) const PHONE: (u32, u32) = (390, 844);

/// The widest elements that stick out of the page.
const OVERFLOW: &str = "
    const { documentElement: page } = document;
    if (page.scrollWidth <= innerWidth) return [];
    const sticksOut = (element) => element.getBoundingClientRect().right > innerWidth && !element.closest('.scroll');
    return [`${page.scrollWidth} > ${innerWidth}`, ...[...document.querySelectorAll('main *')].filter(sticksOut)
        .slice(0, 3).map((element) => element.outerHTML.slice(0, 120))];
";

/// A walk over all screens of a console.
pub(super) struct Walk<'a> {
    operator: &'a Operator<'a>,
    axe: Axe,
    pictures: PathBuf,
    /// What is wrong, by page. Collected, so that one run names everything.
    faults: BTreeMap<String, Vec<String>>,
}

impl<'a> Walk<'a> {
    /// Begins a walk whose pictures are written to `target/console-screenshots/NAME`.
    pub(super) fn new(operator: &'a Operator<'a>, axe: Axe, name: &str) -> Self {
        let pictures = testkit::target_dir().join("console-screenshots").join(name);
        std::fs::create_dir_all(&pictures).unwrap();
        Self { operator, axe, pictures, faults: BTreeMap::new() }
    }

    /// Follows links from the menu until one page of each of these screens was seen. Returns the pages, by the path of their screen.
    pub(super) async fn see_every_screen(
        &mut self,
        screens: &[&'static str],
    ) -> BTreeMap<&'static str, String> {
        let browser = self.operator.browser;
        self.operator.open("/console").await;
        let mut waiting: VecDeque<String> = browser.attributes(MENU, "href").await.into();
        let mut seen: BTreeMap<&'static str, String> = BTreeMap::new();
        while let Some(path) = waiting.pop_front() {
            let Some(screen) = screen_of(screens, &path) else { panic!("{path} is no screen") };
            if seen.contains_key(screen) {
                continue;
            }
            self.operator.open(&path).await;
            let links = browser.attributes("main a[href^='/console/']", "href").await;
            // Filters are other pages of a screen that the menu has.
            let leads_on = |link: &String| !link.contains('?') && screen_of(screens, link).is_some();
            waiting.extend(links.into_iter().filter(leads_on));
            seen.insert(screen, path);
            self.look(screen).await;
        }
        let missing: Vec<&&str> = screens.iter().filter(|screen| !seen.contains_key(**screen)).collect();
        assert!(missing.is_empty(), "no link leads to {missing:?}");
        seen
    }

    /// Looks at the current page in light, dark and on a phone.
    pub(super) async fn look(&mut self, name: &str) {
        let (browser, axe) = (self.operator.browser, &self.axe);
        let mut faults = Vec::new();
        browser.set_viewport(WIDE.0, WIDE.1).await;
        browser.set_dark(false).await;
        faults.extend(axe.faults(browser).await);
        faults.extend(overflow(browser).await);
        self.picture(name, "light").await;
        browser.set_dark(true).await;
        faults.extend(axe.low_contrasts(browser).await.into_iter().map(|fault| format!("dark: {fault}")));
        self.picture(name, "dark").await;
        browser.set_dark(false).await;
        browser.set_viewport(PHONE.0, PHONE.1).await;
        faults.extend(overflow(browser).await.into_iter().map(|fault| format!("phone: {fault}")));
        self.picture(name, "phone").await;
        browser.set_viewport(WIDE.0, WIDE.1).await;
        self.operator.assert_no_errors(name).await;
        if !faults.is_empty() {
            self.faults.insert(name.to_owned(), faults);
        }
    }

    async fn picture(&self, name: &str, look: &str) {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name = name.trim_matches('-').replace("--", "-");
        self.operator.browser.screenshot_of_all(self.pictures.join(format!("{name}-{look}.png"))).await;
    }

    pub(super) fn assert_no_faults(self) {
        assert!(self.faults.is_empty(), "{:#?}", self.faults);
    }
}

async fn overflow(browser: &Browser) -> Vec<String> {
    let found = browser.script(OVERFLOW).await;
    found.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Returns the screen of a page. A fixed path wins over one with a parameter.
fn screen_of(screens: &[&'static str], path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |screen: &&&str| {
        let pattern: Vec<&str> = screen.split('/').collect();
        let fits = |(part, name): (&&str, &&str)| part == name || name.starts_with('{');
        parts.len() == pattern.len() && parts.iter().zip(&pattern).all(fits)
    };
    screens.iter().filter(fits).min_by_key(|screen| screen.matches('{').count()).copied()
}
