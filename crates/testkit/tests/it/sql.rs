//! MariaDB and MySQL: databases and faults.

use std::path::Path;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};
use testkit::{Database, Error, Flavour, SqlBuilder, SqlServer, eventually, need};
use tokio::time::timeout;

use crate::{DEADLINE, SILENCE};

async fn connect(database: &Database) -> MySqlConnection {
    MySqlConnection::connect(database.url()).await.unwrap()
}

async fn run(connection: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
}

async fn query(connection: &mut MySqlConnection, sql: &str) -> Result<String, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?.try_get(0)
}

/// Starts a private server of each available flavour, as `all_shared` does for shared ones.
async fn start_all(with: impl Fn(SqlBuilder) -> SqlBuilder) -> Result<Vec<SqlServer>, Error> {
    let mut all = vec![with(SqlServer::builder(Flavour::Mariadb)).start().await?];
    match with(SqlServer::builder(Flavour::Mysql)).start().await {
        Ok(server) => all.push(server),
        Err(Error::Missing { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(all)
}

async fn write_and_kill(server: &mut SqlServer) {
    let database = server.database().await;
    let mut connection = connect(&database).await;
    run(&mut connection, "CREATE TABLE t (n INT PRIMARY KEY) ENGINE=InnoDB").await;
    for n in 0..100 {
        run(&mut connection, &format!("INSERT INTO t VALUES ({n})")).await;
    }
    run(&mut connection, "BEGIN").await;
    run(&mut connection, "INSERT INTO t VALUES (1000)").await;
    let address = server.addr();
    server.kill().await.unwrap();
    assert!(query(&mut connection, "SELECT 1").await.is_err());

    server.start_again().await.unwrap();
    assert_eq!(server.addr(), address);
    let mut connection = connect(&database).await;
    assert_eq!(query(&mut connection, "SELECT CAST(COUNT(*) AS CHAR) FROM t").await.unwrap(), "100");

    run(&mut connection, "INSERT INTO t VALUES (100)").await;
    server.restart().await.unwrap();
    let mut connection = connect(&database).await;
    assert_eq!(query(&mut connection, "SELECT CAST(COUNT(*) AS CHAR) FROM t").await.unwrap(), "101");
}

#[tokio::test]
async fn databases_do_not_see_each_other() {
    for server in need!(SqlServer::all_shared().await) {
        let (one, two) = (server.database().await, server.database().await);
        assert_ne!(one.name(), two.name());
        let (mut in_one, mut in_two) = (connect(&one).await, connect(&two).await);
        run(&mut in_one, "CREATE TABLE t (n INT)").await;
        run(&mut in_one, "INSERT INTO t VALUES (1)").await;
        assert!(query(&mut in_two, "SELECT n FROM t").await.is_err());
    }
}

#[tokio::test]
async fn server_has_the_requested_flavour() {
    for server in need!(SqlServer::all_shared().await) {
        let database = server.database().await;
        let version = query(&mut connect(&database).await, "SELECT VERSION()").await.unwrap();
        assert_eq!(version.contains("MariaDB"), server.flavour() == Flavour::Mariadb, "{version}");
    }
}

#[tokio::test]
async fn text_is_stored_in_any_language() {
    for server in need!(SqlServer::all_shared().await) {
        let mut connection = connect(&server.database().await).await;
        assert_eq!(query(&mut connection, "SELECT @@character_set_server").await.unwrap(), "utf8mb4");
        run(&mut connection, "CREATE TABLE t (name VARCHAR(50))").await;
        run(&mut connection, "INSERT INTO t VALUES ('遊び場 🎲')").await;
        assert_eq!(query(&mut connection, "SELECT name FROM t").await.unwrap(), "遊び場 🎲");
    }
}

/// In a shared folder, starting servers would remove each other's temporary tables.
#[tokio::test]
async fn each_server_has_its_own_folder_for_temporary_tables() {
    for server in need!(start_all(|builder| builder).await) {
        let database = server.database().await;
        let folder = query(&mut connect(&database).await, "SELECT @@tmpdir").await.unwrap();
        assert!(Path::new(&folder).starts_with(server.folders()[0]), "{folder}");
    }
}

#[tokio::test]
async fn server_listens_on_a_socket_too() {
    for server in need!(start_all(|builder| builder).await) {
        let database = server.database().await;
        let options = MySqlConnectOptions::new().username("root").socket(database.socket().unwrap());
        let mut connection = options.database(database.name()).connect().await.unwrap();
        assert_eq!(query(&mut connection, "SELECT DATABASE()").await.unwrap(), database.name());
    }
}

#[tokio::test]
async fn kill_keeps_committed_data_only() {
    for mut server in need!(start_all(|builder| builder).await) {
        write_and_kill(&mut server).await;
    }
}

#[tokio::test]
async fn durable_server_writes_to_the_disk() {
    for mut server in need!(start_all(SqlBuilder::durable).await) {
        assert!(server.folders().iter().any(|folder| folder.starts_with(testkit::target_dir())));
        let database = server.database().await;
        let sql = "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)";
        assert_eq!(query(&mut connect(&database).await, sql).await.unwrap(), "1");
        write_and_kill(&mut server).await;
    }
}

#[tokio::test]
async fn paused_server_does_not_answer_until_resumed() {
    for mut server in need!(start_all(|builder| builder).await) {
        let database = server.database().await;
        let mut connection = connect(&database).await;
        server.pause().await.unwrap();
        assert!(timeout(SILENCE, query(&mut connection, "SELECT 1")).await.is_err());
        server.resume().unwrap();
        // A new connection, because a cancelled query makes the old one unusable.
        let answer = eventually("an answer", DEADLINE, || async {
            let answered = async { query(&mut connect(&database).await, "SELECT 'here'").await };
            timeout(Duration::from_secs(2), answered).await.ok()?.ok()
        });
        assert_eq!(answer.await, "here");
    }
}

#[tokio::test]
async fn failed_start_reports_the_cause() {
    let error = match SqlServer::builder(Flavour::Mariadb).arg("--no-such-option").start().await {
        Err(error @ Error::Missing { .. }) => return need!(Err(error)),
        other => other.unwrap_err().to_string(),
    };
    assert!(error.starts_with("mariadbd: did not start (exit status: "), "{error}");
    assert!(error.contains("no-such-option"), "{error}");
}
