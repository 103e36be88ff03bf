//! What `playhouse doctor` finds in the SQL store.

use base::finding::{Finding, Verdict};
use base::{Clock, Timestamp};
use testkit::{Flavour, need};

use super::*;

const SETS: &[db::Migrations] = &[db::MIGRATIONS];

fn failures(findings: &[Finding]) -> Vec<&str> {
    findings.iter().filter(|f| f.verdict == Verdict::Failure).map(|f| f.what.as_str()).collect()
}

#[tokio::test]
async fn healthy_store_has_no_findings_even_while_in_use() {
    let server = need!(SqlServer::builder(Flavour::Mariadb).durable().start().await);
    for place in [Place::sqlite().unwrap(), Place::Server(server.database().await)] {
        let db = place.open().await;
        db.migrate(SETS).await.unwrap();
        let findings = db::examine(&place.config(), SETS, &Clock::system()).await;
        assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:#?}");
        db.close().await;
    }
}

#[tokio::test]
async fn dangerous_settings_are_found() {
    // The test kit's servers do not sync to disk.
    let server = need!(SqlServer::private().await);
    let place = Place::Server(server.database().await);
    let late = Clock::manual(Timestamp::from_millis(0));
    let mut config = place.config();
    config.max_connections = 5000;
    let findings = db::examine(&config, SETS, &late).await;
    let text = format!("{findings:#?}");
    assert!(text.contains("innodb_flush_log_at_trx_commit = "), "{text}");
    assert!(text.contains("migrations are pending: db/0001_deployment_settings"), "{text}");
    assert!(text.contains("keep the clocks of all machines in step"), "{text}");
    assert!(text.contains("lower db.max_connections"), "{text}");
    assert_eq!(failures(&findings).len(), 2, "{text}");
}

#[tokio::test]
async fn missing_store_is_reported_with_advice() {
    let folder = Folder::fresh().unwrap();
    let absent = config(DbUrl::sqlite(folder.path().join("absent.db")));
    let findings = db::examine(&absent, SETS, &Clock::system()).await;
    assert!(findings[0].what.ends_with("does not exist yet"), "{findings:?}");
    assert!(!folder.path().join("absent.db").exists(), "the examination must not create it");
    let closed = config(DbUrl::MySql("mysql://root@127.0.0.1:1/x".parse().unwrap()));
    let findings = db::examine(&closed, SETS, &Clock::system()).await;
    assert_eq!(failures(&findings).len(), 1, "{findings:?}");
}
