//! Every screen: nothing is blocked, axe-core finds nothing, nothing is wider than the page. Writes pictures of all screens.

use std::collections::{BTreeMap, VecDeque};

use testkit::Axe;

use super::operator::{MENU, Operator};
use crate::looks::Looks;

/// A walk over all screens of a console.
pub(super) struct Walk<'a> {
    operator: &'a Operator<'a>,
    looks: Looks,
    /// What is wrong, by page. Collected, so that one run names everything.
    faults: BTreeMap<String, Vec<String>>,
}

impl<'a> Walk<'a> {
    /// Begins a walk whose pictures are written to `target/console-screenshots/NAME`.
    pub(super) fn new(operator: &'a Operator<'a>, axe: Axe, name: &str) -> Self {
        let looks = Looks::new(axe, &format!("console-screenshots/{name}"));
        Self { operator, looks, faults: BTreeMap::new() }
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
        let faults = self.looks.faults(self.operator.browser, name).await;
        self.operator.assert_no_errors(name).await;
        if !faults.is_empty() {
            self.faults.insert(name.to_owned(), faults);
        }
    }

    pub(super) fn assert_no_faults(self) {
        assert!(self.faults.is_empty(), "{:#?}", self.faults);
    }
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
