//! Why tickets wait, and which of them starve.

use std::sync::Arc;
use std::time::Duration;

use matchmaking::MatchmakingAdmin;
use matchmaking::engine::{Profile, RuleFunction};
use matchmaking::model::{Bounds, Filter};
use matchmaking::why::ObstacleCode;
use rules::{Reason, RuleSet};
use serde_json::json;

use crate::on_both_stores;
use crate::plugins::{duels, duels_of, pool, tagged};
use crate::world::{World, engine_config};

on_both_stores! {
    rule_that_keeps_a_ticket_waiting_is_named_with_its_numbers,
    ticket_that_no_profile_admits_lists_the_filters_that_exclude_it,
    small_pool_behind_a_long_queue_is_compared,
    starving_tickets_are_counted_for_the_status,
    starving_tickets_are_counted_by_profile,
    starving_tickets_are_counted_although_more_wait_than_one_fetch_returns,
}

const RULES: &str = "name = \"ranked\"\nversion = \"7\"\n[attributes.skill]\ntype = \"number\"\n\
    [attributes.level]\ntype = \"number\"\ndefault = 1\n[teams.side]\ncount = 2\nmax = 1\n\
    [rules.fair]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 50\nrelax = [{ after = 10, max = 100 }]\n\
    [rules.grown]\ntype = \"total\"\nattribute = \"level\"\nmax = 10\n";

fn ranked(world: &World) -> Profile {
    let rules = Arc::new(RuleSet::parse(RULES).unwrap());
    let function = RuleFunction::new("ranked".into(), rules, world.metrics.clone());
    Profile { name: "ranked".into(), function: Arc::new(function), pools: vec![pool(Vec::new())], ..duels() }
}

