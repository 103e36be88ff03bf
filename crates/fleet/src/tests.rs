//! The fleet on every kind of store: samples, the times of findings, and the screens.

use std::time::Duration;

use ::config::{Setting, Value as Configured};
use base::finding::Finding;
use base::id::ProcessId;
use base::{Clock, Timestamp};
use db::{Db, DbUrl, Migrations};
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use runtime::Metrics;
use screens::{Block, Cell, Figure, Measure, Tone, View};
use service::{
    Context, Menu, OpenError, Provided, Screen, ScreenRequest, Service, ServiceParts, ServiceStatus,
    Services, StatusError,
};
use testkit::TestDatabase;

use crate::figures::tests::figure;
use crate::registration::Registration;
use crate::store::{Row, samples};
use crate::{Fleet, MIGRATIONS, Sampler, Watch};

testkit::on_all_stores!(
    samples_of_all_processes_are_combined,
    old_samples_are_removed,
    oldest_process_remembers_since_when_a_finding_exists,
    overview_shows_findings_first_and_where_to_look,
    doctor_of_a_running_process_knows_all_migrations,
);

const PATIENCE: Duration = Duration::from_secs(10);

/// A service whose queue is never well.
struct Shop;

const SHOP: Services = Services(&[&Shop]);

impl Service for Shop {
    fn name(&self) -> &'static str {
        "shop"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn screens(&self) -> Vec<Screen> {
        let read = async |(): (), _: ScreenRequest| Ok(View::new());
        vec![Screen::listed(Menu::Sales, "/console/shop", "Shop", "Is it open?", read)]
    }

    fn figures(&self) -> Vec<Figure> {
        vec![figure("waiting", Measure::Gauge), figure("sold", Measure::Rate)]
    }

    fn status<'a>(&'a self, _: &'a Provided) -> BoxFuture<'a, Result<ServiceStatus, StatusError>> {
        let findings = vec![
            Finding::good("open"),
            Finding::warning("3 customers wait", "open another till"),
            Finding::failure("out of stock", "order more"),
        ];
        async { Ok(ServiceStatus { findings, leases: Vec::new() }) }.boxed()
    }

    fn open<'a>(&'a self, _: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { Ok(ServiceParts::default()) }.boxed_local()
    }
}

fn config(place: &TestDatabase) -> db::Config {
    let url = DbUrl::parse(&Configured::Text(place.url())).unwrap();
    db::Config { url, max_connections: 4, acquire_timeout: PATIENCE, migrate: false }
}

async fn open(place: &TestDatabase) -> (Db, Fleet) {
    let db = Db::open(&config(place)).await.unwrap();
    db.migrate(&[db::MIGRATIONS, MIGRATIONS]).await.unwrap();
    let expected = Setting::parse(&Configured::Word("gateway".to_owned())).unwrap();
    (db.clone(), Fleet::new(db, expected, SHOP, Provided::default()))
}

async fn register(db: &Db) -> ProcessId {
    let (id, version, roles, admin) =
        (ProcessId::generate(), "1", "gateway".to_owned(), "127.0.0.1:1".to_owned());
    let row = Row { id, version, roles, admin, heartbeat: PATIENCE };
    Registration::new(db.clone(), row).tick().await.unwrap();
    id
}

fn request() -> ScreenRequest {
    ScreenRequest { parameters: Default::default(), query: Default::default() }
}

async fn samples_of_all_processes_are_combined(place: &TestDatabase) {
    let (db, fleet) = open(place).await;
    let (waiting, sold): (Gauge, Counter) = Default::default();
    let metrics = Metrics::new("1");
    metrics.register(|registry| {
        registry.register("waiting", "x", waiting.clone());
        registry.register("sold", "x", sold.clone());
    });
    let sampler = |id| Sampler::new(db.clone(), id, metrics.clone(), SHOP.figures());
    let (one, two) = (sampler(ProcessId::generate()), sampler(ProcessId::generate()));
    sold.inc_by(1_000);
    for (process, gauge) in [(&one, 3), (&two, 4)] {
        waiting.set(gauge);
        process.tick().await.unwrap();
    }
    let now = db.now().await.unwrap();
    let first = samples::read(&db, Timestamp::from_millis(0)).await.unwrap();
    assert_eq!(first.len(), 2);
    assert!(first.iter().all(|sample| sample.figures.len() == 1), "the first sample has no rate: {first:?}");
    assert!(first.iter().all(|sample| sample.at.distance(now) < PATIENCE), "the clock of the store");

    sold.inc_by(5);
    tokio::time::sleep(Duration::from_millis(5)).await;
    one.tick().await.unwrap();
    let later = samples::read(&db, Timestamp::from_millis(0)).await.unwrap();
    let rates: Vec<f64> = later.iter().filter_map(|sample| sample.figures.get("sold").copied()).collect();
    assert!(rates.len() == 1 && rates[0] > 0.0, "{rates:?}");

    let since = Timestamp::from_millis(now.as_millis() - 30_000);
    let series = fleet.figures(since).await.unwrap();
    assert_eq!(series.keys().copied().collect::<Vec<_>>(), ["sold", "waiting"]);
    assert!((3..=4).contains(&series["waiting"].points.len()), "complete intervals only");
    db.close().await;
}

