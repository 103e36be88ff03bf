//! Renders a page with every kind of block and cell.

use std::path::Path;
use std::time::Duration;

use base::Timestamp;
use screens::{
    Block, Cell, Chart, ChartKind, Count, FieldKind, Filter, FormField, Link, Series, Step, Table, Tone, Unit,
};

use super::*;

const START: i64 = 1_795_003_200_000;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START + millis)
}

fn menu() -> Vec<MenuGroup> {
    let item = |(title, href): &(&'static str, &'static str)| MenuItem { title, href };
    let group = |title, items: &[(&'static str, &'static str)]| MenuGroup {
        title,
        items: items.iter().map(item).collect(),
    };
    vec![
        group("Overview", &[("Overview", "/console")]),
        group("Players", &[("Players", "/console/players"), ("Entitlements", "/console/entitlements")]),
        group(
            "Events",
            &[
                ("Pipeline", "/console/pipeline"),
                ("Dead letters", "/console/dead-letters"),
                ("Webhooks", "/console/webhooks"),
                ("Broadcasts", "/console/broadcasts"),
            ],
        ),
        group("Matchmaking", &[("Matchmaking", "/console/matchmaking")]),
        group("Sales", &[("Drops", "/console/drops")]),
        group(
            "System",
            &[
                ("Nodes and stores", "/console/nodes"),
                ("Locks", "/console/locks"),
                ("Limits", "/console/limits"),
                ("Jobs", "/console/jobs"),
                ("Audit log", "/console/audit"),
            ],
        ),
    ]
}

fn shell<'a>(menu: &'a [MenuGroup], crumbs: &'a [Link]) -> Shell<'a> {
    Shell {
        title: "Drop of the dragon <script>",
        question: "Is it selling, fairly, never above stock?",
        menu,
        here: "/console/drops/d1",
        crumbs,
        operator: "ada@example.com",
        read_only: true,
        flash: Some((Tone::Good, "Paused. Nobody is admitted until you resume it.")),
        live: true,
        search: Some(Search { action: "/console/trace", name: "id", label: "Find a player or an id" }),
        sign_out: "/console/sign-out",
    }
}

fn wave(name: &str, height: f64, shift: f64) -> Series {
    let value = |index: i64| {
        let value = height * (1.2 + (index as f64 / 9.0 + shift).sin() + (index as f64 / 2.3).cos() / 5.0);
        (!(40..46).contains(&index)).then_some(value)
    };
    let points = (0..120).map(|index| (at(index * 30_000), value(index))).collect();
    Series { name: name.to_owned(), points }
}

fn chart(title: &str, unit: Unit, kind: ChartKind) -> Chart {
    Chart { title: title.to_owned(), unit, kind, href: Some("/console/pipeline".to_owned()) }
}