async fn rule_that_keeps_a_ticket_waiting_is_named_with_its_numbers(world: World) {
    let profile = Profile { max_wait: Some(Duration::from_secs(3)), ..ranked(&world) };
    let anna = world.ticket_with("skill", 1_000.0).await;
    let ben = world.ticket_with("skill", 1_080.0).await;
    world.clock.advance(Duration::from_secs(4));
    let engine = world.engine(vec![profile.clone()]);
    assert_eq!(engine.tick().await.unwrap().assigned, 0);
    let admin = MatchmakingAdmin::new(world.store.clone(), vec![profile], 100, world.clock.clone());
    let report = admin.why(anna.as_str()).await.unwrap();
    assert_eq!((report.in_matchmaking, report.compared, report.obstacles.len()), (2, 2, 0));
    let place = &report.profiles[0].pools[0];
    assert!(report.profiles[0].is_starving && report.profiles[0].admits);
    assert_eq!((place.others, place.excluded_by.len()), (1, 0));
    let rules = place.rules.as_ref().unwrap();
    assert_eq!((&*rules.rule_set, rules.version.as_deref()), ("ranked", Some("7")));
    assert_eq!(rules.why.reason, Reason::Rule { rule: "fair".into() });

    let shown = serde_json::to_value(&report).unwrap();
    let shown = &shown["profiles"][0]["pools"][0]["rules"];
    let mut fair = shown["rules"][0].clone();
    for changing in ["/limits/0/next/in_seconds", "/changes_in_seconds"] {
        let seconds = fair.pointer_mut(changing).unwrap().take().as_f64().unwrap();
        assert!((5.9..=6.0).contains(&seconds), "{seconds}");
    }
    let expected = json!({
        "rule": "fair", "type": "batch-distance", "is_off": false, "changes_in_seconds": null,
        "limits": [{ "name": "max", "value": 50.0, "since_seconds": 0.0, "next": { "value": 100.0, "in_seconds": null } }],
        "passed": 0, "failed": 1,
        "nearest_miss": { "ticket": ben.as_str(), "value": 80.0, "limit": 50.0, "by": 30.0 },
    });
    assert_eq!(fair, expected);
    assert_eq!((&shown["rules"][1]["rule"], &shown["rules"][1]["passed"]), (&json!("grown"), &json!(null)));
    assert_eq!(shown["reason"], json!({ "code": "rule", "rule": "fair" }));
    let unsent = json!([{ "attribute": "level", "readers": ["grown"], "has_default": true }]);
    assert_eq!(shown["unsent"], unsent);

    let text = report.lines.join("\n");
    for part in [
        "profile ranked, pool pool: admitted, with 1 other ticket",
        "blocked by rule fair",
        "no waiting ticket sends level, which grown reads: the default is used for everyone",
        "rule fair: 0 of 1 candidate passes; max 50 (100 in 6 s); nearest miss: 80 with ticket",
        "separated by fair, admitted in 6 s",
        "profile ranked: it has waited for longer than max_wait (3 s)",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(admin.show(anna.as_str()).await.unwrap().why, report.lines, "both say the same");

    world.clock.advance(Duration::from_secs(6));
    assert_eq!(engine.tick().await.unwrap().assigned, 2, "the relaxation was promised");
    let report = admin.why(anna.as_str()).await.unwrap();
    assert!(report.lines.is_empty() && report.profiles.is_empty(), "{report:?}");
}

async fn ticket_that_no_profile_admits_lists_the_filters_that_exclude_it(world: World) {
    let ticket = world.ticket(&["green"]).await;
    let profiles = vec![duels_of("red"), Profile { pools: vec![tagged("blue")], ..duels() }];
    let admin = MatchmakingAdmin::new(world.store.clone(), profiles, 100, world.clock.clone());
    let report = admin.why(ticket.as_str()).await.unwrap();
    assert_eq!(report.obstacles.len(), 1);
    assert_eq!(report.obstacles[0].code, ObstacleCode::NoProfileAdmits);
    let excluded: Vec<&str> =
        report.profiles.iter().map(|profile| profile.pools[0].excluded_by[0].as_str()).collect();
    assert_eq!(excluded, ["tag red", "tag blue"]);
    let text = report.lines.join("\n");
    assert!(text.contains("no profile admits it"), "{text}");
    assert!(text.contains("profile red, pool pool: excluded by `tag red`"), "{text}");

    let none = MatchmakingAdmin::new(world.store.clone(), Vec::new(), 100, world.clock.clone());
    let report = none.why(ticket.as_str()).await.unwrap();
    assert_eq!(report.obstacles[0].code, ObstacleCode::NoProfiles);
    assert!(none.why("unknown").await.is_err());
}

fn starving(world: &World, profile: &str) -> f64 {
    world.metric(&format!("playhouse_matchmaking_starving_tickets{{profile=\"{profile}\"}}"))
}

async fn starving_tickets_are_counted_by_profile(world: World) {
    let patient = Profile { max_wait: Some(Duration::from_secs(60)), ..duels_of("patient") };
    let hurried = Profile { max_wait: Some(Duration::from_secs(5)), ..duels_of("hurried") };
    let engine = world.engine(vec![patient, hurried, duels_of("unbounded")]);
    for tag in ["patient", "hurried", "unbounded"] {
        let [_] = world.tickets(&[tag]).await;
    }
    let counts = || ["patient", "hurried"].map(|profile| starving(&world, profile));
    world.clock.advance(Duration::from_secs(5));
    engine.tick().await.unwrap();
    assert_eq!(counts(), [0.0, 0.0]);
    world.clock.advance(Duration::from_secs(1));
    engine.tick().await.unwrap();
    assert_eq!(counts(), [0.0, 1.0]);
    world.clock.advance(Duration::from_secs(60));
    engine.tick().await.unwrap();
    assert_eq!(counts(), [1.0, 1.0]);
    assert!(!world.all_metrics().keys().any(|name| name.contains("starving") && name.contains("unbounded")));
    let [_] = world.tickets(&["patient"]).await;
    let [_] = world.tickets(&["hurried"]).await;
    engine.tick().await.unwrap();
    assert_eq!(counts(), [0.0, 0.0], "a partner has come");
}

async fn starving_tickets_are_counted_although_more_wait_than_one_fetch_returns(world: World) {
    let profile = Profile { max_wait: Some(Duration::from_secs(5)), ..ranked(&world) };
    let config = matchmaking::engine::EngineConfig { fetch_limit: 2, ..engine_config() };
    // The first engine keeps what it fetched, as a running one does until it has seen all tickets.
    let engine = world.engine_with(vec![profile], config);
    for skill in [1_000.0, 2_000.0] {
        world.ticket_with("skill", skill).await;
    }
    world.clock.advance(Duration::from_secs(6));
    for skill in [3_000.0, 4_000.0, 5_000.0] {
        world.ticket_with("skill", skill).await;
    }
    let drain = runtime::Drain::new();
    let running = tokio::spawn({
        let (engine, drain) = (engine.clone(), drain.clone());
        async move { engine.run(drain).await.unwrap() }
    });
    testkit::eventually("all were fetched once", crate::PATIENCE, async || {
        world.metric("minimatch_backend_tickets_fetched_total") >= 5.0
    })
    .await;
    drain.request();
    running.await.unwrap();
    assert_eq!(starving(&world, "ranked"), 2.0);
}

async fn small_pool_behind_a_long_queue_is_compared(world: World) {
    for _ in 0..1_500 {
        world.put().await;
    }
    let filter = Filter::Double { field: "skill".to_owned(), min: 0.0, max: 9_999.0, bounds: Bounds::Closed };
    world.clock.advance(Duration::from_secs(1));
    let small = Profile { pools: vec![pool(vec![filter])], ..ranked(&world) };
    let anna = world.ticket_with("skill", 1_000.0).await;
    world.ticket_with("skill", 1_080.0).await;
    let why = async |limit| {
        let profiles = vec![small.clone(), duels()];
        let admin = MatchmakingAdmin::new(world.store.clone(), profiles, limit, world.clock.clone());
        admin.why(anna.as_str()).await.unwrap()
    };
    let report = why(10_000).await;
    assert_eq!((report.in_matchmaking, report.compared), (1_502, 1_502));
    let [pool, large] = [0, 1].map(|at| &report.profiles[at].pools[0]);
    assert_eq!((pool.others, pool.is_sample), (1, false));
    assert_eq!(pool.rules.as_ref().unwrap().why.reason, Reason::Rule { rule: "fair".into() });
    assert!((999..=1_000).contains(&large.others) && large.is_sample, "{large:?}");

    // What is beyond the limit is not read, and the report says so.
    let report = why(1_200).await;
    let pool = &report.profiles[0].pools[0];
    assert_eq!((report.compared, pool.others, pool.is_sample), (1_200, 0, true));
    assert!(report.lines.iter().any(|line| line.contains("0 other tickets (the oldest)")), "{report:?}");
}

async fn starving_tickets_are_counted_for_the_status(world: World) {
    let red = Profile { max_wait: Some(Duration::from_secs(10)), ..duels_of("red") };
    let blue = Profile { max_wait: Some(Duration::from_secs(60)), ..duels_of("blue") };
    let profiles = vec![red, blue, duels_of("green")];
    let admin = MatchmakingAdmin::new(world.store.clone(), profiles, 10_000, world.clock.clone());
    for _ in 0..1_100 {
        world.put().await;
    }
    world.ticket(&["red"]).await;
    world.ticket(&["blue"]).await;
    world.ticket(&["green"]).await;
    assert_eq!(admin.starving().await.unwrap(), []);
    world.clock.advance(Duration::from_secs(11));
    world.ticket(&["red"]).await;
    assert_eq!(admin.starving().await.unwrap(), [("red".into(), 1)]);
    world.clock.advance(Duration::from_secs(50));
    assert_eq!(admin.starving().await.unwrap(), [("red".into(), 2), ("blue".into(), 1)]);
}
