//! Definitions on every kind of SQL store.

use std::path::Path;

use ::config::{Layers, Loaded, Reader, Section, Setting, Value as Configured, load};
use base::Clock;
use base::error::Coded;
use db::DbUrl;
use prometheus_client::registry::Registry;
use redis_store::RedisStore;
use testkit::TestDatabase;

use super::change::{Change, Changed, DefinitionError, NewContent};
use super::*;
use crate::Config;

testkit::on_all_stores!(
    change_is_followed_and_names_its_author,
    text_with_a_mistake_is_refused_and_the_old_version_stays_active,
    expected_version_must_be_the_current_one,
    concurrent_changes_are_checked_against_earlier_ones,
    earlier_version_and_the_one_of_the_file_come_back,
    process_that_lacks_an_assigner_keeps_the_set_before,
);

const FILE: &str = r#"
[matchmaking.queues.ranked]
numbers = ["skill"]
[matchmaking.profiles.ranked]
function = "rules"
rules = """
name = "ranked"
[teams.side]
count = 2
max = 1
"""
assigner = "servers"
[matchmaking.profiles.ranked.pools.all]
filters = ["queue = ranked"]
[matchmaking.assigners.servers]
addresses = ["10.0.0.1:7777"]
"#;

const FOUR: &str = "name = \"ranked\"\nversion = \"four\"\n[teams.side]\ncount = 2\nmax = 2\n";

/// The section of matchmaking alone.
#[derive(Debug)]
struct Whole(Config);

impl Section for Whole {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self(reader.section("matchmaking"))
    }
}

pub(crate) fn config(file: &str) -> Config {
    let reference = include_str!("../../../playhouse/src/reference.toml");
    let layers = Layers::new(reference).with_file_text(Path::new("play.toml"), file);
    let Loaded { config: Whole(config), .. } = load(layers).unwrap();
    config
}

async fn database(place: &TestDatabase) -> Db {
    let url = DbUrl::parse(&Configured::Text(place.url())).unwrap();
    let limit = Duration::from_secs(10);
    let settings = db::Config { url, max_connections: 4, acquire_timeout: limit, migrate: false };
    let db = Db::open(&settings).await.unwrap();
    db.migrate(&[db::MIGRATIONS, crate::MIGRATIONS]).await.unwrap();
    db
}

/// A process with this configuration file.
async fn process(db: &Db, file: &str) -> Definitions {
    let (config, mut registry) = (config(file), Registry::default());
    let (metrics, own) = (Metrics::new(&mut registry), DefinitionMetrics::new(&mut registry));
    let assigners = config.assigners(&Clock::system()).unwrap();
    let live = Live::new(&RedisStore::Memory, "");
    Definitions::open(db.clone(), live, config.definitions(), assigners, metrics, own).await.unwrap()
}

fn key(kind: DefinitionKind, name: &str) -> DefinitionKey {
    DefinitionKey::new(kind, name)
}

fn ranked() -> DefinitionKey {
    key(DefinitionKind::RuleSet, "ranked")
}

fn change(key: DefinitionKey, content: NewContent) -> Change {
    let note = Some("because".to_owned());
    Change { key, content, expected: None, author: "ada".to_owned(), note, dry_run: false }
}

async fn set(definitions: &Definitions, key: DefinitionKey, text: &str) -> Result<Changed, DefinitionError> {
    definitions.change(&change(key, NewContent::Text(text.to_owned()))).await
}

fn mistakes(result: Result<Changed, DefinitionError>) -> Vec<String> {
    match result {
        Err(DefinitionError::Mistakes(mistakes)) => mistakes,
        other => panic!("{other:?}"),
    }
}

