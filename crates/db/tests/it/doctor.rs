use base::finding::{Finding, Verdict};
use base::{Clock, Timestamp};
use testkit::{Flavour, need};

use super::*;

const SETS: &[db::Migrations] = &[db::MIGRATIONS];

fn failures(findings: &[Finding]) -> Vec<&str> {
    findings.iter().filter(|f| f.verdict == Verdict::Failure).map(|f| f.what.as_str()).collect()
}

#[tokio::test]
async fn a_sound_store_is_called_so_also_while_it_is_in_use() {
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
async fn what_endangers_data_is_found() {
    // The test kit's servers are fast because they do not sync.
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
async fn a_store_that_is_not_there_is_told_with_what_to_do() {
    let folder = Folder::fresh().unwrap();
    let absent = config(DbUrl::sqlite(folder.path().join("absent.db")));
    let findings = db::examine(&absent, SETS, &Clock::system()).await;
    assert!(findings[0].what.ends_with("does not exist yet"), "{findings:?}");
    assert!(!folder.path().join("absent.db").exists(), "looking must not create it");
    let closed = config(DbUrl::MySql("mysql://root@127.0.0.1:1/x".parse().unwrap()));
    let findings = db::examine(&closed, SETS, &Clock::system()).await;
    assert_eq!(failures(&findings).len(), 1, "{findings:?}");
}
