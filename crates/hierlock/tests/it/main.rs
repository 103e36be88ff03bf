//! Locks on real servers and in process: one suite of promises over all of them.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod cancelling;
mod deadlocks;
mod errors;
mod fairness;
mod holders;
mod joining;
mod matrix;
mod measuring;
mod outages;
mod promises;
mod provisioning;
mod tokens;

use std::time::Duration;

use base::Clock;
use hierlock::{Locks, Options, Provision, Target, create_tables};
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use testkit::{Database, SqlServer};

/// For what happens sooner or later.
const PATIENCE: Duration = Duration::from_secs(20);
/// Few, so that provisioning takes no time.
const BUCKETS: u32 = 2_000;

/// MariaDB does not renew its tables of waits while many look at them, so tests that do take turns.
static LOOKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A fresh place for one test, on one of the stores.
enum Place {
    InProcess(Locks),
    MySql(Database),
}

impl Place {
    /// A database with tables and buckets.
    async fn on(server: &SqlServer) -> Self {
        let database = server.database().await;
        let options = database.url().parse().unwrap();
        provision(&options, BUCKETS).await;
        Self::MySql(database)
    }

    async fn locks(&self) -> Locks {
        self.locks_with(options()).await
    }

    /// The locks of another process, as it were: in process there is only one.
    async fn locks_with(&self, options: Options) -> Locks {
        match self {
            Self::InProcess(locks) => locks.clone(),
            Self::MySql(_) => Locks::mysql(self.options(), &options).await.unwrap(),
        }
    }

    fn options(&self) -> MySqlConnectOptions {
        match self {
            Self::InProcess(_) => panic!("there is no server"),
            Self::MySql(database) => database.url().parse().unwrap(),
        }
    }

    async fn connect(&self) -> MySqlConnection {
        self.options().connect().await.unwrap()
    }
}

impl Place {
    /// Sessions in this database, but for the one that asks.
    async fn sessions(&self) -> Vec<u64> {
        const OTHERS: &str = "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        sqlx::query_scalar(OTHERS).fetch_all(&mut self.connect().await).await.unwrap()
    }
}

fn options() -> Options {
    Options {
        wait_timeout: PATIENCE,
        buckets: BUCKETS,
        max_connections: 64,
        heartbeat: Duration::from_secs(2),
    }
}

async fn provision(database: &MySqlConnectOptions, buckets: u32) {
    create_tables(&mut database.connect().await.unwrap()).await.unwrap();
    Provision::new(database.clone(), buckets).run(|_| ()).await.unwrap();
}

/// A fresh place on every server that can be had here.
async fn servers() -> Result<Vec<Place>, testkit::Error> {
    let mut places = Vec::new();
    for server in SqlServer::all_shared().await? {
        places.push(Place::on(server).await);
    }
    Ok(places)
}

/// Makes locks of this process.
fn in_process() -> Locks {
    Locks::in_process(&options(), &Clock::system())
}

/// A fresh place on every store that can be had here.
async fn places() -> Result<Vec<Place>, testkit::Error> {
    let mut places = vec![Place::InProcess(in_process())];
    places.extend(servers().await?);
    Ok(places)
}

fn user(user: &str) -> Target<'_> {
    Target::user(user).unwrap()
}

fn account<'a>(user: &'a str, account: &'a str) -> Target<'a> {
    Target::account(user, account).unwrap()
}

fn resource<'a>(user: &'a str, account: &'a str, resource: &'a str) -> Target<'a> {
    Target::resource(user, account, resource).unwrap()
}

/// Whether the target can be had at once.
async fn is_free(locks: &Locks, target: Target<'_>) -> bool {
    match locks.within(Duration::from_millis(100)).acquire(target).await {
        Ok(lock) => {
            lock.release().await.unwrap();
            true
        }
        Err(hierlock::Error::Timeout(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// At the end of a test: nothing is held, nothing is waited for, and no connection is in use.
async fn assert_nothing_is_left(locks: &Locks) {
    testkit::eventually("nothing is left", PATIENCE, || async { locks.is_idle() }).await;
}
