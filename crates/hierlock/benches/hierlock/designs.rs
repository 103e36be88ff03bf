//! Compares three designs: a row per id, a row per id inserted on demand, fixed buckets.
//!
//! All three use the same naive client, so that the designs are compared and not the clients. hierlock uses the third design.

use sqlx::{ConnectOptions, Executor};
use testkit::SqlServer;
use testkit::bench::Report;

use super::add_row;
use super::worker::{LockDatabase, Method, PLAYERS, Targets};

const TABLE: &str =
    "CREATE TABLE hier_locks (lock_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY)
    ENGINE=InnoDB";

pub(crate) async fn run(server: &SqlServer, report: &mut Report) {
    let ahead = server.database().await;
    let ahead = LockDatabase::new(server, &ahead).await;
    let mut connection = ahead.options.connect().await.unwrap();
    connection.execute(TABLE).await.unwrap();
    for (prefix, suffix) in [("u:", ""), ("a:", "/main"), ("r:", "/main/item")] {
        let fill = format!(
            "INSERT INTO hier_locks (lock_key)
             SELECT CONCAT('{prefix}player-', seq, '{suffix}') FROM seq_0_to_{} ORDER BY 1",
            PLAYERS - 1
        );
        connection.execute(sqlx::AssertSqlSafe(fill)).await.unwrap();
    }
    let per_id = bytes(&mut connection, "hier_locks").await / f64::from(PLAYERS * 3);
    let per_bucket =
        bytes(&mut connection, "hier_lock_buckets").await / f64::from(super::worker::BUCKETS * 3);
    report.measure("bytes_per_id_row", per_id);
    report.measure("bytes_per_bucket_row", per_bucket);

    let demand = server.database().await;
    let demand = LockDatabase::new(server, &demand).await;
    demand.options.connect().await.unwrap().execute(TABLE).await.unwrap();
    for tasks in [1, 16] {
        let methods = [Method::Naive, Method::RowPerId].map(|method| (method, Targets::Anything));
        let found = ahead.compare(tasks, &methods).await;
        add_row(report, "buckets, naive client", tasks, found[0].rate, found[1].rate, "row per id");
        let methods = [Method::Naive, Method::InsertOnDemand].map(|method| (method, Targets::Anything));
        let found = demand.compare(tasks, &methods).await;
        add_row(report, "buckets, naive client", tasks, found[0].rate, found[1].rate, "insert on demand");
    }
}

async fn bytes(connection: &mut sqlx::MySqlConnection, table: &str) -> f64 {
    // The server's sizes are estimates, which ANALYZE updates.
    let analyze = format!("ANALYZE TABLE {table}");
    connection.execute(sqlx::AssertSqlSafe(analyze)).await.unwrap();
    let size: i64 = sqlx::query_scalar(
        "SELECT CAST(data_length AS SIGNED) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?",
    )
    .bind(table)
    .fetch_one(connection)
    .await
    .unwrap();
    size as f64
}