fn every_block() -> View {
    let pause = || ActionLink::new("POST /drops/{drop_id}/pause").with("drop_id", "d1");
    let close = || ActionLink::new("POST /drops/{drop_id}/close").with("drop_id", "d1").label("Close");
    let line = |height, shift| ChartKind::Line(vec![wave("", height, shift)]);
    let ranges = [
        "<1 s",
        "1\u{2013}2 s",
        "2\u{2013}5 s",
        "5\u{2013}10 s",
        "10\u{2013}30 s",
        "30\u{2013}60 s",
        ">1 min",
    ];
    let waiting = ranges.iter().zip([1_240.0, 830.0, 410.0, 220.0, 64.0, 12.0, 3.0]);
    let mut table =
        Table::new(&["Order", "Player", "State", "#Price", "#Waited", "Placed", "Labels"], "No order yet.");
    for (index, (tone, state)) in [
        (Tone::Good, "confirmed"),
        (Tone::Warning, "refund due"),
        (Tone::Bad, "failed"),
        (Tone::Neutral, "reserved"),
    ]
    .into_iter()
    .enumerate()
    {
        let cells = [
            Cell::id(format!("ord_01J9XK4T{index}"), "/console/trace?id=1"),
            Cell::link("Mira <script>alert(1)</script>", "/console/players/1"),
            Cell::state(tone, state),
            Cell::number(1_234_567 * index as i64),
            Cell::Duration(Duration::from_millis(840 * 37_u64.pow(index as u32))),
            Cell::Time(at(index as i64 * 61_000)),
            Cell::Many(vec![Cell::code("eu-west"), Cell::text("first wave"), Cell::None]),
        ];
        table.push(cells, [pause(), close()]);
    }
    table.total = Some(Count::up_to(10_001, 10_000));
    (table.next, table.page_key) = (Some("after=ord+4".to_owned()), Some("after"));
    let step = |millis, store, part, what: &str| Step::new(at(millis), store, part, what);
    View::titled("Drop of the dragon")
        .section(
            Section::new("state", "State")
                .block(Block::Figures(vec![
                    ("State".to_owned(), Cell::state(Tone::Good, "open"), None),
                    (
                        "Waiting".to_owned(),
                        Cell::Count(Count::up_to(90_000, 10_000)),
                        Some("/console/drops/d1/line".to_owned()),
                    ),
                    ("Admitted per second".to_owned(), Cell::Decimal(38.25), None),
                    (
                        "Stock left".to_owned(),
                        Cell::number(1_234),
                        Some("/console/drops/d1/stock".to_owned()),
                    ),
                    ("Oldest order".to_owned(), Cell::Duration(Duration::from_secs(125)), None),
                ]))
                .notice(Tone::Neutral, "The line opens 10 minutes before the sale.")
                .block(Block::Notice {
                    tone: Tone::Warning,
                    text: "12 orders are due for a refund.".to_owned(),
                    link: Some(Link::new("Show them", "/console/drops/d1/refunds")),
                })
                .notice(Tone::Bad, "Redis does not answer since 12:03. Nobody is admitted until it is back.")
                .action(pause())
                .action(close()),
        )
        .section(Section::new("rates", "Rates").block(Block::Charts(vec![
            chart("Admissions", Unit::PerSecond, line(14.0, 0.0)),
            chart("Time to admission, p99", Unit::Seconds, line(0.12, 2.0)),
            chart("Oldest unpublished event", Unit::Seconds, line(31.0, 4.0)),
            chart("Requests turned away", Unit::Count, ChartKind::Line(vec![])),
        ])))
        .section(
            Section::new("wait", "Waiting time")
                .text("How long the players who wait now have been waiting.")
                .block(chart(
                    "Players by waiting time",
                    Unit::Count,
                    ChartKind::Histogram(
                        waiting.map(|(label, value)| ((*label).to_owned(), value)).collect(),
                    ),
                ))
                .block(chart(
                    "Requests by result",
                    Unit::PerSecond,
                    ChartKind::Line(vec![
                        wave("served", 140.0, 0.0),
                        wave("turned away", 40.0, 2.0),
                        wave("failed", 4.0, 1.0),
                    ]),
                )),
        )
        .section(
            Section::new("orders", "Orders")
                .block(
                    Filter::new("Search")
                        .text("player", "Player", "name or id", Some("\"mira\" <b>"))
                        .choice("state", "State", &[("", "Any"), ("due", "Refund due")], Some("due")),
                )
                .block(table)
                .block(Block::Links(vec![
                    Link::new("Ledger", "/console/drops/d1/ledger"),
                    Link::new("Export", "/console/x"),
                ])),
        )
        .section(
            Section::new("facts", "Facts")
                .facts([
                    ("Id", Cell::code("drop_01J9XK4T7Q")),
                    ("Opened", Cell::Time(at(0))),
                    ("Price", Cell::text("4,90 EUR")),
                    ("Owner", Cell::link("Ada", "/console/players/2")),
                    ("Closes", Cell::None),
                    ("Fairness", Cell::state(Tone::Good, "in order of arrival")),
                ])
                .block(Block::Code(
                    "{\n  \"stock\": 1234,\n  \"note\": \"<script>alert(1)</script>\"\n}".to_owned(),
                )),
        )
        .section(Section::new("steps", "What happened").block(Block::Timeline(vec![
                step(0, "redis", "drops", "Joined the line at place 4,211"),
                step(42, "redis", "drops", "Admitted").tone(Tone::Good),
                step(1_900, "sql", "drops", "Reserved 1 of skin-dragon")
                    .link("order ord_01J9", "/console/trace?id=ord_01J9"),
                step(1_931, "sql", "outbox", "Wrote event drops.order.confirmed.v1"),
                step(1_944, "bus", "outbox", "Published with sequence number 88,231"),
                step(64_000, "sql", "webhook", "Delivery to https://shop.example/hook failed: 503 <script>")
                    .tone(Tone::Bad),
                step(86_400_000, "sql", "webhook", "Delivered").tone(Tone::Good),
            ])))
        .section(
            Section::new("nothing", "Refunds")
                .block(Table::new(&["Order"], "No order is due for a refund."))
                .block(Block::Empty {
                    text: "No drop yet. Open one to see its line here.".to_owned(),
                    link: Some(Link::new("Open a drop", "/console/drops/new")),
                }),
        )
}