async fn change_is_followed_and_names_its_author(place: &TestDatabase) {
    let db = database(place).await;
    let definitions = process(&db, FILE).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let revisions = seen.clone();
    definitions.follow(move |active| {
        let queues: Vec<String> = active.queues.keys().cloned().collect();
        revisions.lock().unwrap().push((active.revision, active.profiles.len(), queues.join(" ")));
    });
    let listed = definitions.list().await.unwrap();
    let shown: Vec<_> =
        listed.1.iter().map(|view| (view.key.to_string(), view.version, view.origin)).collect();
    let expected =
        ["rule set ranked", "profile ranked", "queue ranked"].map(|key| (key.to_owned(), 0, "file"));
    assert_eq!((listed.0, shown), (0, expected.to_vec()));
    let profile = definitions.show(&key(DefinitionKind::Profile, "ranked"), None).await.unwrap();
    assert_eq!(
        profile.text.unwrap(),
        "function = \"rules\"\nrules = \"ranked\"\nassigner = \"servers\"\n[pools.all]\nfilters = [\"queue = ranked\"]\n"
    );

    let changed = set(&definitions, ranked(), FOUR).await.unwrap();
    assert_eq!((changed.version, changed.revision, changed.is_changed), (1, 1, true));
    assert!(changed.diff.contains("-max = 1\n+max = 2\n"), "{}", changed.diff);
    let same = set(&definitions, ranked(), FOUR).await.unwrap();
    assert_eq!((same.version, same.revision, same.is_changed), (1, 1, false), "nothing changes");
    let times = |definitions: &Definitions| {
        let of = |profile: &Profile| (profile.max_wait, profile.ready_check);
        definitions.active().profiles.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(times(&definitions), [(None, None)]);
    let queue = set(&definitions, key(DefinitionKind::Queue, "casual"), "tags = [\"beta\"]\nmax_party = 3\n")
        .await
        .unwrap();
    assert_eq!((queue.version, queue.revision), (1, 2));
    let expected = [(0, 1, "ranked"), (1, 1, "ranked"), (2, 1, "casual ranked")];
    assert_eq!(
        *seen.lock().unwrap(),
        expected.map(|(revision, profiles, queues)| (revision, profiles, queues.to_owned()))
    );
    assert_eq!(definitions.active().queues["casual"].tags, ["beta"]);
    assert_eq!(definitions.active().queues["casual"].max_party, 3);

    let (versions, is_configured) = definitions.history(&ranked(), None, 10).await.unwrap();
    assert!(is_configured);
    assert_eq!(versions.len(), 1);
    let Definition { author, note, content, created_at, .. } = &versions[0];
    assert_eq!((author.as_str(), note.as_deref()), ("ada", Some("because")));
    assert_eq!(*content, Content::Text(FOUR.to_owned()));
    assert!(created_at.as_millis() > 1_700_000_000_000);

    // Another process finds it without a live message.
    let other = process(&db, FILE).await;
    assert_eq!(other.active().revision, 2);
    set(&definitions, key(DefinitionKind::Queue, "casual"), "").await.unwrap();
    assert!(other.tick().await.unwrap());
    assert_eq!(other.active().revision, 3);
    assert!(other.active().queues["casual"].tags.is_empty());
    assert!(!other.tick().await.unwrap());

    let text = "players = 2\nassigner = \"servers\"\nmax_wait = \"1m\"\nready_check = \"20s\"\n";
    set(&definitions, key(DefinitionKind::Profile, "ranked"), text).await.unwrap();
    assert!(other.tick().await.unwrap());
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(times(&other), [(seconds(60), seconds(20))]);
}

async fn text_with_a_mistake_is_refused_and_the_old_version_stays_active(place: &TestDatabase) {
    let db = database(place).await;
    let definitions = process(&db, FILE).await;
    let found = mistakes(set(&definitions, ranked(), "name = \"ranked\"\n[teams.side]\nmaxx = 1\n").await);
    assert!(found.iter().any(|mistake| mistake.starts_with("rule set ranked:3:1: ")), "{found:#?}");
    let profile = |name: &str| key(DefinitionKind::Profile, name);
    let found = mistakes(set(&definitions, profile("duel"), "players = 2\nassigner = \"none\"\n").await);
    assert_eq!(
        found,
        ["profile duel:2:1: matchmaking.profiles.duel.assigner: there is no [matchmaking.assigners.none]"]
    );
    let text = "function = \"rules\"\nrules = \"missing\"\nassigner = \"servers\"\nplayerz = 3\n";
    let found = mistakes(set(&definitions, profile("duel"), text).await);
    assert!(
        found[0]
            .starts_with("profile duel:2:1: matchmaking.profiles.duel.rules: there is no rule set missing")
    );
    assert!(found[1].contains("did you mean `matchmaking.profiles.duel.players`?"), "{found:#?}");
    let text = "function = \"rules\"\nrules = \"/etc/passwd\"\nassigner = \"servers\"\n";
    let found = mistakes(set(&definitions, profile("duel"), text).await);
    assert!(found[0].contains("store it with `playhouse rules set NAME FILE`"), "{found:#?}");
    for (time, expected) in
        [("500ms", "must be from 1s to 1d"), ("1h", "must not be longer than matchmaking.pending_timeout")]
    {
        let text = format!("players = 2\nassigner = \"servers\"\nready_check = {time:?}\n");
        let found = mistakes(set(&definitions, profile("duel"), &text).await);
        assert_eq!(found, [format!("profile duel:3:1: matchmaking.profiles.duel.ready_check: {expected}")]);
    }
    let queue = key(DefinitionKind::Queue, "casual");
    let found = mistakes(set(&definitions, queue, "ticket_ttl = \"2d\"\n").await);
    assert!(found[0].starts_with("queue casual:1:1: matchmaking.queues.casual.ticket_ttl: "), "{found:#?}");
    // What other definitions need cannot be removed.
    let found = mistakes(definitions.change(&change(ranked(), NewContent::Removed)).await);
    assert!(found[0].starts_with("profile ranked: there is no rule set ranked"), "{found:#?}");

    for (key, text) in [(profile("Duel"), "players = 2"), (profile("a.b"), "players = 2")] {
        assert!(admin::parse_key("profile", &key.name).is_err(), "{key}");
        assert!(matches!(set(&definitions, key, text).await, Err(DefinitionError::Mistakes(_))));
    }
    let large = set(&definitions, ranked(), &"#\n".repeat(200_000)).await.unwrap_err();
    assert_eq!(large.code(), base::Code::InvalidArgument);
    let dry = Change { dry_run: true, ..change(ranked(), NewContent::Text(FOUR.to_owned())) };
    assert!(definitions.change(&dry).await.unwrap().is_changed);
    assert_eq!(
        (definitions.active().revision, definitions.list().await.unwrap().0),
        (0, 0),
        "nothing was stored"
    );
}

async fn expected_version_must_be_the_current_one(place: &TestDatabase) {
    let db = database(place).await;
    let definitions = process(&db, FILE).await;
    let expecting = |expected, text: &str| Change {
        expected: Some(expected),
        ..change(ranked(), NewContent::Text(text.to_owned()))
    };
    assert_eq!(definitions.change(&expecting(0, FOUR)).await.unwrap().version, 1);
    let second = FOUR.replace("four", "five");
    let refused = definitions.change(&expecting(0, &second)).await.unwrap_err();
    assert!(matches!(refused, DefinitionError::Conflict { current: 1, expected: 0, .. }), "{refused:?}");
    assert_eq!(refused.code(), base::Code::Conflict);
    assert_eq!(definitions.change(&expecting(1, &second)).await.unwrap().version, 2);
}

/// Each writer adds a profile that the other one's change makes impossible.
async fn concurrent_changes_are_checked_against_earlier_ones(place: &TestDatabase) {
    let db = database(place).await;
    let (one, other) = (process(&db, FILE).await, process(&db, FILE).await);
    let squad = key(DefinitionKind::RuleSet, "squad");
    set(&one, squad.clone(), FOUR).await.unwrap();
    for round in 0..10 {
        let profile = key(DefinitionKind::Profile, &format!("squad-{round}"));
        let text = "function = \"rules\"\nrules = \"squad\"\nassigner = \"servers\"\n";
        let (remove, add) = (change(squad.clone(), NewContent::Removed), set(&other, profile.clone(), text));
        let (removed, added) = tokio::join!(one.change(&remove), add);
        assert!(removed.is_ok() != added.is_ok(), "{removed:?} {added:?}");
        let fresh = process(&db, FILE).await;
        assert!(fresh.rejected().is_none(), "{:?}", fresh.rejected());
        if removed.is_ok() {
            set(&one, squad.clone(), FOUR).await.unwrap();
        } else {
            one.change(&change(profile, NewContent::Removed)).await.unwrap();
        }
    }
    // Each of many changes gets a revision of its own.
    let names: Vec<DefinitionKey> = (0..12).map(|at| key(DefinitionKind::Queue, &format!("q{at}"))).collect();
    let before = one.list().await.unwrap().0;
    let all = names.iter().enumerate().map(|(at, name)| {
        let definitions = if at % 2 == 0 { &one } else { &other };
        async move {
            // Too many others may win.
            loop {
                match set(definitions, name.clone(), "tags = [\"a\"]\n").await {
                    Err(DefinitionError::Contended) => {}
                    done => return done.unwrap().revision,
                }
            }
        }
    });
    let mut revisions = futures::future::join_all(all).await;
    revisions.sort_unstable();
    assert_eq!(revisions, (before + 1..=before + 12).collect::<Vec<_>>());
    one.tick().await.unwrap();
    assert!(names.iter().all(|name| one.active().queues.contains_key(&name.name)));
}

async fn earlier_version_and_the_one_of_the_file_come_back(place: &TestDatabase) {
    let db = database(place).await;
    let definitions = process(&db, FILE).await;
    let profile = key(DefinitionKind::Profile, "ranked");
    definitions.change(&change(profile.clone(), NewContent::Removed)).await.unwrap();
    assert!(definitions.active().profiles.is_empty(), "also if the file has it");
    let removed = definitions.show(&profile, None).await.unwrap();
    assert_eq!((removed.version, removed.origin, removed.text), (1, "removed", None));
    let again = definitions.change(&change(profile.clone(), NewContent::Removed)).await.unwrap_err();
    assert_eq!(again.code(), base::Code::NotFound);
    let back = definitions.change(&change(profile.clone(), NewContent::Version(0))).await.unwrap();
    assert_eq!((back.version, definitions.active().profiles.len()), (2, 1));
    let shown = definitions.show(&profile, None).await.unwrap();
    assert_eq!((shown.version, shown.origin), (2, "file"));

    set(&definitions, ranked(), FOUR).await.unwrap();
    set(&definitions, ranked(), &FOUR.replace("four", "five")).await.unwrap();
    let back = definitions.change(&change(ranked(), NewContent::Version(1))).await.unwrap();
    assert_eq!(back.version, 3);
    assert_eq!(definitions.show(&ranked(), None).await.unwrap().text.unwrap(), FOUR);
    let unknown = definitions.change(&change(ranked(), NewContent::Version(9))).await.unwrap_err();
    assert!(unknown.to_string().contains("rule set ranked has no version 9"), "{unknown}");
    let unknown = change(key(DefinitionKind::Queue, "casual"), NewContent::Version(0));
    let unknown = definitions.change(&unknown).await.unwrap_err();
    assert_eq!(unknown.to_string(), "the configuration file has no queue casual");
}

async fn process_that_lacks_an_assigner_keeps_the_set_before(place: &TestDatabase) {
    let db = database(place).await;
    let definitions = process(&db, FILE).await;
    let poor = process(&db, "").await;
    let profile = key(DefinitionKind::Profile, "duel");
    set(&definitions, profile.clone(), "players = 2\nassigner = \"servers\"\n").await.unwrap();
    assert!(!poor.tick().await.unwrap());
    assert_eq!(poor.active().revision, 0);
    let rejected = poor.rejected().unwrap();
    assert!(rejected.revision == 1 && rejected.mistakes[0].contains("no [matchmaking.assigners.servers]"));
    // At its start it leaves out what it cannot use, and does not refuse to start.
    let restarted = process(&db, "").await;
    assert!(restarted.active().profiles.is_empty() && restarted.rejected().is_some());
    // What is wrong already does not keep an operator from changing other definitions.
    set(&restarted, key(DefinitionKind::Queue, "casual"), "").await.unwrap();
    restarted.change(&change(profile, NewContent::Removed)).await.unwrap();
    assert!(restarted.rejected().is_none());
    assert!(poor.tick().await.unwrap(), "it follows the next set that it can");
    assert!(poor.active().revision == 3 && poor.rejected().is_none());
}
