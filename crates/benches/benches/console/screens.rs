//! The screens: which there are, and how long each takes to answer.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use open_match_load::Histogram;
use testkit::bench::Report;

use crate::fleet::Fleet;
use crate::http::{Response, request};

/// How often each screen is requested. All screens are requested in turn, so that a cache of the product for closely following readers
/// does not serve most of these requests.
const TIMES: usize = 20;
/// The median of every screen must be below.
const GOAL: Duration = Duration::from_millis(200);
/// How many kinds of links are followed.
const MAX_KINDS: usize = 150;

/// Parts of the console that are no screens.
const NOT_SCREENS: [&str; 5] =
    ["/console/action", "/console/assets/", "/console/live", "/console/sign-in", "/console/sign-out"];

/// Screens that the links must lead to. Otherwise the filled data, or a screen, has changed, and the benchmark measures too little.
const EXPECTED: [&str; 14] = [
    "/console/broadcasts/{id}",
    "/console/dead-letters/{id}",
    "/console/drops/{id}",
    "/console/drops/{id}/line",
    "/console/entitlements/{id}/{id}",
    "/console/entitlements?account={id}",
    "/console/jobs/{id}",
    "/console/notifications/{id}",
    "/console/orders/{id}",
    "/console/pipeline/{id}",
    "/console/pipeline?state=failed",
    "/console/players/{id}",
    "/console/tickets/{id}",
    "/console/trace?id={id}",
];

/// Searches, which no link leads to. The first filled player, account, receipt and event exist.
const SEARCHES: [&str; 10] = [
    "/console/players?find=Player+1",
    "/console/players?find=s1",
    "/console/players?find=nobody",
    "/console/entitlements?reference=receipt-1",
    "/console/pipeline?state=failed&cause=relays",
    "/console/pipeline?kind=playhouse.match.made.v1",
    "/console/dead-letters?cause=certificate",
    "/console/dead-letters?cause=nothing-like-this",
    "/console/audit-log?actor=operator-7",
    "/console/audit-log?target=nothing-like-this",
];

/// An operator who is signed in.
#[derive(Clone)]
pub(crate) struct Session {
    cookie: String,
}

impl Session {
    /// Signs in with the operator's token.
    pub(crate) async fn sign_in(fleet: &Fleet) -> Self {
        let headers = "content-type: application/x-www-form-urlencoded\r\n";
        let body = format!("token={}", benches::OPERATOR_TOKEN);
        let mut admin = fleet.connect("admin").await;
        let response = admin.send(&request("POST", "/console/sign-in/token", headers, &body)).await;
        assert_eq!(response.status, 303, "{}\n{}", response.head, response.text());
        let cookie = response.header("set-cookie").unwrap().split(';').next().unwrap();
        assert!(cookie.starts_with("playhouse_console="), "{}", response.head);
        Self { cookie: cookie.to_owned() }
    }

    /// Builds the request for a page.
    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        request("GET", path, &format!("cookie: {}\r\naccept: text/html\r\n", self.cookie), "")
    }
}

/// A screen to measure.
pub(crate) struct Screen {
    /// The path and query, with placeholders for ids.
    kind: String,
    pub(crate) path: String,
    /// Whether the menu leads to it.
    pub(crate) is_listed: bool,
    bytes: usize,
    times: Histogram,
}