fn offer(action: &ActionLink) -> Option<Offer> {
    let label = action.label.clone().unwrap_or_else(|| "Pause".to_owned());
    let is_dangerous = label == "Close";
    Some(Offer { label, href: "/console/actions?route=x".to_owned(), is_dangerous })
}

fn whole_page() -> String {
    let query = BTreeMap::from([("state", "due"), ("fragment", "orders"), ("after", "3")])
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let context = Context { path: "/console/drops/d1", query: &query, offers: &offer };
    let crumbs = [Link::new("Drops", "/console/drops")];
    page(&shell(&menu(), &crumbs), view(&every_block(), &context))
}

const FIELDS: &[FormField] = &[
    FormField::body("reason", "Reason", FieldKind::Text).hint("Players see it."),
    FormField::body("text", "Text", FieldKind::LongText).optional(),
    FormField::query("limit", "At most", FieldKind::Number).optional().hint("Empty: all of them."),
    FormField::body("kind", "Kind", FieldKind::OneOf(&["all", "waiting"])),
    FormField::body("notify", "Notify the players", FieldKind::Flag).hint("By their stream only."),
    FormField::body("data", "Data", FieldKind::Json).optional(),
    FormField::body("filter", "Filter", FieldKind::Hidden),
];

fn action_page(is_dangerous: bool, error: Option<&str>) -> String {
    let inputs: Vec<Input<'_>> =
        FIELDS.iter().map(|field| Input { name: field.name, field, value: "<script>" }).collect();
    let check = CheckReport {
        warnings: vec!["Role <script> is never filled.".to_owned(), "Nothing uses `skill`.".to_owned()],
        diff: vec!["-players = 2".to_owned(), "+players = <script>".to_owned()],
    };
    let form = ActionForm {
        note: "",
        label: "Pause",
        effect: "No player is admitted and nobody can reserve until you resume it. Places in the line stay.",
        is_dangerous,
        hidden: &[("route", "POST /drops/{drop_id}/pause"), ("back", "/console/drops/d1")],
        inputs: &inputs,
        curl: "curl -X POST https://admin.example:8082/drops/d1/pause \\\n  -H \"authorization: Bearer $TOKEN\" \\\n  -d '{\"reason\": \"\u{2026}\"}'",
        command: "playhouse drops pause d1 --reason '\u{2026}'",
        back: "/console/drops/d1",
        error,
        can_check: true,
        check: is_dangerous.then_some(&check),
    };
    let menu = menu();
    let crumbs = [Link::new("Drops", "/console/drops")];
    form_page(
        &Shell { title: "Pause", question: "", flash: None, live: false, ..shell(&menu, &crumbs) },
        &form,
    )
}

