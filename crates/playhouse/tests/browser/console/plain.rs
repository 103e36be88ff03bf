//! The console without scripts.

use reqwest::Method;
use testkit::need;

use super::operator::{MENU, link};
use super::site::{Site, Stores};
use super::*;
use crate::looks::PHONE;

/// More entries than a page of the audit log has.
const ENTRIES: usize = 55;

#[tokio::test(flavor = "multi_thread")]
async fn console_works_without_scripts() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Embedded).await);
    let ada = site.player("ada").await;
    for _ in 0..ENTRIES {
        site.admin(Method::POST, "/issuer/tokens?user=grace", Value::Null).await;
    }
    browser.disable_scripts().await;
    let operator = site.sign_in(&browser).await;
    assert!(!browser.has(".live:not([hidden])").await, "live updates need scripts");

    // The menu: unfolded on a wide screen, and folded on a phone. The driver takes links in a closed `details` for invisible ones.
    let is_visible =
        format!("return document.querySelector('{MENU}').checkVisibility({{ contentVisibilityAuto: true }})");
    assert_eq!(browser.script(&is_visible).await, true);
    browser.set_viewport(PHONE.0, PHONE.1).await;
    assert_eq!(browser.script(&is_visible).await, false);

    // A filter.
    browser.click("summary").await;
    operator.open_menu("Players").await;
    browser.fill("[name=find]", "Ada").await;
    browser.click(".filter button").await;
    browser.wait_for_url(|url| url.contains("find=Ada"), PATIENCE).await;
    let found = browser.texts("td .id").await;
    assert_eq!(found, [ada.user.as_str()]);
    assert_eq!(browser.attributes("[name=find]", "value").await, ["Ada"], "the filter stays filled in");

    // Pages.
    browser.click("summary").await;
    operator.open_menu("Audit log").await;
    let first = browser.texts("#entries tbody tr").await;
    browser.click("a[rel=next]").await;
    browser.wait_for_url(|url| url.contains("before="), PATIENCE).await;
    let second = browser.texts("#entries tbody tr").await;
    assert!(!second.is_empty() && !second.iter().any(|row| first.contains(row)), "{second:?}");
    browser.click(".page-links a").await;
    browser.wait_for_url(|url| !url.contains("before="), PATIENCE).await;
    assert_eq!(browser.texts("#entries tbody tr").await, first);

    // An action: its form is a page.
    operator.open(&format!("/console/players/{}", ada.user)).await;
    browser.click(&link("POST /users/{user_id}/ban", "")).await;
    browser.wait_for_url(|url| url.contains("/console/action?"), PATIENCE).await;
    browser.fill("[name='f.reason']", "Found without scripts").await;
    browser.click("[data-action] .buttons button").await;
    browser.wait_for_url(|url| url.ends_with(&ada.user), PATIENCE).await;
    browser.wait_for_text("main > .notice", "Ban: done.", PATIENCE).await;
    operator.wait_for("facts", "Found without scripts").await;
    let errors = browser.console_errors().await;
    assert!(errors.is_empty(), "{errors:?}");
}
