//! `playhouse locks`, and processes with other lock settings.

use hierlock::{LockManager, Options, Target};
use testkit::{Database, Flavour, OutputStream, SqlServer, eventually, need};

use super::fleet::{BUCKETS, Fleet};
use super::*;

/// A command that uses only a database.
fn on(database: &Database, buckets: &str, args: &[&str]) -> Program {
    playhouse(args)
        .env("PLAYHOUSE_DB_URL", database.url())
        .env("PLAYHOUSE_REDIS_URL", "redis://unused")
        .env("PLAYHOUSE_BUS_URL", "nats://unused")
        .env("PLAYHOUSE_IDENTITY_ISSUER", "none:")
        .env("PLAYHOUSE_LOCKS_BUCKETS", buckets)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_provision_count_and_complete_the_rows() {
    for server in need!(SqlServer::all_shared().await) {
        let database = server.database().await;
        let locks = async |buckets: &str, args: &[&str]| {
            run(on(&database, buckets, &["locks"]).args(args.iter().copied())).await
        };
        let (code, _, errors) = locks(BUCKETS, &["provision"]).await;
        assert_eq!(code, 1);
        assert!(
            errors.contains("the lock tables are missing; create them with `playhouse migrate`"),
            "{errors}"
        );
        assert_eq!(run(on(&database, BUCKETS, &["migrate"])).await.0, 0);
        let (_, doctor, _) = run(on(&database, BUCKETS, &["doctor"])).await;
        let what_to_do = "FAIL  no buckets have been created yet\n        → run `playhouse locks provision`";
        assert!(doctor.contains(what_to_do), "{doctor}");
        let (code, none, _) = locks(BUCKETS, &["status"]).await;
        assert!(code == 1 && none.contains("The lock rows do not exist yet"), "{none}");

        let (code, made, progress) = locks(BUCKETS, &["provision"]).await;
        assert!(code == 0 && made.starts_with("3,000 rows exist, 3,000 of them created now"), "{made}");
        assert!(
            progress.contains("100 %  3,000 of 3,000 rows") && progress.contains("ETA 0 s"),
            "{progress}"
        );
        let (code, again, _) = locks(BUCKETS, &["provision"]).await;
        assert_eq!((code, again.as_str()), (0, "Nothing to do: all 3,000 rows exist.\n"));
        let (code, status, _) = locks(BUCKETS, &["status"]).await;
        assert!(code == 0 && status.contains("1000 buckets by fnv1a32-lengths per level"), "{status}");
        assert!(status.ends_with("\nComplete.\n"), "{status}");

        let (code, _, fewer) = locks("999", &["provision"]).await;
        assert!(code == 1 && fewer.contains("buckets are never removed"), "{fewer}");
        let (code, status, _) = locks("999", &["status"]).await;
        assert!(code == 1 && status.contains("a process with it does not start"), "{status}");

        delete(&database, "level = 1 AND bucket IN (7, 8, 900)").await;
        let (code, status, _) = locks(BUCKETS, &["status"]).await;
        assert!(code == 1 && status.contains("Not complete"), "{status}");
        let account = status.lines().find(|line| line.starts_with("account")).unwrap();
        assert_eq!(account.split_whitespace().collect::<Vec<_>>(), ["account", "997", "3", "7"]);
        let (code, made, _) = locks(BUCKETS, &["provision", "--rows-per-second", "1000"]).await;
        assert!(code == 0 && made.contains("3 of them created now"), "{made}");

        let (code, matrix, _) = locks(BUCKETS, &["matrix"]).await;
        assert_eq!(code, 0, "{matrix}");
        let verdict =
            "196 pairs, 54 wait, all as the rules say; the server's own tables show 54 of the waits\n";
        assert!(matrix.ends_with(verdict), "{matrix}");
    }
}

async fn delete(database: &Database, rows: &str) {
    let text = sqlx::AssertSqlSafe(format!("DELETE FROM hier_lock_buckets WHERE {rows}"));
    let options: sqlx::mysql::MySqlConnectOptions = database.url().parse().unwrap();
    let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
    sqlx::raw_sql(text).execute(&mut connection).await.unwrap();
}

/// Provisioning is killed three times. The next run continues from the rows it finds and leaves no gap.
///
/// `PLAYHOUSE_TEST_BUCKETS=10000000` runs it at full size, which takes a few minutes.
#[tokio::test(flavor = "multi_thread")]
async fn killed_provisioning_is_completed_without_gaps() {
    let buckets = std::env::var("PLAYHOUSE_TEST_BUCKETS").unwrap_or_else(|_| "200000".to_owned());
    let total = 3 * buckets.parse::<u64>().unwrap();
    let server =
        SqlServer::builder(Flavour::Mariadb).durable().arg("--innodb-buffer-pool-size=1G").start().await;
    let server = need!(server);
    let database = server.database().await;
    let (code, _, errors) = run(on(&database, &buckets, &["migrate"])).await;
    assert_eq!(code, 0, "{errors}");
    let provision = || on(&database, &buckets, &["locks", "provision"]);
    let options: sqlx::mysql::MySqlConnectOptions = database.url().parse().unwrap();
    for round in 1..=3 {
        // Slow enough that a busy machine can kill it before it ends.
        let running = provision().args(["--rows-per-second", &(total / 10).to_string()]).start().unwrap();
        eventually(&format!("round {round} has created its share of rows"), PATIENCE * 10, || async {
            let status = hierlock::Provisioner::status(options.clone()).await.unwrap();
            let present: u64 =
                status.iter().flat_map(|status| &status.levels).map(|level| level.present).sum();
            if present >= total * round / 5 { Ok(()) } else { Err(format!("{present} of {total}")) }
        })
        .await;
        running.kill();
        running.wait(PATIENCE).await;
        let (code, status, _) = run(on(&database, &buckets, &["locks", "status"])).await;
        assert!(code == 1 && status.contains("Not complete"), "round {round}: {status}");
    }
    let last = provision().start().unwrap();
    assert!(last.wait(PATIENCE * 20).await.success(), "{}", last.text(OutputStream::Stderr));
    let said = last.text(OutputStream::Stdout);
    assert!(said.contains(" of them created now"), "{said}");
    assert!(last.text(OutputStream::Stderr).contains(" rows  "), "no progress was printed");
    let (code, status, _) = run(on(&database, &buckets, &["locks", "status"])).await;
    assert!(code == 0 && status.ends_with("\nComplete.\n"), "{said}{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_with_other_lock_settings_does_not_start() {
    let fleet = need!(Fleet::start().await);
    assert_eq!(run(fleet.run(&["migrate"])).await.0, 0);
    assert_eq!(run(fleet.run(&["locks", "provision"])).await.0, 0);
    let (code, _, errors) = run(fleet.serve(&["--set", "locks.buckets=1001"])).await;
    assert_eq!(code, 1);
    assert!(errors.contains("the database has 1000 buckets") && errors.contains("1001 buckets"), "{errors}");
    // Nor with db.migrate, which creates missing rows but changes no row in use.
    let running = fleet.serve(&["--set", "db.migrate=true"]).start().unwrap();
    addresses(&running).await;
    let more = fleet.serve(&["--set", "locks.buckets=2000", "--set", "db.migrate=true"]);
    let (code, _, errors) = run(more).await;
    assert!(code == 1 && errors.contains("stop all processes first"), "{errors}");
    let (code, doctor, _) = run(fleet.run(&["doctor", "--set", "locks.buckets=1001"])).await;
    assert!(code == 1 && doctor.contains("→ set locks.buckets to the number in the database"), "{doctor}");
    let (_, doctor, _) = run(fleet.run(&["doctor"])).await;
    assert!(
        doctor.contains("ok    1000 buckets by fnv1a32-lengths, as this process is configured"),
        "{doctor}"
    );
    assert!(doctor.contains("ok    all buckets were created"), "{doctor}");
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_sees_lock_waits() {
    let fleet = need!(Fleet::start().await);
    let running = fleet.serve(&["--set", "db.migrate=true"]).start().unwrap();
    let admin = format!("http://{}", addresses(&running).await["admin"]);
    let (code, hot, _) = run(fleet.run(&["locks", "hot", "--admin", &admin])).await;
    assert!(code == 0 && hot.matches("  none\n").count() == 2, "{hot}");

    let options = Options { buckets: BUCKETS.parse().unwrap(), ..Options::default() };
    let locks = LockManager::mysql(fleet.database.url().parse().unwrap(), &options).await.unwrap();
    let target = Target::account("celebrity", "main").unwrap();
    let held = locks.acquire(target).await.unwrap();
    let waiting = [0, 1].map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.acquire(target).await.unwrap().release().await.unwrap() })
    });
    let row = format!("account {:>13} {:>9}", target.bucket(options.buckets), 2);
    eventually("both waits are shown", PATIENCE, || async {
        let (_, hot, _) = run(fleet.run(&["locks", "hot", "--admin", &admin])).await;
        let behind = format!("  {}", held.session_id().unwrap());
        let seen = hot.lines().any(|line| line.contains(&row) && line.ends_with(&behind));
        if seen { Ok(()) } else { Err(hot) }
    })
    .await;
    let (code, waits, errors) = run(fleet.run(&["locks", "waits", "--admin", &admin])).await;
    assert_eq!(code, 0, "{errors}");
    let row = format!("  account {:>13} ", target.bucket(options.buckets));
    let shown: Vec<&str> = waits.lines().filter(|line| line.starts_with(&row)).collect();
    let holder = held.session_id().unwrap().to_string();
    let is_behind_holder = |line: &&str| {
        line.rsplit("  ").next().is_some_and(|blockers| blockers.split(", ").next() == Some(&*holder))
    };
    assert!(shown.len() == 2 && shown.iter().all(is_behind_holder), "{waits}");
    let url = format!("{admin}/locks/waits");
    let found: Value = reqwest::Client::new()
        .get(url)
        .bearer_auth(shop::OPERATOR_TOKEN)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(found["locks"], "server", "{found}");
    assert!(found["waits"][0]["since"].as_str().is_some_and(|since| since.ends_with(".000Z")), "{found}");
    held.release().await.unwrap();
    for task in waiting {
        task.await.unwrap();
    }
    let (code, hot, _) = run(fleet.run(&["locks", "hot", "--admin", "127.0.0.1:1"])).await;
    assert!(
        code == 0 && hot.contains("  none\n") && hot.contains("no process answers at http://127.0.0.1:1"),
        "{hot}"
    );
}