fn pages() -> Vec<(&'static str, String)> {
    let menu = menu();
    let sign_in = SignIn {
        issuer_href: Some("/console/sign-in/issuer"),
        token_action: Some("/console/sign-in"),
        hidden: &[("back", "/console\"<script>")],
        error: None,
    };
    vec![
        ("look", whole_page()),
        ("form", action_page(false, None)),
        ("danger", action_page(true, Some("line 1: <script> is unknown\nline 7: it is closed already"))),
        (
            "error",
            error_page(
                &Shell { flash: None, live: false, ..shell(&menu, &[]) },
                "The database does not answer.",
                "Run playhouse doctor.",
            ),
        ),
        ("sign-in", sign_in_page(&sign_in)),
        ("refused", sign_in_page(&SignIn { error: Some("This token is not known."), ..SignIn::default() })),
    ]
}

#[test]
fn no_page_has_inline_styles_or_scripts_and_texts_are_escaped() {
    for (name, html) in pages() {
        assert_eq!(html.matches("<script").count(), 1, "{name}: only the module of the console");
        assert!(html.contains("<script type=\"module\" src=\"/console/assets/console.js\"></script>"));
        let tags = html.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
        for tag in tags {
            for (index, _) in tag.match_indices(' ') {
                let attribute = &tag[index + 1..];
                assert!(!attribute.starts_with("style="), "{name}: <{tag}>");
                let is_handler = attribute.starts_with("on")
                    && attribute
                        .split_once('=')
                        .is_some_and(|(name, _)| name.bytes().all(|c| c.is_ascii_lowercase()));
                assert!(!is_handler, "{name}: <{tag}>");
            }
        }
        assert!(!html.contains("javascript:") && !html.contains("data:image"), "{name}");
    }
}

#[test]
fn ids_are_unique() {
    for (name, html) in pages() {
        let ids: Vec<&str> =
            html.split(" id=\"").skip(1).filter_map(|rest| rest.split_once('"')).map(|(id, _)| id).collect();
        let unique: std::collections::BTreeSet<&&str> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{name}: {ids:?}");
    }
}

#[test]
fn links_to_pages_keep_the_filter() {
    let html = whole_page();
    assert!(html.contains("href=\"/console/drops/d1?after=ord+4&amp;state=due\""));
    assert!(html.contains("href=\"/console/drops/d1?state=due\""));
    assert!(html.contains("10,000+ rows"));
}

#[test]
fn version_changes_with_the_content_only() {
    let query = BTreeMap::new();
    let context = Context { path: "/console", query: &query, offers: &offer };
    let version = |text: &str| section(&Section::new("a", "A").text(text), &context).version;
    assert_eq!(version("1"), version("1"));
    assert_ne!(version("1"), version("2"));
}

#[test]
fn hidden_action_has_no_button() {
    let query = BTreeMap::new();
    let context = Context { path: "/console", query: &query, offers: &|_| None };
    assert!(!view(&every_block(), &context).as_str().contains("data-dialog"));
}

#[test]
fn timeline_says_how_much_later_or_earlier_a_step_was() {
    let query = BTreeMap::new();
    let context = Context { path: "/console", query: &query, offers: &offer };
    let steps = [1_000, 1_042, 0].map(|millis| Step::new(at(millis), "sql", "drops", "x"));
    let section = section(&Section::new("a", "A").block(Block::Timeline(steps.to_vec())), &context);
    let html = section.markup.into_string();
    assert!(html.contains(">+42 ms<") && html.contains(">1 s earlier<"), "{html}");
}

/// Writes the pages with relative links to `target/console-look/`, to look at them in a browser.
#[test]
fn pages_can_be_looked_at() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console-look");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, html) in pages() {
        let html = html.replace("/console/assets/", "");
        std::fs::write(folder.join(format!("{name}.html")), html).unwrap();
    }
    for asset in ASSETS {
        std::fs::write(folder.join(asset.name), asset.body).unwrap();
    }
}
