use std::collections::BTreeSet;
use std::time::Instant;

use futures::future::join_all;
use serde_json::json;
use sqlx::{ConnectOptions, Executor};
use testkit::{
    Database, FaultProxy, Folder, Nats, NatsCluster, Redis, SqlServer, eventually, free_port, need,
};

use super::*;

/// Lock rows per level: few, so that provisioning is fast.
pub(super) const BUCKETS: &str = "1000";

/// The servers of a fleet, private to one test.
pub(super) struct Fleet {
    pub(super) sql: SqlServer,
    pub(super) redis: Redis,
    pub(super) nats: Nats,
    pub(super) database: Database,
}

impl Fleet {
    pub(super) async fn start() -> Result<Self, testkit::Error> {
        let (sql, redis, nats) = tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private())?;
        let database = sql.database().await;
        Ok(Self { sql, redis, nats, database })
    }

    pub(super) fn run(&self, args: &[&str]) -> Program {
        playhouse(args)
            .env("PLAYHOUSE_DB_URL", self.database.url())
            .env("PLAYHOUSE_REDIS_URL", self.redis.url())
            .env("PLAYHOUSE_BUS_URL", self.nats.url())
            .env("PLAYHOUSE_LIFECYCLE_CHECK_INTERVAL", "100ms")
            .env("PLAYHOUSE_LOCKS_BUCKETS", BUCKETS)
            .env("PLAYHOUSE_IDENTITY_ISSUER", "none:")
    }

    pub(super) fn serve(&self, args: &[&str]) -> Program {
        let any_port = ["gateway", "service_api", "admin", "open_match"];
        let any_port =
            any_port.iter().flat_map(|name| ["--set".to_owned(), format!("listen.{name}=127.0.0.1:0")]);
        self.run(&["serve", "--print-addresses"]).args(any_port).args(args.iter().copied())
    }
}