#[tokio::test]
async fn embedded_locks_need_no_rows_and_follow_the_matrix() {
    for command in ["provision", "status"] {
        let (code, said, _) = run(playhouse(&["locks", command])).await;
        assert!(code == 0 && said.contains("locks are in process"), "{said}");
    }
    let (code, matrix, _) = run(playhouse(&["locks", "matrix"])).await;
    assert_eq!(code, 0);
    insta::assert_snapshot!(matrix);
}

#[tokio::test]
async fn share_of_false_conflicts_is_predicted() {
    let simulate = ["locks", "simulate", "--ids", "200000", "--buckets", "50000", "--held", "500"];
    let (code, said, _) = run(playhouse(&simulate)).await;
    assert_eq!(code, 0);
    insta::assert_snapshot!(&said);
    let (code, by_setting, _) = run(playhouse(&[
        "locks",
        "simulate",
        "--ids",
        "200000",
        "--held",
        "500",
        "--set",
        "locks.buckets=50000",
    ]))
    .await;
    assert_eq!((code, by_setting), (0, said), "the configuration is not the default");
    // Values that would use up memory or time are refused at once.
    for wrong in [["--buckets", "0"], ["--buckets", "4000000000"], ["--ids", "1000000000000"]] {
        let args = ["locks", "simulate"].into_iter().chain((wrong[0] != "--ids").then_some("--ids=5"));
        let (code, _, errors) = run(playhouse(&args.chain(wrong).collect::<Vec<_>>())).await;
        assert!(code == 2 && errors.contains(&format!("{} is not in", wrong[1])), "{errors}");
    }
}