async fn old_samples_are_removed(place: &TestDatabase) {
    let (db, _) = open(place).await;
    samples::insert(&db, ProcessId::generate(), "{\"a\":1}").await.unwrap();
    samples::insert(&db, ProcessId::generate(), "not JSON").await.unwrap();
    assert_eq!(samples::read(&db, Timestamp::from_millis(0)).await.unwrap().len(), 1);
    assert_eq!(samples::remove_old(&db, PATIENCE).await.unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(samples::remove_old(&db, Duration::from_millis(1)).await.unwrap(), 2);
    assert_eq!(samples::remove_old(&db, Duration::ZERO).await.unwrap(), 0);
    db.close().await;
}

async fn oldest_process_remembers_since_when_a_finding_exists(place: &TestDatabase) {
    let (db, fleet) = open(place).await;
    let id = register(&db).await;
    // A process without a row is not the oldest.
    Watch::new(fleet.clone(), ProcessId::generate()).tick().await.unwrap();
    assert!(crate::store::findings::read(&db).await.unwrap().is_empty());

    let watch = Watch::new(fleet, id);
    watch.tick().await.unwrap();
    let first = crate::store::findings::read(&db).await.unwrap();
    assert_eq!(
        first.keys().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
        ["# customers wait", "out of stock"]
    );
    tokio::time::sleep(Duration::from_millis(20)).await;
    watch.tick().await.unwrap();
    assert_eq!(crate::store::findings::read(&db).await.unwrap(), first, "the time stays");

    tokio::time::sleep(Duration::from_millis(20)).await;
    let (kept, _) = first.first_key_value().unwrap();
    let absent = Duration::from_millis(10);
    crate::store::findings::record(&db, std::slice::from_ref(kept), absent).await.unwrap();
    let left = crate::store::findings::read(&db).await.unwrap();
    assert_eq!(left.keys().collect::<Vec<_>>(), [kept], "what is over is removed");
    db.close().await;
}

async fn overview_shows_findings_first_and_where_to_look(place: &TestDatabase) {
    let (db, fleet) = open(place).await;
    let id = register(&db).await;
    Watch::new(fleet.clone(), id).tick().await.unwrap();
    let provided = Provided::default();
    provided.put("fleet", fleet.clone()).unwrap();
    let screens = crate::console::screens();
    let view = screens[0].read(provided.clone(), request()).await.unwrap();
    let Block::Table(table) = &view.sections[0].blocks[0] else { panic!("{view:?}") };
    assert_eq!(table.rows.len(), 2, "{table:?}");
    let worst = &table.rows[0].cells;
    assert_eq!(worst[0], Cell::state(Tone::Bad, "Failure"));
    assert_eq!(worst[1], Cell::text("out of stock"));
    assert!(matches!(worst[2], Cell::Time(_)), "{worst:?}");
    assert_eq!(worst[3], Cell::text("order more"));
    assert_eq!(worst[4], Cell::link("Shop", "/console/shop"));
    let Block::Figures(figures) = &view.sections[1].blocks[0] else { panic!("{view:?}") };
    assert_eq!(figures[0].1, Cell::Number(1), "{figures:?}");
    assert!(matches!(view.sections[2].blocks[0], Block::Empty { .. }), "no samples yet");
    let again = screens[0].read(provided, request()).await.unwrap();
    assert_eq!(view, again, "a view of the same state is the same");
    db.close().await;
}

async fn doctor_of_a_running_process_knows_all_migrations(place: &TestDatabase) {
    let (db, _) = open(place).await;
    let findings = crate::doctor::examine_db(&db, &config(place), SHOP, &Clock::system()).await;
    assert!(!findings.is_empty());
    let about: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
    assert!(!about.iter().any(|what| what.contains("newer version")), "{about:?}");
    if db.dialect() == db::Dialect::MySql {
        assert!(about.contains(&"all migrations are applied"), "{about:?}");
    }
    db.close().await;
}
