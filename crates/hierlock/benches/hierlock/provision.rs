//! Creating a million rows: the provisioner, compared with a cross join of digits.

use std::time::Instant;

use hierlock::{Provisioner, create_tables};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Executor};
use testkit::bench::Report;
use testkit::{Flavour, SqlServer};

use super::add_row;
use super::worker::median;

/// With three levels, a little less than a million rows.
const BUCKETS: u32 = 333_333;
const TURNS: usize = 3;

pub(crate) async fn run(server: &SqlServer, report: &mut Report) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        ours.push(through_provision(server).await);
        theirs.push(by_cross_join(server).await);
    }
    let name = match server.flavour() {
        Flavour::Mariadb => "mariadb",
        Flavour::Mysql => "mysql",
    };
    let ratio = add_row(report, &format!("provision, {name}"), 2, median(ours), median(theirs), "cross join");
    report.measure(&format!("provision_{name}"), ratio);
}

async fn fresh(server: &SqlServer) -> (testkit::Database, MySqlConnectOptions) {
    let database = server.database().await;
    let options: MySqlConnectOptions = database.url().parse().unwrap();
    create_tables(&mut options.connect().await.unwrap()).await.unwrap();
    (database, options)
}

/// Returns the rows per second.
async fn through_provision(server: &SqlServer) -> f64 {
    let (_database, options) = fresh(server).await;
    let began = Instant::now();
    let created = Provisioner::new(options, BUCKETS).run(|_| ()).await.unwrap().created;
    assert_eq!(created, u64::from(BUCKETS) * 3);
    created as f64 / began.elapsed().as_secs_f64()
}

async fn by_cross_join(server: &SqlServer) -> f64 {
    let (_database, options) = fresh(server).await;
    let mut connection = options.connect().await.unwrap();
    let digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
        UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let began = Instant::now();
    let mut rows = 0;
    for level in 0..3 {
        let insert = format!(
            "INSERT INTO hier_lock_buckets (level, bucket) SELECT {level}, n FROM (
                SELECT f.d * 100000 + e.d * 10000 + d.d * 1000 + c.d * 100 + b.d * 10 + a.d AS n
                FROM {digits} a CROSS JOIN {digits} b CROSS JOIN {digits} c CROSS JOIN {digits} d CROSS JOIN {digits} e
                CROSS JOIN {digits} f) nums WHERE n < {BUCKETS}"
        );
        rows += connection.execute(sqlx::AssertSqlSafe(insert)).await.unwrap().rows_affected();
    }
    assert_eq!(rows, u64::from(BUCKETS) * 3);
    rows as f64 / began.elapsed().as_secs_f64()
}