/// Waits until exactly these parts are not ready.
async fn wait_for_unready_parts(admin: &str, parts: &[&str]) {
    let url = format!("http://{admin}/readyz");
    eventually(&format!("exactly {parts:?} are not ready"), PATIENCE, async || {
        let (status, report) = get(url.clone()).await;
        let states = report["parts"].as_object().unwrap();
        let found: Vec<&str> = states
            .iter()
            .filter(|(_, state)| state["ready"] != true)
            .map(|(name, _)| name.as_str())
            .collect();
        let status_fits = status == if parts.is_empty() { 200 } else { 503 };
        if found == parts && status_fits { Ok(()) } else { Err(report.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_migrates_starts_reports_outages_and_recovers() {
    let mut fleet = need!(Fleet::start().await);

    let (code, _, errors) = run(fleet.serve(&[])).await;
    assert_eq!(code, 1);
    assert!(errors.contains("Run `playhouse migrate`, or set db.migrate = true"), "{errors}");

    let migrations = join_all((0..5).map(|_| run(fleet.run(&["migrate"])))).await;
    assert!(migrations.iter().all(|(code, _, _)| *code == 0), "{migrations:?}");
    let applied =
        migrations.iter().filter(|(_, out, _)| out.contains("applied  db/0001_deployment_settings")).count();
    assert_eq!(applied, 1, "{migrations:?}");

    let (code, _, errors) = run(fleet.serve(&[])).await;
    assert_eq!(code, 1);
    assert!(
        errors.contains("the lock buckets do not exist yet, or not all of them; create them with `playhouse locks provision`"),
        "{errors}"
    );
    let (code, made, errors) = run(fleet.run(&["locks", "provision"])).await;
    assert!(code == 0 && made.starts_with("3,000 rows exist, 3,000 of them created now"), "{made}{errors}");

    let roles = ["gateway", "service-api", "matchmaking-frontend", "outbox-relay"];
    let all = roles.map(|role| fleet.serve(&["--roles", role]).start().unwrap());
    let [gateway, service_api, frontend, relay] = &all;
    for (process, own) in [
        (gateway, Some("gateway")),
        (service_api, Some("service_api")),
        (frontend, Some("open_match")),
        (relay, None),
    ] {
        let bound: BTreeSet<String> = addresses(process).await.into_keys().collect();
        let expected: BTreeSet<String> = own.into_iter().chain(["admin"]).map(str::to_owned).collect();
        assert_eq!(bound, expected, "a role binds only its own listener");
    }

    let gateway = addresses(gateway).await;
    let admin = gateway["admin"].as_str();
    wait_for_unready_parts(admin, &[]).await;
    fleet.sql.kill().await.unwrap();
    wait_for_unready_parts(admin, &["db"]).await;
    fleet.redis.kill().await.unwrap();
    wait_for_unready_parts(admin, &["db", "redis"]).await;
    fleet.nats.kill().await.unwrap();
    wait_for_unready_parts(admin, &["bus", "db", "redis"]).await;
    fleet.sql.start_again().await.unwrap();
    fleet.redis.start_again().await.unwrap();
    fleet.nats.start_again().await.unwrap();
    wait_for_unready_parts(admin, &[]).await;

    for running in all {
        running.sigterm();
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    }
}

/// A primary becomes a replica while processes are connected to it.
#[tokio::test(flavor = "multi_thread")]
async fn process_is_not_ready_while_its_database_is_read_only() {
    let fleet = need!(Fleet::start().await);
    let server: sqlx::mysql::MySqlConnectOptions = fleet.database.url().parse().unwrap();
    let mut root = server.connect().await.unwrap();
    // Root ignores `read_only`.
    let database: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut root).await.unwrap();
    root.execute("CREATE USER app@'127.0.0.1'; GRANT PROCESS ON *.* TO app@'127.0.0.1'").await.unwrap();
    let grant = format!("GRANT ALL ON `{database}`.* TO app@'127.0.0.1'");
    root.execute(sqlx::AssertSqlSafe(grant)).await.unwrap();
    let url = fleet.database.url().replace("root@", "app@");
    let serve =
        fleet.serve(&["--roles", "gateway", "--set", "db.migrate=true"]).env("PLAYHOUSE_DB_URL", &url);
    let running = serve.start().unwrap();
    let admin = addresses(&running).await["admin"].clone();
    wait_for_unready_parts(&admin, &[]).await;
    root.execute("SET GLOBAL read_only = 1").await.unwrap();
    wait_for_unready_parts(&admin, &["db"]).await;
    root.execute("SET GLOBAL read_only = 0").await.unwrap();
    wait_for_unready_parts(&admin, &[]).await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_migration_is_completed_by_the_next_run() {
    let sql = need!(SqlServer::shared().await);
    for round in 0..12_u32 {
        let database = sql.database().await;
        let migrate = || {
            playhouse(&["migrate"])
                .env("PLAYHOUSE_DB_URL", database.url())
                .env("PLAYHOUSE_REDIS_URL", "redis://unused")
                .env("PLAYHOUSE_BUS_URL", "nats://unused")
                .env("PLAYHOUSE_IDENTITY_ISSUER", "none:")
        };
        let running = migrate().start().unwrap();
        // Each round kills the migration later.
        tokio::time::sleep(Duration::from_millis(2 * u64::from(round))).await;
        running.kill();
        running.wait(PATIENCE).await;
        let (code, _, errors) = run(migrate()).await;
        assert_eq!(code, 0, "round {round}: {errors}");
        let (code, status, _) = run(migrate().arg("--dry-run")).await;
        assert_eq!(code, 0);
        assert!(
            status.contains("applied  db/0001_deployment_settings\n") && !status.contains("pending"),
            "{status}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn start_waits_for_a_late_store_and_fails_without_it() {
    let mut fleet = need!(Fleet::start().await);
    fleet.redis.kill().await.unwrap();
    let late = fleet.serve(&["--set", "db.migrate=true"]).start().unwrap();
    late.wait_for_line("not reachable yet", PATIENCE).await;
    fleet.redis.start_again().await.unwrap();
    addresses(&late).await;
    late.sigterm();
    assert_eq!(late.wait(PATIENCE).await.code(), Some(0));

    fleet.redis.kill().await.unwrap();
    let (code, out, errors) = run(fleet.serve(&["--set", "lifecycle.start_timeout=1s"])).await;
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(errors.contains("redis was not reachable within lifecycle.start_timeout (1s)"), "{errors}");
    assert!(errors.contains("refused"), "the cause is missing: {errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_starts_with_its_first_nats_seed_down() {
    let fleet = need!(Fleet::start().await);
    let mut cluster = need!(NatsCluster::start().await);
    let url = cluster.url();
    let on_cluster =
        |program: Program| program.env("PLAYHOUSE_BUS_URL", &url).env("PLAYHOUSE_BUS_REPLICAS", "3");
    // The first process creates the stream, which needs all servers.
    let first = on_cluster(fleet.serve(&["--set", "db.migrate=true"])).start().unwrap();
    addresses(&first).await;
    cluster.node(0).kill().await.unwrap();
    eventually("the other servers elect a leader", PATIENCE, async || cluster.leader_of("PLAYHOUSE").await)
        .await;
    let running = on_cluster(fleet.serve(&[])).start().unwrap();
    let at = addresses(&running).await;
    wait_for_unready_parts(&at["admin"], &[]).await;

    let (_, said, _) = run(on_cluster(fleet.run(&["doctor"]))).await;
    assert!(!said.contains(NatsCluster::USER.1), "a password is shown:\n{said}");
    let away = said.lines().find(|line| line.contains("does not answer"));
    assert!(away.is_some_and(|line| line.contains("warn  nats://game:***@127.0.0.1:")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_login_fails_the_start_at_once() {
    let fleet = need!(Fleet::start().await);
    let wrong = fleet.database.url().replace("root", "nobody");
    let started = Instant::now();
    let (code, _, errors) = run(fleet.serve(&[]).env("PLAYHOUSE_DB_URL", wrong)).await;
    assert_eq!(code, 1);
    assert!(errors.contains("check the user and password in db.url and the user's privileges"), "{errors}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// The connection is accepted but carries no data.
#[tokio::test(flavor = "multi_thread")]
async fn silent_store_fails_the_start_after_the_timeout() {
    let fleet = need!(Fleet::start().await);
    let proxy = FaultProxy::to(fleet.sql.addr()).await;
    proxy.half_open().await;
    let program = fleet
        .serve(&["--set", "lifecycle.start_timeout=1s", "--set", "db.acquire_timeout=1m"])
        .env("PLAYHOUSE_DB_URL", proxy.url(fleet.database.url()));
    let started = Instant::now();
    let (code, _, errors) = run(program).await;
    assert_eq!(code, 1);
    assert!(errors.contains("db was not reachable within lifecycle.start_timeout (1s)"), "{errors}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_stops_at_once() {
    let fleet = need!(Fleet::start().await);
    let running =
        fleet.serve(&["--set", "db.migrate=true", "--set", "lifecycle.drain_delay=20s"]).start().unwrap();
    let at = addresses(&running).await;
    running.sigterm();
    wait_for_unready_parts(&at["admin"], &["process"]).await;
    let (status, _) = get(format!("http://{}/healthz", at["gateway"])).await;
    assert_eq!(status, 200, "it stops serving before load balancers notice");
    let second = Instant::now();
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(3));
    assert!(second.elapsed() < Duration::from_secs(2), "{:?}", second.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_checks_every_store_and_says_what_to_do() {
    let fleet = need!(Fleet::start().await);
    let monitor = fleet.nats.monitor_url().unwrap();
    let doctor = || fleet.run(&["doctor"]).env("PLAYHOUSE_BUS_MONITOR_URL", &monitor);
    let (code, before, _) = run(doctor()).await;
    assert_eq!(code, 1, "{before}");
    for expected in [
        "FAIL  migrations are pending",
        "→ run `playhouse migrate`",
        "FAIL  the tables are missing",
        "ok    Redis",
        "ok    NATS",
        "ok    clock ",
    ] {
        assert!(before.contains(expected), "{expected}:\n{before}");
    }
    let (_, absent, _) = run(doctor().env("PLAYHOUSE_REDIS_URL", "redis://127.0.0.1:1")).await;
    assert!(absent.contains("FAIL  Redis cannot be reached"), "{absent}");

    let folder = Folder::fresh().unwrap();
    let data = format!("db.url=sqlite:{}", folder.path().join("x.db").display());
    let (code, fresh, _) = run(playhouse(&["doctor", "--set", &data])).await;
    assert_eq!(code, 1);
    assert!(fresh.contains("does not exist yet"), "{fresh}");
    let (code, pending, _) = run(playhouse(&["migrate", "--dry-run", "--set", &data])).await;
    assert_eq!(code, 1);
    assert!(pending.starts_with("pending  db/0001_deployment_settings\n"), "{pending}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a dry run created a file");
    assert_eq!(run(playhouse(&["migrate", "--set", &data])).await.0, 0);
    let (code, sound, _) = run(playhouse(&["doctor", "--set", &data])).await;
    assert_eq!(code, 0, "{sound}");
    assert!(sound.contains("0 failed, 0 warnings"), "{sound}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_routes_answer_503_until_the_stores_are_open() {
    // No process listens on these ports.
    let [admin, away] = [0, 1].map(|_| format!("127.0.0.1:{}", free_port().unwrap()));
    let any_port = ["gateway", "service_api", "open_match"].map(|name| format!("listen.{name}=127.0.0.1:0"));
    let stores = [
        format!("db.url=mysql://{away}/play"),
        format!("redis.url=redis://{away}"),
        format!("bus.url=nats://{away}"),
    ];
    let others = [format!("listen.admin={admin}"), "identity.issuer=none:".to_owned()];
    let sets = any_port.into_iter().chain(stores).chain(others).flat_map(|set| ["--set".to_owned(), set]);
    let running = playhouse(&["serve"]).args(sets).start().unwrap();
    eventually("the admin listener answers", PATIENCE, async || {
        let response = reqwest::get(format!("http://{admin}/healthz")).await;
        response.map(drop).map_err(|error| error.to_string())
    })
    .await;
    for path in ["/outbox", "/tickets", "/allocations", "/dlq", "/webhooks", "/locks/hot"] {
        let (status, problem) = shop::admin_get(format!("http://{admin}{path}")).await;
        assert_eq!(
            (status, &problem["detail"]),
            (503, &json!("This process is still starting; try again.")),
            "{path}"
        );
    }
    let issuer = reqwest::Client::new().post(format!("http://{admin}/issuer/tokens?user=ada"));
    let issuer = issuer.bearer_auth(shop::OPERATOR_TOKEN).send().await;
    assert_eq!(issuer.unwrap().status(), 503);
    assert_eq!(get(format!("http://{admin}/nowhere")).await.0, 404);
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}