/// Finds the screens: those of the menu, and from there one of each kind that links lead to.
pub(crate) async fn find(fleet: &Fleet, session: &Session) -> Vec<Screen> {
    let mut admin = fleet.connect("admin").await;
    let first = admin.send(&session.get("/console")).await;
    assert_eq!(first.status, 200, "{}\n{}", first.head, fleet.log());
    let page = first.text();
    let (_, menu) = page.split_once("aria-label=\"Screens\"").unwrap();
    let menu = links(menu.split("</nav>").next().unwrap());
    assert!(menu.len() > 1, "the menu has no links");
    let mut waiting: VecDeque<(String, bool)> = menu.into_iter().map(|path| (path, true)).collect();
    waiting.extend(SEARCHES.map(|path| (path.to_owned(), false)));
    let (mut screens, mut seen) = (Vec::new(), HashSet::new());
    while let Some((path, is_listed)) = waiting.pop_front() {
        let kind = if is_listed || SEARCHES.contains(&path.as_str()) { path.clone() } else { kind(&path) };
        if !seen.insert(kind.clone()) {
            continue;
        }
        assert!(seen.len() <= MAX_KINDS, "too many kinds of screens: {seen:?}");
        let response = admin.send(&session.get(&path)).await;
        if response.status == 404 && !is_listed {
            // What a link leads to may be gone.
            eprintln!("not measured, 404: {path}");
            seen.remove(&kind);
            continue;
        }
        assert_eq!(response.status, 200, "{path}: {}\n{}", response.head, fleet.log());
        if !is_screen(&response) {
            continue;
        }
        waiting.extend(links(&response.text()).into_iter().map(|path| (path, false)));
        let bytes = response.body.len();
        screens.push(Screen { kind, path, is_listed, bytes, times: Histogram::default() });
    }
    let missing: Vec<&str> = EXPECTED.into_iter().filter(|kind| !seen.contains(*kind)).collect();
    assert!(missing.is_empty(), "no link leads to {missing:?}; found: {seen:?}");
    screens
}

/// Measures the screens and adds them to the report. Returns those whose median is above the goal.
pub(crate) async fn measure(
    fleet: &Fleet,
    session: &Session,
    screens: &mut [Screen],
    report: &mut Report,
) -> Vec<String> {
    let mut admin = fleet.connect("admin").await;
    for _ in 0..TIMES {
        for screen in &mut *screens {
            let began = Instant::now();
            let response = admin.send(&session.get(&screen.path)).await;
            screen.times.record(began.elapsed());
            assert_eq!(response.status, 200, "{}: {}\n{}", screen.path, response.head, fleet.log());
        }
    }
    screens.sort_by_key(|screen| std::cmp::Reverse(screen.times.quantile(0.5)));
    for screen in &*screens {
        report.row([
            screen.kind.clone(),
            format!("{:.1}", millis(screen.times.quantile(0.5))),
            format!("{:.1}", millis(screen.times.quantile(0.99))),
            format!("{:.0} kB", screen.bytes as f64 / 1e3),
        ]);
    }
    if let Some(slowest) = screens.first() {
        report.measure("screens", screens.len() as f64);
        report.measure("slowest_screen_p50_ms", millis(slowest.times.quantile(0.5)));
        report.label("slowest_screen", &slowest.kind);
    }
    let worst = screens.iter().map(|screen| screen.times.quantile(0.99)).max().unwrap_or_default();
    report.measure("worst_screen_p99_ms", millis(worst));
    let slow = screens.iter().filter(|screen| screen.times.quantile(0.5) >= GOAL);
    slow.map(|screen| format!("{}: {:.0} ms", screen.kind, millis(screen.times.quantile(0.5)))).collect()
}

/// Returns whether a response is a screen, and not a form or a file.
fn is_screen(response: &Response) -> bool {
    let is_html = response.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
    is_html && response.text().contains("data-live")
}

/// Returns the links to screens of the console.
fn links(html: &str) -> Vec<String> {
    let targets = html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let targets = targets.map(|target| target.replace("&amp;", "&").replace("&#39;", "'"));
    let is_screen = |target: &String| {
        let is_own =
            target == "/console" || target.starts_with("/console/") || target.starts_with("/console?");
        is_own && !NOT_SCREENS.iter().any(|other| target.starts_with(other))
    };
    targets.filter(is_screen).collect()
}

/// Replaces the ids in a path and query by placeholders, so that links of the same kind are the same.
fn kind(path: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let segments = path.split('/').map(|part| if is_word(part) { part } else { "{id}" });
    let mut kind = segments.collect::<Vec<_>>().join("/");
    let mut pairs: Vec<String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| format!("{name}={}", if is_word(value) { value } else { "{id}" }))
        .collect();
    pairs.sort_unstable();
    if !pairs.is_empty() {
        kind = format!("{kind}?{}", pairs.join("&"));
    }
    kind
}

/// Returns whether a part of a URL is a fixed word, and no id or text.
fn is_word(part: &str) -> bool {
    part.len() <= 20 && part.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
