//! A simulation in a browser: the console while it runs, and its report.

use testkit::{Axe, Folder, eventually, need};

use super::operator::Operator;
use super::*;
use crate::looks::Looks;

/// How long a simulation may take.
const SIMULATION: Duration = Duration::from_secs(180);
/// The charts of a scenario with a drop.
const CHARTS: [&str; 8] = [
    "Arrivals",
    "Requests",
    "Time of a request",
    "Notifications",
    "Tickets matched",
    "Retries and reconnects",
    "Players in line",
    "Units available",
];

/// Starts a simulation against a process.
fn simulate(at: &HashMap<String, String>, args: &[&str]) -> RunningProgram {
    let program = playhouse(&["simulate", "--gateway", &at["gateway"], "--admin", &at["admin"]]);
    program.args(args.iter().copied()).start().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn report_is_one_page_with_charts() {
    let (browser, axe) = (need!(Browser::start().await), need!(Axe::find()));
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("report.html");
    let path = file.to_str().unwrap();
    let with = ["--with", "arrival.over=6s", "--with", "drop.stock=20"];
    let running = simulate(&at, &[&["--players", "80", "--html", path][..], &with].concat());
    assert_eq!(running.wait(SIMULATION).await.code(), Some(0));

    browser.goto(format!("file://{path}")).await;
    assert_eq!(browser.text("h1").await, "Simulation of launch-day");
    assert!(browser.text("#summary .notice").await.contains("All checks passed."));
    assert_eq!(browser.texts("#checks tbody tr").await.len(), 5);
    let loaded =
        browser.script("return performance.getEntriesByType('resource').map((one) => one.name)").await;
    assert_eq!(loaded, serde_json::json!([]), "the page loads nothing");
    assert_eq!(browser.texts("figure .chart-title").await, CHARTS);
    // Their axes count from the start, and their values are those of the run, not of its last second.
    let axes = browser.texts("figure .axis span:first-child").await;
    assert!(axes.len() == CHARTS.len() && axes.iter().all(|text| text == "0 s"), "{axes:?}");
    let values = browser.texts("figure .chart-value").await;
    assert!(values.iter().filter(|text| text.starts_with("up to ")).count() >= 6, "{values:?}");
    assert_eq!(values.last().unwrap(), "up to 20");
    // Every chart is drawn: its lines have points, and the drawing has a size.
    let drawn = "return [...document.querySelectorAll('figure')].filter((figure) => {
        const { width, height } = figure.querySelector('svg').getBoundingClientRect();
        const lines = [...figure.querySelectorAll('path.line')];
        return width > 100 && height > 30 && lines.length && lines.every((line) => line.getTotalLength() > 50);
    }).length";
    assert_eq!(browser.script(drawn).await, CHARTS.len());
    let faults = Looks::new(axe, "simulation-screenshots").faults(&browser, "report").await;
    assert_eq!(faults, Vec::<String>::new());
    let errors = browser.console_errors().await;
    assert!(errors.is_empty(), "{errors:?}");
}

/// Keeps each value that the page shows of the players in line and of the sold units.
const RECORD_FIGURES: &str = "
    window.seen = { inLine: [], sold: [] };
    const keep = (values, text) => {
        const value = parseInt(text, 10);
        if (!Number.isNaN(value) && values.at(-1) !== value) values.push(value);
    };
    const record = () => {
        const figures = [...document.querySelectorAll('#now .figure')];
        keep(seen.inLine, figures.find((one) => one.textContent.includes('In line'))?.querySelector('dd').textContent);
        keep(seen.sold, [...document.querySelectorAll('#stock tbody tr td')].at(-1)?.textContent);
    };
    record();
    new MutationObserver(record).observe(document.body, { subtree: true, childList: true, characterData: true });
";

/// The operator watches the sale of a simulation. The page is never loaded again.
#[tokio::test(flavor = "multi_thread")]
async fn console_is_live_during_a_simulation() {
    let browser = need!(Browser::start().await);
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let operator = Operator::sign_in(&browser, &at["admin"]).await;
    operator.open("/console/drops").await;
    browser.wait_for_text(".live-state", "Live", PATIENCE).await;
    let with = ["--with", "arrival.over=3s", "--with", "drop.share=1", "--with", "drop.batch=6"];
    let more = ["--players", "80", "--with", "drop.stock=60", "--with", "matchmaking.share=0"];
    let running = simulate(&at, &[&with[..], &more].concat());

    // The drop of the simulation appears in the list by itself.
    let of_simulation = "return [...document.querySelectorAll('main a')].find((link) => link.textContent.startsWith('simulation '))
        ?.getAttribute('href') ?? null";
    let drop = eventually("the drop of the simulation is listed", PATIENCE, async || {
        browser.script(of_simulation).await.as_str().map(ToOwned::to_owned).ok_or("no link")
    })
    .await;
    operator.open(&drop).await;
    browser.wait_for_text(".live-state", "Live", PATIENCE).await;
    browser.script("window.isTheSamePage = true").await;

    // Both move while the simulator runs: the line grows and shrinks, and the sold units grow.
    browser.script(RECORD_FIGURES).await;
    assert_eq!(running.wait(SIMULATION).await.code(), Some(0));
    let seen = async |name: &str| -> Vec<u64> {
        let values = browser.script(&format!("return window.seen.{name}")).await;
        values.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
    };
    let (in_line, sold) = (seen("inLine").await, seen("sold").await);
    assert!(sold.len() > 4 && sold.is_sorted(), "sold units: {sold:?}");
    assert!(in_line.len() > 4 && !in_line.is_sorted(), "players in line: {in_line:?}");
    browser.wait_for_text("#stock", "60", PATIENCE).await;
    assert_eq!(browser.script("return window.isTheSamePage").await, true);
    operator.assert_no_errors("simulation").await;
}
