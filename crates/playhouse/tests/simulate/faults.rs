//! Three processes on MariaDB, Redis and NATS, which the simulator kills and restarts.

use testkit::{Nats, Redis, SqlServer, need};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn fleet_keeps_every_promise_while_its_processes_are_killed() {
    let servers = async { tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private()) };
    let (sql, redis, nats) = need!(servers.await);
    let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
    let config = fleet_config(&folder, database.url(), &redis.url(), &nats.url());
    let args = [
        "--processes",
        "3",
        "--config",
        &config,
        "--faults",
        "--players",
        "200",
        "--seed",
        "5",
        "--with",
        "arrival.over=8s",
        "--with",
        "drop.stock=60",
        "--with",
        "drop.batch=6",
        "--with",
        "faults.every=3s",
        "--with",
        "faults.down_for=1s",
        "--with",
        "matchmaking.patience=60s",
    ];
    let (code, text, report) = simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(report["outcomes"]["bought"], 60, "{text}");
    let marks = report["marks"].as_array().unwrap();
    for process in 1..=3 {
        let kill = format!("process {process} is killed");
        assert!(marks.iter().any(|mark| mark["what"] == kill.as_str()), "{kill}: {text}");
    }
}
