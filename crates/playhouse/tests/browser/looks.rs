//! What a page looks like: pictures in light, dark and on a phone, findings of axe-core, and elements that are wider than the page.

use std::path::PathBuf;

use testkit::{Axe, Browser};

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

/// Looks at pages, and writes their pictures to a folder.
pub(super) struct Looks {
    axe: Axe,
    pictures: PathBuf,
}

impl Looks {
    /// Writes the pictures to `target/FOLDER`.
    pub(super) fn new(axe: Axe, folder: &str) -> Self {
        let pictures = testkit::target_dir().join(folder);
        std::fs::create_dir_all(&pictures).unwrap();
        Self { axe, pictures }
    }

    /// Looks at the current page in light, dark and on a phone. Returns what is wrong.
    pub(super) async fn faults(&self, browser: &Browser, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        browser.set_viewport(WIDE.0, WIDE.1).await;
        browser.set_dark(false).await;
        faults.extend(self.axe.faults(browser).await);
        faults.extend(overflow(browser).await);
        self.picture(browser, name, "light").await;
        browser.set_dark(true).await;
        let contrasts = self.axe.low_contrasts(browser).await;
        faults.extend(contrasts.into_iter().map(|fault| format!("dark: {fault}")));
        self.picture(browser, name, "dark").await;
        browser.set_dark(false).await;
        browser.set_viewport(PHONE.0, PHONE.1).await;
        faults.extend(overflow(browser).await.into_iter().map(|fault| format!("phone: {fault}")));
        self.picture(browser, name, "phone").await;
        browser.set_viewport(WIDE.0, WIDE.1).await;
        faults
    }

    pub(super) async fn picture(&self, browser: &Browser, name: &str, look: &str) {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name = name.trim_matches('-').replace("--", "-");
        browser.screenshot_of_all(self.pictures.join(format!("{name}-{look}.png"))).await;
    }
}

async fn overflow(browser: &Browser) -> Vec<String> {
    let found = browser.script(OVERFLOW).await;
    found.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}
