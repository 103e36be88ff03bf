use std::time::Instant;

use base::error::Coded;
use testkit::{FaultProxy, eventually, need};

use super::*;

/// Every call times out while the database is silent, and works again when it answers.
#[tokio::test(flavor = "multi_thread")]
async fn calls_time_out_while_the_database_is_silent() {
    let server = need!(SqlServer::mariadb().await);
    let database = server.database().await;
    let place = Place::Server(database);
    place.prepare().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let Place::Server(database) = &place else { unreachable!() };
    let url = DbUrl::MySql(proxy.url(database.url()).parse().unwrap());
    let config = Config { url, acquire_timeout: Duration::from_millis(500), ..place.config() };
    let db = Db::open(&config).await.unwrap();
    db.migrate(&[account::MIGRATIONS, outbox::MIGRATIONS]).await.unwrap();
    let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
    // The locks use their own connections: only the database is silent.
    let locks = LockManager::mysql(place.config().server().unwrap(), &options).await.unwrap();
    let accounts = Accounts::new(db.clone(), locks.clone(), outbox(&db), Clock::manual(NOW));
    let ada = accounts.sign_in(&sign_in("ada")).await.unwrap().user;
    proxy.half_open().await;
    let named = SignIn { display_name: Some("Ada".to_owned()), ..sign_in("ada") };
    for call in 0..8 {
        let (accounts, named) = (accounts.clone(), named.clone());
        let request = async move {
            match call {
                0 => accounts.sign_in(&named).await.map(drop),
                1 => accounts.user(ada.id).await.map(drop),
                2 => accounts.find("https://id.example.com", "ada").await.map(drop),
                3 => accounts.accounts(ada.id).await.map(drop),
                4 => accounts.audit(ada.id, 1).await.map(drop),
                5 => accounts.create_account(ada.id, "chess").await.map(drop),
                6 => accounts.link(ada.id, "i", "s", ACTOR).await,
                _ => accounts.erase(ada.id, ACTOR).await,
            }
        };
        let started = Instant::now();
        let timed = tokio::time::timeout(Duration::from_secs(5), request).await;
        let error = timed.unwrap_or_else(|_| panic!("call {call} does not time out")).unwrap_err();
        assert!(error.is_transient(), "call {call}: {error:?}");
        assert!(error.to_string().ends_with("try again"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(4), "call {call}: {:?}", started.elapsed());
    }
    proxy.pass().await;
    eventually("the database answers again", PATIENCE, || async {
        accounts.sign_in(&named).await.map_err(|error| base::error::chain(&error))
    })
    .await;
    accounts.erase(ada.id, ACTOR).await.unwrap();
}
