//! The console for operators in a real browser: every screen and every action, on embedded stores and on servers.

mod actions;
mod faults;
mod fill;
mod live;
mod operator;
mod plain;
mod receiver;
mod simulation;
mod site;
mod walk;

use reqwest::Method;
use testkit::{Axe, eventually, need};

use self::fill::Filled;
use self::operator::Operator;
use self::site::{Site, Stores};
use self::walk::Walk;
use super::*;

/// The traffic of the demo needs about 25 seconds until every screen has something to show.
const DEMO: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_of_the_demo_is_sound() {
    let (browser, axe) = (need!(Browser::start().await), need!(Axe::find()));
    let (_running, at) = started(dev(&["--gateway-port", "0", "--demo"])).await;
    let operator = Operator::sign_in(&browser, &at["admin"]).await;
    eventually("the demo has an order and a job", DEMO, async || {
        let list = async |path: &str| {
            let request =
                reqwest::Client::new().request(Method::GET, format!("http://{}{path}", at["admin"]));
            request.bearer_auth(&at["operator_token"]).send().await.unwrap().text().await.unwrap()
        };
        list("/orders?state=PAID").await.contains("order_id") && list("/jobs").await.contains("DONE")
    })
    .await;
    see_everything(&operator, axe, "demo", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_action_works_on_embedded_stores() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Embedded).await);
    let filled = Filled::new(&site).await;
    let operator = site.sign_in(&browser).await;
    actions::take_all(&site, &operator, &filled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_and_action_works_on_servers() {
    let (browser, axe) = (need!(Browser::start().await), need!(Axe::find()));
    let site = need!(Site::start(Stores::Servers).await);
    let filled = Filled::new(&site).await;
    let operator = site.sign_in(&browser).await;
    // The screen for development needs the builtin issuer, which is only for embedded stores.
    see_everything(&operator, axe, "servers", |screen| screen != "/console/try-it").await;
    // The walk ends signed out.
    let operator = site.sign_in(&browser).await;
    actions::take_all(&site, &operator, &filled).await;
}

/// Looks at every screen, at the trace of one event, at the dialog of an action and at the sign-in, which ends the session.
async fn see_everything(operator: &Operator<'_>, axe: Axe, name: &str, is_served: impl Fn(&str) -> bool) {
    let screens = playhouse::console_screens().into_iter();
    let screens: Vec<&str> = screens.filter(|screen| is_served(screen)).collect();
    let mut walk = Walk::new(operator, axe, name);
    let seen = walk.see_every_screen(&screens).await;
    let event = seen["/console/pipeline/{event}"].rsplit('/').next().unwrap().to_owned();
    operator.open(&format!("/console/trace?id={event}")).await;
    operator.wait_for("steps", "sql").await;
    walk.look("trace of an event").await;
    operator.open("/console/drops").await;
    operator.open_dialog("POST /drops", "").await;
    walk.look("dialog").await;
    operator.browser.delete_all_cookies().await;
    operator.browser.reload().await;
    operator.browser.wait_for_text("h1", "Sign in to the console", PATIENCE).await;
    walk.look("sign-in").await;
    walk.assert_no_faults();
}
